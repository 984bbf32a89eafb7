"""Matrix products by warps whose operands go through local memory.

The items of a group copy panels of both operands, in the layout that an instruction of warps reads
and filled up with zeros, and each warp multiplies its part of them. Operands may lie anyhow, so
that products of two activations go this way (attention), and any number of steps will do. So do
windows: results are rows whatever pixels they are of, and the steps are the channels of one tap
after the other, gathered from where they lie, zeros around the data included. H100, 3x3 at batch
16: 0.5 to 1.1 of the time of direct tiles. Read `panel_tiles`, then `schedule_panels`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

from retune.core.dims import is_fixed
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.intrinsics.matching import pack_index
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Load, Select, Var, const, loads, substitute, variables
from retune.ir.flat import flat_index
from retune.ir.simplify import Range, polynomial, simplify
from retune.ir.stmt import NEAR, Block, For
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.stages import readers
from retune.targets.fusion import accesses, padding_of, results_of
from retune.targets.gpu.tile import bind_groups, share
from retune.targets.instructions import multiplying
from retune.targets.tiling import (
    GROUP,
    ITEM,
    LANE,
    REGISTER,
    VIRTUAL,
    TiledLoops,
    fuse_all,
    sized_tail,
    unroll_all,
)

_PIXELS = (2, 4, 8, 16)
"""Rows of an item."""
_VECTORS = (1, 2)
"""Of columns, of an item."""
_WARPS = (1, 2, 4, 8)
"""Of a group, that have rows of their own."""
_ACROSS = (1, 2, 4)
"""Those of them that share rows: each has columns of its own."""
_MOST_RESULTS = 128
"""Of an item: with its shares of the operands they fit 255 registers."""
_REGISTER_FILE = 48 << 10
"""Results of a group at most: three quarters of a compute unit's 64 K registers."""
_STAGES = (2, 3, 4)
"""Copies of panels that local memory holds, where some run ahead."""
_FEW_STEPS = 8
"""From so many steps on, two copies are not worth trying: their best tile is faster than the best
of all others for none of 71 tasks by more than 2.4 % (H100 and H200)."""
_BANKS_BYTES = 128
"""Of local memory: what lies so far apart is in the same bank."""
_DEPTHS = (1, 2, 4)
"""Steps of the instruction between two copies."""
_DEEP = 2
"""The same where copies run ahead into as much memory as kernels may declare: tiles of 128 x 256
take 0.87 of the time of those of 128 x 128 so (H100, products of 4096 and 8192)."""
_LEAST_DEEP = 64
"""Steps below which that is not worth it: with 32 of them no tile is faster so."""
_COPIED_BYTES = 16
"""What an item copies at once, where elements lie side by side."""


