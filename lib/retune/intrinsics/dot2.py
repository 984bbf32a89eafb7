"""dot2: two products of bfloat16, added to a float32 in each lane.

    y += float32(a[k]) * float32(b[k])   for k in 0 and 1

Both are read as pairs, in words of 32 bits with the first element in the lower half. An
implementation may round once or twice, and may take numbers below the least normal one of float32
for zero.
"""

from retune.core.dtypes import BFLOAT16, FLOAT32
from retune.intrinsics.intrinsic import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)

PAIR = 2
"""Elements of a word: products that one instruction adds."""
_LANES_OF_NEON = 4
ROUNDINGS = 1e-6
"""Of a few sums, relative to the largest one."""


def _avx512(signature: Signature) -> list[str]:
    """As assembly, which compilers take for processors that they do not know, or misname.

    Source: Intel's Instruction Set Reference, VDPBF16PS.
    """
    return _assembly(signature, '__asm__("vdpbf16ps %2, %1, %0" : "+v"(y) : "v"(x), "v"(w));')


def _bfdot(signature: Signature) -> list[str]:
    """As assembly that names its extension, since compilers may not know the processor's.

    Source: Arm Architecture Reference Manual for A-profile, BFDOT (vector).
    """
    return _assembly(
        signature,
        '__asm__(".arch_extension bf16\\n\\tbfdot %0.4s, %1.8h, %2.8h"',
        '    : "+w"(y) : "w"(x), "w"(w));',
    )


def _assembly(signature: Signature, *lines: str) -> list[str]:
    """The lines between vectors as the compiler's own types, which its constraints ask for."""
    size = f"__attribute__((__vector_size__({4 * signature.lanes})))"
    return [
        f"typedef float sums {size};",
        f"typedef int pairs {size};",
        "sums y = __builtin_astype(sum, sums);",
        "const pairs x = __builtin_astype(a, pairs), w = __builtin_astype(b, pairs);",
        *lines,
        f"return __builtin_astype(y, float{signature.lanes});",
    ]


def _shifts(signature: Signature) -> list[str]:
    """Each element is the upper half of a float32."""
    kind = "float" if signature.lanes == 1 else f"float{signature.lanes}"
    low, high = (
        " * ".join(f"as_{kind}({name} {half})" for name in ("a", "b"))
        for half in ("<< 16", "& 0xffff0000u")
    )
    return [f"return sum + {low}", f"    + {high};"]


DOT2 = register_intrinsic(
    Intrinsic(
        name="dot2",
        k=PAIR,
        operands=(
            MatrixOperand("a", (BFLOAT16,), PAIR),
            MatrixOperand("b", (BFLOAT16,), PAIR),
        ),
        accumulator=FLOAT32,
        implementations=(
            Implementation(
                "avx512",
                lambda s: s.lanes in (4, 8, 16),
                {"OpenCL C": _avx512},
                tolerance=ROUNDINGS,
            ),
            Implementation(
                "bfdot",
                lambda s: s.lanes == _LANES_OF_NEON,
                {"OpenCL C": _bfdot},
                tolerance=ROUNDINGS,
            ),
            Implementation(
                "plain",
                lambda _: True,
                {"OpenCL C": _shifts},
                slots=2.0,
                first_slots=2.0,
                second_slots=2.0,
                registers=2,
                tolerance=ROUNDINGS,
            ),
        ),
    )
)
