"""Window reductions on CPU devices: depthwise convolutions and pooling over contiguous channels.

Each result is a reduction over its own channel alone: nothing is broadcast, every operand is a
vector of channels, and what can be saved is reading a tap again for the next result. So a register
tile is a piece of a row of results: written out, neighbours share the taps of a row. Tiles that
read past the data are set apart (`ir.stmt.PEEL`), so that the others have no masks.
`Accesses.by_channel` says what is one, `schedule_window` does it, `window_cycles` estimates it.
"""

from dataclasses import dataclass

from retune.core.dims import is_fixed
from retune.core.target import DeviceSpec
from retune.ir.stmt import PEEL
from retune.schedule.schedule import Schedule
from retune.targets.fusion import pack_operands, results_of
from retune.targets.tiling import (
    BLOCK,
    CPU,
    GROUP,
    LANE,
    REGISTER,
    TiledAxis,
    Tiling,
    fuse_all,
    unroll_all,
)

LEAST_LANES = 4
"""With fewer channels, lanes over them are not worth it."""
_MOST_COLUMNS = 14
"""Columns of results in a register tile at most."""
_MOST_VECTORS = 8
"""Channel vectors in a register tile at most."""
_MOST_TAPS = 16
"""Taps of a row that are written out at most."""
_MOST_STEPS = 96
"""Steps of a tile that are written out at most: they cost time to compile."""
_SPARE = 8
"""Registers beside the accumulators: taps and weights of a row."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The structural choices of one sketch."""

    lanes: int
    masked: bool
    """True: padding is a mask on the taps; False: padded data is written out first."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"cpu.v{self.lanes}.sliding"


def schedule_window(
    s: Schedule, name: str, plan: SlidingWindow, spec: DeviceSpec, *, sampled: bool
) -> None:
    """The reduction `name` in tiles of a row of the stage that reads it element by element.

    A work-group takes some rows and some channels. It goes along the tiles of a row, and for each
    of them down its rows, so that rows of taps that two results share are still near.
    """
    *others, last = s.loops(results_of(s, name))
    real = [n for n in others if s.several(n)]
    channels = TiledAxis(last, _MOST_VECTORS, plan.lanes)
    rows = [TiledAxis(n, s.likely(n)) for n in real[-2:-1]]
    columns = [TiledAxis(n, _MOST_COLUMNS) for n in real[-1:]]
    nest = {
        GROUP: [*rows, channels],
        BLOCK: [*columns, *rows, channels],
        REGISTER: [*columns, channels],
        LANE: [channels],
    }
    tile = Tiling(CPU, nest, [channels, *rows, *columns]).apply(
        s, real[:-2], sampled=sampled, tail="clamp"
    )
    s.compute_at(name, tile[BLOCK][-1])
    taps = write_out(s, name, plan.lanes)
    tile.run(REGISTER, LANE)
    for loop in tile[BLOCK][: len(columns)]:
        s.annotate(loop, PEEL, "ends")
    *groups, chunk = [*real[:-2], *tile[GROUP]]
    if groups:
        s.bind(fuse_all(s, groups), "group.1")
    s.bind(chunk, "group.0")
    if sampled:
        size = tile.size(REGISTER)
        registers = max(spec.vector_registers, 2 * _SPARE) - _SPARE
        s.require(size <= registers, "the register tile spills")
        s.require(size * taps <= max(_MOST_STEPS, taps), "the text of a tile is too long")
    pack_operands(s, name)


def write_out(s: Schedule, name: str, lanes: int) -> int:
    """Rows of taps in time; in each, the results one after the other, each with its taps.

    Gives the number of taps of a row that are written out.
    """
    loops = s.loops(name)
    axes = s.axes(name)
    spatial = [n for n in loops if n in axes]
    reduce = [n for n in loops if s.loop(n).reduce]
    extent = s.extent(reduce[-1])
    taps = reduce[-1:] if is_fixed(extent) and extent <= _MOST_TAPS else []
    vectors, lane = s.split(spatial[-1], [lanes])
    s.reorder(*reduce[: len(reduce) - len(taps)], vectors, *spatial[:-1], *taps, lane)
    unroll_all(s, [vectors, *spatial[:-1], *taps])
    s.vectorize(lane)
    return extent if taps else 1
