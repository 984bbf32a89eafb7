"""Features of one access to memory: how much, how often again, and in which pattern."""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.search.model.features.layout import Array
from retune.search.model.features.loops import at
from retune.search.model.features.volumes import Volumes

ACCESS: Mapping[str, str] = {
    "bytes": "bytes of all iterations, repeats counted",
    "unique_bytes": "distinct bytes",
    "lines": "distinct cache lines",
    "line_use": "share of its cache lines that the access uses",
    "reuse_none": "1 where each iteration touches other elements",
    "reuse_loop": "1 where some loop repeats the same elements",
    "reuse_serial": "1 where the block accesses the buffer at several locations",
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


def access_features(v: Volumes, spec: DeviceSpec) -> dict[str, Array]:
    """Every feature of ACCESS, unscaled. float64 [A, n] each"""
    layout, owner = v.layout, v.layout.owner
    line = max(spec.cache_line_bytes, 1)
    unique, lines = v.bytes[0], v.lines(0, line)
    group = layout.group[owner]
    return {
        "bytes": v.inside[0][owner] * layout.item_bytes,
        "unique_bytes": unique,
        "lines": lines,
        "line_use": unique / (lines * line),
        **_reuse(v),
        **_strides(v),
        "body_bytes": at(v.bytes, layout.body[owner]),
        "step_bytes": at(v.bytes, layout.step[owner]),
        "group_bytes": at(v.bytes, group),
        "run_bytes": at(v.spans, group) * layout.item_bytes,
    }


def _reuse(v: Volumes) -> dict[str, Array]:
    """By the innermost loop outside the body that runs more than once and does not move it."""
    layout, owner = v.layout, v.layout.owner
    position, loop = _innermost(v, layout.still)
    blocks, candidates = owner[:, None], np.arange(position.shape[1])
    times = np.where(loop, v.extents[position, blocks, candidates], 0.0)
    iterations = np.where(loop, v.inside[position + 1, blocks, candidates], 0.0)
    distance = np.where(loop, v.block_bytes[position + 1, blocks, candidates], 0.0)
    serial = ~loop & (layout.locations > 1)
    return {
        "reuse_none": 1.0 * ~(loop | serial),
        "reuse_loop": 1.0 * loop,
        "reuse_serial": 1.0 * serial,
        "reuse_count": np.where(serial, layout.locations - 1.0, times),
        "reuse_iterations": np.where(serial, 1.0, iterations),
        "reuse_bytes": np.where(serial, v.block_bytes[-1][owner], distance),
    }


def _strides(v: Volumes) -> dict[str, Array]:
    across = at(v.strides, v.layout.lane)
    # The innermost loop that runs more than once: the others do not step.
    position, found = _innermost(v, np.ones_like(v.layout.still))
    accesses, candidates = np.arange(position.shape[0])[:, None], np.arange(position.shape[1])
    along = np.where(found, v.strides[position, accesses, candidates], 0.0)
    return {"lane_stride": across, "lane_contiguous": 1.0 * (across == 1), "step_stride": along}


def _innermost(v: Volumes, loops: Array) -> tuple[Array, Array]:
    """Of these loops (bool [D, A]) the innermost outside the body that runs more than once.

    Its position, int64 [A, n], and whether there is one.
    """
    layout = v.layout
    outside = np.arange(layout.depth)[:, None] < layout.body[layout.owner]
    runs = (v.extents[:-1, layout.owner] > 1) & (loops & outside)[..., None]
    position = layout.depth - 1 - np.argmax(runs[::-1], axis=0)
    return position, np.any(runs, axis=0)
