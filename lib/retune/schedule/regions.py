"""The region of a buffer that a loop's body touches: the footprint that a copy of it needs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Redirection,
    Scope,
    Var,
    all_of,
    conjuncts,
    const,
    is_symbol,
    loads,
    size_variables,
    variables,
)
from retune.ir.reduction import path_to, reads
from retune.ir.selections import certain_loads
from retune.ir.simplify import Range, affine, bounds, sign, simplify
from retune.ir.stmt import Block, For, Program, Stmt, blocks, loops, map_exprs


@dataclass(frozen=True, slots=True)
class BufferRegion:
    """A box in a buffer: its first index and its extent in each dimension."""

    first: tuple[Expr, ...]
    extents: tuple[Expr, ...]

    def guard(self, axes: Iterable[Var], buffer: Buffer) -> list[Expr]:
        """The condition that keeps `first + axes` inside the buffer, where the box may pass its
        ends."""
        terms: list[Expr] = []
        box = zip(axes, self.first, self.extents, buffer.shape, strict=True)
        for axis, first, extent, full in box:
            if first == const(0) and extent == full:
                continue  # the whole dimension
            terms += [simplify(first + axis) >= 0, simplify(first + axis) < full]
        return [t for t in terms if not isinstance(t, Const)]


def inner_extents(program: Program, loop: For, scope: Scope) -> dict[Var, Expr]:
    """The loops whose iterations share one copy at the start of `loop`'s body.

    Local memory is shared by all work-items of a group, so there the loops around that run as
    work-items or virtual threads count as well.
    """
    extents = {n.var: n.extent for n in loops(loop.body)}
    if scope == "local":
        path = path_to(program.body, blocks(loop)[0]) or []
        around = path[: next(i for i, p in enumerate(path) if p is loop) + 1]
        extents |= {
            p.var: p.extent for p in around if p.kind == "vthread" or p.kind.startswith("local")
        }
    return extents


def read_region(who: str, buffer: Buffer, body: Stmt, extents: Mapping[Var, Expr]) -> BufferRegion:
    """The box that `body` reads of a buffer, over the given inner loops.

    Raises: ScheduleError where nothing reads it, or reads of different boxes do.
    """
    found = [load for b in blocks(body) for load in loads(b.value) if load.buffer == buffer]
    if not found:
        raise ScheduleError(f"{who}: nothing there reads it")
    return _box(who, "read", buffer, [load.indices for load in found], extents)


def write_region(who: str, buffer: Buffer, body: Stmt, extents: Mapping[Var, Expr]) -> BufferRegion:
    """The box that `body` writes of a buffer, every element of it.

    Raises: ScheduleError where blocks write different boxes, or leave gaps in them.
    """
    found = [b.indices for b in blocks(body) if b.buffer == buffer]
    for index in (i for indices in found for i in indices):
        split = _affine(index, extents)
        points: Expr = const(1)
        for var in split[0] if split else ():
            points = points * extents[var]
        if split and simplify(points) != _interval(who, index, extents)[1]:
            raise ScheduleError(f"{who}: {buffer}[{index}] leaves gaps in what it writes there")
    return _box(who, "written", buffer, found, extents)


def _box(
    who: str,
    verb: str,
    buffer: Buffer,
    accesses: list[tuple[Expr, ...]],
    extents: Mapping[Var, Expr],
) -> BufferRegion:
    first: list[Expr] = []
    size: list[Expr] = []
    for dim in range(len(accesses[0])):
        every = const(0), buffer.shape[dim]
        spans = {
            _interval(who, index, extents)
            if verb == "written"
            else _covering(who, index, extents, every)
            for index in dict.fromkeys(indices[dim] for indices in accesses)
        }
        # What reads all of a dimension covers the others, whatever they read of it.
        whole = every if every in spans else _union(sorted(spans, key=str))
        if whole is None or (verb == "written" and len(spans) > 1):
            raise ScheduleError(f"{who}: dimension {dim} is {verb} in several ways")
        first.append(whole[0])
        size.append(whole[1])
    return BufferRegion(tuple(first), tuple(size))


def _union(spans: list[tuple[Expr, Expr]]) -> tuple[Expr, Expr] | None:
    """One interval over intervals (first, extent) that lie a known distance apart."""
    first = spans[0][0]
    if len(spans) == 1:
        return spans[0]
    starts = [simplify(low - first) for low, _ in spans]
    ends = [simplify(low - first + extent) for low, extent in spans]
    low = [int(e.value) for e in starts if isinstance(e, Const)]
    high = [int(e.value) for e in ends if isinstance(e, Const)]
    if len(low) != len(spans) or len(high) != len(spans):
        return None
    return simplify(first + min(low)), const(max(high) - min(low))


def _affine(index: Expr, extents: Mapping[Var, Expr]) -> tuple[dict[Var, Expr], Expr] | None:
    """Coefficients of the inner loops in an index, and the rest; None where it has no such form."""
    inner = frozenset((v, extents[v]) for v in variables(index) if v in extents)
    if size_variables(index):
        return _affine_over.__wrapped__(index, inner)  # by the sizes at hand
    return _affine_over(index, inner)


@lru_cache(maxsize=1 << 14)
def _affine_over(
    index: Expr, inner: frozenset[tuple[Var, Expr]]
) -> tuple[dict[Var, Expr], Expr] | None:
    """Made once for equal indices: a stage's readers, and sketches, have many in common."""
    return affine(simplify(index, _known_ranges(inner)), [v for v, _ in inner])


