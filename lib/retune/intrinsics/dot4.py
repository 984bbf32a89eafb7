"""dot4: four products of bytes, added to an int32 in each lane.

    y += int32(a[k]) * int32(b[k])   for k in 0 to 3

`a` is uint8 or int8 and `b` int8 or int7; both are read by words of four bytes. All ways are exact.
"""

from retune.core.dtypes import INT7, INT8, INT32, UINT8
from retune.intrinsics.intrinsic import Intrinsic, Operand, Shape, Way, register_intrinsic
from retune.ir.expr import cast
from retune.ir.te import compute, placeholder, reduce_axis

WIDTH = 4
"""Bytes of a word: products that one instruction adds."""
_LANES_OF_NEON = 4
_MOST_CALLS = 4
"""Lanes that are worth a call each."""


def _unsigned(shape: Shape) -> bool:
    return shape.dtypes[0] == UINT8


def _vector(kind: str, lanes: int) -> str:
    return kind if lanes == 1 else f"{kind}{lanes}"


def _vnni(shape: Shape) -> list[str]:
    """As assembly, which compilers take for processors that they do not know, or misname.

    Strict OpenCL C knows the keyword with underscores only.

    Source: Intel's Instruction Set Reference, VPDPBUSD.
    """
    bits = 32 * shape.lanes
    values = (f"{name}_{bits} = __builtin_astype({name}, lanes)" for name in ("sum", "a", "b"))
    return [
        f"typedef int lanes __attribute__((__vector_size__({bits // 8})));",
        f"lanes {', '.join(values)};",
        f'__asm__("vpdpbusd %2, %1, %0" : "+v"(sum_{bits}) : "v"(a_{bits}), "v"(b_{bits}));',
        f"return __builtin_astype(sum_{bits}, int{shape.lanes});",
    ]


def _avx2(shape: Shape) -> list[str]:
    """The even and the odd bytes as 16 bits; VPMADDWD multiplies them and adds them by pairs.

    For bytes of which one is narrow see `_avx2_narrow`.
    """
    even = "a & 0x00ff00ff" if _unsigned(shape) else "as_short16(a << 8) >> (short)8"
    kind = "ushort" if _unsigned(shape) else "short"
    return [
        "typedef short pairs __attribute__((__vector_size__(32)));",
        f"const pairs a_even = __builtin_astype({even}, pairs);",
        f"const pairs a_odd = __builtin_astype(as_{kind}16(a) >> ({kind})8, pairs);",
        "const pairs b_even = __builtin_astype(as_short16(b << 8) >> (short)8, pairs);",
        "const pairs b_odd = __builtin_astype(as_short16(b) >> (short)8, pairs);",
        "return sum + __builtin_astype(__builtin_ia32_pmaddwd256(a_even, b_even), int8)",
        "    + __builtin_astype(__builtin_ia32_pmaddwd256(a_odd, b_odd), int8);",
    ]


def _avx2_narrow(_: Shape) -> list[str]:
    """VPMADDUBSW adds pairs of products in 16 bits, VPMADDWD pairs of those in 32.

    The first one saturates, which two products of uint8 and int7 never reach: 2 * 255 * 64 < 2**15.
    """
    return [
        "typedef char bytes __attribute__((__vector_size__(32)));",
        "typedef short pairs __attribute__((__vector_size__(32)));",
        "const bytes a_bytes = __builtin_astype(a, bytes), b_bytes = __builtin_astype(b, bytes);",
        "const pairs products = __builtin_ia32_pmaddubsw256(a_bytes, b_bytes);",
        "const pairs ones = __builtin_astype((short16)(1), pairs);",
        "return sum + __builtin_astype(__builtin_ia32_pmaddwd256(products, ones), int8);",
    ]


def _sdot(shape: Shape) -> list[str]:
    """As assembly that names its extension, since compilers may not know the processor's.

    Source: Arm Architecture Reference Manual for A-profile, SDOT (vector) and USDOT (vector).
    """
    name, extension = ("usdot", "i8mm") if _unsigned(shape) else ("sdot", "dotprod")
    values = (f"{value}_128 = __builtin_astype({value}, lanes)" for value in ("sum", "a", "b"))
    return [
        "typedef int lanes __attribute__((__vector_size__(16)));",
        f"lanes {', '.join(values)};",
        f'__asm__(".arch_extension {extension}\\n\\t{name} %0.4s, %1.16b, %2.16b"',
        '    : "+w"(sum_128) : "w"(a_128), "w"(b_128));',
        "return __builtin_astype(sum_128, int4);",
    ]


