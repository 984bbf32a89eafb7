"""Register tiles on CPU devices: contractions, whose operands serve several results each.

A work-group takes a block of tiles that stays in its caches; a tile is named registers, of which
the last axis is vectors of channels. Reduce loops run outside of it, the epilogue on it, and
constants are packed in the order in which it reads them. Read `RegisterTile`, then
`schedule_register_tile`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from retune.core.dims import is_fixed, least
from retune.core.target import DeviceSpec
from retune.ir.expr import Const, Expr, Var, const, size_variables
from retune.schedule.schedule import Schedule
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.fusion import accesses, pack_operands, results_of
from retune.targets.instructions import Instruction, split_pack
from retune.targets.restated import Restatement, lays_columns
from retune.targets.tiling import (
    BLOCK,
    CPU,
    GROUP,
    LANE,
    REGISTER,
    TiledAxis,
    TiledLoops,
    Tiling,
    extent_of,
    unroll_all,
)

_LEAST_TILE = 6
"""Accumulators of a register tile at least, where the shape allows: fewer wait on each other."""
_LEAST_ROWS = 4
"""Of a core at least, where rows are shared out evenly."""
_MOST_TILE = 16
"""Results along one axis of a register tile at most."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """The structural choices of one sketch."""

    lanes: int
    """Vector length; 1 where nothing is vectorized."""
    window: bool = False
    """True: all reduce loops are written out (small windows, so that reads are shared)."""
    channels_slow: bool = False
    """True: work-groups walk the pixels of one channel tile before the next one."""
    masked: bool = False
    """True: padding is a mask on the reduction; False: padded data is written out first."""
    packed: Instruction | None = None
    """What multiplies packs and adds their products up in each lane; None: elements are."""
    forms: tuple[Restatement, ...] = ()
    """What the reduction is restated as, so that it comes in packs."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        order = "channels_slow" if self.channels_slow else "pixels_slow"
        extras = {"masked": self.masked, **{f.label: True for f in self.forms}}
        extras |= {"words": bool(self.packed)}
        steps = "window" if self.window else "loops"
        return ".".join(
            [f"cpu.v{self.lanes}", steps, order, *(n for n, has in extras.items() if has)]
        )


def schedule_register_tile(
    s: Schedule, name: str, plan: RegisterTile, spec: DeviceSpec, *, sampled: bool
) -> None:
    """The reduction `name` under the tiles of its epilogue, on named registers."""
    stage = accesses(s, name)
    if not stage.results:
        return  # a single number: its loops stay as they are
    leading, tile = tile_results(s, name, plan, spec, stage.group, sampled=sampled)
    s.compute_at(name, tile[BLOCK][-1])
    bind_tile(s, leading, tile, channels_slow=plan.channels_slow)
    order_reduction(s, name, plan, sampled=sampled)
    tile.run(LANE, REGISTER)
    if sampled:
        limit_registers(s, tile[REGISTER], spec, plan.packed)
    pack_operands(s, name)


def tile_results(
    s: Schedule,
    name: str,
    plan: RegisterTile,
    spec: DeviceSpec,
    group: int | None = None,
    *,
    sampled: bool = True,
    tail: str = "clamp",
) -> tuple[list[str], TiledLoops]:
    """The loops around the tiles of what the reduction `name` ends in, and the tiles' own loops.

    `tail` is that of extents that depend on sizes, see `Tiling.apply`.
    """
    *others, last = s.loops(results_of(s, name))
    single = [n for n in others if not s.several(n)]
    real = [n for n in others if n not in single]
    pixels, leading = [TiledAxis(n, _MOST_TILE) for n in real[-2:]], [*single, *real[:-2]]
    if group is not None:
        outer, last = s.split(last, [group])
        leading.append(outer)
    channels = TiledAxis(last, _MOST_TILE, plan.lanes)
    shared = bool(pixels) and not plan.channels_slow and not any(map(s.several, leading))
    units = _units(s, pixels[0].loop, spec) if shared else 1
    tiling = _tiling(pixels, channels)
    return leading, tiling.apply(s, leading, sampled=sampled, tail=tail, units=units)


