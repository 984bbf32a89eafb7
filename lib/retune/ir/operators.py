"""Operators of scalar expressions: their names, how they are written, what numbers make of them.

Nothing here knows of trees.
"""

from collections.abc import Callable, Mapping
from typing import Literal

BinaryOp = Literal[
    "add", "sub", "mul", "div", "floordiv", "mod", "min", "max", "pow",
    "lt", "le", "eq", "ne", "and", "or",
    "bitand", "bitor", "bitxor", "shl", "shr",
]  # fmt: skip
COMPARISONS = frozenset({"lt", "le", "eq", "ne", "and", "or"})
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
"""Operators on the bits of integers; `shr` keeps the sign. Shifts are by less than the width."""

SYMBOLS: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "and", "or": "or",
    "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip

RANK: Mapping[str, int] = {
    "or": 1, "and": 2, "lt": 3, "le": 3, "eq": 3, "ne": 3, "bitor": 4, "bitxor": 5, "bitand": 6,
    "shl": 7, "shr": 7, "add": 8, "sub": 8, "mul": 9, "div": 9, "floordiv": 9, "mod": 9,
}  # fmt: skip
"""How tightly operators bind, as in Python."""
TIGHT = 10
"""How everything else does."""

_FOLD: Mapping[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
_DIVISIONS: Mapping[str, Callable[[float, float], float]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
}


def folded(op: str, a: float, b: float, *, floating: bool) -> float | None:
    """What the operator makes of two literals; None for what stays as it is written.

    So do results in floating point: folding them could change rounding.
    """
    if op in _DIVISIONS:
        return None if floating or b == 0 else _DIVISIONS[op](a, b)
    if op not in _FOLD or (floating and op not in COMPARISONS):
        return None
    return _FOLD[op](a, b)
