"""The largest number of elements of nodes whose data decide it, such as NonZero.

Read `counted_shapes`. Such an extent becomes a size of the network, from 0 to that bound, whose
value the node's host step finds when the network runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import onnx
from onnx import helper

from retune.core.dims import most
from retune.core.dtypes import TensorType
from retune.ops.registry import Array

MOST_NUMBERED = 4096
"""Of what nothing else bounds: the numbers that a Range makes, such as frames of speech."""


@dataclass(frozen=True, slots=True)
class Count:
    """An extent that data decide, of at most so many elements; equal ones of a node are one."""

    most: int
    axis: int = 0


Shape: TypeAlias = "tuple[int | Count, ...]"


@dataclass(frozen=True, slots=True)
class TypedNode:
    """A node with what is there of its inputs before the network runs."""

    node: onnx.NodeProto
    types: Sequence[TensorType | None]
    known: Sequence[Array | None]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        entry = self.types[index]
        return () if entry is None else entry.shape

    def values(self, index: int) -> list[int] | None:
        """The integers that an input is, if they are known."""
        array = self.known[index] if index < len(self.known) else None
        return None if array is None else [int(each) for each in array.reshape(-1)]

    def axis(self) -> int | None:
        """The attribute, counted from the front."""
        for attribute in self.node.attribute:
            if attribute.name == "axis":
                return int(helper.get_attribute_value(attribute)) % max(1, len(self.shape()))
        return None

    def along(self, axes: Sequence[int], count: Count) -> Shape:
        """The shape of the data with so many elements along these axes."""
        return tuple(count if d in axes else extent for d, extent in enumerate(self.shape()))


def counted_shapes(call: TypedNode) -> Sequence[Shape] | None:
    """The shapes of the node's outputs, in order; None for an operator without a bound."""
    return _RULES[call.node.op_type](call) if has_bound(call.node) else None


def has_bound(node: onnx.NodeProto) -> bool:
    """Whether it is known how much the node makes at most, whatever its data."""
    return not node.domain and node.op_type in _RULES


def _non_zero(call: TypedNode) -> Sequence[Shape]:
    return [(len(call.shape()), Count(most(prod(call.shape()))))]


def _unique(call: TypedNode) -> Sequence[Shape]:
    axis = call.axis()
    whole = prod(call.shape()) if axis is None else call.shape()[axis]
    count = Count(most(whole))
    values = (count,) if axis is None else call.along([axis], count)
    return [values, (count,), (whole,), (count,)]


def _compress(call: TypedNode) -> Sequence[Shape]:
    axis, chosen = call.axis(), most(prod(call.shape(1)))
    if axis is None:
        return [(Count(min(chosen, most(prod(call.shape())))),)]
    return [call.along([axis], Count(min(chosen, most(call.shape()[axis]))))]


def _suppression(call: TypedNode) -> Sequence[Shape]:
    batch, boxes, _ = call.shape(0)
    asked = call.values(2) if len(call.types) > 2 and call.types[2] is not None else []
    kept = most(boxes) if asked is None else min(most(boxes), next(iter(asked), 0))
    return [(Count(most(batch * call.shape(1)[1]) * max(0, kept)), 3)]


def _range(_: TypedNode) -> Sequence[Shape]:
    return [(Count(MOST_NUMBERED),)]


def _top(call: TypedNode) -> Sequence[Shape]:
    axis = call.axis()
    axis = len(call.shape()) - 1 if axis is None else axis
    made = call.along([axis], Count(most(call.shape()[axis])))
    return [made, made]


def _slice(call: TypedNode) -> Sequence[Shape]:
    rank = len(call.shape())
    listed = len(call.types) > 3 and call.types[3] is not None
    stated = call.values(3) if listed else range(most(prod(call.shape(1))))
    # axes that are computed may be any
    axes = range(rank) if stated is None else [axis % rank for axis in stated]
    extents = enumerate(call.shape())
    return [tuple(Count(most(e), axis) if axis in axes else e for axis, e in extents)]


_RULES: Mapping[str, Callable[[TypedNode], Sequence[Shape]]] = {
    "NonZero": _non_zero,
    "Unique": _unique,
    "Compress": _compress,
    "NonMaxSuppression": _suppression,
    "Range": _range,
    "TopK": _top,
    "Slice": _slice,
}
