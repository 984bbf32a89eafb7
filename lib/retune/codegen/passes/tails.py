"""Guards at the end of what tiles cover, where extents depend on sizes.

A tile that reaches past an extent has a guard for each result. Those that stay in registers or in
private memory may as well be calculated: what stores them has guards of its own.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.ir.expr import (
    Binary,
    Const,
    Expr,
    Var,
    all_of,
    conjuncts,
    loads,
    size_variables,
    variables,
)
from retune.ir.simplify import affine, simplify
from retune.ir.stmt import Block, For, Program, Stmt, paths, rewrite, with_body

_OWN = ("register", "private")
"""Memory that no other work-item sees."""


def whole_register_tiles(program: Program) -> Program:
    """Register tiles are calculated whole if any of their results is inside the extent.

    Rewrite, for a tile of four rows that is written out:
        for r in range(4):  # unroll
          acc[r] += x[t*4 + r]*w  # where t*4 + r < n    ->    ...  # where t*4 < n

    Only what is read from memory of its own, or for all results at once, may be read past an end.
    """
    relaxed = {
        block: guard
        for block, path in paths(program.body)
        if (guard := _relaxed(block, path)) != block.guard
    }
    if not relaxed:
        return program

    def rule(node: Stmt) -> Stmt | None:
        return replace(node, guard=relaxed[node]) if node in relaxed else None

    return with_body(program, rewrite(program.body, rule))


def _relaxed(block: Block, path: Sequence[For]) -> Expr | None:
    if block.guard is None or block.buffer.scope not in _OWN:
        return block.guard
    written_out = [n.var for n in path if n.kind in ("unroll", "vectorize") and not n.reduce]
    steps = {n.var for n in path if n.reduce}
    terms = [_at_start(t, block, written_out, steps) for t in conjuncts(block.guard)]
    return all_of(*dict.fromkeys(terms))


def _at_start(term: Expr, block: Block, written_out: Sequence[Var], steps: set[Var]) -> Expr:
    """The term for the first result of a tile, or as it is where it matters for each of them."""
    if not size_variables(term) or not isinstance(term, Binary) or term.op != "lt":
        return term
    own = variables(term)
    moving = [var for var in written_out if var in own]
    if not moving or own & steps or set(moving) & variables(term.b):
        return term
    read = [n for expr in (*block.indices, block.value) for n in loads(expr)]
    strange = (n for n in read if n.buffer.scope not in _OWN)
    if any(set(moving) & variables(i) for load in strange for i in load.indices):
        return term
    split = affine(simplify(term.a), moving)
    if split is None or not all(isinstance(c, Const) and c.value >= 0 for c in split[0].values()):
        return term
    return simplify(split[1]) < term.b
