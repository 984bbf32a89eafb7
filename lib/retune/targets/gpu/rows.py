"""Reductions with few results: the items of a group share one, and combine in local memory.

Each item accumulates its part (rfactor); the parts are combined by fewer items, and then by each
item for itself. That is the shape of softmax, of a mean over pixels, and of a product of one row
with a matrix. Rules: `is_row_reduction` says where it pays, `schedule_items` does it;
`CrossThreadReduction` are structures for what leaves a device idle so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from retune.core.dims import example, is_fixed, most
from retune.core.dtypes import itemsize
from retune.core.errors import ScheduleError
from retune.core.target import WARP, DeviceSpec
from retune.ir.evaluate import evaluate_int, known_extent
from retune.ir.expr import Expr, Scope, Var, const
from retune.schedule.schedule import Schedule
from retune.targets.fusion import accesses, reductions_beside, results_of
from retune.targets.gpu.plain import schedule_plain
from retune.targets.gpu.slices import slice_all_steps, slice_sizes
from retune.targets.instructions import has_warps
from retune.targets.row_programs import RowProgram, factored, schedule_in_one_nest
from retune.targets.tiling import fuse_all, unroll_all

_LEAST_STEPS = 32
"""Reduce iterations below which an item takes a result alone."""
_MOST_OUTPUTS = 1 << 18
"""Results above which there is enough to do with an item for each."""
_PARTS = (8, 16, 32, 64, 128, 256)
"""Items that share a result."""
_USUAL_PARTS = 128
_COLUMNS = 32
"""Neighbouring results that a group takes where memory runs along the results: one warp."""
_COLUMN_PARTS = (2, 4, 8, 16)
_SECOND = 16
"""Parts above this number are combined in two steps."""
_NARROW_COLUMNS = (8, 16, 32)
"""Neighbouring results of a group, down to a sector of memory, where a warp's leave it idle."""
_NARROW_PARTS = (2, 4, 8, 16, 32, 64)
_FEW_RESULTS, _STEPS_OVER_RESULTS = 1 << 12, 8
"""Results of a contraction at most, and how many of them there may be for a step."""
_WIDEST = 8
"""Bytes of an element at most."""
_ROWS = (2, 4, 8, 16)
"""Rows that a group takes together."""
_MANY_ROWS = 4096
"""Rows below which a group for each of them is not too much: a device holds so many at once."""
_MOST_SHARED = 2048
"""Elements of rows that a group takes together at most: longer ones are enough work for it."""
_READ = 16
"""Bytes that an item reads at once."""
_UNROLLED = 4
"""Steps whose reads an item has under way at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossThreadReduction:
    """The structural choices of one sketch of a reduction with few results."""

    wide: bool = False
    """True: where memory runs along the steps, an item reads vectors of them."""
    sliced: bool = False
    """True: work-groups take slices of the reduction too, and a second kernel adds them up."""
    others: tuple[str, ...] = ()
    """Reductions that are sliced beside the heaviest one, as the variance beside the mean."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        kinds = ".wide" * self.wide + ".sliced" * self.sliced + ".each" * bool(self.others)
        return f"gpu.rows{kinds}"


def row_structures(s: Schedule, name: str, spec: DeviceSpec) -> Iterator[CrossThreadReduction]:
    """The structures worth trying beside `schedule_items`."""
    if s.block(name).indices and has_room(s, name, spec) and not accesses(s, name).along_steps:
        yield CrossThreadReduction()
    if _wide_parts(s, name, spec):
        yield CrossThreadReduction(wide=True)
    if slice_sizes(s, name):
        yield CrossThreadReduction(
            sliced=True, others=tuple(n for n in s.blocks() if n != name and _sliced(s, n))
        )


def _sliced(s: Schedule, name: str) -> bool:
    reduces = s.block(name).reducer is not None
    return reduces and is_row_reduction(s, name) and bool(slice_sizes(s, name))


def schedule_row_reduction(
    s: Schedule, name: str, rows: CrossThreadReduction, spec: DeviceSpec
) -> None:
    """The reductions and their epilogue; numbers of slices, columns and items are sampled.

    Without room in local memory an item takes a slice of one result.
    """
    if rows.wide:
        _in_vectors(s, name, spec)
        return
    if not rows.sliced:
        _narrow(s, name, spec)
        return
    for reduction in (name, *rows.others):
        _slice(s, reduction, spec)


