"""warp16, warp16s, warp16c: products of 16-bit floats that the items of a warp add up together.

    y[j, i] += float32(a[j, 2*k + q]) * float32(b[k, 2*i + q])   for q in 0 to 1

That is the share of one item, see `warps`. Both operands are float16, or both bfloat16; the sums
are float32. `warp16` adds 32 products, for which an item reads 16 bytes of a pixel; `warp16s` adds
16, for reductions that do not come in 32; of `warp16c` the second operand lies as the first one
does, by eight elements along K. Products are exact; units need not round sums as float32
arithmetic does.
"""

from collections.abc import Callable

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from retune.intrinsics.intrinsic import Implementation, Intrinsic, Signature, register_intrinsic
from retune.intrinsics.warps import products, warp_intrinsic

_LETTERS = {FLOAT16: "f16", BFLOAT16: "bf16"}
_TOLERANCE = 1e-5


def _same(signature: Signature) -> bool:
    return signature.lanes == 1 and len(set(signature.dtypes)) == 1


def _mma(share: int, *, alike: bool) -> Callable[[Signature], list[str]]:
    def text(signature: Signature) -> list[str]:
        kind = _LETTERS[signature.dtypes[0]]
        shape = "mma.sync.aligned.m16n8k16.row.col"
        return products(f"{shape}.f32.{kind}.{kind}.f32", share, "float4", alike=alike)

    return text


def _part(dtype: DType, word: str, number: int) -> str:
    """One of the two elements of a word, as a float32."""
    if dtype == FLOAT16:
        return f"vload_half({number}, (const half*)&{word})"
    return f"as_float({word} & (int)0xffff0000)" if number else f"as_float({word} << 16)"


def _dot(signature: Signature) -> str:
    a, b = signature.dtypes
    return " + ".join(f"{_part(a, 'a', n)} * {_part(b, 'b', n)}" for n in (0, 1))


def _entry(name: str, share: int, *, alike: bool = False) -> Intrinsic:
    text = {"OpenCL C": _mma(share, alike=alike)}
    mma = Implementation("mma", _same, text, slots=6.0 * share, tolerance=_TOLERANCE)
    floats = (FLOAT16, BFLOAT16)
    return warp_intrinsic(name, (floats, floats), FLOAT32, share, mma, _dot, alike=alike)


WARP16 = register_intrinsic(_entry("warp16", 4))
WARP16S = register_intrinsic(_entry("warp16s", 2))
WARP16C = register_intrinsic(_entry("warp16c", 4, alike=True))
