"""Ops that move elements: their shapes become explicit."""

from math import prod

import numpy as np

from retune.core.dims import always_equal, is_fixed, never_above
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import (
    Emitter,
    NotConstant,
    OnnxNode,
    onnx_op,
    positive_axis,
)
from retune.ops.shapes import broadcast_shapes


@onnx_op("Reshape", limits="shape known while importing")
def reshape(node: OnnxNode, emit: Emitter) -> None:
    """To a constant shape; 0 keeps an extent (unless allowzero), -1 takes the rest."""
    data, old = node.inputs[0], emit.shape(node.inputs[0])
    shape = list(emit.index_list(1, "the shape"))
    if not node.integer("allowzero", 0):
        for position, extent in enumerate(shape):
            if not is_fixed(extent):
                continue
            if extent == 0 and position >= len(old):
                raise ModelError(f"reshape of {list(old)} to {shape}: no extent to keep for the 0")
            shape[position] = old[position] if extent == 0 else extent
    open_ends = [d for d, extent in enumerate(shape) if always_equal(extent, -1)]
    if len(open_ends) > 1:
        raise ModelError(f"reshape of {list(old)} to {shape}: expected at most one -1")
    if open_ends:
        rest = prod(extent for d, extent in enumerate(shape) if d not in open_ends)
        shape[open_ends[0]] = prod(old) // rest if rest else 0
    emit.out("reshape", data, shape=tuple(shape))


