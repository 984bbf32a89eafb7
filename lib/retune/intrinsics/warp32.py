"""warp32, warp32c: products of float32, rounded to TF32, that the items of a warp add up together.

    y[j, i] += round_to_tf32(a[j, k]) * round_to_tf32(b[k, i])   for k in 0 to 15

That is the share of one item, see `warps`; of `warp32c` the second operand lies as the first one
does, by four elements along K. Units read the upper 19 bits of each operand, and add in float32: so
half of what is left out is added before, which rounds to the nearest. Of two that are as near it is
not the even one. Programs ask for it: products of float32 alone have no such instruction.
"""

from collections.abc import Callable

from retune.core.dtypes import FLOAT32, TF32, DType
from retune.intrinsics.intrinsic import Implementation, Intrinsic, Signature, register_intrinsic
from retune.intrinsics.warps import products, warp_intrinsic
from retune.ir.expr import Expr, cast
from retune.ir.functions import call, rounding

_SHARE = 4
"""Elements of a pixel that an item reads."""
_TOLERANCE = 1e-4
_HALF = 1 << (FLOAT32.mantissa - TF32.mantissa - 1)
"""Of the last bit that a unit reads."""
_READ = (1 << 32) - 2 * _HALF
"""The bits that it reads."""


def _rounded(a: Expr, b: Expr, accumulator: DType) -> Expr:
    first, second = (call(rounding(TF32), cast(x, accumulator)) for x in (a, b))
    return first * second


def _mma(*, alike: bool) -> Callable[[Signature], list[str]]:
    words = f"{{}} + {_HALF:#x}u", f"{'{}' if alike else 'as_uint({})'} + {_HALF:#x}u"

    def text(_: Signature) -> list[str]:
        shape = "mma.sync.aligned.m16n8k8.row.col"
        return products(f"{shape}.f32.tf32.tf32.f32", _SHARE, "float4", words, alike=alike)

    return text


def _product(_: Signature) -> str:
    a, b = (f"as_float(({x} + {_HALF:#x}) & (int){_READ:#x})" for x in "ab")
    return f"{a} * {b}"


def _entry(name: str, *, alike: bool = False) -> Intrinsic:
    text = {"OpenCL C": _mma(alike=alike)}
    mma = Implementation("mma", lambda s: s.lanes == 1, text, slots=24.0, tolerance=_TOLERANCE)
    floats = ((FLOAT32,), (FLOAT32,))
    return warp_intrinsic(
        name, floats, FLOAT32, _SHARE, mma, _product, alike=alike, combine=_rounded
    )


WARP32 = register_intrinsic(_entry("warp32"))
WARP32C = register_intrinsic(_entry("warp32c", alike=True))
