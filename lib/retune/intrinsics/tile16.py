"""tile16: a tile of products of bfloat16, added to a tile of float32 that matrix registers hold.

    y[i, j] += float32(a[i, 2*k + q]) * float32(b[k, 2*j + q])   for q in 0 and 1

The rows of `a` are anywhere at one distance; `b` has pairs for each column. All else is as `tile8`
has it. An implementation may round and take the least numbers for zero as those of `dot2`.
"""

from retune.core.dtypes import BFLOAT16, FLOAT32
from retune.intrinsics.dot2 import PAIR, ROUNDINGS
from retune.intrinsics.intrinsic import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)
from retune.intrinsics.tile8 import COLUMNS, ROWS, amx_steps, palette

_ROW = COLUMNS * PAIR
"""Elements of a row."""


def _amx(_: Signature) -> list[str]:
    return amx_steps("tdpbf16ps", BFLOAT16.itemsize)


def _plain(_: Signature) -> list[str]:
    """Registers as arrays of floats; a row of an operand is two rows of them."""
    each = "for (int r = 0; r < rows; ++r)"
    b = f"tile##b[k / {PAIR} * {_ROW} + {PAIR} * c + k % {PAIR}]"
    return [
        f"REGISTER(n) float tile##n[{ROWS * _ROW}]",
        "CONFIGURE(to)",
        "RELEASE()",
        f"ZERO(n) for (int i = 0; i < {ROWS * COLUMNS}; ++i) tile##n[i] = 0.0f",
        f"LOAD(n, at, pitch, rows, bytes) {each} for (int i = 0; i < bytes / 2; ++i) "
        f"tile##n[r * {_ROW} + i] = as_float((uint)(at)[r * (pitch) + i] << 16)",
        f"DOT(n, a, b, rows, pairs) {each} for (int c = 0; c < {COLUMNS}; ++c) "
        f"for (int k = 0; k < {PAIR} * pairs; ++k) "
        f"tile##n[r * {COLUMNS} + c] += tile##a[r * {_ROW} + k] * {b}",
        f"STORE(n, to, pitch, rows) {each} for (int c = 0; c < {COLUMNS}; ++c) "
        f"(to)[r * (pitch) + c] = tile##n[r * {COLUMNS} + c]",
    ]


TILE16 = register_intrinsic(
    Intrinsic(
        name="tile16",
        m=ROWS,
        n=COLUMNS,
        k=_ROW,
        fewer=("m", "k"),
        operands=(
            MatrixOperand("a", (BFLOAT16,), PAIR),
            MatrixOperand("b", (BFLOAT16,), PAIR),
        ),
        accumulator=FLOAT32,
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
                tolerance=ROUNDINGS,
            ),
            Implementation(
                "plain",
                lambda _: True,
                {"OpenCL C": _plain},
                slots=4.0 * ROWS * COLUMNS,
                vectors=16.0,
                tolerance=ROUNDINGS,
            ),
        ),
    )
)
