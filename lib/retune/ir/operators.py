"""The operators of binary expressions: one entry each, see `OPERATORS`.

Nothing here knows of trees. Functions of any number of arguments are entries of `ir.functions`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

BinaryOp = Literal[
    "add", "sub", "mul", "div", "floordiv", "mod", "truncdiv", "truncmod", "min", "max", "pow",
    "lt", "le", "eq", "ne", "and", "or",
    "bitand", "bitor", "bitxor", "shl", "shr",
]  # fmt: skip

TIGHT = 10
"""The rank of everything that is not a binary operator."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One binary operator: how it is written, and what it means."""

    symbol: str
    """In Python's notation; empty for one that is written as a function of its name."""
    rank: int
    """How tightly it binds, as in Python."""
    numpy: Callable[[Any, Any], Any]
    opencl: str = ""
    """Its symbol or its function in OpenCL C; the renderer composes the divisions that C lacks."""
    fold: Callable[[Any, Any], float] | None = None
    """The value of two literals; None for an operator whose literals stay as they are written."""


def _truncdiv(a: Any, b: Any) -> Any:
    """The quotient of integers, rounded toward zero."""
    return np.floor_divide(np.subtract(a, np.fmod(a, b)), b)


def _truncmod(a: int, b: int) -> int:
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


OPERATORS: Mapping[BinaryOp, Operator] = {
    "add": Operator("+", 8, np.add, "+", lambda a, b: a + b),
    "sub": Operator("-", 8, np.subtract, "-", lambda a, b: a - b),
    "mul": Operator("*", 9, np.multiply, "*", lambda a, b: a * b),
    "div": Operator("/", 9, np.divide, "/"),
    "floordiv": Operator("//", 9, np.floor_divide, "", lambda a, b: a // b),
    "mod": Operator("%", 9, np.mod, "", lambda a, b: a % b),
    "truncdiv": Operator("", TIGHT, _truncdiv, "", lambda a, b: (a - _truncmod(a, b)) // b),
    "truncmod": Operator("", TIGHT, np.fmod, "", _truncmod),
    "min": Operator("", TIGHT, np.minimum, "min", min),
    "max": Operator("", TIGHT, np.maximum, "max", max),
    "pow": Operator("", TIGHT, np.power, "pow"),
    "lt": Operator("<", 3, np.less, "<", lambda a, b: a < b),
    "le": Operator("<=", 3, np.less_equal, "<=", lambda a, b: a <= b),
    "eq": Operator("==", 3, np.equal, "==", lambda a, b: a == b),
    "ne": Operator("!=", 3, np.not_equal, "!=", lambda a, b: a != b),
    "and": Operator("and", 2, np.logical_and, "&&", lambda a, b: a and b),
    "or": Operator("or", 1, np.logical_or, "||", lambda a, b: a or b),
    "bitand": Operator("&", 6, np.bitwise_and, "&"),
    "bitor": Operator("|", 4, np.bitwise_or, "|"),
    "bitxor": Operator("^", 5, np.bitwise_xor, "^"),
    "shl": Operator("<<", 7, np.left_shift, "<<"),
    "shr": Operator(">>", 7, np.right_shift, ">>"),
}
"""`shr` keeps the sign. Shifts are by less than the width. Indices, which never overflow, are
divided by `floordiv` and `mod`, rounding toward negative infinity; elements by `truncdiv` and
`truncmod`, rounding toward zero, which no rule of indices treats and whose divisors are neither 0
nor -1."""

COMPARISONS = frozenset({"lt", "le", "eq", "ne", "and", "or"})
"""Operators whose result is a truth value."""
BITWISE = frozenset({"bitand", "bitor", "bitxor", "shl", "shr"})
"""Operators on the bits of integers."""
_DIVISIONS = frozenset({"floordiv", "mod", "truncdiv", "truncmod"})


def folded(op: BinaryOp, a: float, b: float, *, floating: bool) -> float | None:
    """The operator's value for two literals; None where the expression stays as it is written.

    So do results in floating point: folding them could change rounding.
    """
    fold = OPERATORS[op].fold
    if fold is None or (floating and op not in COMPARISONS) or (op in _DIVISIONS and b == 0):
        return None
    return fold(a, b)
