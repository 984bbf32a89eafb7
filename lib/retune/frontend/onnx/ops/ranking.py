"""Operators on the order of elements along an axis: extremes, top k, running results."""

from math import ceil, prod, sqrt
from typing import Any

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis

RANKED_EXTENT = 4096
"""Elements along an axis that are ranked by comparing each one with all others."""

RANKED_PAIRS = 1 << 27
"""Comparisons for which that takes a fraction of a second."""

EXTREMES: dict[str, str] = {"ArgMax": "argmax", "ArgMin": "argmin"}
"""ONNX op -> graph op."""


@onnx_op(*EXTREMES)
def extreme(node: OnnxNode, emit: Emitter) -> None:
    """Where the largest or smallest element is: the first such position, or the last."""
    data = node.inputs[0]
    emit.out(
        EXTREMES[node.op_type],
        data,
        axis=positive_axis(node.integer("axis", 0), len(emit.shape(data))),
        keepdims=bool(node.integer("keepdims", 1)),
        last=bool(node.integer("select_last_index", 0)),
    )


@onnx_op("Hardmax")
def hardmax_of_matrix(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 12: over all dimensions from `axis` on, as if they were one."""
    data = node.inputs[0]
    shape = emit.shape(data)
    axis = positive_axis(node.integer("axis", 1), len(shape))
    matrix = emit.reshaped(data, (prod(shape[:axis]), prod(shape[axis:])))
    emit.out("reshape", _hardmax(emit, matrix, 1), shape=shape)


@onnx_op("Hardmax", since=13)
def hardmax_of_axis(node: OnnxNode, emit: Emitter) -> None:
    """From opset 13 on: over one axis, the last by default."""
    data = node.inputs[0]
    axis = positive_axis(node.integer("axis", -1), len(emit.shape(data)))
    emit.out("identity", _hardmax(emit, data, axis))


def _hardmax(emit: Emitter, data: str, axis: int) -> str:
    """1 at the first of the largest elements along the axis, 0 elsewhere."""
    shape = emit.shape(data)
    sides = tuple(extent if d == axis else 1 for d, extent in enumerate(shape))
    positions = emit.counted("places", sides, tuple(int(d == axis) for d in range(len(shape))))
    best = emit.temp("argmax", data, axis=axis, keepdims=True, last=False)
    return emit.temp("cast", emit.temp("equal", positions, best), to=emit.type(data).dtype)


@onnx_op("TopK")
@onnx_op("TopK", since=10, limits="number known while importing")
def top(node: OnnxNode, emit: Emitter) -> None:
    """The largest or smallest elements in order, and where they are.

    Their number is an input from opset 10 on.
    """
    data, stated = node.inputs[0], (node.integer("k", 0),)
    if node.has_input(1):
        stated = emit.index_list(1, "the number of elements")
    if len(stated) != 1:
        raise ModelError(f"expected one number of elements, got {list(stated)}")
    shape = emit.shape(data)
    axis = positive_axis(node.integer("axis", -1), len(shape))
    if shape[axis] > RANKED_EXTENT or prod(shape) * shape[axis] > RANKED_PAIRS:
        return emit.host()
    attrs: dict[str, Any] = {
        "axis": axis,
        "count": stated[0],
        "largest": bool(node.integer("largest", 1)),
    }
    if node.has_output(1):
        indices = node.outputs[1]
        emit.out("top_indices", data, index=1, **attrs)
    else:
        indices = emit.temp("top_indices", data, **attrs)
    if node.has_output(0):
        emit.out("gather_elements", data, indices, axis=axis)
    return None


RUNNING: dict[str, tuple[str, str, str, int]] = {
    "CumSum": ("cumulative_sum", "reduce_sum", "add", 0),
    "CumProd": ("cumulative_product", "reduce_prod", "multiply", 1),
}
"""ONNX op -> graph op, that of a whole block, that of two results, and what changes nothing."""

RUNNING_EXTENT = 512
"""Elements along an axis each of whose results is computed from all elements before it."""


@onnx_op("CumSum", since=11, limits="axis known while importing")
@onnx_op("CumProd", since=26, limits="axis known while importing")
def running(node: OnnxNode, emit: Emitter) -> None:
    """Sums or products of the elements up to each one, along a constant axis."""
    data, (axis,) = node.inputs[0], emit.index_list(1, "the axis")
    made = _running(
        emit,
        data,
        positive_axis(axis, len(emit.shape(data))),
        exclusive=bool(node.integer("exclusive", 0)),
        reverse=bool(node.integer("reverse", 0)),
    )
    emit.out("identity", made)


def _running(emit: Emitter, data: str, axis: int, *, exclusive: bool, reverse: bool) -> str:
    """Long axes are cut into blocks, each with its own results and what came before it."""
    op, whole, combine, neutral = RUNNING[emit.node.op_type]
    shape = emit.shape(data)
    extent = shape[axis]
    if extent <= RUNNING_EXTENT:
        return emit.temp(op, data, axis=axis, exclusive=exclusive, reverse=reverse)
    size = ceil(sqrt(extent))
    count = ceil(extent / size)
    rank = len(shape)
    pads = tuple(count * size - extent if d == rank + axis else 0 for d in range(2 * rank))
    full = emit.temp("pad", data, pads=pads, value=float(neutral))
    blocks = emit.reshaped(full, (*shape[:axis], count, size, *shape[axis + 1 :]))
    inside = _running(emit, blocks, axis + 1, exclusive=exclusive, reverse=reverse)
    totals = emit.temp(whole, blocks, axes=(axis + 1,), keepdims=True)
    before = _running(emit, totals, axis, exclusive=True, reverse=reverse)
    made = emit.reshaped(emit.temp(combine, inside, before), emit.shape(full))
    return emit.part(made, axis, 0, extent)
