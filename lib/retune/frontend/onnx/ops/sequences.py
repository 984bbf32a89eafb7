"""Sequences and optionals: they are taken apart while importing, and leave only tensors.

Positions and lengths have to be known then; the number of tensors always is.
"""

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis


@onnx_op("Identity")
def identity(node: OnnxNode, emit: Emitter) -> None:
    """The input, whatever it is."""
    value = node.inputs[0]
    if value in emit.build.types:
        return emit.out("identity", value)
    return emit.same(value)


@onnx_op("SequenceConstruct", folded=True)
def construct(node: OnnxNode, emit: Emitter) -> None:
    """The inputs as a sequence."""
    emit.out_sequence(node.inputs)


@onnx_op("SequenceEmpty", folded=True)
def empty(_: OnnxNode, emit: Emitter) -> None:
    """A sequence of nothing."""
    emit.out_sequence(())


@onnx_op("SequenceLength", folded=True)
def length(node: OnnxNode, emit: Emitter) -> None:
    """The number of tensors."""
    emit.build.constant(node.outputs[0], np.asarray(len(emit.sequence(0)), np.int64))


@onnx_op("SequenceAt", folded=True, limits="position known while importing")
def at(_: OnnxNode, emit: Emitter) -> None:
    """The tensor at a known position; negative ones count from the end."""
    parts = emit.sequence(0)
    emit.same(parts[_position(emit, 1, len(parts))])


@onnx_op("SequenceInsert", folded=True, limits="position known while importing")
def insert(node: OnnxNode, emit: Emitter) -> None:
    """The sequence with one more tensor, at its end or before a known position."""
    parts = list(emit.sequence(0))
    position = _position(emit, 2, len(parts) + 1) if node.has_input(2) else len(parts)
    emit.out_sequence([*parts[:position], node.inputs[1], *parts[position:]])


@onnx_op("SequenceErase", folded=True, limits="position known while importing")
def erase(node: OnnxNode, emit: Emitter) -> None:
    """The sequence without its last tensor, or the one at a known position."""
    parts = list(emit.sequence(0))
    del parts[_position(emit, 1, len(parts)) if node.has_input(1) else -1]
    emit.out_sequence(parts)


def _position(emit: Emitter, index: int, count: int) -> int:
    (position,) = emit.index_list(index, "the position")
    if not -count <= position < count:
        raise ModelError(f"position {position} in a sequence of {count}")
    return position % count


@onnx_op("SplitToSequence", limits="split known while importing")
def split_to_sequence(node: OnnxNode, emit: Emitter) -> None:
    """Slices along an axis, of known extents; of extent 1 each and without the axis by default."""
    data = node.inputs[0]
    shape = emit.shape(data)
    axis = positive_axis(node.integer("axis", 0), len(shape))
    extents, drop = [1] * shape[axis], not node.integer("keepdims", 1)
    if node.has_input(1):
        stated, drop = emit.contents(1, "the split"), False
        extents = [int(item) for item in stated.reshape(-1)]
        if stated.ndim == 0:
            size = extents[0]
            extents = [min(size, shape[axis] - begin) for begin in range(0, shape[axis], size)]
    parts: list[str] = []
    begin = 0
    for extent in extents:
        cut = emit.single(data, axis, begin) if drop else emit.part(data, axis, begin, extent)
        parts.append(cut)
        begin += extent
    emit.out_sequence(parts)


@onnx_op("ConcatFromSequence")
def concat_from_sequence(node: OnnxNode, emit: Emitter) -> None:
    """The tensors side by side along an axis, or along a new one."""
    parts = emit.sequence(0)
    rank, axis = len(emit.shape(parts[0])), node.integer("axis", 0)
    if node.integer("new_axis", 0):
        return emit.same(emit.stacked(parts, positive_axis(axis, rank + 1)))
    return emit.out("concat", *parts, axis=positive_axis(axis, rank))


@onnx_op("Optional", folded=True)
def optional(node: OnnxNode, emit: Emitter) -> None:
    """The input, or nothing."""
    if node.has_input(0):
        return emit.same(node.inputs[0])
    return emit.out_empty()


@onnx_op("OptionalHasElement", folded=True)
def has_element(node: OnnxNode, emit: Emitter) -> None:
    """Whether there is something."""
    holds = node.has_input(0) and not emit.is_empty(node.inputs[0])
    emit.build.constant(node.outputs[0], np.asarray(holds))


@onnx_op("OptionalGetElement", folded=True)
def get_element(node: OnnxNode, emit: Emitter) -> None:
    """What the optional holds."""
    if emit.is_empty(node.inputs[0]):
        raise ModelError(f"the optional '{node.inputs[0]}' holds nothing; expected a tensor")
    emit.same(node.inputs[0])
