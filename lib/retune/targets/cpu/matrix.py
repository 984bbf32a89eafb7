"""Tiles on tile registers on CPU devices: contractions by an instruction that makes a tile at once.

AMX multiplies up to sixteen rows of sixty-four bytes with as many for each of sixteen channels. A
few tiles side by side share what they read; their sums go to an array of the work-item's own, where
the epilogue takes them row by row. Rules: `matrix_tile` says where it pays, `schedule_matrix` does
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from retune.core.dims import example, is_fixed, most
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, const, minimum
from retune.ir.stmt import For
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.cpu.tile import bind_tile
from retune.targets.fusion import accesses, pack_operands, results_of
from retune.targets.instructions import Instruction, find_instruction
from retune.targets.restated import Restatement, lays_columns
from retune.targets.tiling import (
    BLOCK,
    CPU,
    GROUP,
    LANE,
    REGISTER,
    ROW,
    TiledAxis,
    Tiling,
    extent_of,
    unroll_all,
)

_LEAST_ROWS = 4
_LEAST_PACKS = 4
"""Smaller tiles are no better than vectors."""
_MOST_TILES = 4
"""Tiles along one axis at most."""


@dataclass(frozen=True, slots=True)
class MatrixTile:
    """The structural choices of one sketch."""

    instruction: Instruction
    rows: int
    """Of a tile; neighbouring pixels."""
    packs: int
    """Of each of its rows."""
    by_columns: bool = False
    """Whether a block goes through its pixels for each tile of channels, or the other way round."""
    channels_slow: bool = False
    """True: work-groups walk the pixels of one channel tile before the next one."""
    forms: tuple[Restatement, ...] = ()
    """What the reduction is restated as; none: it comes in packs as it is."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        order = "channels_slow" if self.channels_slow else "pixels_slow"
        ends = ["by_columns"] * self.by_columns, (form.label for form in self.forms)
        return ".".join([f"cpu.v{self.instruction.entry.n}.matrix", order, *chain(*ends)])


def matrix_tile(
    stage: Accesses, spec: DeviceSpec, forms: Sequence[Restatement] = ()
) -> MatrixTile | None:
    """The tiles for a reduction, which was restated in these forms; None where the device has none,
    or it does not come in tiles."""
    instruction = find_instruction(stage, spec, "register tile")
    if instruction is None:
        return None
    entry = instruction.entry
    pixels = _pixels(stage)
    if not all(is_fixed(evaluate_int(n.extent)) for n in stage.loops if n not in pixels):
        return None
    channels = stage.group or evaluate_int(stage.results[-1].extent)
    steps = stage.steps[-2:] if lays_columns(forms) else stage.steps[-1:]
    depth = prod(evaluate_int(step.extent) for step in steps) // entry.pack
    packs = max(n for n in range(1, entry.k // entry.pack + 1) if depth % n == 0)
    if not pixels or channels < entry.n or packs < _LEAST_PACKS:
        return None
    length = example(evaluate_int(pixels[-1].extent))
    rows = -(-length // -(-length // entry.m))
    return MatrixTile(instruction, rows, packs, forms=(*forms,)) if rows >= _LEAST_ROWS else None


def schedule_matrix(s: Schedule, name: str, plan: MatrixTile, *, sampled: bool) -> None:
    """The reduction `name` under the tiles of its epilogue."""
    stage = accesses(s, name)
    out = results_of(s, name)
    *others, last = s.loops(out)
    own = [stage.results.index(loop) for loop in _pixels(stage)]
    *above, rows = [others[axis] for axis in own[-2:]]
    leading = [n for n in others if n not in (*above, rows)]
    if stage.group is not None:
        group, last = s.split(last, [stage.group])
        leading.append(group)
        s.restate(name, "grouped", [])
    pixels = [*(TiledAxis(n, _MOST_TILES) for n in above), TiledAxis(rows, _MOST_TILES, plan.rows)]
    channels = TiledAxis(last, _MOST_TILES, plan.instruction.entry.n)
    nest = {
        GROUP: [*pixels, channels],
        BLOCK: [channels, *pixels] if plan.by_columns else [*pixels, channels],
        REGISTER: [*pixels, channels],
        ROW: pixels[-1:],
        LANE: [channels],
    }
    tile = Tiling(CPU, nest, [*pixels, channels]).apply(s, leading, sampled=sampled, tail="fill")
    s.compute_at(name, tile[BLOCK][-1])
    bind_tile(s, leading, tile, channels_slow=plan.channels_slow)
    _order(s, name, plan, own[-1])
    *above, columns = tile[REGISTER]
    s.reorder(*tile[ROW], columns, *tile[LANE])  # a row is stored at once
    for row in tile[ROW]:  # in one block, where compilers see how few bits multipliers have
        s.unroll(row, plan.rows)
    tile.run(REGISTER, LANE)
    if sampled:
        most = plan.instruction.entry.registers
        used = registers(extent_of(s, above), s.loop(columns).extent, most)
        s.require(used <= const(most), "more tiles than tile registers")
    pack_operands(s, name)


def _pixels(stage: Accesses) -> list[For]:
    """The loops over results that share columns, as heads of attention do not."""
    apart = {v for o in stage.operands if stage.channel in o.direct for v in o.moving}
    own = [loop for loop in stage.results[:-1] if loop.var not in apart]
    return [loop for loop in own if most(evaluate_int(loop.extent)) > 1]


def registers(rows: Expr, columns: Expr, most: int) -> Expr:
    """Tile registers that so many tiles take: for sums, a tile of data, and those of weights.

    These are held for the next row of tiles, if there is one.
    """
    return rows * columns + 1 + minimum(columns, 1 + (rows - 1) * most)


def _order(s: Schedule, name: str, plan: MatrixTile, row_axis: int) -> None:
    """Steps outside of the tiles, which are written out; what the instruction does inside.

    `row_axis` is which of its results' axes the rows of a tile are along.
    """
    loops = s.loops(name)
    *steps, deep = [n for n in loops if s.loop(n).reduce]
    axes = s.axes(name)
    rows, channels = axes[row_axis], axes[-1]
    spatial = [n for n in loops if n in axes and n not in (rows, channels)]
    entry = plan.instruction.entry
    if lays_columns(plan.forms):
        near = [deep]
        deep, packs = s.split(steps.pop(), [plan.packs])
    else:
        deep, packs, *near = s.split(deep, [plan.packs, *([entry.pack] if entry.pack > 1 else [])])
    rows, row = s.split(rows, [plan.rows])
    channels, channel = s.split(channels, [entry.n])
    written = [*spatial, rows, channels]
    s.reorder(*steps, deep, *written, row, packs, channel, *near)
    unroll_all(s, written)
    s.tensorize(row, entry.name)
