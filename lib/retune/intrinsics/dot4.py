"""dot4: four products of bytes, added to an int32 in each lane.

    y += int32(a[k]) * int32(b[k])   for k in 0 to 3

`a` is uint8, uint7 or int8 and `b` int8 or int7; both are read as packed int8x4. All
implementations are exact.

dot4_halves adds the first two products in the lower half of a lane, and the others in the upper
one, for sums so small that they fit: with weights of four bits those of a block of 32 do.
"""

from retune.core.dtypes import INT7, INT8, UINT7, UINT8
from retune.intrinsics.intrinsic import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)

PACK = 4
"""Bytes of a packed int8x4: products that one instruction adds."""
_LANES_OF_NEON = 4
_MOST_CALLS = 4
"""Lanes that are worth a call each."""


def _unsigned(signature: Signature) -> bool:
    return signature.dtypes[0] in (UINT8, UINT7)


def _is_narrow(signature: Signature) -> bool:
    """Whether sums of two products fit into 16 bits."""
    return signature.dtypes == (UINT8, INT7) or signature.dtypes[0] == UINT7


def _vector(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"{kind}{lanes}"


def _vnni(signature: Signature) -> list[str]:
    """As assembly, which compilers take for processors that they do not know, or misname.

    Strict OpenCL C knows the keyword with underscores only.

    Source: Intel's Instruction Set Reference, VPDPBUSD.
    """
    bits = 32 * signature.lanes
    values = (f"{name}_{bits} = __builtin_astype({name}, lanes)" for name in ("sum", "a", "b"))
    return [
        f"typedef int lanes __attribute__((__vector_size__({bits // 8})));",
        f"lanes {', '.join(values)};",
        f'__asm__("vpdpbusd %2, %1, %0" : "+v"(sum_{bits}) : "v"(a_{bits}), "v"(b_{bits}));',
        f"return __builtin_astype(sum_{bits}, int{signature.lanes});",
    ]


def _avx2(signature: Signature) -> list[str]:
    """The even and the odd bytes as 16 bits; VPMADDWD multiplies them and adds them by pairs.

    For bytes of which one is narrow see `_avx2_narrow`.
    """
    even = "a & 0x00ff00ff" if _unsigned(signature) else "as_short16(a << 8) >> (short)8"
    kind = "ushort" if _unsigned(signature) else "short"
    return [
        "typedef short pairs __attribute__((__vector_size__(32)));",
        f"const pairs a_even = __builtin_astype({even}, pairs);",
        f"const pairs a_odd = __builtin_astype(as_{kind}16(a) >> ({kind})8, pairs);",
        "const pairs b_even = __builtin_astype(as_short16(b << 8) >> (short)8, pairs);",
        "const pairs b_odd = __builtin_astype(as_short16(b) >> (short)8, pairs);",
        "return sum + __builtin_astype(__builtin_ia32_pmaddwd256(a_even, b_even), int8)",
        "    + __builtin_astype(__builtin_ia32_pmaddwd256(a_odd, b_odd), int8);",
    ]


def _avx2_narrow(_: Signature) -> list[str]:
    """VPMADDUBSW adds pairs of products in 16 bits, VPMADDWD pairs of those in 32.

    The first one saturates, which two products never reach of which one factor is narrow: of uint8
    and int7 2 * 255 * 64 < 2**15, of uint7 and int8 2 * 127 * 128.
    """
    return [
        "typedef char bytes __attribute__((__vector_size__(32)));",
        "typedef short pairs __attribute__((__vector_size__(32)));",
        "const bytes a_bytes = __builtin_astype(a, bytes), b_bytes = __builtin_astype(b, bytes);",
        "const pairs products = __builtin_ia32_pmaddubsw256(a_bytes, b_bytes);",
        "const pairs ones = __builtin_astype((short16)(1), pairs);",
        "return sum + __builtin_astype(__builtin_ia32_pmaddwd256(products, ones), int8);",
    ]


def _sdot(signature: Signature) -> list[str]:
    """As assembly that names its extension, since compilers may not know the processor's.

    Source: Arm Architecture Reference Manual for A-profile, SDOT (vector) and USDOT (vector).
    """
    name, extension = ("usdot", "i8mm") if _unsigned(signature) else ("sdot", "dotprod")
    values = (f"{value}_128 = __builtin_astype({value}, lanes)" for value in ("sum", "a", "b"))
    return [
        "typedef int lanes __attribute__((__vector_size__(16)));",
        f"lanes {', '.join(values)};",
        f'__asm__(".arch_extension {extension}\\n\\t{name} %0.4s, %1.16b, %2.16b"',
        '    : "+w"(sum_128) : "w"(a_128), "w"(b_128));',
        "return __builtin_astype(sum_128, int4);",
    ]


def _dp4a(signature: Signature) -> list[str]:
    """Source: PTX ISA, Integer Arithmetic Instructions: dp4a."""
    kind = "u32" if _unsigned(signature) else "s32"
    parts = [""] if signature.lanes == 1 else [f".s{i:x}" for i in range(signature.lanes)]
    lines = [
        f'asm("dp4a.{kind}.s32 %0, %1, %2, %3;" : "=r"(y{p}) : "r"(a{p}), "r"(b{p}), "r"(sum{p}));'
        for p in parts
    ]
    return [f"{_vector('int', signature.lanes)} y;", *lines, "return y;"]


def _standard(signature: Signature) -> list[str]:
    """OpenCL C's own functions, which take a packed int8x4 of each.

    Source: OpenCL C 3.0 specification, 6.15.18, Integer Dot Product Functions.
    """
    first = "a{0}" if _unsigned(signature) else "(uint)a{0}"
    call = f"dot_4x8packed_{'us' if _unsigned(signature) else 'ss'}_int({first}, (uint)b{{0}})"
    if signature.lanes == 1:
        return [f"return sum + {call.format('')};"]
    calls = [call.format(f".s{i}") for i in range(signature.lanes)]
    return [
        f"return sum + (int{signature.lanes})(",
        *(f"    {c}," for c in calls[:-1]),
        f"    {calls[-1]});",
    ]


def _avx2_halves(_: Signature) -> list[str]:
    """VPMADDUBSW alone, whose sums of two products are added in 16 bits."""
    return [
        "typedef char bytes __attribute__((__vector_size__(32)));",
        "const bytes a_bytes = __builtin_astype(a, bytes), b_bytes = __builtin_astype(b, bytes);",
        "const short16 products =",
        "    __builtin_astype(__builtin_ia32_pmaddubsw256(a_bytes, b_bytes), short16);",
        "return as_int8(as_short16(sum) + products);",
    ]


_AVX2_JOINED = (
    "typedef short pairs __attribute__((__vector_size__(32)));",
    "const pairs ones = __builtin_astype((short16)(1), pairs);",
    "const pairs halves = __builtin_astype(sum, pairs);",
    "return __builtin_astype(__builtin_ia32_pmaddwd256(halves, ones), int8);",
)


def _plain_halves(signature: Signature) -> list[str]:
    """As `_plain`, two products for each half."""
    products = _products(signature)
    return [
        f"return ((sum + {products[0]} + {products[1]}) & 0xffff)",
        f"    | (((sum >> 16) + {products[2]} + {products[3]}) << 16);",
    ]


def _plain(signature: Signature) -> list[str]:
    """The sum of all of them."""
    first, *more, last = _products(signature)
    return [f"return sum + {first}", *(f"    + {product}" for product in more), f"    + {last};"]


def _products(signature: Signature) -> list[str]:
    """Products of bytes: each byte shifted up, and down again with its sign where it has one."""
    convert = f"convert_{_vector('int', signature.lanes)}" if _unsigned(signature) else ""
    return [f"{convert}({_high('a', i)}) * ({_high('b', i)})" for i in range(PACK)]


def _high(pack: str, byte: int) -> str:
    shift = 24 - 8 * byte
    return f"({pack} << {shift}) >> 24" if shift else f"{pack} >> 24"


_OPERANDS = (
    MatrixOperand("a", (UINT8, INT8, UINT7), PACK),
    MatrixOperand("b", (INT8, INT7), PACK),
)

DOT4 = register_intrinsic(
    Intrinsic(
        name="dot4",
        k=PACK,
        operands=_OPERANDS,
        implementations=(
            Implementation(
                "vnni", lambda s: _unsigned(s) and s.lanes in (4, 8, 16), {"OpenCL C": _vnni}
            ),
            Implementation(
                "avx2_narrow",
                lambda s: _is_narrow(s) and s.lanes == 8,
                {"OpenCL C": _avx2_narrow},
                slots=2.0,
            ),
            Implementation(
                "avx2",
                lambda s: s.lanes == 8,
                {"OpenCL C": _avx2},
                slots=2.0,
                first_slots=1.0,
                second_slots=1.5,
                registers=2,
            ),
            Implementation(
                "usdot", lambda s: _unsigned(s) and s.lanes == _LANES_OF_NEON, {"OpenCL C": _sdot}
            ),
            Implementation(
                "sdot",
                lambda s: not _unsigned(s) and s.lanes == _LANES_OF_NEON,
                {"OpenCL C": _sdot},
            ),
            Implementation(
                "dp4a", lambda s: s.lanes <= _MOST_CALLS, {"OpenCL C": _dp4a}, slots=2.0
            ),
            Implementation(
                "packed",
                lambda s: s.lanes <= _MOST_CALLS,
                {"OpenCL C": _standard},
                options=("-cl-std=CL3.0",),
            ),
            Implementation("plain", lambda _: True, {"OpenCL C": _plain}, slots=8.0),
        ),
    )
)

DOT4_HALVES = register_intrinsic(
    Intrinsic(
        name="dot4_halves",
        k=PACK,
        operands=_OPERANDS,
        most=2 * (1 << 15) - 1,
        implementations=(
            Implementation(
                "avx2",
                lambda s: _is_narrow(s) and s.lanes == 8,
                {"OpenCL C": _avx2_halves},
                slots=1.25,
                joined={"OpenCL C": _AVX2_JOINED},
            ),
            Implementation(
                "plain",
                lambda _: True,
                {"OpenCL C": _plain_halves},
                slots=8.0,
                joined={"OpenCL C": ("return (sum << 16 >> 16) + (sum >> 16);",)},
            ),
        ),
    )
)
