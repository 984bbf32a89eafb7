"""Convolutions of one value whose results are added are one convolution.

Networks are trained with parallel branches, a norm in each, and exported so (RepVGG, CVPR 2021;
MobileOne; FastViT; RepViT). A convolution is linear in its kernel: a smaller kernel is a part of a
larger one that is zero around it, and a value by itself, or scaled by channel, is a single tap.
"""

from dataclasses import dataclass, replace

import numpy as np

from retune.core.dims import always_same, is_fixed
from retune.graph.graph import Graph, Node
from retune.graph.passes.fold import (
    merge_constants,
    per_channel,
    scale_into_weight,
    scale_through_add,
)
from retune.graph.rewrite import GraphRewriter, rebuild, to_fixed_point
from retune.ops import Array
from retune.ops.convolution import border
from retune.ops.registry import integer, ints

_CONVOLUTIONS = ("conv2d", "depthwise_conv2d", "conv3d")
_SAME = ("strides", "dilations", "groups", "layout")


def merge_branches(graph: Graph) -> Graph:
    """conv(x, v) + conv(x, w) -> conv(x, v + w), with x * c and x itself as convolutions of x.

    No kernel grows by it. What is scaled once it is one convolution goes into its kernel.
    """
    rules = _merged_sum, scale_into_weight, scale_through_add, merge_constants
    return to_fixed_point(graph, lambda g: rebuild(g, *rules))


@dataclass(frozen=True, slots=True)
class _Branch:
    """A value that is linear in another one: a convolution, or a scale by channel; and a shift."""

    source: str
    layer: Node | None
    """The convolution; None for a scale."""
    weight: Array
    """Its kernel, [O, I / groups, taps...], or the scale of each channel."""
    shift: Array | None = None
    """Of each channel."""

    def negative(self) -> "_Branch":
        """The same value with the other sign."""
        return replace(self, weight=-self.weight, shift=None if self.shift is None else -self.shift)


def _merged_sum(r: GraphRewriter, node: Node) -> str | None:
    """The sum, or difference, of two branches as one convolution and a shift."""
    if node.op not in ("add", "subtract"):
        return None
    types = [r.types[value] for value in node.inputs]
    if types[0] != types[1] or not types[0].dtype.is_float or len(types[0].shape) < 3:
        return None
    if not is_fixed(types[0].shape[1]):
        return None
    left, right = (_branch(r, value) for value in node.inputs)
    if left.source != right.source:
        return None
    right = right.negative() if node.op == "subtract" else right
    return _put(r, left, right, node) or _put(r, right, left, node)


def _put(r: GraphRewriter, wide: _Branch, narrow: _Branch, node: Node) -> str | None:
    """Both as the convolution of `wide`, whose kernel takes in the other one; None if it cannot."""
    made = r.old.types[node.outputs[0]]
    if wide.layer is None:
        return None
    inside = _taps(wide.layer, wide.weight, narrow)
    if inside is None:
        return None
    weight = (wide.weight + inside).astype(wide.weight.dtype)
    stored = r.store(f"{wide.layer.inputs[1]}.merged", weight)
    shifts = [branch.shift for branch in (wide, narrow) if branch.shift is not None]
    name = "" if shifts else node.outputs[0]
    merged = r.emit(wide.layer.op, (wide.source, stored), wide.layer.attrs, name)
    if not shifts:
        return merged
    shift = np.sum(shifts, axis=0).reshape(1, -1, *[1] * (len(made.shape) - 2))
    constant = r.store(f"{node.outputs[0]}.shift", shift.astype(made.dtype))
    return r.emit("add", (merged, constant), {}, node.outputs[0])


def _branch(r: GraphRewriter, value: str) -> _Branch:
    """What the value is of another one, as long as nobody else reads what is between; else of
    itself, which it is with a scale of one."""
    shape = r.shape(value)
    itself = _Branch(value, None, np.ones(shape[1]))
    node = r.producer(value)
    if node is None or len(node.inputs) != 2 or not r.only_use(value):
        return itself
    source, constant = node.inputs[0], r.constant(node.inputs[1])
    if constant is None:
        return itself
    if node.op in _CONVOLUTIONS:
        first = str(node.attrs["layout"]).startswith("NC") and not border(node.attrs)
        return _Branch(source, node, constant) if first else itself
    by_channel = per_channel(constant, shape)
    if by_channel is None or not always_same(r.shape(source), shape):
        return itself
    if node.op == "multiply":
        return _Branch(source, None, by_channel)
    inner = _branch(r, source) if node.op == "add" else itself
    return itself if inner.shift is not None else replace(inner, shift=by_channel)


def _taps(layer: Node, kernel: Array, narrow: _Branch) -> Array | None:
    """The narrow branch's kernel among the taps of the layer's, zeros around it; None where it
    needs others."""
    outputs, depth, *taps = kernel.shape
    pads, steps = (ints(layer.attrs, key)[: len(taps)] for key in ("pads", "dilations"))
    if narrow.layer is None:
        own = np.zeros((outputs, depth, *[1] * len(taps)))
        groups = outputs if layer.op == "depthwise_conv2d" else integer(layer.attrs, "groups")
        if not outputs == len(narrow.weight) == depth * groups or any(
            n != 1 for n in ints(layer.attrs, "strides")
        ):
            return None
        channel = np.arange(outputs)
        own[channel, channel % depth] = narrow.weight.reshape(-1, *[1] * len(taps))
        before = (0,) * len(taps)
    else:
        own, other = narrow.weight, narrow.layer
        if other.op != layer.op or any(other.attrs.get(k) != layer.attrs.get(k) for k in _SAME):
            return None
        if own.shape[:2] != (outputs, depth):
            return None
        before = ints(other.attrs, "pads")[: len(taps)]
    where: list[slice] = []
    for first, inner, step, size, most in zip(
        pads, before, steps, own.shape[2:], taps, strict=True
    ):
        offset, rest = divmod(first - inner, step)
        if rest or offset < 0 or offset + size > most:
            return None
        where.append(slice(offset, offset + size))
    found = np.zeros(kernel.shape)
    found[:, :, *where] = own
    return found
