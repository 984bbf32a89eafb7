"""Roles of a block's loops as masks: the loops that a feature multiplies."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retune.search.model.features.layout import Array, Layout
from retune.search.model.features.nests import Nest


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Roles:
    """What the loops of each block are for. bool [D, B], and positions int64 [B], D for none."""

    groups: Array
    """Loops over work-groups."""
    items: Array
    """Loops over work-items."""
    lanes: Array
    """Loops that are vector lanes."""
    tile: Array
    """Spatial loops that are written out."""
    tile_row: Array
    """The innermost of them."""
    copies: Array
    """Reduce loops that are written out."""
    reduce: Array
    stepping: Array
    """Reduce loops that are not written out."""
    near: Array
    """The innermost of them."""
    serial: Array
    """Spatial loops that run in order within a work-group."""
    masked: Array
    """1 where the value or the block is subject to a condition. float64 [B, 1]"""
    vectors: Array
    """True for a read that differs between vector lanes, or between work-items. bool [A, 1]"""
    reads: Array
    """1 for the reads. float64 [A, 1]"""
    writes: Array
    """The accesses that write. int64 [writes]"""


@lru_cache(maxsize=256)
def roles_of(layout: Layout) -> Roles:
    """The roles of all loops and accesses of a sketch, worked out once."""

    def chosen(wanted: Callable[[Nest, int], bool]) -> Array:
        return layout.loops(wanted)

    spatial = chosen(lambda nest, i: not nest.loops[i].reduce)
    outside = chosen(lambda nest, i: i < nest.body_level)
    unrolled = chosen(lambda nest, i: i >= nest.body_level and nest.loops[i].kind == "unroll")
    present = chosen(lambda nest, i: True)
    stepping = present & ~spatial & outside
    tile = unrolled & spatial
    lanes = [layout.nests[owner].lane for owner in layout.owner]
    moved = [lane is not None and not layout.still[lane, a] for a, lane in enumerate(lanes)]
    return Roles(
        groups=chosen(lambda nest, i: nest.loops[i].kind.startswith("group")),
        items=chosen(lambda nest, i: nest.loops[i].kind.startswith("local")),
        lanes=chosen(lambda nest, i: nest.loops[i].kind == "vectorize"),
        tile=tile,
        tile_row=_innermost(tile),
        copies=unrolled & ~spatial,
        reduce=present & ~spatial,
        stepping=stepping,
        near=_innermost(stepping),
        serial=chosen(lambda nest, i: i >= nest.group_level) & spatial & outside,
        masked=np.array([[float(nest.masked)] for nest in layout.nests]),
        vectors=np.array(moved, bool)[:, None],
        reads=np.array([float(not access.write) for access in layout.accesses])[:, None],
        writes=np.array([a for a, x in enumerate(layout.accesses) if x.write], np.int64),
    )


def _innermost(loops: Array) -> Array:
    """The last position that is marked; D where none is. bool [D, B] -> int64 [B]"""
    depth = len(loops)
    found = np.where(loops, np.arange(depth)[:, None], -1).max(axis=0, initial=-1)
    return np.where(found < 0, depth, found)
