"""The registry of tensor expressions: for each op, the computes that make its output.

A rule gets the input tensors, the output's type and a `Names` that keeps stage names unique; it
answers the output tensor. What an op means is stated once more here, as loops; a test holds each
rule against the numpy meaning.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.core.dtypes import TensorType
from retune.core.errors import LookupFailed
from retune.ir.expr import Expr, Load, const
from retune.ir.te import Tensor
from retune.ops import Attrs


class Names:
    """Gives each stage of one DAG a name of its own: `T_add`, `T_add_1`, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One op to be expressed: its input tensors, attributes and output type."""

    op: str
    inputs: Sequence[Tensor]
    attrs: Attrs
    output: TensorType
    name: Names


Rule = Callable[[OpCall], Tensor]

RULES: dict[str, Rule] = {}


def tensors_of(*ops: str) -> Callable[[Rule], Rule]:
    """Decorator: the function expresses these ops. Raises: ValueError for one that has a rule."""

    def wrap(rule: Rule) -> Rule:
        for op in ops:
            if op in RULES:
                raise ValueError(f"op {op} has two tensor expressions")
            RULES[op] = rule
        return rule

    return wrap


def rule_of(op: str) -> Rule:
    """The rule of the op. Raises: LookupFailed naming close ones."""
    if op in RULES:
        return RULES[op]
    close = difflib.get_close_matches(op, RULES, n=3)
    raise LookupFailed(f"op '{op}' has no tensor expression; close: {', '.join(close) or 'none'}")


def read(tensor: Tensor, axes: Sequence[Expr], shape: Sequence[int]) -> Load:
    """The element that broadcasting pairs with element `axes` of an output of that shape."""
    if tensor.shape == tuple(shape):
        return tensor[tuple(axes)]
    own = axes[len(axes) - len(tensor.shape) :]
    return tensor[tuple(const(0) if e == 1 else a for a, e in zip(own, tensor.shape, strict=True))]
