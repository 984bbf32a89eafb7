"""Texts of products that the thirty-two items of a warp add up together (NVIDIA's mma.sync).

All of them have one shape, in words of four bytes; what a word holds is up to the instruction:

    y[j, i] += dot(a[j, k], b[k, i])   for words k

The share of one item is two pixels (rows of `a`) by four channels (columns of `b`). The items of a
warp are four along local.0, with pixels of their own, by eight along local.1, with channels of
their own. Item (p, c), the number 4*c + p of its warp, reads for all of them `share` words

- of one pixel, side by side: of item c // 2 along local.0, its row c % 2;
- of each of its own four channels: a word of all four of them at once.

With `alike`, words of a channel lie side by side as those of a pixel do, and both are read from
local memory by matrices of eight rows of sixteen bytes (ldmatrix): of four of them, each item names
a row, and gets the word that it multiplies of each. Item number n names row n % 8 of matrix n // 8.

Channels are the rows of the instruction's first matrix, pixels the columns of its second one. Which
of them, and which words, an instruction numbers how is free as long as both agree.

Source: PTX ISA, Warp Level Matrix Instructions: mma.sync.m16n8k32, .m16n8k16, .m16n8k8, fragments.
"""

from collections.abc import Callable
from dataclasses import replace

from retune.core.dtypes import DType
from retune.intrinsics.intrinsic import (
    FIRST,
    SECOND,
    Fragment,
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    Warp,
    multiplied,
)
from retune.ir.expr import Expr

ROWS = 2
"""Pixels of an item."""
COLUMNS = 4
"""Its channels."""
_WORDS = "xyzw"
"""Components of a vector of words."""
_RESULTS = ("first", "second")
_ROW = SECOND % 2 * 4 + FIRST
"""The row that an item names of the matrix that it reads."""
READ_MATRICES = (
    "uint4 read;",
    'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"',
    '    : "=r"(read.x), "=r"(read.y), "=r"(read.z), "=r"(read.w) : "r"((uint)(at)) : "memory");',
    "return read;",
)
"""The words that an item multiplies, of the matrices that the items of its warp name."""


