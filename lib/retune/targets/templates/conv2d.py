"""conv2d_NCHWc: the convolution template of AutoTVM's x86 back end, in this schedule language.

There, data lie as NCHW{ic}c and weights as OIHW{ic}i{oc}o, and layout transforms between layers
cancel or remain. Here it serves NHWC networks, which is what NCHW models become on import: all
channels of a pixel lie together, so any block of them does, whatever its size; no layer has to
agree on it with the next one, and no transform is left. What else makes up that kernel is kept: a
register tile of `tile_ow` pixels by a block of output channels in vector lanes, each input element
broadcast, and weights packed at compile time to the order of the loops, which is OIHW{ic}i{oc}o.

Where activations are in blocks, the template is what it was: `conv2d_nchwc_blocks*`. Its knobs have
all of AutoTVM's values, `tile_ic` and `tile_oc` are the blocks that it reads and makes, and only
the search for layouts tries it. Tiles that spill, which AutoTVM accepts, are not candidates.
Pixels that are one axis, as those of a 1x1 convolution may be, have one tile and no `tile_oh`.

A network that was imported as NCHW has no use for it: the lanes of its outputs are not adjacent.

Source: TVM's topi/x86/conv2d_avx_common.py and conv2d_avx_1x1.py (schedule and fallback).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from retune.core.dims import example, is_fixed, most
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, as_expr
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.stages import block_named
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.cpu.space import schedule_rest
from retune.targets.fusion import (
    inline_elementwise,
    masks_lanes,
    pack_operands,
    padding_of,
    results_of,
)
from retune.targets.template import Decided, TemplateFunction, TemplateWorkload, template
from retune.targets.tiling import unroll_all

_MAX_VECTORS = 4
"""Vectors of output channels in a register tile at most: more leave too few pixels."""
_MAX_IC = 64
_MAX_OW = 64
_LANES = (1, 2, 4, 8, 16)
_TILE_OH = (1, 2)
"""Rows of a register tile of a 1x1 convolution."""


@dataclass(frozen=True, slots=True)
class _ConvolutionLoops:
    """Loops of the convolution by role, as positions among its spatial loops, and extents."""

    channel: int
    column: int
    row: int | None
    """None where rows and columns are one axis."""
    batch: int | None
    out_channels: int
    width: int
    height: int
    depth: str
    """The loop over input channels."""
    in_channels: int
    taps: int
    """Extent of the innermost window axis; 1 for a 1x1 convolution."""


def untuned(work: TemplateWorkload) -> Decided:
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
def conv2d_nchwc(s: Schedule, work: TemplateWorkload) -> None:
    """Knobs tile_ic, tile_oc, tile_ow (tile_oh for 1x1); the window's loops stay loops."""
    _schedule(s, work, unroll_kw=False)


@template("conv2d_nhwc", untuned=untuned)
def conv2d_nchwc_unroll_kw(s: Schedule, work: TemplateWorkload) -> None:
    """The same with unroll_kw: the window's columns are innermost and written out.

    The order of loops depends on that knob, so its two values are two sketches.
    """
    _schedule(s, work, unroll_kw=True)


def _schedule(s: Schedule, work: TemplateWorkload, *, unroll_kw: bool) -> None:
    shape = _shape(work)
    if unroll_kw and shape.taps == 1:
        raise ScheduleError(f"{work.op}: unroll_kw expects a window wider than one column")
    inline_elementwise(s)
    lanes = work.spec.vector_lanes(shape.out_channels)
    out = results_of(s, work.op)
    loops = s.loops(out)
    (vectors,) = s.sample_tile(loops[shape.channel], 2, _MAX_VECTORS, "tile_oc", unit=lanes)
    (columns,) = s.sample_tile(loops[shape.column], 2, _MAX_OW, "tile_ow")
    _tile(s, work, shape, out, _Tile(lanes, vectors, columns, _MAX_IC, unroll_kw))


