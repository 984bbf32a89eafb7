"""conv2d_NCHWc: the convolution template of AutoTVM's x86 back end, in this schedule language.

There, data lie as NCHW{ic}c and weights as OIHW{ic}i{oc}o, and layout transforms between layers
cancel or remain. Here it serves NHWC networks, which is what NCHW models become on import: all
channels of a pixel lie together, so any block of them does, whatever its size; no layer has to
agree on it with the next one, and no transform is left. What else makes up that kernel is kept: a
register tile of `tile_ow` pixels by a block of output channels in vector lanes, each input element
broadcast, and weights packed at compile time to the order of the loops, which is OIHW{ic}i{oc}o.

A network that was imported as NCHW has no use for it: the lanes of its outputs are not adjacent.

Source: TVM's topi/x86/conv2d_avx_common.py and conv2d_avx_1x1.py (schedule and fallback).
"""

from dataclasses import dataclass

from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import loads, variables
from retune.rules.accumulators import accumulate_in_registers
from retune.rules.cpu.space import schedule_rest
from retune.rules.fusion import inline_elementwise, pack_operands, results_of
from retune.rules.template import Decided, Workload, template
from retune.schedule.schedule import Schedule
from retune.schedule.stages import block_named, loops_of

_MAX_VECTORS = 4
"""Vectors of output channels in a register tile at most: more leave too few pixels."""
_MAX_IC = 64
_WINDOW = {"rc", "ry", "rx"}
_TILE_OH = (1, 2)
"""Rows of a register tile of a 1x1 convolution."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Loops of the convolution by role, as positions among its spatial loops, and extents."""

    channel: int
    column: int
    row: int | None
    """None where rows and columns are one axis."""
    batch: int | None
    out_channels: int
    width: int
    height: int
    in_channels: int
    taps: int
    """Extent of the innermost window axis; 1 for a 1x1 convolution."""


def untuned(work: Workload) -> Decided:
    """AutoTVM's fallback: one vector of output channels, as many columns as registers allow.

    `tile_ic` is the largest divisor of the input channels up to the vector's length, `tile_ow`
    the largest divisor of the width for which accumulators, weights and a broadcast fit the
    registers; a 1x1 convolution takes two rows where both fit.
    """
    shape = _shape(work)
    room = max(work.spec.vector_registers, 8) - 2
    lanes = work.spec.vector_lanes(shape.out_channels)
    decided: dict[str, tuple[int, ...]] = {
        "tile_oc": (1,),
        "tile_ic": (_divisor(shape.in_channels, lanes),),
        "tile_ow": (_divisor(shape.width, room),),
    }
    if _has_tile_oh(shape):
        fits = [n for n in _TILE_OH if shape.height % n == 0 and n * decided["tile_ow"][0] <= room]
        decided["tile_oh"] = (max(fits, default=1),)
    return decided


@template("conv2d_nhwc", untuned=untuned)
def conv2d_nchwc(s: Schedule, work: Workload) -> None:
    """Knobs tile_ic, tile_oc, tile_ow (tile_oh for 1x1); the window's loops stay loops."""
    _schedule(s, work, unroll_kw=False)


@template("conv2d_nhwc", untuned=untuned)
def conv2d_nchwc_unroll_kw(s: Schedule, work: Workload) -> None:
    """The same with unroll_kw: the window's columns are innermost and written out.

    The order of loops depends on that knob, so its two values are two sketches.
    """
    _schedule(s, work, unroll_kw=True)


