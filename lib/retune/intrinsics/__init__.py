"""Matrix instructions of devices as data: what each computes, on which operands, and its texts.

Read `Intrinsic` in `intrinsic`. `dot4` is the entry to copy for an instruction in vector lanes,
`tile8` for one on tile registers, `warp16` for one that a warp executes. `matching` says where a
nest of loops is what an instruction computes. Importing this package registers all of them.
"""

from retune.intrinsics import dot2, dot4, tile8, tile16, warp8, warp16, warp32
from retune.intrinsics.intrinsic import (
    FIRST,
    SECOND,
    TILE_STEPS,
    Fragment,
    Implementation,
    Intrinsic,
    MatrixOperand,
    Residence,
    Signature,
    Warp,
    build_options,
    intrinsic,
    intrinsics,
    register_intrinsic,
)
from retune.intrinsics.matching import Match, TileIndex, item_loops, match, mismatch

__all__ = [
    "FIRST",
    "SECOND",
    "TILE_STEPS",
    "Fragment",
    "Implementation",
    "Intrinsic",
    "Match",
    "MatrixOperand",
    "Residence",
    "Signature",
    "TileIndex",
    "Warp",
    "build_options",
    "dot2",
    "dot4",
    "intrinsic",
    "intrinsics",
    "item_loops",
    "match",
    "mismatch",
    "register_intrinsic",
    "tile8",
    "tile16",
    "warp8",
    "warp16",
    "warp32",
]
