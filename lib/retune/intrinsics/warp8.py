"""warp8: products of bytes that the thirty-two items of a warp add up together.

    y[j, i] += int32(a[j, 4*k + q]) * int32(b[k, 4*i + q])   for k in 0 to 7, q in 0 to 3

That is the share of one item: two pixels (rows of `a`) by four channels (columns of `b`). The
items of a warp are four along local.0, with pixels of their own, by eight along local.1, with
channels of their own. Item (p, c), the number 4*c + p of its warp, reads for all of them

- the packed int8x4 2*p and 2*p + 1 of one pixel: of item c // 2 along local.0, its row c % 2;
- those of its own four channels.

`a` is uint8 or int8, `b` int8 or int7. All implementations are exact. A text is the body of a
function of the item's results (`y0`, `y1`: a pointer to four channels of each pixel), what it read
of `a` (two packed int8x4), and of `b` (`b0`, `b1`: four channels of each).
"""

from retune.core.dtypes import INT7, INT8, UINT8
from retune.intrinsics.intrinsic import (
    FIRST,
    SECOND,
    Fragment,
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    Warp,
    register_intrinsic,
)

ROWS = 2
"""Pixels of an item."""
COLUMNS = 4
"""Its channels."""
PACK = 4
SHARE = 2
"""Packs of each row that an item reads."""

_EXCHANGED = SHARE + SHARE * COLUMNS


def _mma(signature: Signature) -> list[str]:
    """Two products of sixteen channels by eight pixels; of each row of channels two are an item's.

    Channels are the rows of the instruction's first matrix, pixels the columns of its second one.
    Which of them, and which words, an instruction numbers how is free as long as both agree.

    Source: PTX ISA, Warp Level Matrix Instructions: mma.sync.m16n8k32, fragments of 8-bit types.
    """
    kind = "u8" if signature.dtypes[0] == UINT8 else "s8"
    lines = ["int4 first = *y0, second = *y1;"]
    for low, high in ("xy", "zw"):
        sums = ", ".join(f'"+r"({name}.{part})' for part in (low, high) for name in _RESULTS)
        words = ", ".join(f'"r"(b{half}.{part})' for half in (0, 1) for part in (low, high))
        lines += [
            f'asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.{kind}.s32 "',
            '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
            f"    : {sums}",
            f'    : {words}, "r"(a.x), "r"(a.y));',
        ]
    return [*lines, "*y0 = first;", "*y1 = second;"]


_RESULTS = ("first", "second")


def _exchange(signature: Signature) -> list[str]:
    """What each item read goes to local memory (`all`, by the items' numbers); the sums are plain.

    For devices without warps: it shows that the others' shares are where they are looked for.
    """
    kind = "uchar" if signature.dtypes[0] == UINT8 else "char"
    return [
        f"__local int* own = all + {_EXCHANGED} * item;",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "own[0] = (int)a.x, own[1] = (int)a.y;",
        "vstore4(b0, 0, own + 2), vstore4(b1, 1, own + 2);",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "const int p = item % 4, c = item / 4 % 8;",
        f"__local const int* warp = all + {_EXCHANGED} * (item - item % 32);",
        f"int sums[{ROWS * COLUMNS}];",
        f"for (int n = 0; n < {ROWS * COLUMNS}; ++n) {{",
        f"  __local const int* pixel = warp + {_EXCHANGED} * 4 * (2 * p + n / {COLUMNS});",
        f"  __local const int* channel = warp + {_EXCHANGED} * 4 * c + {SHARE} + n % {COLUMNS};",
        "  int4 total = (int4)(0);",
        "  for (int k = 0; k < 4; ++k) {",
        f"    const int at = {_EXCHANGED} * k;",
        f"    total += convert_int4(as_{kind}4(pixel[at])) * convert_int4(as_char4(channel[at]));",
        f"    total += convert_int4(as_{kind}4(pixel[at + 1]))",
        f"        * convert_int4(as_char4(channel[at + {COLUMNS}]));",
        "  }",
        "  sums[n] = total.x + total.y + total.z + total.w;",
        "}",
        "*y0 += vload4(0, sums), *y1 += vload4(1, sums);",
    ]


WARP8 = register_intrinsic(
    Intrinsic(
        name="warp8",
        m=ROWS,
        n=COLUMNS,
        k=32,
        operands=(
            MatrixOperand(
                "a",
                (UINT8, INT8),
                SHARE * PACK,
                Fragment((FIRST * SHARE,), row=SECOND % ROWS, owner=SECOND // ROWS),
            ),
            MatrixOperand(
                "b",
                (INT8, INT7),
                PACK,
                Fragment((FIRST * SHARE, FIRST * SHARE + 1)),
            ),
        ),
        residence="warp",
        warp=Warp(4, 8),
        implementations=(
            Implementation("mma", lambda s: s.lanes == 1, {"OpenCL C": _mma}, slots=12.0),
            Implementation(
                "exchange",
                lambda _: True,
                {"OpenCL C": _exchange},
                slots=1024.0,
                exchanged=_EXCHANGED,
            ),
        ),
    )
)
