"""Sums of sums on GPUs, see `targets.partial_sums`: both in the registers of one item.

Operands are read where they are: neighbouring items read neighbouring words of the weights, and the
same element of a row. What rows are made of is made by nests before. Read `schedule_partial`, and
`schedule_shared_partial` for few rows, whose results alone leave a device idle: items share them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from retune.core.dims import example, most
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, loads
from retune.ir.stmt import Block
from retune.schedule.schedule import Schedule
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.fusion import pack_operands, reductions_beside, results_of
from retune.targets.gpu.tile import bind_groups, limit, most_items_of, roles, tiling
from retune.targets.partial_sums import order_partial_sums, total_of
from retune.targets.row_programs import factored
from retune.targets.tiling import ITEM, LANE, REGISTER, VIRTUAL, fuse_all, unroll_all

_FEW_ROWS = 4
"""Rows whose results are too few for an item each."""
_COLUMNS = (4, 8, 16, 32)
"""Items that read neighbouring words: a warp at most."""
_PARTS = (4, 8, 16, 32, 64)
"""Items that share a result; as many as there are blocks, where a group has room for them, wait
once for what they read."""
_NEAR, _MANY = 4, 32
"""Of these, so many find the results, after as many of them; twice as many of many blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialTile:
    """The structural choices of one sketch."""

    lanes: int
    """Neighbouring channels of one item."""
    packed: Intrinsic | None = None
    """What multiplies packs and adds their products up in each lane; None: elements are."""
    shared: bool = False
    """Whether the items of a group take blocks of the same results."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        where = "shared" if self.shared else "direct"
        return f"gpu.v{self.lanes}.{where}{'.words' if self.packed else ''}.partial"


def has_few_rows(s: Schedule, total: Block, spec: DeviceSpec) -> bool:
    """Whether the outer sum has so few rows that items should share its blocks, and may."""
    *rows, _ = (most(evaluate_int(extent)) for extent in total.buffer.shape)
    return prod(rows) <= _FEW_ROWS and bool(_parts(s, total.name, spec))


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


def schedule_shared_partial(s: Schedule, name: str, plan: PartialTile, spec: DeviceSpec) -> None:
    """The two sums, whose blocks are dealt out to the items of a group: each adds its own up, and
    then all are added up in local memory. How many items share a result is sampled, and how many
    have neighbours. What the epilogue reads beside them is made by the same items.

    It `has_few_rows`.
    """
    total = total_of(s.program, s.block(name))
    assert total is not None, "the rule was asked whether there is one"
    totals = reductions_beside(s, total.name)
    parts = s.sample_categorical(f"parts.{total.name}", _parts(s, total.name, spec))
    shared = {t: _share_blocks(s, t, parts) for t in totals}
    *rows, results = s.axes(results_of(s, total.name))
    vectors = example(evaluate_int(total.buffer.shape[-1])) // plan.lanes
    widths = [n for n in _COLUMNS if n <= vectors] or [vectors]
    columns = s.sample_categorical(f"columns.{total.name}", widths)
    group, column, *vector = s.split(results, [columns, *_lanes(plan)], "shift")
    s.bind(column, "local.0")
    for each in totals:
        s.compute_at(each, column)
    stages = [(own, own.by_near, ["local.1"]) for own in shared.values()]
    stages += [(own, own.by_item, ["local.2", "local.1"]) for own in shared.values()]
    for shares, stage, items in stages:  # each before the last: all products, then all sums
        stored = shares.stored[stage]
        s.compute_at(stored, group, "local")
        *_, result = axes = s.axes(stored)
        result, *own = s.split(result, _lanes(plan)) if plan.lanes > 1 else [result]
        for loop, item in zip(axes[-1 - len(items) : -1], items, strict=True):
            s.bind(loop, item)
        s.bind(result, "local.0")
        s.compute_at(stage, result)
        vector += own
    for each, own in shared.items():
        order_partial_sums(s, own.product, own.by_item, plan.lanes, plan.packed)
        _sum_rows(s, own.product, own.by_item)
        for stage in (each, own.by_near):
            axes = [n for n in s.axes(stage) if n in s.loops(stage)]
            accumulate_in_registers(s, s.reduce_loops(stage), axes, plan.lanes)
    for loop in vector:
        s.vectorize(loop)
    s.bind(fuse_all(s, [*rows, group]), "group.0")
    for own in shared.values():
        for stage in (own.product, own.by_item):
            pack_operands(s, stage)


@dataclass(frozen=True, slots=True)
class _SharedSum:
    """A sum that items share."""

    product: str
    """What it adds up."""
    by_item: str
    """The part of each item."""
    by_near: str
    """Sums of some of those."""
    stored: Mapping[str, str]
    """Where both are in local memory."""


def _share_blocks(s: Schedule, total: str, parts: Expr) -> _SharedSum:
    """So many items take the blocks of a sum."""
    (product,) = (
        n for n in s.blocks() if (t := total_of(s.program, s.block(n))) and t.name == total
    )
    (blocks,), last = s.reduce_loops(total), len(s.block(total).indices) - 1
    neighbours = 2 * _NEAR if s.likely(blocks) >= _MANY else _NEAR
    _, far, near = s.split(blocks, [parts // neighbours, neighbours], "guard")
    by_near = s.rfactor(total, near, last)
    by_item = s.rfactor(by_near, factored(by_near, total, far), last)
    for stage in (by_item, by_near):
        s.reorder(*s.axes(stage))
    stored = {stage: s.cache_write(stage) for stage in (by_item, by_near)}
    return _SharedSum(product, by_item, by_near, stored)


def _parts(s: Schedule, total: str, spec: DeviceSpec) -> list[int]:
    """Numbers of items for a result that there are blocks for, and that a group may have."""
    (blocks,) = s.reduce_loops(total)
    most_parts = example(evaluate_int(s.loop(blocks).extent))
    room = spec.max_work_group if spec.local_memory_bytes else 0
    whole = [most_parts] if most_parts > max(_PARTS) and most_parts % (2 * _NEAR) == 0 else []
    least_parts = 2 * _NEAR if most_parts >= _MANY else _NEAR
    return [
        n for n in (*_PARTS, *whole) if least_parts <= n <= most_parts and n * min(_COLUMNS) <= room
    ]


def _lanes(plan: PartialTile) -> list[int]:
    """The part of a loop over channels that is one item's vector."""
    return [plan.lanes] if plan.lanes > 1 else []


def _sum_rows(s: Schedule, name: str, total: str) -> None:
    """The sums of a row's elements, block by block, are made by each item that needs them."""
    read = {load.buffer for load in loads(s.block(total).value)}
    (step,) = (n for n in s.reduce_loops(total))
    for stage in s.blocks():
        block = s.block(stage)
        if stage != name and block.buffer in read and block.reducer == "sum":
            s.compute_at(stage, step)
            unroll_all(s, [n for n in s.loops(stage) if s.loop(n).reduce and n != step])
