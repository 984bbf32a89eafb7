"""Transposed convolutions as ordinary ones.

With a stride of s each output position o belongs to one of s phases, and those of one phase are an
ordinary convolution of the input with every s-th element of the kernel, reversed. So there is one
convolution with s times as many output channels (or one for each phase, where their kernels differ
much in size), and `depth_to_space` lays the phases side by side:

    o + begin = s * m + r      ->      y[o] = sum over t of w[r + s * t] * x[m - t]

Kernels are rearranged by ops of the graph: they fold where the kernel is constant. Quantized values
are moved rather than sums: what follows the sums by channel, up to the rescaling, is done for each
phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from retune.core.dims import always_same
from retune.graph.graph import Graph, Node
from retune.graph.passes.fold import per_channel
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops import Array, AttrValue
from retune.ops.convolution import border, transposed_extents
from retune.ops.registry import integer, ints

_MOST_APART = 8
"""Phases that may be convolutions of their own: as many as three strides of 2 make."""
_WORTH_APART = 1.5
"""So many times their multiplications, one convolution takes longer than one for each phase."""


def lower_transposed(graph: Graph) -> Graph:
    """conv_transpose(x, w) -> depth_to_space(conv(x, w by phases)), quantized values before they
    are moved."""
    return rebuild(rebuild(graph, _lowered), _codes_before_moving)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phases:
    """One dimension of a transposed convolution."""

    extent: int
    taps: int
    stride: int
    dilation: int
    begin: int
    """Positions cut off before the output."""
    made: int
    """The output's extent."""

    @property
    def own_taps(self) -> int:
        """Elements of the kernel that a phase reads, at most."""
        return self.taps_of(0)

    def taps_of(self, phase: int) -> int:
        """Elements of the kernel that this phase reads; the rest of `own_taps` are zeros."""
        covered = (self.taps - 1) * self.dilation + 1
        return self.taps if self.stride == 1 else -(-(covered - phase) // self.stride)

    @property
    def step(self) -> int:
        """Dilation of the ordinary convolution; a strided one has zeros in its kernel instead."""
        return self.dilation if self.stride == 1 else 1

    def pads(self, taps: int) -> tuple[int, int]:
        """Pads of a convolution by so many taps that gives every m which the output needs."""
        first, last = self.begin // self.stride, (self.begin + self.made - 1) // self.stride
        return (taps - 1) * self.step - first, last - (self.extent - 1)


@dataclass(frozen=True, slots=True)
class _TransposedConv:
    """A transposed convolution: its dimensions, groups, and what lies between the data."""

    phases: Sequence[_Phases]
    groups: int
    border: int

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(phase.stride for phase in self.phases)

    @property
    def layout(self) -> str:
        return "NCDHW" if len(self.phases) == 3 else "NCHW"


def _lowered(r: GraphRewriter, node: Node) -> str | None:
    if node.op != "conv_transpose":
        return None
    data, weight = node.inputs
    groups = integer(node.attrs, "groups")
    layer = _TransposedConv(_phases(r, node), groups, border(node.attrs))
    kernel = _phase_kernels(r, weight, layer)
    last = prod(layer.strides) == 1 and not layer.border
    result = _convolved(r, data, kernel, layer, node.outputs[0] if last else "")
    if last:
        return result
    result = _between(r, result, kernel, layer)
    if prod(layer.strides) == 1:
        return r.emit("identity", (result,), {}, node.outputs[0])
    attrs: dict[str, AttrValue] = {
        "blocks": layer.strides,
        "groups": groups,
        "begins": tuple(phase.begin % phase.stride for phase in layer.phases),
        "extents": tuple(phase.made for phase in layer.phases),
        "layout": layer.layout,
    }
    return r.emit("depth_to_space", (result,), attrs, node.outputs[0])


def _phases(r: GraphRewriter, node: Node) -> list[_Phases]:
    extents, taps = (r.shape(value)[2:] for value in node.inputs)
    strides, dilations = ints(node.attrs, "strides"), ints(node.attrs, "dilations")
    pads, made = ints(node.attrs, "pads"), transposed_extents(extents, taps, node.attrs)
    return [
        _Phases(
            extent=extent,
            taps=taps[d],
            stride=strides[d],
            dilation=dilations[d],
            begin=pads[d],
            made=made[d],
        )
        for d, extent in enumerate(extents)
    ]


def _convolved(
    r: GraphRewriter, data: str, kernel: str, layer: _TransposedConv, output: str
) -> str:
    """Every phase, as channels: by one convolution, or by one each, if that spares many zeros."""
    phases = layer.phases
    whole = prod(phase.own_taps * phase.stride for phase in phases)
    choices = list(product(*(range(phase.stride) for phase in phases)))
    taps = [[p.taps_of(k) for p, k in zip(phases, choice, strict=True)] for choice in choices]
    apart = layer.groups == 1 and len(choices) <= _MOST_APART and min(map(min, taps)) > 0
    if not apart or whole < _WORTH_APART * sum(map(prod, taps)):
        return _convolution(r, data, kernel, layer, output)
    made, inner, *own = r.shape(kernel)
    each = made // len(choices)
    parts: list[str] = []
    for number, left in enumerate(taps):
        attrs: dict[str, AttrValue] = {
            "begins": (number * each, 0, *(o - t for o, t in zip(own, left, strict=True))),
            "steps": (1,) * (2 + len(own)),
            "extents": (each, inner, *left),
        }
        parts.append(_convolution(r, data, r.emit("slice", (kernel,), attrs), layer, ""))
    return r.emit("concat", tuple(parts), {"axis": 1}, output)


def _convolution(
    r: GraphRewriter, data: str, kernel: str, layer: _TransposedConv, output: str
) -> str:
    taps = r.shape(kernel)[2:]
    pads = [phase.pads(count) for phase, count in zip(layer.phases, taps, strict=True)]
    attrs: dict[str, AttrValue] = {
        "strides": (1,) * len(taps),
        "pads": (*(begin for begin, _ in pads), *(end for _, end in pads)),
        "dilations": tuple(phase.step for phase in layer.phases),
        "layout": layer.layout,
    }
    if layer.border:
        attrs["border"] = layer.border
    groups = layer.groups
    if len(taps) == 2 and groups == r.shape(data)[1] > 1 and r.shape(kernel)[1] == 1:
        return r.emit("depthwise_conv2d", (data, kernel), attrs, output)
    op = "conv3d" if len(taps) == 3 else "conv2d"
    return r.emit(op, (data, kernel), {**attrs, "groups": groups}, output)


def _between(r: GraphRewriter, sums: str, kernel: str, layer: _TransposedConv) -> str:
    """The sums, and for each phase what the taps add that fall between the data."""
    array = r.constant(kernel)
    if not layer.border or array is None:
        return sums
    each = array.reshape(layer.groups, prod(layer.strides), -1, prod(array.shape[1:]))
    own = each.sum(axis=-1, dtype=np.int64)
    missing = (own.sum(axis=1, keepdims=True) - own).reshape(-1, *[1] * len(layer.phases))
    if not np.any(missing):
        return sums
    stored = r.store(f"{kernel}.between", (layer.border * missing).astype(np.int32))
    return r.emit("add", (sums, stored), {})


def _phase_kernels(r: GraphRewriter, weight: str, layer: _TransposedConv) -> str:
    """[made, in / groups, taps...] as the kernel of the convolution that makes all phases.

    Its output channels are (group, phase, channel of the group), [.., in / groups, own taps...].
    """
    phases, groups = layer.phases, layer.groups
    made, inner, *_ = r.shape(weight)
    rank = len(phases)
    weight = _apart(r, weight, phases)
    wide = [phase.own_taps * phase.stride for phase in phases]
    ends = (w - e for w, e in zip(wide, r.shape(weight)[2:], strict=True))
    pads = (0,) * (2 + rank + 2) + tuple(ends)
    padded = r.emit("pad", (weight,), {"pads": pads, "value": 0.0})
    pairs = [e for phase in phases for e in (phase.own_taps, phase.stride)]
    parts = _reshaped(r, padded, (groups, made // groups, inner, *pairs))
    taps = [3 + 2 * d for d in range(rank)]
    last = tuple(e - 1 if d in taps else 0 for d, e in enumerate(r.shape(parts)))
    back = tuple(-1 if d in taps else 1 for d in range(len(last)))
    reverse: dict[str, AttrValue] = {"begins": last, "steps": back, "extents": r.shape(parts)}
    parts = r.emit("slice", (parts,), reverse)
    perm = (0, *(4 + 2 * d for d in range(rank)), 1, 2, *taps)
    moved = r.emit("transpose", (parts,), {"perm": perm})
    shape = (prod(layer.strides) * made, inner, *(phase.own_taps for phase in phases))
    return _reshaped(r, moved, shape)


def _apart(r: GraphRewriter, weight: str, phases: Sequence[_Phases]) -> str:
    """The kernel with zeros between its elements in dilated dimensions that are strided too."""
    factors = [phase.dilation // phase.step for phase in phases]
    if prod(factors) == 1:
        return weight
    outer, taps = r.shape(weight)[:2], r.shape(weight)[2:]
    rank = len(taps)
    apart = _reshaped(r, weight, (*outer, *(e for tap in taps for e in (tap, 1))))
    zeros = tuple(e for factor in factors for e in (0, factor - 1))
    pads = (0,) * (2 + 2 * rank + 2) + zeros
    wide = r.emit("pad", (apart,), {"pads": pads, "value": 0.0})
    made = (tap * factor for tap, factor in zip(taps, factors, strict=True))
    return _reshaped(r, wide, (*outer, *made))


def _reshaped(r: GraphRewriter, value: str, shape: tuple[int, ...]) -> str:
    same = always_same(r.shape(value), shape)
    return value if same else r.emit("reshape", (value,), {"shape": shape})


def _codes_before_moving(r: GraphRewriter, node: Node) -> str | None:
    """requantize(depth_to_space(x) + b) -> depth_to_space(requantize(x + b by phases))."""
    if node.op != "requantize":
        return None
    value, bias = node.inputs[0], ""
    inner = r.producer(value)
    if inner is not None and inner.op == "add" and r.only_use(value):
        value, bias = inner.inputs
    moved = r.producer(value)
    operands = [*([bias] if bias else []), *node.inputs[1:]]
    if moved is None or moved.op != "depth_to_space" or not r.only_use(value):
        return None
    by_phase = [_by_phase(r, moved, value, operand) for operand in operands]
    if any(array is None for array in by_phase):
        return None
    stored = [
        r.store(f"{o}.phases", a) for o, a in zip(operands, by_phase, strict=True) if a is not None
    ]
    sums = moved.inputs[0]
    if bias:
        sums = _with_bias(r, sums, stored.pop(0))
    made = r.emit("requantize", (sums, *stored), node.attrs)
    return r.emit("depth_to_space", (made,), moved.attrs, node.outputs[0])


def _by_phase(r: GraphRewriter, moved: Node, value: str, operand: str) -> Array | None:
    """The operand of what was moved, a number for each channel or one for all, before that."""
    array = r.constant(operand)
    each = None if array is None else per_channel(array, r.shape(value))
    if array is None or each is None or array.size == 1:
        return array
    groups, phases = integer(moved.attrs, "groups"), prod(ints(moved.attrs, "blocks"))
    parts = np.repeat(each.reshape(groups, 1, -1), phases, axis=1)
    return parts.reshape(-1, *[1] * (len(r.shape(value)) - 2))


def _with_bias(r: GraphRewriter, sums: str, bias: str) -> str:
    """The sums with the bias, which joins one that is there."""
    made, own = r.producer(sums), r.constant(bias)
    known = r.constant(made.inputs[1]) if made is not None and made.op == "add" else None
    if made is None or known is None or own is None or not r.only_use(sums):
        return r.emit("add", (sums, bias), {})
    return r.emit("add", (made.inputs[0], r.store(f"{bias}.whole", known + own)), {})
