"""Texts of products that the thirty-two items of a warp add up together (NVIDIA's mma.sync).

All of them have one shape, in words of four bytes; what a word holds is up to the instruction:

    y[j, i] += dot(a[j, k], b[k, i])   for words k

The share of one item is two pixels (rows of `a`) by four channels (columns of `b`). The items of a
warp are four along local.0, with pixels of their own, by eight along local.1, with channels of
their own. Item (p, c), the number 4*c + p of its warp, reads for all of them `share` words

- of one pixel, side by side: of item c // 2 along local.0, its row c % 2;
- of each of its own four channels: a word of all four of them at once, or, with `apart`, all words
  of a channel, which then lie side by side as those of a pixel do.

Channels are the rows of the instruction's first matrix, pixels the columns of its second one. Which
of them, and which words, an instruction numbers how is free as long as both agree.

Source: PTX ISA, Warp Level Matrix Instructions: mma.sync.m16n8k32, .m16n8k16, .m16n8k8, fragments.
"""

from collections.abc import Callable, Sequence

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


def warp_intrinsic(
    name: str,
    operands: tuple[tuple[DType, ...], tuple[DType, ...]],
    accumulator: DType,
    share: int,
    implementations: Sequence[Implementation],
    *,
    apart: bool = False,
    combine: Callable[[Expr, Expr, DType], Expr] = multiplied,
) -> Intrinsic:
    """The entry of instructions on these types, whose items read so many words of a pixel."""
    first, second = operands
    pack = 4 // first[0].itemsize
    words = tuple(FIRST * share + n for n in range(share))
    return Intrinsic(
        name=name,
        m=ROWS,
        n=COLUMNS,
        k=4 * share * pack,
        operands=(
            MatrixOperand(
                "a",
                first,
                share * pack,
                Fragment(
                    (FIRST if apart else FIRST * share,), row=SECOND % ROWS, owner=SECOND // ROWS
                ),
            ),
            MatrixOperand("b", second, share * pack, Fragment((FIRST,), apart=True))
            if apart
            else MatrixOperand("b", second, pack, Fragment(words)),
        ),
        accumulator=accumulator,
        residence="warp",
        warp=Warp(4, 8),
        combine=combine,
        implementations=tuple(implementations),
    )


def products(
    instruction: str,
    share: int,
    vector: str,
    words: tuple[str, str] = ("{}", "{}"),
    *,
    apart: bool = False,
) -> list[str]:
    """Two products, for each two words, of sixteen channels by eight pixels; of each row of
    channels two are an item's.

    `vector` is the type of four results; `words` are those that the elements of a pixel and of a
    channel are multiplied as.
    """

    def read(at: int, row: int) -> str:
        given, part = (row, at) if apart else (at, row)
        return f"b{given}.{_WORDS[part]}"

    register = "+r" if vector == "int4" else "+f"
    lines = [f"{vector} first = *y0, second = *y1;"]
    for at in range(0, share, 2):
        for pair in ((0, 1), (2, 3)):
            sums = ", ".join(f'"{register}"({name}.{_WORDS[n]})' for n in pair for name in _RESULTS)
            channels = [read(n, row) for n in (at, at + 1) for row in pair]
            pixel, channel = words
            read_as = [channel.format(b) for b in channels]
            read_as += [pixel.format(f"a.{x}") for x in _WORDS[at : at + 2]]
            given = ", ".join(f'"r"({text})' for text in read_as)
            lines += [
                f'asm volatile("{instruction} "',
                '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
                f"    : {sums}",
                f"    : {given});",
            ]
    return [*lines, "*y0 = first;", "*y1 = second;"]


def exchange(
    share: int, vector: str, product: Callable[[Signature], str], *, apart: bool = False
) -> tuple[int, Callable[[Signature], list[str]]]:
    """Integers of an item in local memory, and the text that exchanges shares by them.

    What each item read goes there (`all`, by the items' numbers); the sums are plain. For devices
    without warps: it shows that the others' shares are where they are looked for. `product` is what
    two words `a` and `b` add to a sum.
    """
    exchanged = share + share * COLUMNS
    scalar = vector[:-1]
    reads, wide = (COLUMNS, share) if apart else (share, COLUMNS)
    near, along = (share, 1) if apart else (1, COLUMNS)

    def text(signature: Signature) -> list[str]:
        return [
            f"__local int* own = all + {exchanged} * item;",
            "barrier(CLK_LOCAL_MEM_FENCE);",
            f"vstore{share}(as_int{share}(a), 0, own);",
            *(f"vstore{wide}(as_int{wide}(b{n}), {n}, own + {share});" for n in range(reads)),
            "barrier(CLK_LOCAL_MEM_FENCE);",
            "const int p = item % 4, c = item / 4 % 8;",
            f"__local const int* warp = all + {exchanged} * (item - item % 32);",
            f"{scalar} sums[{ROWS * COLUMNS}];",
            f"for (int n = 0; n < {ROWS * COLUMNS}; ++n) {{",
            f"  __local const int* pixel = warp + {exchanged} * 4 * (2 * p + n / {COLUMNS});",
            f"  __local const int* channel = warp + {exchanged} * 4 * c + {share}"
            f" + {_times(f'n % {COLUMNS}', near)};",
            "  sums[n] = 0;",
            f"  for (int k = 0; k < {4 * share}; ++k) {{",
            f"    const int a = pixel[{exchanged} * (k / {share}) + k % {share}];",
            f"    const int b = channel[{exchanged} * (k / {share})"
            f" + {_times(f'k % {share}', along)}];",
            f"    sums[n] += {product(signature)};",
            "  }",
            "}",
            "*y0 += vload4(0, sums), *y1 += vload4(1, sums);",
        ]

    return exchanged, text


def _times(value: str, factor: int) -> str:
    return value if factor == 1 else f"{factor} * ({value})"
