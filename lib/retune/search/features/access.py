"""Features of one access to memory: how much, how often again, and in which pattern."""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.search.features.loops import step_level
from retune.search.features.volumes import Array, Volume, Volumes

ACCESS: Mapping[str, str] = {
    "bytes": "bytes of all iterations, repeats counted",
    "unique_bytes": "distinct bytes",
    "lines": "distinct cache lines",
    "line_use": "share of its cache lines that the access uses",
    "reuse_none": "1 where each iteration touches other elements",
    "reuse_loop": "1 where some loop repeats the same elements",
    "reuse_serial": "1 where the block accesses the buffer at several places",
    "reuse_count": "iterations of the innermost loop, outside the body, that repeats the elements",
    "reuse_iterations": "iterations between two uses",
    "reuse_bytes": "distinct bytes of all accesses between two uses",
    "lane_stride": "elements between neighbouring lanes; 0 for one number to all lanes",
    "lane_contiguous": "1 where lanes read neighbouring elements",
    "step_stride": "elements between iterations of the innermost loop outside the body",
    "body_bytes": "distinct bytes of one run of the body",
    "step_bytes": "distinct bytes of one run of the reduce loops",
    "group_bytes": "distinct bytes of one work-group",
    "run_bytes": "bytes of the longest row that one work-group touches",
}
"""Feature -> what it is. Of one access; counts are given as log2(1 + x)."""

RATIOS = frozenset({"line_use", "reuse_none", "reuse_loop", "reuse_serial", "lane_contiguous"})
"""Features that are given as they are."""


def access_features(v: Volumes, access: Volume, spec: DeviceSpec) -> dict[str, Array]:
    """Every feature of ACCESS, unscaled."""
    line = max(spec.cache_line_bytes, 1)
    unique, lines = access.bytes(0), access.lines(0, line)
    body, group = v.nest.body_level, v.nest.group_level
    return {
        "bytes": v.inside[0] * access.item_bytes,
        "unique_bytes": unique,
        "lines": lines,
        "line_use": unique / (lines * line),
        **_reuse(v, access),
        **_strides(v, access),
        "body_bytes": access.bytes(body),
        "step_bytes": access.bytes(step_level(v)),
        "group_bytes": access.bytes(group),
        "run_bytes": access.spans[group] * access.item_bytes,
    }


def _reuse(v: Volumes, access: Volume) -> dict[str, Array]:
    """By the innermost loop outside the body that runs more than once and does not move it."""
    zero = 0 * v.ones
    times, iterations, distance = zero, zero, zero
    for place in reversed(range(v.nest.body_level)):
        if access.strides[place] is not None:
            continue
        new = (times == 0) & (v.extents[place] > 1)
        times = np.where(new, v.extents[place], times)
        iterations = np.where(new, v.inside[place + 1], iterations)
        distance = np.where(new, v.bytes(place + 1), distance)
    loop = times > 0
    places = sum(other.access.buffer == access.access.buffer for other in v.accesses)
    serial = ~loop & (places > 1)
    return {
        "reuse_none": 1.0 * ~(loop | serial),
        "reuse_loop": 1.0 * loop,
        "reuse_serial": 1.0 * serial,
        "reuse_count": np.where(serial, places - 1.0, times),
        "reuse_iterations": np.where(serial, 1.0, iterations),
        "reuse_bytes": np.where(serial, v.bytes(len(v.extents)), distance),
    }


def _strides(v: Volumes, access: Volume) -> dict[str, Array]:
    lane, body = v.nest.lane, v.nest.body_level
    zero = 0 * v.ones
    across = zero if lane is None else access.strides[lane]
    across = zero if across is None else across
    # The innermost loop that runs more than once: the others do not step.
    along, found = zero, zero > 0
    for place in reversed(range(body)):
        new = ~found & (v.extents[place] > 1)
        stride = access.strides[place]
        along = np.where(new, 0.0 if stride is None else stride, along)
        found = found | new
    return {"lane_stride": across, "lane_contiguous": 1.0 * (across == 1), "step_stride": along}
