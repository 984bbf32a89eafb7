"""Instructions of devices as data: what each computes, which operands it takes, and its texts.

Read `Intrinsic` in `intrinsic`; `dot4` is the entry to copy for another one in lanes, `tile8` for
one on matrix registers, `warp8` for one that the items of a warp do together. `matching` says where
a nest of loops is what an instruction computes. Importing this package registers all of them.
"""

from retune.intrinsics import dot4, tile8, warp8
from retune.intrinsics.intrinsic import (
    TILE_STEPS,
    Intrinsic,
    Operand,
    Shape,
    Warp,
    Way,
    build_options,
    intrinsic,
    intrinsics,
    register_intrinsic,
)
from retune.intrinsics.matching import Match, TileIndex, item_loops, match, mismatch

__all__ = [
    "TILE_STEPS",
    "Intrinsic",
    "Match",
    "Operand",
    "Shape",
    "TileIndex",
    "Warp",
    "Way",
    "build_options",
    "dot4",
    "intrinsic",
    "intrinsics",
    "item_loops",
    "match",
    "mismatch",
    "register_intrinsic",
    "tile8",
    "warp8",
]
