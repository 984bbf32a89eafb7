"""Transposed convolution, and columns put back into an image.

With a stride of s each output position o belongs to one of s phases, and those of one phase are an
ordinary convolution of the input with every s-th element of the kernel, reversed. So there is one
convolution with s times as many output channels (or one for each phase, where their kernels differ
much in size), and `depth_to_space` lays the phases side by side:

    o + begin = s * m + r      ->      y[o] = sum over t of w[r + s * t] * x[m - t]

Kernels are rearranged by ops of the graph: they fold where the kernel is constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from retune.core.errors import ModelError
from retune.graph.onnx_ops.registry import Emitter, OnnxNode, onnx_op
from retune.graph.onnx_ops.windows import (
    Window,
    convolution_of,
    data_layout,
    from_image,
    spatial_extents,
    to_image,
)
from retune.graph.ops import Array

_MOST_APART = 8
"""Phases that may be convolutions of their own: as many as three strides of 2 make."""
_WORTH_APART = 1.5
"""So many times their multiplications, one convolution takes longer than one for each phase."""


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


@onnx_op("ConvTranspose")
def conv_transpose(node: OnnxNode, emit: Emitter) -> None:
    """The transpose of a convolution in groups; a bias is added afterwards."""
    extents = spatial_extents(emit, node.inputs[0])
    groups = node.integer("group", 1)
    phases = _phases(node, emit, extents)
    if len(phases) == 1:
        row = _Phases(extent=1, taps=1, stride=1, dilation=1, begin=0, made=1)
        phases = [row, *phases]
    data, weight = (to_image(emit, value) for value in node.inputs[:2])
    kernel = _phase_kernels(emit, weight, phases, groups)
    result = _convolved(emit, data, kernel, phases, groups)
    strides = tuple(phase.stride for phase in phases)
    if prod(strides) > 1:
        result = emit.temp(
            "depth_to_space",
            result,
            blocks=strides,
            groups=groups,
            begins=tuple(phase.begin % phase.stride for phase in phases),
            extents=tuple(phase.made for phase in phases),
            layout=data_layout(len(phases)),
        )
    if node.has_input(2):
        shaped = (1, *emit.shape(node.inputs[2]), *[1] * len(phases))
        result = emit.temp("add", result, emit.reshaped(node.inputs[2], shaped), label="biased")
    emit.out("identity", from_image(emit, result, len(extents)))


def _convolved(
    emit: Emitter, data: str, kernel: str, phases: Sequence[_Phases], groups: int
) -> str:
    """Every phase, as channels: by one convolution, or by one each, if that spares many zeros."""
    whole = prod(phase.own_taps * phase.stride for phase in phases)
    choices = list(product(*(range(phase.stride) for phase in phases)))
    taps = [[p.taps_of(r) for p, r in zip(phases, choice, strict=True)] for choice in choices]
    apart = groups == 1 and len(choices) <= _MOST_APART and min(map(min, taps)) > 0
    if not apart or whole < _WORTH_APART * sum(map(prod, taps)):
        return _convolution(emit, data, kernel, phases, groups)
    made, inner, *own = emit.shape(kernel)
    each = made // len(choices)
    parts: list[str] = []
    for number, left in enumerate(taps):
        part = emit.temp(
            "slice",
            kernel,
            label="kernel.phase",
            begins=(number * each, 0, *(o - t for o, t in zip(own, left, strict=True))),
            steps=(1,) * (2 + len(own)),
            extents=(each, inner, *left),
        )
        parts.append(_convolution(emit, data, part, phases, groups))
    return emit.temp("concat", *parts, axis=1)


def _convolution(
    emit: Emitter, data: str, kernel: str, phases: Sequence[_Phases], groups: int
) -> str:
    taps = emit.shape(kernel)[2:]
    pads = [phase.pads(count) for phase, count in zip(phases, taps, strict=True)]
    window = Window(
        kernel=taps,
        strides=(1,) * len(phases),
        dilations=tuple(phase.step for phase in phases),
        pads=(*(begin for begin, _ in pads), *(end for _, end in pads)),
        stated_pads=(),
    )
    op, attrs = convolution_of(emit, data, kernel, window, groups)
    return emit.temp(op, data, kernel, label="conv", **attrs)


def _phases(node: OnnxNode, emit: Emitter, extents: tuple[int, ...]) -> list[_Phases]:
    """The node's dimensions, from its kernel and attributes. Raises: ModelError."""
    rank, shape, groups = len(extents), emit.shape(node.inputs[1]), node.integer("group", 1)
    channels = emit.shape(node.inputs[0])[1]
    if len(shape) != rank + 2 or shape[0] != channels or channels % groups:
        raise ModelError(
            f"the weight '{node.inputs[1]}' of shape {list(shape)} in {groups} groups; expected "
            f"{rank + 2} dimensions, of which the first has the data's {channels} channels, and a "
            "number of groups that divides them"
        )
    taps = shape[2:]
    strides, dilations = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    extra, stated = node.ints("output_padding", (0,) * rank), node.ints("output_shape", ())
    pads, mode = node.ints("pads", (0,) * 2 * rank), node.text("auto_pad", "NOTSET")
    for what, items, count in (
        ("kernel_shape", node.ints("kernel_shape", taps), rank),
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("output_padding", extra, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(items) != count:
            raise ModelError(f"{what} has {len(items)} entries; expected {count}")
    found: list[_Phases] = []
    for d, extent in enumerate(extents):
        whole = strides[d] * (extent - 1) + extra[d] + (taps[d] - 1) * dilations[d] + 1
        begin, end = (0, 0) if mode == "VALID" else (pads[d], pads[d + rank])
        if stated or mode in ("SAME_UPPER", "SAME_LOWER"):
            wanted = stated[len(stated) - rank + d] if stated else extent * strides[d]
            total = max(0, whole - wanted)
            begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
            end = whole - wanted - begin
        found.append(
            _Phases(
                extent=extent,
                taps=taps[d],
                stride=strides[d],
                dilation=dilations[d],
                begin=begin,
                made=whole - begin - end,
            )
        )
    return found


def _phase_kernels(emit: Emitter, weight: str, phases: Sequence[_Phases], groups: int) -> str:
    """[in, made / groups, taps...] as the kernel of the convolution that makes all phases.

    Its output channels are (group, phase, channel of the group), [.., in / groups, own taps...].
    """
    inner, made, *_ = emit.shape(weight)
    rank = len(phases)
    weight = _spread(emit, weight, phases)
    wide = [phase.own_taps * phase.stride for phase in phases]
    ends = (w - e for w, e in zip(wide, emit.shape(weight)[2:], strict=True))
    pads = (0,) * (2 + rank + 2) + tuple(ends)
    padded = emit.temp("pad", weight, label="kernel.padded", pads=pads, value=0.0)
    pairs = [e for phase in phases for e in (phase.own_taps, phase.stride)]
    parts = emit.reshaped(padded, (groups, inner // groups, made, *pairs))
    taps = [3 + 2 * d for d in range(rank)]
    last = tuple(e - 1 if d in taps else 0 for d, e in enumerate(emit.shape(parts)))
    back = tuple(-1 if d in taps else 1 for d in range(len(last)))
    reverse = {"begins": last, "steps": back, "extents": emit.shape(parts)}
    parts = emit.temp("slice", parts, label="kernel.reversed", **reverse)
    perm = (0, *(4 + 2 * d for d in range(rank)), 2, 1, *taps)
    moved = emit.temp("transpose", parts, label="kernel.moved", perm=perm)
    shape = (groups * prod(p.stride for p in phases) * made, inner // groups)
    return emit.reshaped(moved, (*shape, *(phase.own_taps for phase in phases)))


def _spread(emit: Emitter, weight: str, phases: Sequence[_Phases]) -> str:
    """The kernel with zeros between its elements in dilated dimensions that are strided too."""
    factors = [phase.dilation // phase.step for phase in phases]
    if prod(factors) == 1:
        return weight
    outer, taps = emit.shape(weight)[:2], emit.shape(weight)[2:]
    rank = len(taps)
    apart = emit.reshaped(weight, (*outer, *(e for tap in taps for e in (tap, 1))))
    zeros = tuple(e for factor in factors for e in (0, factor - 1))
    pads = (0,) * (2 + 2 * rank + 2) + zeros
    wide = emit.temp("pad", apart, label="kernel.dilated", pads=pads, value=0.0)
    made = (tap * factor for tap, factor in zip(taps, factors, strict=True))
    return emit.reshaped(wide, (*outer, *made))


@onnx_op("Col2Im", limits="shapes known while importing")
def columns_to_image(node: OnnxNode, emit: Emitter) -> None:
    """Blocks of an image, laid out as columns, added up where they were taken from."""
    image, block = emit.index_list(1, "the image's shape"), emit.index_list(2, "the block's shape")
    rank = len(image)
    batch, packed, length = emit.shape(node.inputs[0])
    strides, dilations = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * 2 * rank)
    counts = [
        (image[d] + pads[d] + pads[d + rank] - (block[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d in range(rank)
    ]
    if len(block) != rank or packed % prod(block) or prod(counts) != length:
        raise ModelError(
            f"columns {[batch, packed, length]} of blocks {list(block)} in an image of "
            f"{list(image)}: expected {prod(counts)} blocks, of {prod(block)} elements a channel"
        )
    places, weights = np.zeros((1,) * 2 * rank, np.int64), np.ones((1,) * 2 * rank)
    for d in range(rank):
        tap, count, used = _contributions(
            image[d], block[d], counts[d], strides[d], dilations[d], pads[d]
        )
        sides = [1] * (2 * rank)
        sides[d], sides[rank + d] = used.shape
        own = tap * (prod(block[d + 1 :]) * length) + count * prod(counts[d + 1 :])
        places, weights = places + own.reshape(sides), weights * used.reshape(sides)
    channels, table = packed // prod(block), (1, prod(image), -1)
    dtype = emit.type(node.inputs[0]).dtype
    tables = [
        emit.stored("table", array.reshape(table))
        for array in (places.astype(np.int32), weights.astype(dtype))
    ]
    flat = emit.reshaped(node.inputs[0], (batch, channels, prod(block) * length))
    result = emit.temp("sample", flat, *tables, axis=2)
    emit.out("reshape", result, shape=(batch, channels, *image))


def _contributions(
    extent: int, taps: int, count: int, stride: int, dilation: int, begin: int
) -> tuple[Array, Array, Array]:
    """For each position of one dimension: the taps and blocks that add to it, and whether any does.

    Three arrays [extent, most contributions]; where there is none, tap and block are 0.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in range(extent)]
    for tap in range(taps):
        for block in range(count):
            at = block * stride - begin + tap * dilation
            if 0 <= at < extent:
                found[at].append((tap, block))
    most = max(1, *map(len, found))
    pairs = np.zeros((extent, most, 2), np.int64)
    used = np.zeros((extent, most))
    for at, entries in enumerate(found):
        for position, pair in enumerate(entries):
            pairs[at, position] = pair
            used[at, position] = 1
    return pairs[:, :, 0], pairs[:, :, 1], used
