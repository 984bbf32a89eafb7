"""Constants: stages that numpy computes at compile time, and the order in which kernels read them.

A scratch buffer of scope `constant` is written by such a stage. Its nest becomes no kernel; what
reads it gets an array that was made, in numpy, from the constants behind it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from retune.codegen.source import Pack
from retune.intrinsics import Intrinsic, intrinsic
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import (
    Buffer,
    Expr,
    Load,
    Redirection,
    Var,
    const,
    loads,
    size_variables,
    substitute,
    variables,
)
from retune.ir.interp import run_program
from retune.ir.selections import conditions
from retune.ir.stmt import (
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    expressions,
    is_compile_time,
    map_exprs,
    paths,
    with_body,
)

_INNERMOST = {"vectorize": 1, "intrinsic": 2}
"""Loops whose elements lie side by side in a packed operand, lanes of a word each."""
_ITEMS = "local.1"
"""Items of a warp that have columns of their own: what they read at once lies side by side."""

_KEPT = 4
"""Constants that stay computed: tens of megabytes each."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A constant that stages compute from others. `apply` takes those in the order of `inputs`."""

    nests: tuple[Stmt, ...]
    """The stages, producers first."""
    inputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    result: Buffer
    order: Pack | None = None
    """How the result is packed, where a kernel wants it in its own order."""

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The constant, flat, in the order in which it is read: [elements of its buffer]."""
        made = _evaluated(replace(self, order=None), tuple(map(_Given, arrays)))
        return made.reshape(-1) if self.order is None else self.order.apply(made)


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """An array that is the same as another one only if it is that one."""

    array: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Given) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


@lru_cache(maxsize=_KEPT)
def _evaluated(constant: Computed, given: tuple[_Given, ...]) -> np.ndarray:
    """The constant in its own shape. Candidates of one task share it, whatever order they want."""
    arrays = {
        buffer.name: entry.array.reshape([evaluate_int(e) for e in buffer.shape])
        for buffer, entry in zip(constant.inputs, given, strict=True)
    }
    program = Program(
        name="constants",
        inputs=constant.inputs,
        outputs=(constant.result,),
        scratch=constant.scratch,
        body=Seq(constant.nests),
    )
    made = run_program(program, arrays, _deciding(constant.nests))[constant.result.name]
    made.setflags(write=False)
    return made


def computed_constants(program: Program) -> dict[str, Computed]:
    """What the program's compile-time stages compute, by the names of their buffers."""
    known: dict[Buffer, tuple[Stmt, ...]] = {}
    found: dict[str, Computed] = {}
    for root in program.body.stmts:
        buffer = blocks(root)[0].buffer
        if not is_compile_time(root):
            continue
        read = {load.buffer for b in blocks(root) for load in loads(b.value)}
        before = {s: None for r in known if r in read for s in known[r]}
        known[buffer] = (*before, root)
        touched = {load.buffer for s in known[buffer] for b in blocks(s) for load in loads(b.value)}
        found[buffer.name] = Computed(
            known[buffer],
            tuple(b for b in program.inputs if b in touched),
            tuple(b for b in known if b in touched and b != buffer),
            buffer,
        )
    return found


def packed(computed: Mapping[str, Computed], packs: Mapping[str, Pack]) -> dict[str, Pack]:
    """All packs: those of computed constants after their computation."""
    chained = {n: replace(c, order=packs.get(n)) for n, c in computed.items()}
    return {**packs, **chained}


def _deciding(nests: Sequence[Stmt]) -> set[Var]:
    """The variables that choose among the rows of a transform: each chosen formula is short."""
    tests = (t for nest in nests for block in blocks(nest) for t in conditions(block.value))
    return {var for test in tests for var in variables(test)}


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
        if any(read.sized for read in reads):
            continue
        if reads and all(read.order == reads[0].order for read in reads[1:]):
            packs[name], packed = reads[0].pack, reads[0].packed.buffer
            made = [_repoint(part, packed, own) for part, own in zip(made, found, strict=True)]
    return [replace(p, packed=tuple(n for n in p.packed if n in packs)) for p in made], packs


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a constant, and the loops that choose its elements, from the outermost.

    Some may be parts of those that there are.
    """

    load: Load
    loops: tuple[For, ...]
    places: tuple[Expr, ...]
    """Of each loop: where it is, by the variables that there are."""
    indices: tuple[Expr, ...]
    """What is read, by the variables of the loops."""

    @property
    def sized(self) -> bool:
        """Whether its order is another one for each size, as where an axis is fused with a batch:
        constants do not depend on sizes."""
        extents = (loop.extent for loop in self.loops)
        return any(map(size_variables, (*extents, *self.indices)))

    @property
    def pack(self) -> GatherPack:
        """The constant in the order of this read."""
        return GatherPack(
            tuple(evaluate_int(e) for e in self.load.buffer.shape),
            tuple(evaluate_int(loop.extent) for loop in self.loops),
            tuple(loop.var for loop in self.loops),
            self.indices,
        )

    @property
    def order(self) -> object:
        """Equal for reads of one order, whatever the names of their loops."""
        places: dict[Var, Expr] = {loop.var: Var(str(n)) for n, loop in enumerate(self.loops)}
        return self.pack.extents, tuple(substitute(i, places) for i in self.indices)

    @property
    def packed(self) -> Load:
        """The same element of the packed constant."""
        old = self.load.buffer
        shape = tuple(loop.extent for loop in self.loops)
        return Load(Buffer(old.name, shape, old.dtype, old.scope), self.places)


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
    own = [loop for loop in path if loop.var in used]
    around = sorted(own, key=lambda n: _INNERMOST.get(n.kind, 0))
    read = _Read(load, tuple(around), tuple(loop.var for loop in around), load.indices)
    entry = next((intrinsic(loop.intrinsic) for loop in path if loop.intrinsic), None)
    return read if entry is None or entry.warp is None else _by_items(read, entry)


def _by_items(read: _Read, entry: Intrinsic) -> _Read:
    """What all items of a warp read at once lies side by side, in the order of the items.

    An item reads several packs along the steps, see `Fragment`: the first one of each item comes
    first, then the second ones. Items along local.0 are the innermost ones.
    """
    share = len(entry.operands[1].fragment.steps) if entry.operands[1].fragment else 1
    items = [loop for loop in read.loops if loop.kind == _ITEMS]
    others = [loop for loop in read.loops if loop.kind != _ITEMS]
    number, steps = next((n, x) for n, x in enumerate(others) if x.kind == "intrinsic")
    if not items or evaluate_int(steps.extent) % share:
        return read
    own, part = Var(f"{steps.var.name}.item"), Var(f"{steps.var.name}.share")
    loops = [
        *others[:number],
        replace(steps, var=part, extent=const(share)),
        *items,
        replace(steps, var=own, extent=const(evaluate_int(steps.extent) // share)),
        *others[number + 1 :],
    ]
    places: dict[Var, Expr] = {part: steps.var % share, own: steps.var // share}
    chosen: dict[Var, Expr] = {steps.var: own * share + part}
    return _Read(
        read.load,
        tuple(loops),
        tuple(places.get(loop.var, loop.var) for loop in loops),
        tuple(substitute(i, chosen) for i in read.load.indices),
    )


def _repoint(part: Program, packed: Buffer, reads: Sequence[_Read]) -> Program:
    """The nest, which reads the packed constant in place of the one of that name."""
    swapped = {read.load: read.packed for read in reads}
    body = map_exprs(part.body, Redirection(swapped.get))
    inputs = tuple(packed if b.name == packed.name else b for b in part.inputs)
    return replace(with_body(part, body), inputs=inputs)
