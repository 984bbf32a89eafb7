"""Passes from a concrete program to one whose nests can be printed as kernels.

Each pass is Program -> Program, valid in, valid out; `lower.PASSES` is the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.codegen.source import Pack
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import (
    Buffer,
    Expr,
    Load,
    Redirection,
    Var,
    const,
    loads,
    substitute,
    variables,
)
from retune.ir.simplify import Range, Simplifying
from retune.ir.stmt import (
    For,
    Program,
    Stmt,
    expressions,
    loops,
    map_exprs,
    paths,
    rewrite,
    substitute_stmt,
    with_body,
)

_INNERMOST = {"vectorize": 1, "intrinsic": 2}
"""Loops whose elements lie side by side in a packed operand, lanes of a word each."""


def drop_unit_loops(program: Program) -> Program:
    """Loops of one iteration are gone; their variable is zero."""

    single = {n.var for n in loops(program.body) if n.extent == const(1)}
    if not single:
        return program

    def rule(node: Stmt) -> Stmt | None:
        return node.body if isinstance(node, For) and node.var in single else None

    body = substitute_stmt(rewrite(program.body, rule), dict.fromkeys(single, const(0)))
    return with_body(program, body)


def simplify_indices(program: Program) -> Program:
    """Every expression in normal form, guards and selections decided where loop ranges can."""
    extents = {loop.var: evaluate_int(loop.extent) for loop in loops(program.body)}
    ranges = {var: Range(0, extent - 1) for var, extent in extents.items()}
    return with_body(program, map_exprs(program.body, Simplifying(ranges)))


@dataclass(frozen=True, slots=True)
class GatherPack:
    """A constant operand laid out in the order of the loops that read it.

    `packed[loops] = source[indices(loops)]`, with loops from the outermost to the innermost.
    """

    shape: tuple[int, ...]
    """Shape of the source array."""
    extents: tuple[int, ...]
    loops: tuple[Var, ...]
    indices: tuple[Expr, ...]

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The packed copy of the one array: [product of extents], of its type.

        Raises: ValueError for an array of another size than `shape` says.
        """
        (array,) = arrays
        source = array.reshape(self.shape)
        env = {
            var: np.arange(extent).reshape([-1 if d == i else 1 for d in range(len(self.loops))])
            for i, (var, extent) in enumerate(zip(self.loops, self.extents, strict=True))
        }
        grids = tuple(
            np.clip(np.asarray(evaluate(i, env)), 0, n - 1)  # past the end only behind a guard
            for i, n in zip(self.indices, self.shape, strict=True)
        )
        gathered = np.broadcast_to(source[grids], self.extents)
        return np.ascontiguousarray(gathered).reshape(-1)


def pack_constants(parts: Sequence[Program]) -> tuple[list[Program], dict[str, Pack]]:
    """Packed operands become buffers indexed by loop variables alone; their packs by name.

    `parts` are the nests of one program, which share its constants: one that they do not all read
    in one order stays as it is, and is packed no longer.
    """
    packs: dict[str, Pack] = {}
    made = list(parts)
    names = dict.fromkeys(name for part in parts for name in part.packed)
    for name in names:
        found = [_reads_of(part, name) for part in made]
        reads = [read for own in found for read in own]
        if reads and all(read.order == reads[0].order for read in reads[1:]):
            packs[name], packed = reads[0].pack, reads[0].packed.buffer
            made = [_repoint(part, packed, own) for part, own in zip(made, found, strict=True)]
    return [replace(p, packed=tuple(n for n in p.packed if n in packs)) for p in made], packs


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a constant, and the loops that choose its elements, from the outermost."""

    load: Load
    loops: tuple[For, ...]

    @property
    def pack(self) -> GatherPack:
        """The constant in the order of this read."""
        return GatherPack(
            tuple(evaluate_int(e) for e in self.load.buffer.shape),
            tuple(evaluate_int(loop.extent) for loop in self.loops),
            tuple(loop.var for loop in self.loops),
            self.load.indices,
        )

    @property
    def order(self) -> object:
        """Equal for reads of one order, whatever the names of their loops."""
        places: dict[Var, Expr] = {loop.var: Var(str(n)) for n, loop in enumerate(self.loops)}
        return self.pack.extents, tuple(substitute(i, places) for i in self.load.indices)

    @property
    def packed(self) -> Load:
        """The same element of the packed constant."""
        old = self.load.buffer
        shape = tuple(loop.extent for loop in self.loops)
        return Load(
            Buffer(old.name, shape, old.dtype, old.scope), tuple(loop.var for loop in self.loops)
        )


def _reads_of(part: Program, name: str) -> list[_Read]:
    return [
        _read(load, path)
        for block, path in paths(part.body)
        for expr in expressions(block)
        for load in loads(expr)
        if _is_constant(load, name)
    ]


def _is_constant(load: Load, name: str) -> bool:
    """Whether it reads that constant: a stage that moved into a loop is none any more."""
    return load.buffer.name == name and load.buffer.scope == "constant"


def _read(load: Load, path: Sequence[For]) -> _Read:
    used = {v for i in load.indices for v in variables(i)}
    around = sorted(
        (loop for loop in path if loop.var in used), key=lambda n: _INNERMOST.get(n.kind, 0)
    )
    return _Read(load, tuple(around))


def _repoint(part: Program, packed: Buffer, reads: Sequence[_Read]) -> Program:
    """The nest, which reads the packed constant in place of the one of that name."""
    swapped = {read.load: read.packed for read in reads}
    body = map_exprs(part.body, Redirection(swapped.get))
    inputs = tuple(packed if b.name == packed.name else b for b in part.inputs)
    return replace(with_body(part, body), inputs=inputs)