@onnx_op("Flatten")
def flatten(node: OnnxNode, emit: Emitter) -> None:
    """The dimensions before and from `axis` as one each."""
    shape = emit.shape(node.inputs[0])
    axis = node.integer("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    emit.out("reshape", node.inputs[0], shape=(prod(shape[:axis]), prod(shape[axis:])))


@onnx_op("Squeeze")
@onnx_op("Squeeze", since=13, limits="axes known while importing")
def squeeze(node: OnnxNode, emit: Emitter) -> None:
    """Without these axes of extent 1, or all such; they are an input from opset 13 on."""
    shape = emit.shape(node.inputs[0])
    gone = {positive_axis(axis, len(shape)) for axis in emit.listed("axes", 1, "the axes")}
    gone = gone or {axis for axis, extent in enumerate(shape) if always_equal(extent, 1)}
    if any(shape[axis] != 1 for axis in gone):
        raise ModelError(f"squeeze of {list(shape)} along {sorted(gone)}: expected extents of 1")
    kept = tuple(extent for axis, extent in enumerate(shape) if axis not in gone)
    emit.out("reshape", node.inputs[0], shape=kept)


@onnx_op("Unsqueeze")
@onnx_op("Unsqueeze", since=13, limits="axes known while importing")
def unsqueeze(node: OnnxNode, emit: Emitter) -> None:
    """With new axes of extent 1; they are an input from opset 13 on."""
    shape, axes = list(emit.shape(node.inputs[0])), emit.listed("axes", 1, "the axes")
    rank = len(shape) + len(axes)
    for axis in sorted(positive_axis(axis, rank) for axis in axes):
        shape.insert(axis, 1)
    emit.out("reshape", node.inputs[0], shape=tuple(shape))


@onnx_op("Transpose", by_rank=True)
def transpose(node: OnnxNode, emit: Emitter) -> None:
    """By perm; without one, the dimensions reversed."""
    rank = len(emit.shape(node.inputs[0]))
    emit.out("transpose", node.inputs[0], perm=node.ints("perm", tuple(range(rank))[::-1]))


@onnx_op("Concat", by_rank=True)
def concat(node: OnnxNode, emit: Emitter) -> None:
    """Side by side along `axis`."""
    axis = positive_axis(node.integer("axis", 1), len(emit.shape(node.inputs[0])))
    emit.out("concat", *node.inputs, axis=axis)


@onnx_op("Slice")
@onnx_op("Slice", since=10, limits="ranges known while importing")
def strided_slice(node: OnnxNode, emit: Emitter) -> None:
    """A range of each axis, in steps; all that says them are inputs from opset 10 on."""
    try:
        starts, ends = emit.listed("starts", 1, "the starts"), emit.listed("ends", 2, "the ends")
        steps = emit.listed("steps", 4, "the steps") or (1,) * len(starts)
    except NotConstant:
        return _picked(node, emit)
    axes = emit.listed("axes", 3, "the axes") or range(len(starts))
    shape = emit.shape(node.inputs[0])
    begins, strides, extents = [0] * len(shape), [1] * len(shape), list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = positive_axis(axis, len(shape))  # noqa: PLW2901
        if step == 0:
            raise ModelError(f"slice along axis {axis}: a step of 0")
        begins[axis], extents[axis] = sliced(shape[axis], start, end, step)
        strides[axis] = step
    emit.out(
        "slice",
        node.inputs[0],
        begins=tuple(begins),
        steps=tuple(strides),
        extents=tuple(extents),
    )
    return None


def _picked(node: OnnxNode, emit: Emitter) -> None:
    """The elements of ranges that are computed: the host finds their numbers along each axis.

    Raises: NotConstant where that is not better than the whole on the host.
    """
    data, shape = node.inputs[0], emit.shape(node.inputs[0])
    count = emit.shape(node.inputs[1])[0]
    axes = emit.listed("axes", 3, "the axes") or range(count)
    if emit.known(data) is not None or not all(map(is_fixed, (count, *shape))):
        raise NotConstant("the ranges are computed; expected data of fixed extents on the device")
    said = [node.inputs[i] if node.has_input(i) else "" for i in (1, 2, 4)]
    for number, axis in enumerate(axes):
        at = positive_axis(axis, len(shape))
        starts, ends, steps = (part and emit.part(part, 0, number, 1) for part in said)
        numbers = emit.stored(f"numbers{number}", np.arange(shape[at]))
        inputs = (numbers, starts, ends, "", steps)
        picked = emit.onnx("Slice", *inputs, label=f"picked{number}", opset=node.opset)
        if picked not in emit.build.types:
            raise NotConstant("the ranges are computed; expected counts to be sizes")
        data = emit.temp("gather", data, picked, axis=at, label=f"axis{number}")
    emit.out("identity", data)


def sliced(extent: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The first index and the number of indices of a slice, by the rules of Python's slices."""
    if all(map(is_fixed, (extent, start, end, step))):
        picked = range(extent)[slice(start, end, step)]
        return picked.start, len(picked)
    first, last = (0, extent) if step > 0 else (-1, extent - 1)
    begin, behind = (
        _between(index + extent if index < 0 else index, first, last) for index in (start, end)
    )
    count = -((begin - behind) // step) if step > 0 else -((behind - begin) // -step)
    return begin, _at_least(count, 0)


def _between(index: int, first: int, last: int) -> int:
    """The index, or the nearer one of the limits."""
    return _at_least(index if never_above(index, last) else min(index, last), first)


def _at_least(number: int, limit: int) -> int:
    """The greater one; of sizes whose ranges say so, nothing is asked."""
    return number if never_above(limit, number) else max(limit, number)


@onnx_op("Split")
@onnx_op("Split", since=13, limits="parts known while importing")
def split(node: OnnxNode, emit: Emitter) -> None:
    """In equal parts along an axis, or in those stated; they are an input from opset 13 on."""
    shape, parts = emit.shape(node.inputs[0]), emit.listed("split", 1, "the parts")
    axis, count = positive_axis(node.integer("axis", 0), len(shape)), len(node.outputs)
    if not parts:
        size = _share(shape[axis], count)
        parts = tuple(min(size, shape[axis] - size * part) for part in range(count))
    if sum(parts) != shape[axis] or len(parts) != count or min(parts) < 0:
        raise ModelError(
            f"split of {list(shape)} along axis {axis} into {list(parts)}: expected {count} parts "
            f"that sum to {shape[axis]}"
        )
    begin = 0
    for index, part in enumerate(parts):
        begins = tuple(begin if d == axis else 0 for d in range(len(shape)))
        extents = (*shape[:axis], part, *shape[axis + 1 :])
        if node.has_output(index):
            attrs = {"begins": begins, "steps": (1,) * len(shape), "extents": extents}
            emit.out("slice", node.inputs[0], index=index, **attrs)
        begin += part


def _share(extent: int, count: int) -> int:
    """Elements of each of so many parts, the last one of which may have fewer."""
    whole = extent // count
    return whole if always_equal(whole * count, extent) else -(-extent // count)


@onnx_op("Gather", by_rank=True)
def gather(node: OnnxNode, emit: Emitter) -> None:
    """Slices along an axis by index."""
    axis = positive_axis(node.integer("axis", 0), len(emit.shape(node.inputs[0])))
    emit.out("gather", *node.inputs, axis=axis)


@onnx_op("Expand", limits="shape known while importing")
def expand(node: OnnxNode, emit: Emitter) -> None:
    """To the common shape of the input and a constant shape."""
    old, wanted = emit.shape(node.inputs[0]), emit.index_list(1, "the shape")
    rank = max(len(old), len(wanted))
    left, right = (1,) * (rank - len(old)) + old, (1,) * (rank - len(wanted)) + wanted
    try:
        shape = broadcast_shapes(left, right)
    except ValueError:
        raise ModelError(
            f"expand: expected a shape that {list(old)} broadcasts to, got {list(wanted)}"
        ) from None
    emit.out("broadcast_to", node.inputs[0], shape=shape)


@onnx_op("Tile", limits="repeats known while importing")
def tile(node: OnnxNode, emit: Emitter) -> None:
    """The input repeated along each dimension."""
    shape, repeats = emit.shape(node.inputs[0]), emit.index_list(1, "the repeats")
    apart = emit.reshaped(node.inputs[0], tuple(e for extent in shape for e in (1, extent)))
    pairs = zip(repeats, shape, strict=True)
    spread = tuple(e for repeat, extent in pairs for e in (repeat, extent))
    wide = emit.temp("broadcast_to", apart, shape=spread)
    made = tuple(repeat * extent for repeat, extent in zip(repeats, shape, strict=True))
    emit.out("reshape", wide, shape=made)


@onnx_op("DepthToSpace")
def depth_to_space(node: OnnxNode, emit: Emitter) -> None:
    """Blocks of channels become blocks of positions; mode DCR or CRD."""
    _, c, h, w = emit.shape(node.inputs[0])
    block, mode = node.integer("blocksize", 1), node.text("mode", "DCR")
    emit.out(
        "depth_to_space",
        node.inputs[0],
        blocks=(block, block),
        groups=c // (block * block) if mode == "CRD" else 1,
        begins=(0, 0),
        extents=(h * block, w * block),
        layout="NCHW",
    )


@onnx_op("SpaceToDepth")
def space_to_depth(node: OnnxNode, emit: Emitter) -> None:
    """Blocks of positions become blocks of channels."""
    n, c, h, w = emit.shape(node.inputs[0])
    block = node.integer("blocksize", 1)
    parts = emit.reshaped(node.inputs[0], (n, c, h // block, block, w // block, block))
    perm = (0, 1, 3, 5, 2, 4) if node.text("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = emit.temp("transpose", parts, perm=perm)
    emit.out("reshape", moved, shape=(n, c * block * block, h // block, w // block))
