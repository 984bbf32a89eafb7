"""A matrix instruction on 16-bit floats, registered as an extension would: lib/ does not know it.

It multiplies tiles of 8 x 16 and 16 x 8 float16, pairs side by side along K, and adds to 8 x 8
float32, as units for bfloat16 do. Its text is plain C on private memory, so that all devices have
it. Importing this module registers it, in a process that probes too.
"""

from retune.core.dtypes import FLOAT16, FLOAT32
from retune.intrinsics import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)

_M, _N, _K, _PAIR = 8, 8, 16, 2


def _loops(_: Signature) -> list[str]:
    """Registers as arrays of floats, rows of sixteen elements."""
    each = "for (int r = 0; r < rows; ++r)"
    b = f"tile##b[k / {_PAIR} * {_K} + {_PAIR} * c + k % {_PAIR}]"
    return [
        f"REGISTER(n) float tile##n[{_M * _K}]",
        "CONFIGURE(to)",
        "RELEASE()",
        f"ZERO(n) for (int i = 0; i < {_M * _N}; ++i) tile##n[i] = 0.0f",
        f"LOAD(n, at, pitch, rows, bytes) {each} for (int i = 0; i < bytes / 2; ++i) "
        f"tile##n[r * {_K} + i] = vload_half(r * (pitch) + i, at)",
        f"DOT(n, a, b, rows, packs) {each} for (int c = 0; c < {_N}; ++c) "
        f"for (int k = 0; k < {_PAIR} * packs; ++k) "
        f"tile##n[r * {_N} + c] += tile##a[r * {_K} + k] * {b}",
        f"STORE(n, to, pitch, rows) {each} for (int c = 0; c < {_N}; ++c) "
        f"(to)[r * (pitch) + c] = tile##n[r * {_N} + c]",
    ]


def _every(signature: Signature) -> bool:
    return signature.lanes == 1


OUTER16 = register_intrinsic(
    Intrinsic(
        name="outer16",
        m=_M,
        n=_N,
        k=_K,
        fewer=("m", "k"),
        operands=(
            MatrixOperand("a", (FLOAT16,), _PAIR),
            MatrixOperand("b", (FLOAT16,), _PAIR),
        ),
        accumulator=FLOAT32,
        residence="register tile",
        registers=6,
        implementations=(
            Implementation(
                name="unit", takes=_every, text={"OpenCL C": _loops}, slots=4.0, tolerance=1e-5
            ),
            Implementation(name="plain", takes=_every, text={"OpenCL C": _loops}, slots=1024.0),
        ),
    )
)
