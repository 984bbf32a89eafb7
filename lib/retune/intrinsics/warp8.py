"""warp8: products of bytes that the thirty-two items of a warp add up together.

    y[j, i] += int32(a[j, 4*k + q]) * int32(b[k, 4*i + q])   for k in 0 to 7, q in 0 to 3

That is the share of one item, see `warps`. `a` is uint8 or int8, `b` int8 or int7. All
implementations are exact.
"""

from retune.core.dtypes import INT7, INT8, INT32, UINT8
from retune.intrinsics.intrinsic import Implementation, Signature, register_intrinsic
from retune.intrinsics.warps import products, warp_intrinsic

_SHARE = 2
"""Packs of a pixel that an item reads."""


def _mma(signature: Signature) -> list[str]:
    kind = "u8" if signature.dtypes[0] == UINT8 else "s8"
    return products(f"mma.sync.aligned.m16n8k32.row.col.s32.s8.{kind}.s32", _SHARE, "int4")


def _dot(signature: Signature) -> str:
    kind = "uchar" if signature.dtypes[0] == UINT8 else "char"
    parts = (f"as_{kind}4(a).{x} * as_char4(b).{x}" for x in "xyzw")
    return " + ".join(parts)


WARP8 = register_intrinsic(
    warp_intrinsic(
        "warp8",
        ((UINT8, INT8), (INT8, INT7)),
        INT32,
        _SHARE,
        Implementation("mma", lambda s: s.lanes == 1, {"OpenCL C": _mma}, slots=12.0),
        _dot,
    )
)