def _dp4a(shape: Shape) -> list[str]:
    """Source: PTX ISA, Integer Arithmetic Instructions: dp4a."""
    kind = "u32" if _unsigned(shape) else "s32"
    parts = [""] if shape.lanes == 1 else [f".s{i:x}" for i in range(shape.lanes)]
    lines = [
        f'asm("dp4a.{kind}.s32 %0, %1, %2, %3;" : "=r"(y{p}) : "r"(a{p}), "r"(b{p}), "r"(sum{p}));'
        for p in parts
    ]
    return [f"{_vector('int', shape.lanes)} y;", *lines, "return y;"]


def _standard(shape: Shape) -> list[str]:
    """OpenCL C's own functions, which take a word of each.

    Source: OpenCL C 3.0 specification, 6.15.18, Integer Dot Product Functions.
    """
    first = "a{0}" if _unsigned(shape) else "(uint)a{0}"
    call = f"dot_4x8packed_{'us' if _unsigned(shape) else 'ss'}_int({first}, (uint)b{{0}})"
    if shape.lanes == 1:
        return [f"return sum + {call.format('')};"]
    calls = [call.format(f".s{i}") for i in range(shape.lanes)]
    return [
        f"return sum + (int{shape.lanes})(",
        *(f"    {c}," for c in calls[:-1]),
        f"    {calls[-1]});",
    ]


def _plain(shape: Shape) -> list[str]:
    """Products of bytes: each byte shifted up, and down again with its sign where it has one."""
    convert = f"convert_{_vector('int', shape.lanes)}" if _unsigned(shape) else ""
    products = [f"{convert}({_high('a', i)}) * ({_high('b', i)})" for i in range(WIDTH)]
    return [
        f"return sum + {products[0]}",
        *(f"    + {p}" for p in products[1:-1]),
        f"    + {products[-1]};",
    ]


def _high(word: str, byte: int) -> str:
    shift = 24 - 8 * byte
    return f"({word} << {shift}) >> 24" if shift else f"{word} >> 24"


_k = reduce_axis("k", WIDTH)
_a, _b = placeholder("a", (WIDTH,), UINT8), placeholder("b", (WIDTH,), INT8)

DOT4 = register_intrinsic(
    Intrinsic(
        name="dot4",
        pattern=compute(
            "y",
            (),
            lambda: cast(_a[_k.var], INT32) * cast(_b[_k.var], INT32),
            [_a, _b],
            reduce=[_k],
        ),
        operands=(Operand("a", (UINT8, INT8), WIDTH), Operand("b", (INT8, INT7), WIDTH)),
        ways=(
            Way(
                name="vnni",
                takes=lambda shape: _unsigned(shape) and shape.lanes in (4, 8, 16),
                text={"OpenCL C": _vnni},
            ),
            Way(
                name="avx2_narrow",
                takes=lambda shape: shape.dtypes == (UINT8, INT7) and shape.lanes == 8,
                text={"OpenCL C": _avx2_narrow},
                slots=2.0,
            ),
            Way(
                name="avx2",
                takes=lambda shape: shape.lanes == 8,
                text={"OpenCL C": _avx2},
                slots=2.0,
                first_slots=1.0,
                second_slots=1.5,
                registers=2,
            ),
            Way(
                name="usdot",
                takes=lambda shape: _unsigned(shape) and shape.lanes == _LANES_OF_NEON,
                text={"OpenCL C": _sdot},
            ),
            Way(
                name="sdot",
                takes=lambda shape: not _unsigned(shape) and shape.lanes == _LANES_OF_NEON,
                text={"OpenCL C": _sdot},
            ),
            Way(
                name="dp4a",
                takes=lambda shape: shape.lanes <= _MOST_CALLS,
                text={"OpenCL C": _dp4a},
                slots=2.0,
            ),
            Way(
                name="packed",
                takes=lambda shape: shape.lanes <= _MOST_CALLS,
                text={"OpenCL C": _standard},
                options=("-cl-std=CL3.0",),
            ),
            Way(
                name="plain",
                takes=lambda _shape: True,
                text={"OpenCL C": _plain},
                slots=8.0,
            ),
        ),
    )
)
