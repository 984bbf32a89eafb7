"""Check that no two instances of a parallel loop write the same element.

Instances that store the same value to one element, as overlapping tiles do, disturb nobody. A sum
is another matter: what it adds to has to be one instance's own.
"""

from collections.abc import Iterator, Mapping, Sequence

from retune.core.errors import ScheduleError
from retune.ir.expr import Const, Expr, Var, binary, const, variables
from retune.ir.reduction import reads
from retune.ir.simplify import (
    Polynomial,
    Range,
    bounds,
    from_polynomial,
    polynomial,
    rejoined,
    simplify,
)
from retune.ir.stmt import Block, For, Program, block_variables, blocks, paths


def check_sums(who: str, program: Program) -> None:
    """Every sum in shared memory adds to elements that one parallel instance has for itself.

    Raises: ScheduleError, which begins with `who`, for a loop over work-groups, items or virtual
    threads two of whose iterations may add to one element.
    """
    for loop, block, path in _shared_sums(program):
        if not tells_apart(block.indices, path, loop.var):
            raise ScheduleError(
                f"{who}: iterations of {loop.var}, which run at once as {loop.kind}, may add to "
                f"the same element of {block.buffer} in {block.buffer.scope} memory; use "
                "cache_write and compute_at first, or tiles that do not overlap"
            )


def _shared_sums(program: Program) -> Iterator[tuple[For, Block, tuple[For, ...]]]:
    """Sums and the loops around them, for each one whose iterations see one another's elements."""
    for block, path in paths(program.body):
        for loop in path if block.reducer else ():
            parallel = loop.kind == "vthread" or loop.kind.startswith(("group", "local"))
            if parallel and _is_shared(program, block, loop):
                yield loop, block, path


def _is_shared(program: Program, block: Block, loop: For) -> bool:
    match block.buffer.scope:
        case "local":  # each group has its own; what no loop spreads, one item alone adds to
            return not loop.kind.startswith("group") and loop.var in block_variables(block)
        case "register" | "private":  # each item has its own, all of its virtual threads
            return loop.kind == "vthread" and not _used_inside_alone(program, block, loop)
        case _:
            return True


def _used_inside_alone(program: Program, block: Block, loop: For) -> bool:
    """Whether nothing outside the loop touches what the block writes."""
    inside = {b.name for b in blocks(loop.body)}
    return not any(
        b.buffer == block.buffer or reads(b, block.buffer)
        for b in blocks(program.body)
        if b.name not in inside
    )


def tells_apart(indices: Sequence[Expr], path: Sequence[For], var: Var) -> bool:
    """Whether an element `indices` has one value of `var` at most, of the loops of `path`.

    So it is where no tile is moved to overlap another one, or where some index is a number in mixed
    radix of which `var` is a digit: what is added to it stays below its step, and what is larger
    goes in multiples of its whole range.
    """
    if not any(var in variables(index) for index in indices):
        return False
    if not any(loop.shifted for loop in path):
        return True  # split and fused, each iteration keeps to its own elements
    extents = {loop.var: loop.extent for loop in path}
    return any(_is_digit(index, extents, var) for index in (*indices, *_joined(indices)))


def _joined(indices: Sequence[Expr]) -> Iterator[Expr]:
    """A fused loop that two indices share out: `f // n` and `f % n` are `f` together."""
    for high in indices:
        for low in indices:
            for monomial in polynomial(low):
                match monomial:
                    case (atom,) if getattr(atom, "op", "") == "mod":
                        yield simplify(high * atom.children[1] + low)
                    case _:
                        pass


def _is_digit(index: Expr, extents: Mapping[Var, Expr], var: Var) -> bool:
    step, others = _terms(rejoined(polynomial(simplify(index))), extents, var)
    if step is None:
        return False
    whole = simplify(step * extents[var])
    ranges = {v: Range(0, int(e.value) - 1) for v, e in extents.items() if isinstance(e, Const)}
    below: Expr = const(0)
    for term, each in others:
        if _is_multiple(each, whole):
            continue
        if isinstance(term, Var):
            below = below + each * (extents[term] - 1)
            continue
        span = bounds(term, ranges)
        if span is None:
            return False
        below = below + each * (span.high - span.low)
    left = simplify(step - 1 - below)
    return isinstance(left, Const) and int(left.value) >= 0


def _terms(
    terms: Polynomial, extents: Mapping[Var, Expr], var: Var
) -> tuple[Expr | None, list[tuple[Expr, Expr]]]:
    """The step of `var`, None where it has none, and the other terms that change, with theirs."""
    step: Polynomial = {}
    others: list[tuple[Expr, Expr]] = []
    for monomial, coefficient in terms.items():
        moving = tuple(a for a in monomial if not extents.keys().isdisjoint(variables(a)))
        fixed = tuple(a for a in monomial if a not in moving)
        if moving == (var,):
            step[fixed] = step.get(fixed, 0) + coefficient
        elif any(var in variables(a) for a in moving):
            return None, []
        elif moving:
            others.append((from_polynomial({moving: 1}), from_polynomial({fixed: coefficient})))
    return (from_polynomial(step) if step else None), others


def _is_multiple(each: Expr, whole: Expr) -> bool:
    times = simplify(binary("floordiv", each, whole))
    return simplify(times * whole - each) == const(0)