@dataclass(frozen=True, slots=True)
class PanelTile:
    """The structural choices of one sketch."""

    entry: Intrinsic
    stages: int = 1
    """Copies of panels in local memory: those of later steps run ahead of the products."""
    depth: int = 1
    """Where they do, steps of the instruction between two copies."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        ahead = f".ahead{self.stages}" if self.is_ahead else ""
        return f"gpu.v{self.entry.n}.warp.panels{ahead}{'.deep' * (self.depth > 1)}"

    @property
    def is_ahead(self) -> bool:
        """Whether copies of later steps run ahead."""
        return self.stages > 1

    @property
    def alike(self) -> bool:
        """Whether columns lie by packs as long as those of rows do."""
        first, second = self.entry.operands
        return first.pack == second.pack


def panel_tiles(stage: Accesses, spec: DeviceSpec) -> list[PanelTile]:
    """The tiles for a product; none where the device has no instruction for it, or it is small."""
    if not stage.plain or stage.group is not None or not stage.steps:
        return []
    *window, steps = (evaluate_int(loop.extent) for loop in stage.steps)
    roles = _roles(stage)
    if roles is None or not is_fixed(steps):
        return []
    rows, columns = roles
    sizes = [prod(evaluate_int(loop.extent) for loop in rows), evaluate_int(columns.extent)]
    found = [i.entry for i in multiplying(stage, spec, "warp") if _fills(i.entry, sizes)]
    # That which fills up fewest steps; of such the one whose columns are copied in longer pieces,
    # then the one with more steps at once.
    least = min(found, key=lambda e: (-steps % e.k, -_piece(stage, e), -e.k), default=None)
    if least is None:
        return []
    at_once = PanelTile(least)
    # Single elements go through registers, and make a loop that copies them ahead a slower one.
    count = prod(window) * (steps // least.k) if at_once.alike else 0
    stages = [n for n in _STAGES if n <= count and (n > min(_STAGES) or count < _FEW_STEPS)]
    tiles = [at_once, *(PanelTile(least, n) for n in stages)]
    is_deep = count >= _LEAST_DEEP and steps % (least.k * _DEEP) == 0
    return [*tiles, PanelTile(least, stages=3, depth=_DEEP)] if is_deep else tiles


def _piece(stage: Accesses, entry: Intrinsic) -> int:
    """Elements of columns that a copy takes at once."""
    pack = entry.operands[1].pack
    columns = next(o for o in stage.operands if stage.channel in o.moving)
    along = stage.steps[-1].var
    return pack if columns.constant or pack_index(columns.load, along, pack) is not None else 1


def inline_movements(s: Schedule, name: str) -> None:
    """Movements that the product alone reads are part of it: its panels are copied anyhow."""
    for other in reversed(s.blocks()):
        block = s.block(other)
        moves = isinstance(block.value, Load) and block.reducer is None and block.guard is None
        if moves and readers(s.program, block.buffer) == [s.block(name)]:
            s.compute_inline(other)


def _fills(entry: Intrinsic, sizes: Sequence[int]) -> bool:
    """Whether so many rows and columns fill the tile of a warp."""
    assert entry.warp is not None, "it is one of warps"
    rows, columns = sizes
    fit = rows >= entry.warp.first * entry.m and columns >= entry.warp.second * entry.n
    return is_fixed(rows) and is_fixed(columns) and fit


def _roles(stage: Accesses) -> tuple[Sequence[For], For] | None:
    """The loops over rows and over columns of a product; None where it has none.

    Rows are along the innermost axis that moves one operand alone, and its neighbours that do so;
    columns are along the last axis.
    """
    column, found = stage.channel, [*dict.fromkeys(o.load for o in stage.operands)]
    if len(found) != 2 or column is None:
        return None
    moved = [{v for i in load.indices for v in variables(i)} for load in found]
    owners = [n for n, own in enumerate(moved) if column in own]
    if len(owners) != 1:
        return None
    moving = moved[1 - owners[0]] - moved[owners[0]]
    runs = [[*run] for own, run in groupby(stage.results, lambda n: n.var in moving) if own]
    rows = next((run for run in reversed(runs) if any(n.extent != const(1) for n in run)), [])
    while rows and const(1) in (rows[0].extent, rows[-1].extent):
        rows = rows[1:] if rows[0].extent == const(1) else rows[:-1]
    last = next((n for n in stage.results if n.var == column), None)
    return (rows, last) if rows and last is not None else None


def schedule_panels(s: Schedule, name: str, structure: PanelTile) -> None:
    """The product `name` under the tiles of its epilogue; tile sizes are sampled."""
    entry = structure.entry
    assert entry.warp is not None, "it is one of warps"
    inline_movements(s, name)
    roles = _roles(accesses(s, name))
    if roles is None:
        raise ScheduleError(f"{name}: expected rows and columns")
    out = results_of(s, name)
    first = [loop.var for loop in accesses(s, name).results].index(roles[0][0].var)
    name, axes = _flatten(s, name, out, first, len(roles[0]))
    taps = any(s.loop(n).extent != const(1) for n in s.reduce_loops(name)[:-1])
    copies = s.restate(name, "panels", [entry.pack, entry.k])
    for padding in padding_of(s.program, s.block(copies[0])):
        s.compute_inline(padding.name)
    tile, leading = _tile(s, out, axes, first, entry)
    bind_groups(s, tile, leading)
    tile.run(VIRTUAL, ITEM)
    s.compute_at(name, tile[ITEM][-1])
    outer = _accumulate(s, name, first, structure)
    for copy in copies:
        _copy(s, copy, outer, tile, structure)
    if structure.is_ahead:
        s.run_ahead(outer, structure.stages)
        if taps:
            s.annotate(outer, NEAR, 1)
        s.require(s.loop(outer).extent >= structure.stages, "there are fewer steps than stages")
    tile.run(REGISTER, LANE)


def _flatten(s: Schedule, name: str, out: str, first: int, count: int) -> tuple[str, list[str]]:
    """The product with so many axes from the first one as one axis of rows, and the loops of its
    results."""
    axes = s.loops(out)
    if count == 1:
        return name, axes
    (made,) = s.restate(name, "flattened", [first, first + count])
    s.compute_inline(name)
    rows = fuse_all(s, axes[first : first + count])
    return made, [*axes[:first], rows, *axes[first + count :]]


def _tile(
    s: Schedule, out: str, axes: Sequence[str], position: int, entry: Intrinsic
) -> tuple[TiledLoops, list[str]]:
    """The loops of the epilogue as a tile, and those that only number tiles."""
    assert entry.warp is not None, "it is one of warps"
    first, second = entry.warp.first, entry.warp.second
    rows, columns = axes[position], axes[-1]
    extents = [s.extent(n) for n in (rows, columns)]
    units = (first, second * entry.n)
    sizes = [
        [n for n in options if n * unit <= extent]
        for options, unit, extent in zip((_PIXELS, _VECTORS), units, extents, strict=True)
    ]
    fit = [n for n in _WARPS if n * first * entry.m <= extents[0]]
    wide_enough = [n for n in _ACROSS if n * units[1] <= extents[1]]
    warps = s.sample_categorical(f"warps.{out}", fit)
    across = s.sample_categorical(f"across.{out}", wide_enough)
    held = s.sample_categorical(f"pixels.{out}", sizes[0])
    wide = s.sample_categorical(f"vectors.{out}", sizes[1])
    times = held // entry.m
    s.require(held * wide * entry.n <= _MOST_RESULTS, "an item's registers spill")
    items = warps * across * first * second
    s.require(items * held * wide * entry.n <= _REGISTER_FILE, "the group's registers spill")
    s.require(warps * held * first <= extents[0], "a group has more rows than there are")
    factors = [warps, times, first, entry.m]  # a warp reads neighbours at once
    group, warp, again, near, row = s.split(rows, factors, sized_tail(s, rows, "fill"))
    s.require(wide * across * units[1] <= extents[1], "a group has more columns than there are")
    parts = s.split(columns, [wide, across * second, entry.n], sized_tail(s, columns, "fill"))
    strip, vector, item, lane = parts  # items side by side read from different banks
    leading = [n for n in axes[:-1] if n != rows]
    s.reorder(*leading, group, strip, vector, again, warp, item, near, row, lane)
    loops = {
        GROUP: [group, strip],
        VIRTUAL: [vector, again],
        ITEM: [warp, item, near],
        REGISTER: [row],
        LANE: [lane],
    }
    return TiledLoops(s, loops), leading


def _accumulate(s: Schedule, name: str, position: int, structure: PanelTile) -> str:
    """The product of an item: copies, then steps between them, then registers, the instruction
    inside. Gives the loop around the copies."""
    entry, ahead = structure.entry, structure.is_ahead
    steps = s.reduce_loops(name)
    near = steps[-1:] if entry.pack > 1 else []
    *window, far = steps[: len(steps) - len(near)]
    packs = entry.k // entry.pack
    count = s.extent(far) // packs
    fit = [n for n in _DEPTHS if count % n == 0]
    depth = structure.depth if ahead else s.sample_categorical(f"depth.{name}", fit)
    outer, inner, packs_loop = s.split(far, [depth, packs])  # of all taps, one after the other
    if ahead:
        s.unroll(inner)
    axes = s.axes(name)
    held, channels = axes[position], axes[-1]
    others = [n for n in axes if n in s.loops(name) and n not in (held, channels)]
    s.reorder(*window, outer, inner, *others, held, packs_loop, channels, *near)
    unroll_all(s, others)
    s.tensorize(held, entry.name)
    return fuse_all(s, [*window, outer])


def _copy(s: Schedule, copy: str, at: str, tile: TiledLoops, structure: PanelTile) -> None:
    """A panel copied by all items, by whole vectors where they lie side by side.

    Constants are laid out as panels at compile time. Of other columns neighbouring items copy
    neighbours along the steps, as they lie so.
    """
    block, by_columns, entry = s.block(copy), copy.endswith("columns"), structure.entry
    most = _COPIED_BYTES // block.buffer.dtype.itemsize
    width = next((n for n in (most, entry.pack) if _side_by_side(block, n)), 1)
    (source,) = loads(block.value)
    if by_columns and source.buffer.scope == "constant":
        s.precompute(copy)
        copy, width = s.cache_read(block.buffer.name, at, "local"), most
    else:
        s.compute_at(copy, at, "local")
    *outer, far, last = s.loops(copy)[-len(block.indices) :]
    if by_columns and source.buffer.scope != "constant" and width == entry.pack > 1:
        last, near = s.split(last, [width])
        s.vectorize(near)
        s.reorder(last, far, near)
        own = share(s, [*outer, last, far], tile, 1)
    else:
        own = share(s, [*outer, far, last], tile, width)
    if structure.is_ahead:
        s.unroll(own)
    _avoid_conflicts(s, copy, structure, by_columns=by_columns)


def _avoid_conflicts(s: Schedule, copy: str, structure: PanelTile, *, by_columns: bool) -> None:
    """Items that read a panel at once find it in different banks of local memory.

    Eight items are eight rows at one step, or every fourth column, where both operands lie alike;
    else they are four steps by two rows, or by two columns.
    """
    panel, step = s.block(copy).buffer, structure.entry.operands[0].pack
    banks = _BANKS_BYTES // panel.dtype.itemsize
    if structure.alike and by_columns:
        every = structure.entry.k // step * max(_DEPTHS)  # no two packs are read at once
        s.rotate_rows(copy, banks // step, step, every)
    elif structure.alike and structure.is_ahead:
        line = min(structure.entry.k * structure.depth, banks)
        s.rotate_rows(copy, line // step, step, banks // line)
    elif structure.alike or by_columns:
        s.align_rows(copy, const(step))
    else:
        s.align_rows(copy, (banks + banks // 2 - panel.shape[-1] % banks) % banks)


def _side_by_side(block: Block, count: int) -> bool:
    """Whether so many neighbours of a copy are neighbours where they are read, in whole vectors."""
    value, last = block.value, block.indices[-1]
    if isinstance(value, Select) and last not in variables(value.condition):
        value = value.then  # all of them are zeros, or none
    if not isinstance(value, Load) or not isinstance(last, Var):
        return False
    lane = Var("lane")
    at = substitute(flat_index(value.buffer, value.indices), {last: last * count + lane})
    terms = polynomial(simplify(at, {lane: Range(0, count - 1)}))
    return terms.pop((lane,), 0) == 1 and not any(
        step % count or any(lane in variables(atom) for atom in monomial)
        for monomial, step in terms.items()
    )