def in_blocks(lanes: int, *, unroll_kw: bool) -> TemplateFunction:
    """The template for images in blocks, whose output's blocks are vectors of so many lanes.

    Blocks that are not whole vectors of the device take the longest ones that they are made of: the
    values of `tile_oc` are shared out among the templates of all numbers of lanes.
    """

    def conv2d_nchwc_blocks(s: Schedule, work: TemplateWorkload) -> None:
        shape, widest = _shape(work), work.spec.vector_lanes()
        if unroll_kw and shape.taps == 1:
            raise ScheduleError(f"{work.op}: unroll_kw expects a window wider than one column")
        sizes = [n for n in _divisors(shape.out_channels) if _vector(n, widest) == lanes]
        if not sizes:
            raise ScheduleError(f"{work.op}: no block of outputs consists of vectors of {lanes}")
        for stage in padding_of(s.program, s.block(work.op)):
            if not masks_lanes(stage, s.block(work.op)):
                s.compute_inline(stage.name)
        inline_elementwise(s)
        out = results_of(s, work.op)
        block = s.sample_categorical("tile_oc", sizes)
        columns = s.sample_categorical("tile_ow", verbose_tiles(shape.width))
        tile = _Tile(lanes, block // lanes, columns, shape.in_channels, unroll_kw)
        _tile(s, work, shape, out, tile)

    conv2d_nchwc_blocks.__name__ += f"_v{lanes}" + "_unroll_kw" * unroll_kw
    return conv2d_nchwc_blocks


for _lanes in _LANES:
    for _unroll_kw in (False, True):
        template("conv2d_nhwc", blocks=("tile_ic", "tile_oc"))(
            in_blocks(_lanes, unroll_kw=_unroll_kw)
        )


def verbose_tiles(extent: int) -> list[int]:
    """AutoTVM's sizes of a tile of columns: divisors and powers of two, up to 64."""
    powers = (1 << n for n in range(extent.bit_length()))
    return sorted(n for n in {*_divisors(extent), *powers} if n <= _MAX_OW)


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile: vectors of output channels by columns."""

    lanes: int
    vectors: Expr
    columns: Expr
    most_ic: int
    """Input channels of a block at most."""
    unroll_kw: bool


def _tile(
    s: Schedule, work: TemplateWorkload, shape: _ConvolutionLoops, out: str, tiled: _Tile
) -> None:
    """All but the sizes of the tile, which is that of the stage `out`."""
    loops, lanes = s.loops(out), tiled.lanes
    by_lanes = [tiled.vectors, as_expr(lanes)]
    oc_chunk, oc_vectors, oc_lanes = s.split(loops[shape.channel], by_lanes, "shift")
    ow_chunk, ow_block = s.split(loops[shape.column], [tiled.columns], "shift")
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
    unroll_all(s, tile)
    if lanes > 1:
        s.vectorize(oc_lanes)
    _reduction(s, work.op, shape, tiled)
    accumulators = tiled.vectors * tiled.columns * (s.loop(tile[0]).extent if len(tile) > 2 else 1)
    registers = max(work.spec.vector_registers, 8)
    s.require(accumulators + tiled.vectors + 1 <= registers, "the register tile spills")
    pack_operands(s, work.op)
    schedule_rest(s, work.spec)


def _reduction(s: Schedule, conv: str, shape: _ConvolutionLoops, tiled: _Tile) -> None:
    """ic_chunk, kh, kw, ic_block (or ic_block, kw), then the register tile with lanes last."""
    own = s.loops(conv)
    axes = [str(index) for index in s.block(conv).indices]
    rest = [n for n in own if s.loop(n).reduce and n != shape.depth]
    (ic,) = s.sample_perfect_tile(shape.depth, 2, tiled.most_ic, "tile_ic")
    ic_chunk, ic_block = s.split(shape.depth, [ic])
    inner = [ic_block, rest[-1]] if tiled.unroll_kw else [*rest[-1:], ic_block]
    tile = [n for i, n in enumerate(axes) if i != shape.channel and n in own]
    outer = [ic_chunk, *rest[:-1], *inner]
    accumulate_in_registers(s, outer, [*tile, axes[shape.channel]], tiled.lanes)
    if tiled.unroll_kw:
        s.unroll(rest[-1])


def _has_tile_oh(shape: _ConvolutionLoops) -> bool:
    return shape.taps == 1 and shape.row is not None and shape.height > 1


def _shape(work: TemplateWorkload) -> _ConvolutionLoops:
    """Raises: ScheduleError for anything but one plain convolution of one group."""
    conv = work.op
    stage = Accesses.of(block_named(work.program, conv), work.program.body)
    data = [operand for operand in stage.operands if not operand.constant]
    if len(data) != 1 or len(stage.operands) != 2:
        raise ScheduleError(f"{conv}: expected one constant operand and one that is not")
    axes, extents = stage.results, [evaluate_int(loop.extent) for loop in stage.results]
    depth, window = stage.deep, stage.window
    if not 2 <= len(axes) <= 4 or len(depth) != 1 or len(window) > 2:
        raise ScheduleError(f"{conv}: expected a sum over channels and at most two taps")
    if axes[-1].var != stage.channel or {*data[0].last} != {depth[0].var}:
        raise ScheduleError(f"{conv}: expected channels last, in a single group")
    pixels, channels, deep = extents[:-1], extents[-1], evaluate_int(depth[0].extent)
    if not (is_fixed(channels) and is_fixed(deep)) or channels < 2 or most(prod(pixels)) < 2:
        raise ScheduleError(f"{conv}: expected several pixels and output channels, got {extents}")
    return _ConvolutionLoops(
        channel=len(axes) - 1,
        column=len(axes) - 2,
        row=len(axes) - 3 if len(axes) > 2 else None,
        batch=0 if len(axes) > 3 else None,
        out_channels=channels,
        width=example(pixels[-1]),
        height=example(pixels[-2]) if len(axes) > 2 else 1,
        depth=depth[0].var.name,
        in_channels=deep,
        taps=evaluate_int(window[-1].extent) if window else 1,
    )


def _divisor(extent: int, limit: int) -> int:
    """The largest divisor of the extent up to a limit."""
    return max(n for n in _divisors(extent) if n <= limit)


def _divisors(extent: int) -> Sequence[int]:
    return [n for n in range(1, extent + 1) if extent % n == 0]


def _vector(block: int, widest: int) -> int:
    """Lanes of the longest vectors of which so many channels are whole ones."""
    return max(n for n in _LANES if n <= widest and block % n == 0)
