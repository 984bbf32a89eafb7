"""Border tiles apart from inner ones: the loop over tiles keeps those that need no masks.

Where data is padded, the first and the last tiles of a row read past the data, and all others do
not. With the former as copies of their own, the latter are straight code without tests, in which
neighbouring results share what they read; and in each copy the position is a number, so that its
masks are settled too. The same holds where a value is chosen by position, as padding written out
is: tiles that lie inside the data are copied by vectors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from retune.codegen.copies import copy_body
from retune.codegen.passes import simplify_indices
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Const, Expr, Var, conjuncts, const, substitute, variables
from retune.ir.selections import position_masks
from retune.ir.simplify import Range, simplify
from retune.ir.stmt import (
    PEEL,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    loops,
    rewrite,
    with_body,
)

_MOST_COPIES = 4
"""Iterations that are set apart at most; a loop with more of them stays as it is."""


def peel_borders(program: Program) -> Program:
    """Loops noted `peel` without the iterations in which a guard or mask depends on the iteration.

    Rewrite, where the guard holds for x in 1..6:
        for x in range(8):  # peel=ends      B(0)  # where g(0)
          B(x)  # where g(x)             ->  for x.inside in range(6): B(x.inside + 1)
                                             B(7)  # where g(7)
    """
    ranges = {n.var: Range(0, evaluate_int(n.extent) - 1) for n in loops(program.body)}
    changed = False

    def rule(node: Stmt) -> Stmt | None:
        nonlocal changed
        if not isinstance(node, For) or PEEL not in dict(node.notes):
            return None
        changed = True
        return _peeled(node, ranges)

    body = rewrite(program.body, rule)
    program = with_body(program, body)
    return simplify_indices(program) if changed else program


def _peeled(loop: For, ranges: Mapping[Var, Range]) -> Stmt:
    extent = evaluate_int(loop.extent)
    plain = replace(loop, notes=tuple(n for n in loop.notes if n[0] != PEEL))
    guards = {c for b in blocks(loop) for c in _tests(b) if loop.var in variables(c)}
    first, last = 0, extent
    while first < last and not _hold(guards, loop.var, first, last, ranges):
        # The end at which a single iteration fails is the one to set apart.
        if not _hold(guards, loop.var, first, first + 1, ranges):
            first += 1
        elif not _hold(guards, loop.var, last - 1, last, ranges):
            last -= 1
        else:
            return plain
    if not 0 < first + extent - last <= _MOST_COPIES:
        return plain
    parts = [copy_body(loop, const(i), str(i)) for i in range(first)]
    if last - first == 1:
        parts.append(copy_body(loop, const(first), "inside"))
    elif last > first:
        var = Var(f"{loop.var.name}.inside")
        body = copy_body(loop, var + first, "inside")
        parts.append(replace(plain, var=var, extent=const(last - first), body=body))
    parts += [copy_body(loop, const(i), str(i)) for i in range(last, extent)]
    return Seq(tuple(parts))


def _tests(block: Block) -> Iterator[Expr]:
    """The block's guard, and the masks by which its value is chosen, in parts."""
    yield from conjuncts(block.guard)
    for mask in position_masks(block.value):
        yield from conjuncts(mask)


def _hold(guards: set[Expr], var: Var, first: int, last: int, ranges: Mapping[Var, Range]) -> bool:
    """Whether the guards are settled as true for all values in [first, last)."""
    inside = {**ranges, var: Range(0, last - first - 1)}
    settled = (simplify(substitute(g, {var: var + first}), inside) for g in guards)
    return all(isinstance(g, Const) and bool(g.value) for g in settled)
