"""Features of a block as a whole: its work, its parallelism, its registers, its caches."""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.search.model.features.layout import Array
from retune.search.model.features.roles import Roles, roles_of
from retune.search.model.features.volumes import Volumes

FRACTIONS = (0.2, 0.4, 0.6, 0.8)
"""Points of the intensity curve, as shares of the logarithm of the block's operations."""

BLOCK: Mapping[str, str] = {
    "ops": "arithmetic operations",
    "groups": "work-groups",
    "groups_per_unit": "work-groups for each compute unit",
    "idle_tail": "share of the units' time that the last round of work-groups leaves idle",
    "items": "work-items of a work-group",
    "occupancy": "work-items of a work-group over the device's limit",
    "lanes": "vector lanes",
    "lane_fill": "vector lanes over those of the device",
    "tile": "vectors of results in registers: copies of the body over spatial loops",
    "tile_rows": "the innermost of the spatial loops that are written out",
    "spill": "vectors of results and operands beyond the device's registers",
    "chains": "results in registers that do not wait on each other, up to what hides latency",
    "code": "operations written out in the body: the size of the code",
    "reduce_copies": "copies of the body over reduce loops",
    "unroll_hint": "iterations that the device's compiler is asked to unroll",
    "depth": "reduce iterations for each result",
    "near_depth": "iterations of the innermost reduce loop that is not written out",
    "serial": "spatial iterations in order within a work-group",
    "masked": "1 where the value or the block is subject to a condition",
    "load_vectors": "vectors, or broadcast numbers, read from memory by one run of the body",
    "ops_per_load": "operations of the body for each of them",
    "group_bytes": "bytes that one work-group touches",
    "step_bytes": "bytes that one run of the reduce loops touches",
    "body_bytes": "bytes that one run of the body touches",
    "group_fill_l2": "bytes of a work-group over the second-level cache",
    "step_fill_l1": "bytes of a run of the reduce loops over the first-level cache",
    "total_bytes": "distinct bytes that the block touches",
    "total_fill_l3": "distinct bytes that the block touches over the last-level cache",
    "l1_bytes": "bytes that pass the first-level cache: refilled whenever a level does not fit",
    "l2_bytes": "bytes that pass the second-level cache",
    "l3_bytes": "bytes that pass the last-level cache",
    "l1_intensity": "operations for each byte that passes the first-level cache",
    "l2_intensity": "operations for each byte that passes the second-level cache",
    "l3_intensity": "operations for each byte that passes the last-level cache",
    **{
        f"intensity_{round(100 * share)}": f"operations for each distinct byte, at the loop level "
        f"that does ops^{share} operations"
        for share in FRACTIONS
    },
}
"""Feature -> what it is. Of one block; counts are given as log2(1 + x)."""

RATIOS = frozenset(
    {"idle_tail", "occupancy", "lane_fill", "masked"}
)  # fmt: skip
"""Features that are given as they are."""

_LATENCY_CHAINS = 10.0
"""Independent accumulators that hide the latency of a multiply-add on two pipes."""