def _schedule(s: Schedule, work: Workload, *, unroll_kw: bool) -> None:
    shape = _shape(work)
    if unroll_kw and shape.taps == 1:
        raise ScheduleError(f"{work.op}: unroll_kw expects a window wider than one column")
    inline_elementwise(s)
    lanes = work.spec.vector_lanes(shape.out_channels)
    out = results_of(s, work.op)
    loops = s.loops(out)
    (vectors,) = s.sample_tile(loops[shape.channel], 2, _MAX_VECTORS, "tile_oc", unit=lanes)
    (columns,) = s.sample_tile(loops[shape.column], 2, 64, "tile_ow")
    oc_chunk, oc_vectors, oc_lanes = s.split(loops[shape.channel], [vectors, lanes], "shift")
    ow_chunk, ow_block = s.split(loops[shape.column], [columns], "shift")
    rows = [] if shape.row is None else [loops[shape.row]]
    tile = [ow_block, oc_vectors]
    if _has_tile_oh(shape):
        height = s.sample_categorical("tile_oh", [n for n in _TILE_OH if n <= shape.height])
        rows = s.split(rows[0], [height], "shift")
        tile.insert(0, rows.pop())
    batch = [] if shape.batch is None else [loops[shape.batch]]
    s.reorder(*batch, oc_chunk, *rows, ow_chunk, *tile, oc_lanes)
    s.compute_at(work.op, ow_chunk)
    groups = [*batch, oc_chunk, *(rows or [ow_chunk])]
    for axis, loop in enumerate(reversed(groups)):
        s.bind(loop, f"group.{axis}")
    for loop in tile:
        s.unroll(loop)
    s.vectorize(oc_lanes)
    _reduction(s, work.op, shape, lanes, unroll_kw=unroll_kw)
    accumulators = vectors * columns * (s.loop(tile[0]).extent if len(tile) > 2 else 1)
    registers = max(work.spec.vector_registers, 8)
    s.require(accumulators + vectors + 1 <= registers, "the register tile spills")
    pack_operands(s, work.op)
    schedule_rest(s, work.spec)


def _reduction(s: Schedule, conv: str, shape: _Shape, lanes: int, *, unroll_kw: bool) -> None:
    """ic_chunk, kh, kw, ic_block (or ic_block, kw), then the register tile with lanes last."""
    own = s.loops(conv)
    axes = [str(index) for index in s.block(conv).indices]
    rc, rest = f"{conv}.rc", [n for n in own if s.loop(n).reduce and n != f"{conv}.rc"]
    (ic,) = s.sample_perfect_tile(rc, 2, _MAX_IC, "tile_ic")
    ic_chunk, ic_block = s.split(rc, [ic])
    inner = [ic_block, rest[-1]] if unroll_kw else [*rest[-1:], ic_block]
    tile = [n for i, n in enumerate(axes) if i != shape.channel and n in own]
    outer = [ic_chunk, *rest[:-1], *inner]
    accumulate_in_registers(s, outer, [*tile, axes[shape.channel]], lanes)
    if unroll_kw:
        s.unroll(rest[-1])


def _has_tile_oh(shape: _Shape) -> bool:
    return shape.taps == 1 and shape.row is not None and shape.height > 1


def _shape(work: Workload) -> _Shape:
    """Raises: ScheduleError for anything but one plain convolution of one group."""
    conv = work.op
    block, loops = block_named(work.program, conv), loops_of(work.program, conv)
    spatial = [n for n in loops if not n.reduce]
    reduce = {
        n.var.name.removeprefix(f"{conv}."): evaluate_int(n.extent) for n in loops if n.reduce
    }
    names = [n.var.name.removeprefix(f"{conv}.") for n in spatial]
    columns = [i for i, name in enumerate(names) if name.endswith("xx")]
    if names[-1:] != ["ff"] or not columns or "rc" not in reduce or not reduce.keys() <= _WINDOW:
        raise ScheduleError(f"{conv}: expected axes ff, yy, xx and rc, ry, rx, got {names}")
    channel, column = len(names) - 1, columns[0]
    weights = [load for load in loads(block.value) if load.buffer.scope == "constant"]
    others = [load for load in loads(block.value) if load.buffer.scope != "constant"]
    if len(weights) != 1 or len(others) != 1:
        raise ScheduleError(f"{conv}: expected one constant operand and one that is not")
    if any(spatial[channel].var in variables(index) for index in others[0].indices):
        raise ScheduleError(f"{conv}: expected a single group of channels")
    row = names.index("yy") if "yy" in names else None
    batch = names.index("nn") if "nn" in names else None
    extents = [evaluate_int(n.extent) for n in spatial]
    if extents[channel] < 2:
        raise ScheduleError(f"{conv}: expected several output channels, got {extents[channel]}")
    return _Shape(
        channel=channel,
        column=column,
        row=row,
        batch=batch,
        out_channels=extents[channel],
        width=extents[column],
        height=1 if row is None else extents[row],
        in_channels=reduce["rc"],
        taps=reduce.get("rx", reduce.get("ry", 1)),
    )


def _divisor(extent: int, limit: int) -> int:
    """The largest divisor of the extent up to a limit."""
    return max(n for n in range(1, min(extent, limit) + 1) if extent % n == 0)
