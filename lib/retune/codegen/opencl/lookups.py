"""Tables of 256 bytes in OpenCL C, read at sixteen places at once.

AVX-512 holds a table in four registers and takes a word of 16 bits from two of them for each lane;
one for each byte then is one of two words, and half of it. Elsewhere each lane reads its own byte.
"""

from collections.abc import Iterable

from retune.codegen.kernel import TABLE_LANES

LOOKUP = f"lookup_{TABLE_LANES}"


def _quarter(number: int) -> str:
    """64 bytes of the table; `vload16` asks for no more than four bytes' alignment."""
    return f"__builtin_astype(vload16({number}, (__global const int*)table), words)"


def _half(first: int) -> str:
    """The words at these places of 128 bytes of the table."""
    quarters = f"{_quarter(first)}, number, {_quarter(first + 1)}"
    return f"__builtin_astype(__builtin_ia32_vpermi2varhi512({quarters}), int16)"


_BYTES = ", ".join(f"table[places.s{n:x}]" for n in range(TABLE_LANES))
_LINES = (
    f"#ifndef {LOOKUP.upper()}",
    f"#define {LOOKUP.upper()}",
    f"static uchar16 {LOOKUP}(__global const uchar* table, const int16 places) {{",
    "#ifdef __AVX512BW__",
    "  typedef short words __attribute__((__vector_size__(64)));",
    "  const words number = __builtin_astype(places >> 1, words);",
    f"  const int16 low = {_half(0)};",
    f"  const int16 high = {_half(2)};",
    "  const int16 word = places < 128 ? low : high;",
    "  return convert_uchar16((word >> ((places & 1) << 3)) & 255);",
    "#else",
    f"  return (uchar16)({_BYTES});",
    "#endif",
    "}",
    "#endif",
    "",
)


def lookup_lines(body: Iterable[str]) -> list[str]:
    """The lines before a kernel with such a body."""
    return list(_LINES) if any(f"{LOOKUP}(" in line for line in body) else []
