"""Features of a block as a whole: its work, its parallelism, its registers, its caches."""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.search.features.volumes import Array, Volumes

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
    """Every feature of BLOCK, unscaled."""
    return {
        **_parallelism(v, spec),
        **_registers(v, spec),
        **_depths(v),
        **_memory(v, spec),
        **_intensity_curve(v),
    }


def _parallelism(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    kinds = [loop.kind for loop in v.nest.loops]
    groups = v.product(i for i, kind in enumerate(kinds) if kind.startswith("group"))
    items = v.product(i for i, kind in enumerate(kinds) if kind.startswith("local"))
    rounds = np.ceil(groups / spec.compute_units)
    return {
        "ops": v.inside[0] * v.nest.operations,
        "groups": groups,
        "groups_per_unit": groups / spec.compute_units,
        "idle_tail": 1.0 - groups / (rounds * spec.compute_units),
        "items": items,
        "occupancy": items / spec.max_work_group,
    }


def _registers(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    loops, body = v.nest.loops, v.nest.body_level
    written_out = [i for i in range(body, len(loops)) if loops[i].kind == "unroll"]
    spatial = [i for i in written_out if not loops[i].reduce]
    lanes = v.product(i for i, loop in enumerate(loops) if loop.kind == "vectorize")
    rows = v.extents[spatial[-1]] if spatial else v.ones
    tile = v.product(spatial) * np.maximum(lanes / spec.lanes_f32, 1.0)
    reads = [a for a in v.accesses if not a.access.write]
    loads = sum((_vectors(v, a.elements[body], a.strides, lanes) for a in reads), 0 * v.ones)
    ops = v.inside[body] / lanes * v.nest.operations
    return {
        "lanes": lanes,
        "lane_fill": lanes / spec.lanes_f32,
        "tile": tile,
        "tile_rows": rows,
        "spill": np.maximum(tile + rows + 1.0 - max(spec.vector_registers, 1), 0.0),
        "chains": np.minimum(tile, _LATENCY_CHAINS),
        "code": ops,
        "reduce_copies": v.product(set(written_out) - set(spatial)),
        "load_vectors": loads,
        "ops_per_load": ops / np.maximum(loads, 1.0),
    }


def _vectors(v: Volumes, elements: Array, strides: list[Array | None], lanes: Array) -> Array:
    """Reads of one run of the body: vectors where lanes differ, numbers where they share."""
    lane = v.nest.lane
    return elements if lane is None or strides[lane] is None else elements / lanes


def _depths(v: Volumes) -> dict[str, Array]:
    loops, body, group = v.nest.loops, v.nest.body_level, v.nest.group_level
    reduce = [i for i, loop in enumerate(loops) if loop.reduce]
    stepping = [i for i in reduce if i < body]
    hint = v.ones
    for i in stepping:
        unrolled = v.hints[i]
        hint = hint if unrolled is None else hint * unrolled
    masked = v.nest.masked
    return {
        "unroll_hint": hint,
        "depth": v.product(reduce),
        "near_depth": v.extents[stepping[-1]] if stepping else v.ones,
        "serial": v.product(i for i in range(group, body) if not loops[i].reduce),
        "masked": v.ones * masked,
    }


def step_level(v: Volumes) -> int:
    """The outermost reduce loop within a work-group; the body where there is none."""
    loops, group = v.nest.loops, v.nest.group_level
    return next((i for i in range(group, len(loops)) if loops[i].reduce), v.nest.body_level)


def _memory(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    levels = [v.bytes(level) for level in range(len(v.extents) + 1)]
    group, step = levels[v.nest.group_level], levels[step_level(v)]
    found: dict[str, Array] = {
        "group_bytes": group,
        "step_bytes": step,
        "body_bytes": levels[v.nest.body_level],
        "group_fill_l2": group / max(spec.l2_bytes, 1),
        "step_fill_l1": step / max(spec.l1_bytes, 1),
        "total_bytes": levels[0],
        "total_fill_l3": levels[0] / max(spec.l3_bytes, 1),
    }
    ops = v.inside[0] * v.nest.operations
    for name, capacity in (("l1", spec.l1_bytes), ("l2", spec.l2_bytes), ("l3", spec.l3_bytes)):
        passed = _traffic(v, levels, capacity)
        found[f"{name}_bytes"] = passed
        found[f"{name}_intensity"] = ops / np.maximum(passed, 1.0)
    return found


def _traffic(v: Volumes, levels: list[Array], capacity: int) -> Array:
    """Bytes that come from beyond a cache.

    The loops from the outermost level that fits are read once in each iteration of the loops
    around them; an access that the loop just around them does not move stays there meanwhile.
    """
    total = 0 * v.ones
    for access in v.accesses:
        passed = v.inside[0] * access.item_bytes
        for level in reversed(range(len(levels))):
            outside = v.inside[0] / v.inside[level]
            if level and access.strides[level - 1] is None:
                outside = outside / v.extents[level - 1]
            passed = np.where(levels[level] <= capacity, access.bytes(level) * outside, passed)
        total = total + passed
    return total


def _intensity_curve(v: Volumes) -> dict[str, Array]:
    """Operations for each distinct byte over the loop levels, between levels in logarithms."""
    body = v.nest.body_level
    ops = [np.log2(v.inside[level] * v.nest.operations) for level in range(body, -1, -1)]
    rates = [o - np.log2(np.maximum(v.bytes(body - i), 1.0)) for i, o in enumerate(ops)]
    found: dict[str, Array] = {}
    for share in FRACTIONS:
        wanted = share * ops[-1]
        value = rates[0]
        for i in range(1, len(ops)):
            gap = np.maximum(ops[i] - ops[i - 1], 1e-9)
            part = np.clip((wanted - ops[i - 1]) / gap, 0.0, 1.0)
            value = np.where(
                wanted > ops[i - 1], rates[i - 1] + part * (rates[i] - rates[i - 1]), value
            )
        found[f"intensity_{round(100 * share)}"] = np.exp2(value)
    return found