def _slice(s: Schedule, name: str, spec: DeviceSpec) -> None:
    sizes = slice_sizes(s, name)
    if has_room(s, name, spec):
        part = slice_all_steps(s, name, s.sample_categorical(f"slice.{name}", sizes))
        if accesses(s, part).along_steps:
            schedule_items(s, part, spec, sampled=True)
        else:
            _narrow(s, part, spec)
    else:
        schedule_plain(s, slice_all_steps(s, name, min(sizes)), spec)
    schedule_plain(s, name, spec)


def is_row_reduction(s: Schedule, name: str) -> bool:
    """True where operands are not shared between results in two directions, and steps are many."""
    stage = accesses(s, name)
    if not stage.results or not stage.plain:
        return False
    results = {loop.var for loop in stage.results if most(evaluate_int(loop.extent)) > 1}
    steps = example(prod(evaluate_int(loop.extent) for loop in stage.steps))
    outputs = example(prod(evaluate_int(loop.extent) for loop in stage.results))
    if steps < _LEAST_STEPS or outputs > _MOST_OUTPUTS:
        return False
    return any(results <= operand.direct for operand in stage.operands)


def has_few_results(s: Schedule, name: str, spec: DeviceSpec) -> bool:
    """Whether steps are so many, and results so few, that items share results although these share
    operands: a decoder's sum over the tokens of its cache."""
    stage = accesses(s, name)
    steps, outputs = (
        example(prod(evaluate_int(loop.extent) for loop in loops))
        for loops in (stage.steps, stage.results)
    )
    few = outputs <= _FEW_RESULTS and steps * _STEPS_OVER_RESULTS >= outputs
    return few and not stage.along_steps and stage.group is None and has_room(s, name, spec)


def has_room(s: Schedule, name: str, spec: DeviceSpec) -> bool:
    """Whether a group of the device has the items and the local memory to share a row."""
    return bool(_parts(s, name, spec))


def schedule_items(s: Schedule, name: str, spec: DeviceSpec, *, sampled: bool) -> None:
    """The reduction and its epilogue, work-groups over results, items over parts of the sum.

    It `has_room`.
    """
    fit = _parts(s, name, spec)
    along = accesses(s, name).along_steps
    beside = reductions_beside(s, name)
    out = results_of(s, name)
    if sampled:
        parts = s.sample_categorical(f"parts.{name}", fit)
    else:
        parts = const(max(n for n in fit if n <= _USUAL_PARTS))
    if along:
        combine(s, beside, grid_of(parts), s.loops(out)[-1])
        s.bind(fuse_all(s, s.loops(out)), "group.0")
    else:
        whole = fuse_all(s, s.reduce_loops(name))
        _across(s, name, out, whole, parts, _columns(s, name))


def _parts(s: Schedule, name: str, spec: DeviceSpec) -> list[int]:
    """Numbers of items for a result that there are steps for, and that a group may have."""
    steps = prod(_steps(s.loop(n).extent) for n in s.loops(name) if s.loop(n).reduce)
    held = spec.local_memory_bytes // max(4, itemsize(s.block(name).buffer.dtype))
    if accesses(s, name).along_steps:
        most = min(spec.max_work_group, held - _SECOND)
        return [n for n in _PARTS if n <= steps and max(n, _SECOND) <= most]
    most = min(spec.max_work_group, held)
    return [n for n in _COLUMN_PARTS if n <= steps and n * _columns(s, name) <= most]


def _steps(extent: Expr) -> int:
    """An extent; as many as are ever asked for where it is sampled: the steps of a slice are."""
    known = known_extent(extent)
    return max(_PARTS) if known is None else example(known)


def _wide_lanes(s: Schedule, name: str) -> int:
    """Steps whose elements are one read of the operand that lies closest."""
    operands = accesses(s, name).operands
    return _READ // min(itemsize(operand.load.buffer.dtype) for operand in operands)


