"""Element-wise stages on CPU devices: work-groups over leading axes, vectors along the last one.

They run at memory speed by a fixed schedule; nothing is sampled.
"""

from collections.abc import Sequence
from math import prod

from retune.core.dims import is_fixed, least, most
from retune.core.target import DeviceSpec
from retune.ir.expr import Expr, Var, const, loads, variables
from retune.ir.selections import position_masks
from retune.ir.stmt import PEEL
from retune.schedule.access import AffineAccess
from retune.schedule.schedule import Schedule
from retune.targets.cpu.interweave import interweaves, runs_on, schedule_interwoven

_GROUPS_PER_UNIT = 8
"""Work-groups for each core that element-wise stages aim at, so that no core idles at the end."""
_LEAST_ELEMENTS = 512
"""Of a work-group: to take one costs a core as long as some hundred elements (0.1 us)."""
_LEAST_VECTOR = 4
"""A last axis shorter than this (the colours of an image) is not worth vectors."""
_INTERLEAVED = 8
"""Steps of the axis before such a last axis that are written out with it."""
_ROWS = 8
"""Of results that are written out where reads run across them: 4 and 16 took longer (AVX2)."""
_MOST_READS = 3
"""Of a stage whose results are written out for several rows."""


def wanted_groups(spec: DeviceSpec) -> int:
    """Work-groups of a stage that is not tiled."""
    return _GROUPS_PER_UNIT * spec.compute_units


def schedule_elementwise(s: Schedule, name: str, spec: DeviceSpec) -> None:
    """Work-groups over the leading axes, vectors along the last one."""
    loops = s.loops(name)
    if not loops:
        return
    last = loops[-1]
    extent = s.extent(last)
    lanes = spec.vector_lanes(extent)
    leading = list(loops[:-1])
    masked = s.loop(last).var in _masking(s.block(name).value)
    most_elements = prod(most(s.extent(loop)) for loop in loops)
    wanted = min(wanted_groups(spec), max(1, most_elements // _LEAST_ELEMENTS))
    widest = spec.vector_lanes()
    rows = s.likely(*leading[:-1])
    if leading and interweaves(s, name, leading[-1], last, widest):
        leading[-1] = schedule_interwoven(s, leading[-1], last, widest)
    elif leading and rows >= wanted_groups(spec) and runs_on(s, name, leading[-1], last, widest):
        leading[-1] = schedule_interwoven(s, leading[-1], last, widest)
        s.annotate(leading[-1], PEEL, "ends")
    elif is_fixed(extent) and extent < _LEAST_VECTOR and leading:
        _interleaved(s, leading[-1], last)
        leading[-1] = f"{leading[-1]}.0" if f"{leading[-1]}.0" in s.loops(name) else leading[-1]
    elif lanes > 1:
        few = s.likely(*leading) < wanted
        unit = lanes
        if few and is_fixed(extent):
            unit = _chunk(extent, lanes, wanted)
        across = _across(s, name, leading, last)
        outer, _, vector = s.split(last, [unit // lanes, lanes], "shift")
        s.vectorize(vector)
        leading.append(outer)
        if across is not None:
            leading[leading.index(across)] = _transposed(s, name, across)
        if masked and not few:
            s.annotate(outer, PEEL, "ends")
    else:
        leading.append(last)
    if wanted == 1:
        return
    group, size = leading[0], s.likely(leading[0])
    for loop in leading[1:]:
        if size >= wanted:
            break
        size *= s.likely(loop)
        group = s.fuse(group, loop)
    if size >= 2 * wanted:
        group = s.split(group, [tile_near(size, wanted)], "shift")[0]
    s.bind(group, "group.0")


def _across(s: Schedule, name: str, leading: Sequence[str], last: str) -> str | None:
    """The loop along which memory runs where the stage reads what lies apart along `last`: some of
    its steps together read a line of the cache once. Constants are laid out as they are read.
    """
    reads = [AffineAccess(load) for load in loads(s.block(name).value)]
    if len(reads) > _MOST_READS:
        return None
    axis = s.loop(last).var
    apart = [r for r in reads if not r.constant and r.stride(axis) not in (const(0), const(1))]
    return next(
        (
            loop
            for loop in leading
            if any(read.stride(s.loop(loop).var) == const(1) for read in apart)
            and least(s.extent(loop)) >= _ROWS
        ),
        None,
    )


def _transposed(s: Schedule, name: str, across: str) -> str:
    """Some steps of `across` are written out for each vector; gives the name of the loop left."""
    far, near = s.split(across, [_ROWS], "shift")
    *around, lane = [loop for loop in s.loops(name) if loop != near]
    s.reorder(*around, near, lane)
    s.unroll(near)
    return far


def _masking(value: Expr) -> frozenset[Var]:
    """Variables that say where a value is taken from, as the positions of padding do."""
    return frozenset(v for mask in position_masks(value) for v in variables(mask))


def tile_near(size: int, parts: int) -> int:
    """Steps of each of so many parts of `size`: a divisor if one is near."""
    longest = -(-size // parts)
    divisors = [n for n in range(max(1, longest // 2), longest + 1) if size % n == 0]
    return divisors[-1] if divisors else longest


def _interleaved(s: Schedule, before: str, last: str) -> None:
    """A last axis of a few elements is written out, with some steps of the axis before it."""
    if least(s.extent(before)) >= _INTERLEAVED:
        _, near = s.split(before, [_INTERLEAVED], "shift")
        s.unroll(near)
    s.unroll(last)


def _chunk(extent: int, lanes: int, wanted: int) -> int:
    """Elements for each work-group: a multiple of `lanes`, at most the extent."""
    vectors = max(1, extent // lanes)
    return lanes * max(1, min(vectors, -(-vectors // wanted)))
