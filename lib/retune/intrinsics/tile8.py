"""tile8: a tile of products of bytes, added to a tile of int32 that matrix registers hold.

    y[i, j] += int32(a[i, 4*k + q]) * int32(b[k, 4*j + q])   for q in 0 to 3

`a` is uint8 or int8, its rows anywhere at one distance; `b` int8 or int7, packed int8x4 for each
column. A tile may have fewer rows, and fewer packs of a row. All implementations are exact. A text
is one macro for each step, see `intrinsic.TILE_STEPS`; numbers of registers come first.
"""

from collections.abc import Sequence

from retune.core.dtypes import INT7, INT8, UINT8
from retune.intrinsics.intrinsic import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)

ROWS = 16
"""Rows of a tile at most."""
COLUMNS = 16
"""Results of a row."""
PACK = 4
"""Bytes that lie side by side for one column."""

_ROW_BYTES = COLUMNS * PACK


def amx_steps(dot: str, item_bytes: int) -> list[str]:
    """The steps with that instruction, on elements of so many bytes.

    As assembly, with registers by their number, which compilers need not know. Registers are
    configured for a kernel and released at its end. Nothing else uses them, so they keep what they
    hold from one statement to the next; the order of statements is kept.

    Source: Intel's Instruction Set Reference, LDTILECFG, TILELOADD, TDPBUSD, TDPBF16PS, TILESTORED.
    """
    rows = ':: "r"({}), "r"((long)({})) : "memory"'
    pitch = "pitch" if item_bytes == 1 else f"{item_bytes} * (pitch)"
    return [
        "REGISTER(n)",
        'CONFIGURE(to) __asm__ volatile("ldtilecfg (%0)" :: "r"(to) : "memory")',
        'RELEASE() __asm__ volatile("tilerelease" ::)',
        'ZERO(n) __asm__ volatile("tilezero %%tmm" #n ::)',
        "LOAD(n, at, pitch, rows, bytes) "
        f'__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n {rows.format("at", pitch)})',
        "DOT(n, a, b, rows, words) "
        f'__asm__ volatile("{dot} %%tmm" #b ", %%tmm" #a ", %%tmm" #n ::)',
        "STORE(n, to, pitch, rows) "
        f'__asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" {rows.format("to", "4 * (pitch)")})',
    ]


def _amx(signature: Signature) -> list[str]:
    return amx_steps("tdpbusd" if signature.dtypes[0] == UINT8 else "tdpbssd", 1)


def _plain(signature: Signature) -> list[str]:
    """Registers as arrays."""
    a = "uchar" if signature.dtypes[0] == UINT8 else "char"
    each = "for (int r = 0; r < rows; ++r)"
    sum_ = f"(({a}*)tile##a)[r * {_ROW_BYTES} + i] * ((char*)tile##b)[i / 4 * {_ROW_BYTES} + "
    return [
        f"REGISTER(n) int tile##n[{ROWS * COLUMNS}]",
        "CONFIGURE(to)",
        "RELEASE()",
        f"ZERO(n) for (int i = 0; i < {ROWS * COLUMNS}; ++i) tile##n[i] = 0",
        f"LOAD(n, at, pitch, rows, bytes) {each} for (int i = 0; i < bytes; ++i) "
        f"((uchar*)tile##n)[r * {_ROW_BYTES} + i] = (uchar)(at)[r * (pitch) + i]",
        f"DOT(n, a, b, rows, words) {each} for (int c = 0; c < {COLUMNS}; ++c) "
        f"for (int i = 0; i < 4 * words; ++i) "
        f"tile##n[r * {COLUMNS} + c] += {sum_}4 * c + i % 4]",
        f"STORE(n, to, pitch, rows) {each} for (int c = 0; c < {COLUMNS}; ++c) "
        f"(to)[r * (pitch) + c] = tile##n[r * {COLUMNS} + c]",
    ]


def palette(shapes: Sequence[tuple[int, int]]) -> list[int]:
    """The bytes that configure registers of so many rows of so many bytes.

    Source: Intel's Instruction Set Reference, LDTILECFG, palette 1.
    """
    config = [1, *[0] * 63]
    for register, (rows, size) in enumerate(shapes):
        config[16 + 2 * register], config[48 + register] = size, rows
    return config[: 48 + len(shapes)]


TILE8 = register_intrinsic(
    Intrinsic(
        name="tile8",
        m=ROWS,
        n=COLUMNS,
        k=_ROW_BYTES,
        fewer=("m", "k"),
        operands=(
            MatrixOperand("a", (UINT8, INT8), PACK),
            MatrixOperand("b", (INT8, INT7), PACK),
        ),
        residence="register tile",
        registers=8,
        configuration=palette,
        implementations=(
            Implementation(
                "amx",
                lambda s: s.lanes == 1,
                {"OpenCL C": _amx},
                slots=32.0,
                vectors=16.0,
                permission=True,
            ),
            Implementation(
                "plain",
                lambda _: True,
                {"OpenCL C": _plain},
                slots=8.0 * ROWS * COLUMNS,
                vectors=16.0,
            ),
        ),
    )
)