def block_features(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    """Every feature of BLOCK, unscaled. float64 [B, n] each, or [B, 1]"""
    roles = roles_of(v.layout)
    return {
        **_parallelism(v, roles, spec),
        **_registers(v, roles, spec),
        **_depths(v, roles),
        **_memory(v, spec),
        **_intensity_curve(v),
    }


def overlap_of(v: Volumes) -> Array:
    """Work over that without overlapping tiles, of the block where it is largest. float64 [n]

    A block that writes to registers does not count: the one that stores them has the same tiles.
    """
    roles = roles_of(v.layout)
    blocks = v.layout.owner[roles.writes]
    written = v.elements[0, roles.writes] * v.product(roles.reduce)[blocks]
    return np.max(v.inside[0, blocks] / written, axis=0, initial=1.0)


def at(levels: Array, positions: Array) -> Array:
    """The level of each block, or of each access. [D + 1, B, n], int64 [B] -> [B, n]"""
    return levels[positions, np.arange(len(positions))]


def _parallelism(v: Volumes, roles: Roles, spec: DeviceSpec) -> dict[str, Array]:
    groups, items = v.product(roles.groups), v.product(roles.items)
    rounds = np.ceil(groups / spec.compute_units)
    return {
        "ops": v.inside[0] * v.layout.operations,
        "groups": groups,
        "groups_per_unit": groups / spec.compute_units,
        "idle_tail": 1.0 - groups / (rounds * spec.compute_units),
        "items": items,
        "occupancy": items / spec.max_work_group,
    }


def _registers(v: Volumes, roles: Roles, spec: DeviceSpec) -> dict[str, Array]:
    layout = v.layout
    lanes = v.product(roles.lanes)
    rows = at(v.extents, roles.tile_row)
    tile = v.product(roles.tile) * np.maximum(lanes / spec.lanes_f32, 1.0)
    # Reads of one run of the body: vectors where lanes differ, numbers where they share.
    read = at(v.elements, layout.body[layout.owner]) * roles.reads
    loads = layout.owned @ np.where(roles.vectors, read / lanes[layout.owner], read)
    ops = at(v.inside, layout.body) / lanes * layout.operations
    return {
        "lanes": lanes,
        "lane_fill": lanes / spec.lanes_f32,
        "tile": tile,
        "tile_rows": rows,
        "spill": np.maximum(tile + rows + 1.0 - max(spec.vector_registers, 1), 0.0),
        "chains": np.minimum(tile, _LATENCY_CHAINS),
        "code": ops,
        "reduce_copies": v.product(roles.copies),
        "load_vectors": loads,
        "ops_per_load": ops / np.maximum(loads, 1.0),
    }


def _depths(v: Volumes, roles: Roles) -> dict[str, Array]:
    return {
        "unroll_hint": np.prod(v.hints, axis=0, where=roles.stepping[:, :, None]),
        "depth": v.product(roles.reduce),
        "near_depth": at(v.extents, roles.near),
        "serial": v.product(roles.serial),
        "masked": roles.masked,
    }


def _memory(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    layout = v.layout
    group, step = at(v.block_bytes, layout.group), at(v.block_bytes, layout.step)
    total = v.block_bytes[0]
    found: dict[str, Array] = {
        "group_bytes": group,
        "step_bytes": step,
        "body_bytes": at(v.block_bytes, layout.body),
        "group_fill_l2": group / max(spec.l2_bytes, 1),
        "step_fill_l1": step / max(spec.l1_bytes, 1),
        "total_bytes": total,
        "total_fill_l3": total / max(spec.l3_bytes, 1),
    }
    ops = v.inside[0] * layout.operations
    again = _again(v)
    for name, capacity in (("l1", spec.l1_bytes), ("l2", spec.l2_bytes), ("l3", spec.l3_bytes)):
        passed = _traffic(v, again, capacity)
        found[f"{name}_bytes"] = passed
        found[f"{name}_intensity"] = ops / np.maximum(passed, 1.0)
    return found


def _again(v: Volumes) -> Array:
    """Bytes of each access that pass a cache into which just a level fits. [D + 1, A, n]

    The loops from that level on are read once in each iteration of the loops around them; an
    access that the loop just around them does not move stays there meanwhile.
    """
    owner = v.layout.owner
    outside = (v.inside[0] / v.inside)[:, owner]
    kept = np.where(v.layout.still[..., None], v.extents[:-1, owner], 1.0)
    outside[1:] /= kept
    return v.bytes * outside


def _traffic(v: Volumes, again: Array, capacity: int) -> Array:
    """Bytes that come from beyond a cache: by the outermost level that fits. [B, n]"""
    layout = v.layout
    fits = v.block_bytes <= capacity
    level = np.argmax(fits, axis=0)[layout.owner]
    accesses, candidates = np.arange(level.shape[0])[:, None], np.arange(level.shape[1])
    passed = np.where(
        np.any(fits, axis=0)[layout.owner],
        again[level, accesses, candidates],
        v.inside[0][layout.owner] * layout.item_bytes,
    )
    return layout.owned @ passed


def _intensity_curve(v: Volumes) -> dict[str, Array]:
    """Operations for each distinct byte over the loop levels, between levels in logarithms."""
    layout = v.layout
    ops = np.log2(v.inside * layout.operations)
    rates = ops - np.log2(np.maximum(v.block_bytes, 1.0))
    wanted = np.array(FRACTIONS)[:, None, None] * ops[0]
    # The outermost level outside the body with another one inside that does less than is wanted.
    less = (wanted > ops[1:, None]) & (np.arange(len(ops) - 1)[:, None] < layout.body)[
        :, None, :, None
    ]
    far = np.argmax(less, axis=0)
    blocks, candidates = np.arange(far.shape[1])[:, None], np.arange(far.shape[2])
    ops_far, rate_far = ops[far, blocks, candidates], rates[far, blocks, candidates]
    ops_near, rate_near = ops[far + 1, blocks, candidates], rates[far + 1, blocks, candidates]
    part = np.clip((wanted - ops_near) / np.maximum(ops_far - ops_near, 1e-9), 0.0, 1.0)
    between = rate_near + part * (rate_far - rate_near)
    value = np.exp2(np.where(np.any(less, axis=0), between, at(rates, layout.body)))
    return {
        f"intensity_{round(100 * share)}": curve
        for share, curve in zip(FRACTIONS, value, strict=True)
    }
