"""Rules for GPU devices: sketches for any program, without templates.

The heaviest reduction is tiled over work-groups, virtual threads, work-items and registers, with
its operands fetched into local memory by all items of a group (`gpu_tile`); reductions without
operands to share are spread over items and combined in local memory (`gpu_rows`), or take one item
for each result (`gpu_plain`), as element-wise stages do. See `gpu_space`.

Sources: the GPU sketches of Ansor (OSDI 2020, section 4.1), whose levels S S S R R S R S these are.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from math import prod

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import Block, Program
from retune.schedule.cpu import heaviest_reduction, inline_elementwise, untouched
from retune.schedule.gpu_limits import keep_to_limits
from retune.schedule.gpu_plain import schedule_plain
from retune.schedule.gpu_rows import (
    Rows,
    has_room,
    is_row_reduction,
    row_structures,
    schedule_items,
    schedule_rows,
)
from retune.schedule.gpu_slices import schedule_shared, slice_over_groups
from retune.schedule.gpu_tile import (
    FETCHED_LANES,
    Tiling,
    channel_extent,
    inline_padding,
    is_contraction,
    padding_of,
    schedule_tile,
)
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, Space, sketch_of

Structure = Tiling | Rows | None
"""What is done to the heaviest reduction; None: what is done to all others, with sizes sampled."""

_PLAIN = "gpu.plain"
_SLICED_OUTPUTS = 1 << 18
"""Results above which a device has enough to do without slices of the reduction."""
_SLICED_DEPTH = 32
"""Steps of a reduction's deepest axis below which slices of it are not worth a second kernel."""


def gpu_space(program: Program, spec: DeviceSpec) -> Space:
    """All sketches of the rules that are legal for this program. At least one."""
    sketches: list[Sketch] = []
    for structure in _structures(program, spec):
        rule = partial(schedule_gpu, structure=structure, spec=spec)
        try:
            sketch = sketch_of(program, rule, structure.name if structure else _PLAIN)
        except ScheduleError:
            continue  # this structure does not fit; the plain one below always does
        if not sketch.empty:
            sketches.append(sketch)
    if not sketches:
        rule = partial(schedule_gpu, structure=None, spec=spec)
        sketches.append(sketch_of(program, rule, _PLAIN))
    return Space(tuple(sketches))


def _structures(program: Program, spec: DeviceSpec) -> Iterator[Structure]:
    """The structures worth trying for the heaviest reduction."""
    anchor = heaviest_reduction(program)
    s = Schedule(program)
    if anchor is None:
        return
    if not anchor.indices or is_row_reduction(s, anchor.name):
        yield None
        yield from row_structures(s, anchor.name, spec)
        return
    yield from _tilings(s, anchor, spec)


def _tilings(s: Schedule, anchor: Block, spec: DeviceSpec) -> Iterator[Tiling]:
    """The tiles worth trying for a reduction with axes."""
    lanes = 4 if channel_extent(s, anchor.name) % 4 == 0 else 1
    if not is_contraction(s, anchor.name):
        for width, halo in product(sorted({1, lanes}, reverse=True), _halos(s, anchor)):
            yield Tiling(lanes=width, window=True, halo=halo)
        return
    windowed = _window(s, anchor) > 1
    sliced = [False, True] if _worth_slicing(s, anchor) else [False]
    for slices in sliced:
        yield Tiling(lanes=lanes, sliced=slices)
    if not spec.local_memory_bytes:
        return
    for halo, slices in product([False, True] if windowed else [False], sliced):
        yield Tiling(lanes=lanes, fetched=FETCHED_LANES, halo=halo, sliced=slices)
    if sliced[-1]:
        for halo in [False, True] if windowed else [False]:
            yield Tiling(lanes=lanes, fetched=FETCHED_LANES, halo=halo, shared=True)
    yield Tiling(lanes=lanes, fetched=1, halo=windowed)


def _halos(s: Schedule, anchor: Block) -> list[bool]:
    return [False, True] if padding_of(s, anchor.name) else [False]


def _window(s: Schedule, anchor: Block) -> int:
    """Reduce iterations of all axes but the last."""
    reduce = [n for n in s.loops(anchor.name) if s.loop(n).reduce]
    return prod(evaluate_int(s.loop(n).extent) for n in reduce[:-1])


def _worth_slicing(s: Schedule, anchor: Block) -> bool:
    reduce = [n for n in s.loops(anchor.name) if s.loop(n).reduce]
    outputs = prod(evaluate_int(e) for e in anchor.buffer.shape)
    deep = evaluate_int(s.loop(reduce[-1]).extent) >= _SLICED_DEPTH
    return deep and outputs <= _SLICED_OUTPUTS


def schedule_gpu(s: Schedule, structure: Structure, spec: DeviceSpec) -> None:
    """Schedules every stage; only the anchor's tile sizes are sampled."""
    anchor = heaviest_reduction(s.program)
    if anchor is not None and isinstance(structure, Tiling) and structure.masked:
        inline_padding(s, anchor.name)
    inline_elementwise(s)
    if anchor is not None:
        _anchor(s, anchor.name, structure, spec)
    _rest(s, spec)
    keep_to_limits(s, spec)


def _anchor(s: Schedule, name: str, structure: Structure, spec: DeviceSpec) -> None:
    match structure:
        case Rows():
            schedule_rows(s, name, structure, spec)
        case Tiling(sliced=True):
            schedule_tile(s, slice_over_groups(s, name), structure, spec)
            schedule_plain(s, name, spec)
        case Tiling(shared=True):
            schedule_shared(s, name, structure, spec)
        case Tiling():
            schedule_tile(s, name, structure, spec)
        case None:
            if _shares_rows(s, name, spec):
                schedule_items(s, name, spec, sampled=True)


def _shares_rows(s: Schedule, name: str, spec: DeviceSpec) -> bool:
    """Whether the items of a group take the parts of one result."""
    return is_row_reduction(s, name) and has_room(s, name, spec)


def _rest(s: Schedule, spec: DeviceSpec) -> None:
    """Every stage that nothing was done to yet gets the schedule of the rules, untuned."""
    for name in s.blocks():
        if name in s.blocks() and s.block(name).reducer is not None and untouched(s, name):
            if _shares_rows(s, name, spec):
                schedule_items(s, name, spec, sampled=False)
            else:
                schedule_plain(s, name, spec)
    for name in s.blocks():
        if s.block(name).reducer is None and untouched(s, name):
            schedule_plain(s, name, spec)