def _wide_parts(s: Schedule, name: str, spec: DeviceSpec) -> list[int]:
    """Numbers of items for a result, each of which reads as many vectors of it as the others."""
    stage = accesses(s, name)
    steps = prod((loop.extent for loop in stage.steps), start=const(1))
    held, known = spec.local_memory_bytes // _WIDEST - _SECOND, known_extent(steps)
    read = {operand.load for operand in stage.operands}
    if not stage.along_steps or len(read) < 2 or known is None or not is_fixed(known):
        return []
    vectors = int(known) / _wide_lanes(s, name)
    most = min(spec.max_work_group, held)
    return [n for n in _PARTS if _SECOND <= n <= most and vectors % n == 0]


def _columns(s: Schedule, name: str) -> int:
    """Neighbouring results of a group."""
    return min(_COLUMNS, example(evaluate_int(s.block(name).buffer.shape[-1])))


def schedule_row_program(s: Schedule, program: RowProgram, spec: DeviceSpec) -> None:
    """All stages in one kernel, some rows for each group; what several stages read is local.

    Raises: ScheduleError where there is no room for that.
    """
    held = spec.local_memory_bytes // _WIDEST - _SECOND
    most = min(spec.max_work_group, held, max(example(program.columns), _SECOND))
    fit = [n for n in _PARTS if max(n, _SECOND) <= most]
    if not fit:
        raise ScheduleError(f"{program.out}: no room to share a row")
    parts = s.sample_categorical(f"parts.{program.out}", fit)
    second = const(_SECOND)
    grid = (_ceiling(parts, second), second)
    together = _together(s, program)
    beside = bool(together)  # rows have items of their own, which find numbers of rows locally
    if beside:
        s.split(s.loops(program.out)[-2], [s.sample_categorical(f"rows.{program.out}", together)])
    stages = [program.out, *program.numbers, *program.others]

    def reduce(stage: str, at: str) -> None:
        stages.extend(combine(s, [stage], grid, at, "local" if beside else "register"))

    share = partial(share_columns, s, grid=grid)
    rows = schedule_in_one_nest(s, program, "local", share=share, reduce=reduce, beside=beside)
    if beside:
        *rows, _ = rows
        for stage in stages:
            loops = s.loops(stage)
            s.bind(loops[loops.index(rows[-1]) + 1], "local.2")
    s.bind(fuse_all(s, rows), "group.0")


def _together(s: Schedule, program: RowProgram) -> list[int]:
    """How many rows a group may take; none where one is enough work for it."""
    extent, columns = s.extent(s.loops(program.out)[-2]), example(program.columns)
    if not is_fixed(extent) or extent < _MANY_ROWS:
        return []
    return [n for n in _ROWS if n * columns <= _MOST_SHARED and extent % n == 0]


Grid = tuple[Expr, Expr]
"""Items of a group along local.1 and along local.0."""


def grid_of(parts: Expr) -> Grid:
    """So many items, neighbours of which find their sums in two steps where they are many."""
    many = isinstance(parts, Var) or int(parts.value) > _SECOND  # pyrefly: ignore[missing-attribute]
    second = const(_SECOND if many else 1)
    return _ceiling(parts, second), second


def share_columns(s: Schedule, loop: str, grid: Grid) -> None:
    """The items of a group take the loop's iterations, neighbours side by side."""
    steps, first, near = s.split(loop, grid, "guard")
    s.unroll(steps, _UNROLLED)
    s.bind(first, "local.1")
    s.bind(near, "local.0")


def combine(
    s: Schedule,
    names: Sequence[str],
    grid: Grid,
    at: str,
    scope: Scope = "register",
    lanes: int = 1,
) -> list[str]:
    """The results of these in each step of the loop `at`, held in `scope`; the items of a group
    take the steps of each, vectors of them where there are `lanes`, and hold their sums in
    registers. Gives the stages, whose other loops run one after the other."""
    vector = [lanes] if lanes > 1 else []
    found: dict[str, tuple[tuple[str, str], ...]] = {}  # sums by neighbours and items, and copies
    for name in names:
        whole = fuse_all(s, s.reduce_loops(name))
        _, first, near, *_ = s.split(whole, [*grid, *vector], "guard")
        by_near = s.rfactor(name, near)
        by_item = s.rfactor(by_near, factored(by_near, name, first), len(s.block(name).indices))
        found[name] = tuple((part, s.cache_write(part)) for part in (by_near, by_item))
    for name in names:
        s.compute_at(name, at, scope)
    for kind in (0, 1):  # each before the last: all items' sums, then those of neighbours
        for part, stored in (sums[kind] for sums in found.values()):
            s.compute_at(stored, at, "local")
            s.bind(s.axes(stored)[-1], "local.0")
            if kind:
                s.bind(s.axes(stored)[-2], "local.1")
            s.compute_at(part, s.loops(stored)[-1])
    for _, (by_item, _) in found.values():
        steps, *lane = s.reduce_loops(by_item)
        for loop in lane:
            s.vectorize(loop)
        s.unroll(steps, _UNROLLED)
    return [n for name, sums in found.items() for n in (name, *(stored for _, stored in sums))]


