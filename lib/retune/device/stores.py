"""Stores of vectors in place of PoCL's own, which take a vector apart.

PoCL 3.0 compiles `vstore16` of floats to four stores of 128 bits and the shuffles before them. A
store through a vector type that is aligned like its elements is one instruction.
"""

LANES = (4, 8, 16)
_TYPES = ("float", "int", "uint")
_ELEMENT_BYTES = 4
_SPACES = ("__global", "__local", "__private")

NAMES = frozenset(f"vstore{lanes}" for lanes in LANES)
"""What is defined anew."""


def definitions(used: frozenset[str]) -> list[str]:
    """Those of NAMES that a program uses, for all types that generated kernels store."""
    lines: list[str] = []
    for lanes in LANES:
        if f"vstore{lanes}" in used:
            lines += [line for kind in _TYPES for line in _stores(kind, lanes)]
    return lines


def _stores(kind: str, lanes: int) -> list[str]:
    vector, loose = f"{kind}{lanes}", f"retune_{kind}{lanes}"
    return [
        f"typedef {vector} {loose} __attribute__((aligned({_ELEMENT_BYTES})));",
        *(
            "static void __attribute__((overloadable, always_inline)) "
            f"vstore{lanes}(const {vector} value, const size_t at, {space} {kind}* to) "
            f"{{ *({space} {loose}*)(to + {lanes} * at) = value; }}"
            for space in _SPACES
        ),
    ]
