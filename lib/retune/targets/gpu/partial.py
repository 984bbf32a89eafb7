"""Sums of sums on GPUs, see `targets.partial_sums`: both in the registers of one item.

Operands are read where they are: neighbouring items read neighbouring words of the weights, and the
same element of a row. What rows are made of is made by nests before. Read `schedule_partial`.
"""

from dataclasses import dataclass

from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.schedule.schedule import Schedule
from retune.targets.fusion import pack_operands, results_of
from retune.targets.gpu.tile import bind_groups, limit, most_items_of, roles, tiling
from retune.targets.partial_sums import order_partial_sums, total_of
from retune.targets.tiling import ITEM, LANE, REGISTER, VIRTUAL


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTile:
    """The structural choices of one sketch."""

    lanes: int
    """Neighbouring channels of one item."""
    packed: Intrinsic | None = None
    """What multiplies packs and adds their products up in each lane; None: elements are."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"gpu.v{self.lanes}.direct{'.words' if self.packed else ''}.partial"


def schedule_partial(s: Schedule, name: str, plan: PartialTile, spec: DeviceSpec) -> None:
    """The reduction `name` and the sum of its results, under the tiles of that one's epilogue."""
    total = total_of(s.program, s.block(name))
    assert total is not None, "the rule was asked whether there is one"
    leading, pixels, channels = roles(s, s.loops(results_of(s, total.name)), None)
    most_items = most_items_of(s, pixels, channels, plan.lanes)
    tile = tiling(pixels, channels, plan.lanes).apply(s, leading)
    bind_groups(s, tile, leading)
    tile.run(VIRTUAL, ITEM)
    s.compute_at(total.name, tile[ITEM][-1])
    order_partial_sums(s, name, total.name, plan.lanes, plan.packed)
    tile.run(REGISTER, LANE)
    limit(s, tile, most_items, spec, packed=plan.packed is not None)
    for stage in (name, total.name):
        pack_operands(s, stage)
