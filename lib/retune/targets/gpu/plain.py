"""One work-item for each result, or for a vector of them: element-wise stages, small reductions.

Neighbouring items take neighbouring elements, so that a warp's reads and writes are one piece of
memory. Read `schedule_plain`.
"""

from collections.abc import Sequence
from math import prod

from retune.core.dims import is_fixed, is_multiple, most
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Const
from retune.schedule.schedule import Schedule
from retune.targets.accumulators import WINDOW_LIMIT, accumulate_in_registers
from retune.targets.fusion import results_of
from retune.targets.tiling import fuse_all, unroll_all

_ITEMS = 256
"""Work-items of a group: enough warps to hide latency."""
_LANES = 4
"""Floats that an item reads or writes at once."""
_ITEMS_PER_UNIT = 1024
"""Work-items that keep a compute unit busy: below that, vectors would leave some idle."""


def schedule_plain(s: Schedule, name: str, spec: DeviceSpec) -> None:
    """The stage, with its epilogue if it is a reduction, as one flat range of work-items."""
    if not s.loops(name) or all(s.loop(n).reduce for n in s.loops(name)):
        return  # a single number: its loops stay as they are
    reduces = s.block(name).reducer is not None
    out = results_of(s, name) if reduces else name
    loops = s.loops(out)
    size = s.likely(*loops)
    last = s.extent(loops[-1])
    lanes = 1
    if is_multiple(last, _LANES) and size >= _LANES * _ITEMS_PER_UNIT * spec.compute_units:
        lanes = _LANES
        loops[-1], vector = s.split(loops[-1], [lanes])
        s.vectorize(vector)
    if reduces:
        s.compute_at(name, loops[-1])
        order_accumulation(s, name, lanes, window=_is_window(s, name))
    flat_items(s, loops, spec)


def _is_window(s: Schedule, name: str) -> bool:
    """True for a few reduce iterations, known in number."""
    extents = [s.loop(n).extent for n in s.loops(name) if s.loop(n).reduce]
    known = all(isinstance(e, Const) for e in extents)
    return known and prod(evaluate_int(e) for e in extents) <= WINDOW_LIMIT


def flat_items(s: Schedule, loops: Sequence[str], spec: DeviceSpec, items: int = _ITEMS) -> None:
    """The nested loops as one range of work-items in groups of `items`, or what is allowed."""
    flat = fuse_all(s, loops)
    size = most(s.extent(flat))
    group, item = s.split(flat, [min(items, size, spec.max_work_group)], "shift")
    s.bind(group, "group.0")
    s.bind(item, "local.0")


def order_accumulation(s: Schedule, name: str, lanes: int, *, window: bool) -> None:
    """All reduce loops around one item's registers; with `window` they are written out as well."""
    loops = s.loops(name)
    reduce = [n for n in loops if s.loop(n).reduce]
    axes = s.axes(name)
    accumulate_in_registers(s, reduce, [n for n in axes if n in loops], lanes)
    unroll_all(s, (n for n in reduce if window and is_fixed(s.extent(n))))