def _known_ranges(extents: Iterable[tuple[Var, Expr]]) -> dict[Var, Range]:
    return {v: Range(0, int(e.value) - 1) for v, e in extents if isinstance(e, Const)}


def _covering(
    who: str, index: Expr, extents: Mapping[Var, Expr], every: tuple[Expr, Expr]
) -> tuple[Expr, Expr]:
    """An interval that an index over inner loops does not leave.

    That of tiles moved back, as in `min(i*16, 984) + lane`, is known from the ends of its parts.
    From the start on, by tiles of sampled sizes, is all of the dimension: they cover it. So do
    tiles moved back whose size is sampled, or from an end that depends on sizes.
    """
    if _affine(index, extents) is None:
        if found := bounds(index, _known_ranges(extents.items())):
            return const(found.low), const(found.high - found.low + 1)
        if size_variables(index) or all(map(is_symbol, variables(index) - extents.keys())):
            return every
    first, span = _interval(who, index, extents)
    return (first, span) if first != const(0) or isinstance(span, Const) else every


def _interval(who: str, index: Expr, extents: Mapping[Var, Expr]) -> tuple[Expr, Expr]:
    """Smallest value and span of an index over inner loops.

    Where a loop runs backwards, the smallest value is that of its last iteration.
    """
    split = _affine(index, extents)
    if split is None:
        raise ScheduleError(f"{who}: index {index} is not affine in the inner loops")
    coefficients, first = split
    span: Expr = const(1)
    for var, coefficient in coefficients.items():
        reach = coefficient * (extents[var] - 1)
        match sign(coefficient):
            case 1:
                span = span + reach
            case -1:
                first, span = first + reach, span - reach
            case _:
                raise ScheduleError(f"{who}: index {index} may run either way in {var}")
    return simplify(first), simplify(span)


def read_under_condition(body: Stmt, buffer: Buffer) -> bool:
    """True when some read of the buffer there is conditional: its region may pass the ends."""
    return any(
        b.guard is not None or _masked(b.value, buffer) for b in blocks(body) if reads(b, buffer)
    )


def read_where(body: Stmt, buffer: Buffer) -> list[Expr]:
    """Conditions on sizes and outer loops that hold wherever a block there reads the buffer.

    Where it does not hold, as past the end of what tiles cover, nothing of the buffer is needed.
    """
    inner = {n.var for n in loops(body)}
    guards = [tuple(conjuncts(b.guard)) for b in blocks(body) if reads(b, buffer)]
    common = [term for term in guards[0] if all(term in other for other in guards[1:])]
    return [t for t in common if size_variables(t) and inner.isdisjoint(variables(t))]


def _masked(expr: Expr, buffer: Buffer) -> bool:
    """True when a selection decides whether the buffer is read."""
    certain = set(certain_loads(expr))
    return any(load.buffer == buffer and load not in certain for load in loads(expr))


def guarded(block: Block, terms: list[Expr]) -> Expr | None:
    """The block's guard with further terms."""
    known = [] if block.guard is None else [block.guard]
    return all_of(*known, *terms) if known or terms else None


def redirect_reads(
    body: Stmt, old: Buffer, new: Buffer, region: BufferRegion, order: Sequence[int] = ()
) -> Stmt:
    """`body` reading the copy of a region, its dimensions in that order, instead of the buffer."""
    placed = order or range(len(region.first))

    @cache
    def moved(dim: int, index: Expr) -> Expr:
        return simplify(index - region.first[dim])

    def relative(load: Load) -> Expr | None:
        if load.buffer != old:
            return None
        return Load(new, tuple(moved(dim, load.indices[dim]) for dim in placed))

    return map_exprs(body, Redirection(relative))
