"""Instructions of devices as data: what each computes, which operands it takes, and its texts.

Read `Intrinsic` in `intrinsic`; `dot4` is the entry to copy for another one. `matching` says where
a nest of loops is what an instruction computes. Importing this package registers all of them.
"""

from retune.instructions import dot4
from retune.instructions.intrinsic import (
    Intrinsic,
    Operand,
    Shape,
    Way,
    intrinsic,
    intrinsics,
    register_intrinsic,
)
from retune.instructions.matching import Match, match, mismatch

__all__ = [
    "Intrinsic",
    "Match",
    "Operand",
    "Shape",
    "Way",
    "dot4",
    "intrinsic",
    "intrinsics",
    "match",
    "mismatch",
    "register_intrinsic",
]
