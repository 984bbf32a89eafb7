"""Passes from a concrete program to one whose nests can be printed as kernels.

Each pass is Program -> Program, valid in, valid out; `lower.PASSES` is the order.
"""

from dataclasses import dataclass, replace

import numpy as np

from retune.codegen.source import Pack
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import Buffer, Const, Expr, Load, Var, const, loads, transform, variables
from retune.ir.reduction import path_to
from retune.ir.simplify import Range, simplify_select
from retune.ir.stmt import (
    Barrier,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    map_exprs,
    rewrite,
    substitute_stmt,
    walk,
    with_body,
)

_INNERMOST = {"vectorize": 1, "dot4": 2}
"""Loops whose elements lie side by side in a packed operand, lanes of four bytes each."""


def drop_unit_loops(program: Program) -> Program:
    """Loops of one iteration are gone; their variable is zero."""

    single = {n.var for n in walk(program.body) if isinstance(n, For) and n.extent == const(1)}
    if not single:
        return program

    def rule(node: Stmt) -> Stmt | None:
        return node.body if isinstance(node, For) and node.var in single else None

    body = substitute_stmt(rewrite(program.body, rule), dict.fromkeys(single, const(0)))
    return with_body(program, body)


def simplify_indices(program: Program) -> Program:
    """Every expression in normal form, guards and selections decided where loop ranges can."""
    return with_body(program, _simplify(program.body, {}))


def _simplify(stmt: Stmt, ranges: dict[Var, Range]) -> Stmt:
    match stmt:
        case Seq(stmts):
            return Seq(tuple(_simplify(s, ranges) for s in stmts))
        case For():
            extent = evaluate_int(stmt.extent)
            inner = {**ranges, stmt.var: Range(0, extent - 1)}
            return replace(stmt, extent=const(extent), body=_simplify(stmt.body, inner))
        case Block():
            guard = None if stmt.guard is None else simplify_select(stmt.guard, ranges)
            if isinstance(guard, Const) and guard.value:
                guard = None
            return replace(
                stmt,
                indices=tuple(simplify_select(i, ranges) for i in stmt.indices),
                value=simplify_select(stmt.value, ranges),
                guard=guard,
            )
        case Barrier():
            return stmt


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


def pack_constants(program: Program) -> tuple[Program, dict[str, Pack]]:
    """Packed operands become buffers indexed by loop variables alone; their packs by name."""
    packs: dict[str, Pack] = {}
    for name in program.packed:
        old = next(b for b in program.inputs if b.name == name)
        uses = [(b, node) for b in blocks(program.body) for node in _loads_of(b, old)]
        if not uses:
            continue  # another nest reads it
        block, load = uses[0]
        path = path_to(program.body, block) or []
        used = {v for i in load.indices for v in variables(i)}
        around = [loop for loop in path if loop.var in used]
        around.sort(key=lambda loop: _INNERMOST.get(loop.kind, 0))
        pack = GatherPack(
            tuple(evaluate_int(e) for e in old.shape),
            tuple(evaluate_int(loop.extent) for loop in around),
            tuple(loop.var for loop in around),
            load.indices,
        )
        new = Buffer(old.name, tuple(loop.extent for loop in around), old.dtype, old.scope)
        program = _repoint(program, old, new, tuple(loop.var for loop in around))
        packs[name] = pack
    return program, packs


def _loads_of(block: Block, buffer: Buffer) -> list[Load]:
    return [load for load in loads(block.value) if load.buffer == buffer]


def _repoint(program: Program, old: Buffer, new: Buffer, loops: tuple[Var, ...]) -> Program:
    def swap(expr: Expr) -> Expr | None:
        return Load(new, loops) if isinstance(expr, Load) and expr.buffer == old else None

    body = map_exprs(program.body, lambda e: transform(e, swap))
    inputs = tuple(new if b == old else b for b in program.inputs)
    return replace(with_body(program, body), inputs=inputs)