def _ceiling(parts: Expr, second: Expr) -> Expr:
    return (parts + (second - 1)) // second


def _across(s: Schedule, name: str, out: str, whole: str, parts: Expr, columns: int) -> None:
    """`columns` neighbouring results for each group; its other items take parts of their sums."""
    _, part = s.split(whole, [parts], "guard")
    by_item = s.rfactor(name, part)
    loops = s.loops(out)
    group, column = s.split(loops[-1], [columns], "shift")
    s.bind(column, "local.0")
    s.compute_at(name, column)
    s.compute_at(by_item, group, "local")
    s.bind(factored(by_item, name, part), "local.1")
    last = s.block(by_item).indices[-2]
    assert isinstance(last, Var)
    s.bind(last.name, "local.0")
    s.bind(fuse_all(s, [*loops[:-1], group]), "group.0")


def _in_vectors(s: Schedule, name: str, spec: DeviceSpec) -> None:
    """As `schedule_items`, for each result a group; items read vectors.

    A weight that one row reads comes at the memory's rate so; the items of a warp do not wait for
    others (H100, a gated layer of a decoder in float16 by groups of one warp, not of four: 0.65 of
    the time in a persistent kernel). What the epilogue reads beside the
    results is made by the same items.
    """
    parts = s.sample_categorical(f"parts.{name}", _wide_parts(s, name, spec))
    if has_warps(spec):
        s.prefer(parts <= WARP)
        s.prefer(parts >= WARP)
    beside, lanes = reductions_beside(s, name), _wide_lanes(s, name)
    out = results_of(s, name)
    combine(s, beside, grid_of(parts), s.loops(out)[-1], lanes=lanes)
    s.bind(fuse_all(s, s.loops(out)), "group.0")


def _narrow(s: Schedule, name: str, spec: DeviceSpec) -> None:
    """As `_across`, by a sampled number of columns; an item's sum stays in a register."""
    last = example(evaluate_int(s.block(name).buffer.shape[-1]))
    fit = [n for n in _NARROW_COLUMNS if n <= min(last, spec.max_work_group)]
    columns = s.sample_categorical(f"columns.{name}", fit or [min(last, spec.max_work_group)])
    parts = s.sample_categorical(f"parts.{name}", _NARROW_PARTS)
    s.bind(fuse_all(s, sum_in_parts(s, name, columns, parts)), "group.0")


def sum_in_parts(s: Schedule, name: str, columns: Expr | int, parts: Expr | int) -> list[str]:
    """Results of neighbouring columns for each step of the last of the loops that it gives, those
    over results; items take a column, and parts of its sum, which they hold in registers."""
    whole, out = fuse_all(s, s.reduce_loops(name)), results_of(s, name)
    known = known_extent(s.loop(whole).extent)
    open_ended = known is not None and not is_fixed(known)
    ahead = [_UNROLLED] if open_ended else []  # compilers unroll no loop of so many steps
    *_, part = s.split(whole, [*ahead, parts], "guard")
    by_item = s.rfactor(name, part, len(s.block(name).indices) - 1)
    stored = s.cache_write(by_item)
    *rows, results = s.axes(out)
    s.reorder(*rows, results)
    group, column = s.split(results, [columns], "shift")
    s.bind(column, "local.0")
    s.compute_at(name, column)
    s.compute_at(stored, group, "local")
    *_, item, result = s.axes(stored)
    s.bind(item, "local.1")
    s.bind(result, "local.0")
    s.compute_at(by_item, s.loops(stored)[-1])
    steps, *near = s.reduce_loops(by_item)
    s.unroll(steps, 1 if near else _UNROLLED)
    unroll_all(s, near)
    return [*rows, group]
