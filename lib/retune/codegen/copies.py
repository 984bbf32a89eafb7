"""Iterations that get a copy of the loop's body, in which what depends on the iteration is settled.

`settle_choices`: a transform's stage states all rows of a small matrix in one expression, and
selects one by a loop variable. Once that loop is written out, each copy keeps only its row.

`peel_borders`: where data is padded, the first and the last tiles of a row read past the data, and
all others do not. With the former as copies of their own, the latter are straight code without
tests, in which neighbouring results share what they read; and in each copy the position is a
number, so that its masks are settled too. The same holds where a value is chosen by position, as
padding written out is: tiles that lie inside the data are copied by vectors.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from retune.codegen.passes.pipeline import simplify_indices
from retune.core.dims import is_fixed
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Const, Expr, Var, conjuncts, const, substitute, variables
from retune.ir.selections import conditions, position_masks
from retune.ir.simplify import Range, range_below, simplify
from retune.ir.stmt import (
    PEEL,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    loops,
    marked,
    rewrite,
    substitute_stmt,
    with_body,
)

_MOST_COPIES = 4
"""Iterations that are set apart at most; a loop with more of them stays as it is."""


def settle_choices(program: Program) -> Program:
    """No selection depends on unrolled loops alone: such loops are written out.

    Rewrite:
        for p in range(2):  # unroll
          for i: y[p, i] = select(p == 0, a[i] + b[i], a[i] - b[i])
        ->
        for i.0: y[0, i.0] = a[i.0] + b[i.0]
        for i.1: y[1, i.1] = a[i.1] - b[i.1]
    """
    chosen = _deciding_loops(program.body)
    if not chosen:
        return program

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or node.var not in chosen:
            return None
        return Seq(tuple(_copy(node, const(i), str(i)) for i in range(evaluate_int(node.extent))))

    body = rewrite(program.body, rule)
    return with_body(program, body)


def _deciding_loops(body: Stmt) -> set[Var]:
    unrolled = {n.var for n in loops(body) if n.kind == "unroll"}
    used = [variables(test) for block in blocks(body) for test in conditions(block.value)]
    return {var for own in used if own <= unrolled for var in own}


def peel_borders(program: Program) -> Program:
    """Loops noted `peel` without the iterations in which a guard or mask depends on the iteration.

    Rewrite, where the guard holds for x in 1..6:
        for x in range(8):  # peel=ends      B(0)  # where g(0)
          B(x)  # where g(x)             ->  for x.inside in range(6): B(x.inside + 1)
                                             B(7)  # where g(7)
    """
    ranges = {n.var: range_below(n.extent) for n in loops(program.body)}
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
    if not is_fixed(extent):
        return plain
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
    parts = [_copy(loop, const(i), str(i)) for i in range(first)]
    if last - first == 1:
        parts.append(_copy(loop, const(first), "inside"))
    elif last > first:
        var = Var(f"{loop.var.name}.inside")
        body = _copy(loop, var + first, "inside")
        parts.append(replace(plain, var=var, extent=const(last - first), body=body))
    parts += [_copy(loop, const(i), str(i)) for i in range(last, extent)]
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


def _copy(loop: For, value: Expr, mark: str) -> Stmt:
    """The body where the loop's variable is `value`; its blocks and loops are renamed by `mark`."""
    return marked(substitute_stmt(loop.body, {loop.var: value}), mark)
