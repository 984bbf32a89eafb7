"""Loads and stores of vectors instead of PoCL's own, which take a vector apart.

PoCL 3.0 compiles `vstore16` of floats to four stores of 128 bits and the shuffles before them, and
`vload16` to halves of halves, which its compiler puts together again in some blocks and not in
others: two 128-bit loads, one of 256 bits, and two shuffles for each operand of a multiply-add.
Access through a vector type that is aligned like its elements is one instruction.
"""

import re
from collections.abc import Collection

LANES = (4, 8, 16)
_TYPES = {"float": 4, "int": 4, "uint": 4, "short": 2, "ushort": 2, "char": 1, "uchar": 1}
"""Types of elements, and their bytes."""
_SPACES = ("__global", "__local", "__private")
_INLINE = "__attribute__((overloadable, always_inline))"

NAMES = frozenset(f"{verb}{lanes}" for verb in ("vload", "vstore") for lanes in LANES)
"""What is defined anew."""

_WORD = re.compile(r"\w+")


def words_of(text: str) -> frozenset[str]:
    """All names in a program."""
    return frozenset(_WORD.findall(text))


def definitions(words: Collection[str]) -> list[str]:
    """Those of NAMES that a program of these words uses, for all types of vectors in generated
    kernels; for those of 16 bits where it has such."""
    kinds = [kind for kind, size in _TYPES.items() if size != 2 or kind in words]
    lines: list[str] = []
    for lanes in LANES:
        load, store = f"vload{lanes}" in words, f"vstore{lanes}" in words
        for kind in kinds:
            if load or store:
                lines.append(_loose(kind, lanes))
            if load:
                lines += [_load(kind, lanes, space) for space in _SPACES]
            if store:
                lines += [_store(kind, lanes, space) for space in _SPACES]
    return lines


def _loose(kind: str, lanes: int) -> str:
    """The vector type with the alignment of one element."""
    aligned = f"__attribute__((aligned({_TYPES[kind]})))"
    return f"typedef {kind}{lanes} retune_{kind}{lanes} {aligned};"


def _load(kind: str, lanes: int, space: str) -> str:
    return (
        f"static {kind}{lanes} {_INLINE} "
        f"vload{lanes}(const size_t at, const {space} {kind}* from) "
        f"{{ return *(const {space} retune_{kind}{lanes}*)(from + {lanes} * at); }}"
    )


def _store(kind: str, lanes: int, space: str) -> str:
    return (
        f"static void {_INLINE} "
        f"vstore{lanes}(const {kind}{lanes} value, const size_t at, {space} {kind}* to) "
        f"{{ *({space} retune_{kind}{lanes}*)(to + {lanes} * at) = value; }}"
    )