def warp_intrinsic(
    name: str,
    operands: tuple[tuple[DType, ...], tuple[DType, ...]],
    accumulator: DType,
    share: int,
    mma: Implementation,
    product: Callable[[Signature], str],
    *,
    alike: bool = False,
    combine: Callable[[Expr, Expr, DType], Expr] = multiplied,
) -> Intrinsic:
    """The entry of instructions on these types, whose items read so many words of a pixel.

    Devices that lack the instruction exchange shares; `product` is what two words add there.
    """
    first, second = operands
    pack = 4 // first[0].itemsize
    words = tuple(FIRST * share + n for n in range(share))
    first_read = Fragment((FIRST * share,), (SECOND % ROWS,), SECOND // ROWS)
    second_read, second_pack = Fragment(words), pack
    if alike:
        first_read = Fragment((SECOND // 2,), (_ROW % ROWS,), _ROW // ROWS)
        half, other = SECOND // 4, SECOND // 2 % 2
        second_read = Fragment((half, half + 2), (other, other + 2), _ROW)
        second_pack = share * pack
        mma = replace(mma, read={"OpenCL C": READ_MATRICES})
    scalar = "float" if accumulator.is_float else "int"
    exchange = _exchange(share, scalar, product, alike=alike)
    return Intrinsic(
        name=name,
        m=ROWS,
        n=COLUMNS,
        k=4 * share * pack,
        operands=(
            MatrixOperand("a", first, share * pack, first_read),
            MatrixOperand("b", second, second_pack, second_read),
        ),
        accumulator=accumulator,
        residence="warp",
        warp=Warp(4, 8),
        combine=combine,
        implementations=(mma, replace(exchange, tolerance=mma.tolerance)),
    )


def products(
    instruction: str,
    share: int,
    vector: str,
    words: tuple[str, str] = ("{}", "{}"),
    *,
    alike: bool = False,
) -> list[str]:
    """Two products, for each two words, of sixteen channels by eight pixels; of each row of
    channels two are an item's.

    `vector` is the type of four results; `words` are those that the elements of a pixel and of a
    channel are multiplied as.
    """

    def read(at: int, pair: int) -> list[str]:
        if alike:
            return [f"b{at + pair}.{x}" for x in _WORDS]
        return [f"b{n}.{_WORDS[2 * pair + row]}" for n in (at, at + 1) for row in (0, 1)]

    register = "+r" if vector == "int4" else "+f"
    lines = [f"{vector} first = *y0, second = *y1;"]
    for at in range(0, share, 2):
        for pair in (0, 1):
            parts = _WORDS[2 * pair : 2 * pair + 2]
            sums = ", ".join(f'"{register}"({name}.{x})' for x in parts for name in _RESULTS)
            pixel, channel = words
            read_as = [channel.format(b) for b in read(at, pair)]
            read_as += [pixel.format(f"a.{x}") for x in _WORDS[at : at + 2]]
            given = ", ".join(f'"r"({text})' for text in read_as)
            lines += [
                f'asm volatile("{instruction} "',
                '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
                f"    : {sums}",
                f"    : {given});",
            ]
    return [*lines, "*y0 = first;", "*y1 = second;"]


def _exchange(
    share: int, scalar: str, product: Callable[[Signature], str], *, alike: bool
) -> Implementation:
    """What exchanges shares by integers of each item in local memory.

    What each item read goes there (`all`, by the items' numbers); the sums are plain. For devices
    without warps: it shows that the others' shares are where they are looked for. `product` is what
    two words `a` and `b` add to a sum.
    """
    exchanged = share + share * COLUMNS
    pixel, channel = _matrices(exchanged) if alike else _shares(exchanged, share)

    def text(signature: Signature) -> list[str]:
        return [
            f"__local int* own = all + {exchanged} * item;",
            "barrier(CLK_LOCAL_MEM_FENCE);",
            f"vstore{share}(as_int{share}(a), 0, own);",
            *(f"vstore4(as_int4(b{n}), {n}, own + {share});" for n in range(share)),
            "barrier(CLK_LOCAL_MEM_FENCE);",
            "const int p = item % 4, c = item / 4 % 8;",
            f"__local const int* warp = all + {exchanged} * (item - item % 32);",
            f"{scalar} sums[{ROWS * COLUMNS}];",
            f"for (int n = 0; n < {ROWS * COLUMNS}; ++n) {{",
            "  sums[n] = 0;",
            f"  for (int k = 0; k < {4 * share}; ++k) {{",
            f"    const int a = warp[{pixel}];",
            f"    const int b = warp[{channel}];",
            f"    sums[n] += {product(signature)};",
            "  }",
            "}",
            "*y0 += vload4(0, sums), *y1 += vload4(1, sums);",
        ]

    return Implementation(
        "exchange", lambda _: True, {"OpenCL C": text}, slots=1024.0, exchanged=exchanged
    )


def _shares(exchanged: int, share: int) -> tuple[str, str]:
    """Where item (p, c) finds word k of the pixel and of the channel of its sum n."""
    holder, word = f"{exchanged} * (k / {share})", f"k % {share}"
    return (
        f"{exchanged} * 4 * (2 * p + n / {COLUMNS}) + {holder} + {word}",
        f"{exchanged} * 4 * c + {holder} + {share} + {COLUMNS} * ({word}) + n % {COLUMNS}",
    )


def _matrices(exchanged: int) -> tuple[str, str]:
    """The same where items read rows of matrices: the item that names a row holds all of it."""
    pixel = f"8 * (k / 4) + 2 * p + n / {COLUMNS}"
    channel = "16 * (k / 4 % 2) + 8 * (n % 2) + c"
    read = f"4 * (1 + k / 8 * 2 + n % {COLUMNS} / 2)"
    return f"{exchanged} * ({pixel}) + k % 4", f"{exchanged} * ({channel}) + {read} + k % 4"
