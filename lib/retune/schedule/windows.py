"""Window reductions on CPU devices: depthwise convolutions and pooling over contiguous channels.

Each result is a reduction over its own channel alone: nothing is broadcast, every operand is a
vector of channels, and what can be saved is reading a tap again for the next result. So a register
tile is a piece of a row of results: written out, neighbours share the taps of a row. Tiles that
read past the data are set apart (`ir.stmt.PEEL`), so that the others have no masks.
Rules: `is_window` says what is one, `schedule_window` does it, `window_cycles` estimates it.
"""

from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, Var, const, loads, variables
from retune.ir.stmt import PEEL, Block
from retune.schedule.schedule import Schedule

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
_LEAST_TILE = 4
"""Accumulators at least, where the shape allows: fewer wait on each other."""


def is_window(block: Block) -> bool:
    """Whether each operand lies along the results' last axis, which is in no other index.

    Then vector lanes over that axis read and write contiguous memory, and share nothing.
    Constants may have it in any place: they are packed.
    """
    last = block.indices[-1] if block.indices else None
    operands = loads(block.value)
    if block.reducer is None or not isinstance(last, Var) or not operands:
        return False
    for load in operands:
        if load.buffer.scope == "constant":
            if not any(last in variables(i) for i in load.indices):
                return False
            continue
        if not load.indices or load.indices[-1] != last:
            return False
        if any(last in variables(i) for i in load.indices[:-1]):
            return False
    return True


def schedule_window(
    s: Schedule, name: str, out: str, lanes: int, spec: DeviceSpec, *, sampled: bool
) -> None:
    """The reduction `name` in tiles of a row of `out`, which reads it element by element.

    A work-group takes some rows and some channels. It goes along the tiles of a row, and for each
    of them down its rows, so that rows of taps that two results share are still near.
    """
    loops = s.loops(out)
    real = [n for n in loops[:-1] if evaluate_int(s.loop(n).extent) > 1]
    groups, along, down, tile = real[:-2], [], [], []
    chunk, near, vectors, lane = _channels(s, loops[-1], lanes, sampled=sampled)
    for loop in real[-2:-1]:
        far, here = _parts(s, loop, evaluate_int(s.loop(loop).extent), sampled=sampled)
        groups.append(far)
        down.append(here)
    for loop in real[-1:]:
        far, here = _parts(s, loop, _MOST_COLUMNS, sampled=sampled)
        along.append(far)
        tile.append(here)
    s.reorder(*groups, chunk, *along, *down, near, *tile, vectors, lane)
    s.compute_at(name, near)
    taps = _write_out(s, name, lanes)
    for loop in (*tile, vectors):
        s.unroll(loop)
    s.vectorize(lane)
    for loop in along:
        s.annotate(loop, PEEL, "ends")
    while len(groups) > 1:
        groups[:2] = [s.fuse(groups[0], groups[1])]
    for loop in groups:
        s.bind(loop, "group.1")
    s.bind(chunk, "group.0")
    if sampled:
        _limit(s, [*tile, vectors], taps, spec)


def _channels(s: Schedule, loop: str, lanes: int, *, sampled: bool) -> list[str]:
    """Work-groups, vectors of a work-group, vectors of a register tile, lanes."""
    sizes: list[Expr] = [const(1), const(1)]
    if sampled:
        sizes = s.sample_tile(loop, 3, _MOST_VECTORS, unit=lanes)
    return s.split(loop, [*sizes, const(lanes)], "shift")


def _parts(s: Schedule, loop: str, most: int, *, sampled: bool) -> list[str]:
    sizes = s.sample_tile(loop, 2, most) if sampled else [const(1)]
    return s.split(loop, sizes, "shift")


def _write_out(s: Schedule, name: str, lanes: int) -> int:
    """Rows of taps in time; in each, the results one after the other, each with its taps.

    Gives the number of taps of a row that are written out.
    """
    loops = s.loops(name)
    axes = [i.name for i in s.block(name).indices if isinstance(i, Var)]
    spatial = [n for n in loops if n in axes]
    reduce = [n for n in loops if s.loop(n).reduce]
    extent = evaluate_int(s.loop(reduce[-1]).extent)
    taps = reduce[-1:] if extent <= _MOST_TAPS else []
    vectors, lane = s.split(spatial[-1], [lanes])
    s.reorder(*reduce[: len(reduce) - len(taps)], vectors, *spatial[:-1], *taps, lane)
    for loop in (vectors, *spatial[:-1], *taps):
        s.unroll(loop)
    s.vectorize(lane)
    return extent if taps else 1


def _limit(s: Schedule, tile: list[str], taps: int, spec: DeviceSpec) -> None:
    """The accumulators fit the registers and are enough to hide latency; the text is short."""
    size: Expr = const(1)
    for loop in tile:
        size = size * s.loop(loop).extent
    s.require(size <= max(spec.vector_registers, 2 * _SPARE) - _SPARE, "the register tile spills")
    s.require(size * taps <= max(_MOST_STEPS, taps), "the text of a tile is too long")