def _units(s: Schedule, rows: str, spec: DeviceSpec) -> int:
    """Cores that share the loop, so that each has the rows which it has made for this nest.

    One where they may be too few for all.
    """
    return spec.compute_units if least(s.extent(rows)) >= _LEAST_ROWS * spec.compute_units else 1


def _tiling(pixels: list[TiledAxis], channels: TiledAxis) -> Tiling:
    """Within a block, a strip of channels is done with before the next one comes."""
    nest = {
        GROUP: [*pixels, channels],
        BLOCK: [channels, *pixels],
        REGISTER: [*pixels, channels],
    }
    lanes = {LANE: [channels]} if channels.unit > 1 else {}
    return Tiling(CPU, nest | lanes, [*pixels, channels])


def bind_tile(
    s: Schedule, leading: Sequence[str], tile: TiledLoops, *, channels_slow: bool
) -> None:
    """Outer loops become work-groups; the fastest axis is the one that shares most."""
    *pixels, channels = tile[GROUP]
    front = [n for n in leading if s.several(n)]
    chain = [*front, *pixels]
    while len(chain) > 2 or (len(chain) == 2 and front and len(pixels) == 1):
        chain[:2] = [s.fuse(chain[0], chain[1])]
    axes = ["group.2", "group.1", "group.0"]
    if channels_slow:
        axes = ["group.1", "group.0", "group.2" if len(chain) == 2 else "group.1"]
    for loop, axis in zip([*chain, channels], axes[-len(chain) - 1 :], strict=True):
        s.bind(loop, axis)


def order_reduction(s: Schedule, name: str, plan: RegisterTile, *, sampled: bool) -> None:
    """Reduce loops outside the register tile; the tile's loops written out, lanes last."""
    block_loops = s.loops(name)
    reduce = [n for n in block_loops if s.loop(n).reduce]
    inside = ""
    if lays_columns(plan.forms):
        inside = reduce.pop()
    elif plan.packed:
        inside = split_pack(s, reduce, plan.packed.entry.pack)
    axes = s.axes(name)
    spatial = [n for n in block_loops if n in axes]
    order = list(reduce)
    if plan.window:
        unroll_all(s, reduce)
    elif sampled and reduce:
        longest = reduce[-1]
        extent = s.likely(longest)
        if len(reduce) > 1 and extent > 8 and is_fixed(s.extent(longest)):
            (factor,) = s.sample_perfect_tile(longest, 2, 1024)
            far, near = s.split(longest, [factor])
            order = [far, *reduce[:-1], near]
        # Copies of a masked step are copies of its branches: they cost more than they save.
        hints = [1, 2, 4] if extent >= 8 and not plan.masked else [1]
        hint = s.sample_categorical(f"unroll.{name}", hints)
        if not size_variables(s.loop(order[-1]).extent):  # which no compiler is asked to unroll
            s.require(s.loop(order[-1]).extent % hint <= 0, "unrolling would leave a rest")
        s.unroll(order[-1], hint)
    accumulate_in_registers(s, order, spatial, plan.lanes, inside)
    if plan.packed:
        s.tensorize(inside, plan.packed.entry.name)


def limit_registers(
    s: Schedule, tile: Sequence[str], spec: DeviceSpec, packed: Instruction | None = None
) -> None:
    """Requires tiles that fit the registers, with accumulators enough to hide latency.

    A tile takes its accumulators, one row of weights and a value that is broadcast.

    `tile` are the loops over accumulators; the last one is over vectors of channels.
    """
    *inner, channels = tile
    vectors, size = s.loop(channels).extent, extent_of(s, [channels, *inner])
    registers = max(spec.vector_registers, 8)
    each = packed.implementation.registers if packed else 1
    s.require(size + vectors * each + each <= registers, "the register tile spills")
    largest = prod(_largest(s, s.loop(n).extent) for n in tile)
    column = (registers - each) // (1 + each)  # accumulators that fit where each has its weights
    fewest = min(_LEAST_TILE, largest, column)
    s.require(const(fewest) <= size, "too few accumulators hide latency")


def _largest(s: Schedule, extent: Expr) -> int:
    """The largest value that a sampled extent can take."""
    if isinstance(extent, Const):
        return int(extent.value)
    return max(
        int(d.table[:, d.symbols.index(extent)].max())
        for d in s.decisions
        if isinstance(extent, Var) and extent in d.symbols
    )
