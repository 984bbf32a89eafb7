"""warp32: products of float32, rounded to TF32, that the items of a warp add up together.

    y[j, i] += a[j, k] * b[k, i]   for k in 0 to 15

That is the share of one item, see `warps`. Units read the upper 19 bits of each operand, and add in
float32: no rule chooses it by itself, as results differ in the third digit.
"""

from retune.core.dtypes import FLOAT32
from retune.intrinsics.intrinsic import Implementation, Signature, register_intrinsic
from retune.intrinsics.warps import exchange, products, warp_intrinsic

_SHARE = 4
"""Elements of a pixel that an item reads."""
_TOLERANCE = 5e-3


def _mma(_: Signature) -> list[str]:
    shape = "mma.sync.aligned.m16n8k8.row.col"
    return products(f"{shape}.f32.tf32.tf32.f32", _SHARE, "float4", "as_uint({})")


def _product(_: Signature) -> str:
    return "as_float(a) * as_float(b)"


_EXCHANGED, _EXCHANGE = exchange(_SHARE, "float4", _product)

WARP32 = register_intrinsic(
    warp_intrinsic(
        "warp32",
        ((FLOAT32,), (FLOAT32,)),
        FLOAT32,
        _SHARE,
        (
            Implementation(
                "mma", lambda s: s.lanes == 1, {"OpenCL C": _mma}, slots=24.0, tolerance=_TOLERANCE
            ),
            Implementation(
                "exchange",
                lambda _: True,
                {"OpenCL C": _EXCHANGE},
                slots=1024.0,
                exchanged=_EXCHANGED,
                tolerance=_TOLERANCE,
            ),
        ),
        rounds=True,
    )
)
