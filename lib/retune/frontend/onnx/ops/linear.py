"""Matrix products: Gemm and MatMul as dense layers where the right side is a matrix."""

from collections.abc import Callable
from math import prod
from typing import TypeVar

import numpy as np

from retune.core.dims import is_fixed
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.ops.extents import POSITIONS, array_of_extents


@onnx_op("Gemm")
def gemm(node: OnnxNode, emit: Emitter) -> None:
    """alpha * A' B' + beta * C as dense plus add."""
    data, weight = node.inputs[:2]
    if len(emit.shape(data)) != 2 or len(emit.shape(weight)) != 2:
        raise ModelError(
            f"Gemm of {emit.type(data)} and {emit.type(weight)}: expected two matrices"
        )
    if node.integer("transA", 0):
        data = emit.temp("transpose", data, label="a", perm=(1, 0))
    if not node.integer("transB", 0):
        weight = emit.temp("transpose", weight, label="b", perm=(1, 0))
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if alpha != 1.0:
        weight = emit.temp("multiply", weight, emit.scalar(alpha, weight, "alpha"))
    if not node.has_input(2) or beta == 0.0:
        return emit.out("dense", data, weight)
    bias = node.inputs[2]
    shape = emit.shape(bias)
    bias = emit.reshaped(bias, (*(1,) * (2 - len(shape)), *shape))
    if beta != 1.0:
        bias = emit.temp("multiply", bias, emit.scalar(beta, bias, "beta"))
    return emit.out("add", emit.temp("dense", data, weight), bias)


T = TypeVar("T")


@onnx_op("MatMul")
def matmul(node: OnnxNode, emit: Emitter) -> None:
    """numpy's matmul; a constant matrix on the right makes a dense layer of the rows."""
    left, right = node.inputs
    matrix_product(emit, left, right, emit.out)


def matrix_product(emit: Emitter, left: str, right: str, put: Callable[..., T]) -> T:
    """numpy's matmul of two values; `put` (`emit.temp` or `emit.out`) makes the last op."""
    a, b = emit.shape(left), emit.shape(right)
    if not a or not b:
        raise ModelError("MatMul of a scalar; expected at least one dimension on each side")
    if len(a) >= 2 and len(b) == 2 and emit.known(right) is not None:
        weight = emit.temp("transpose", right, label="weight", perm=(1, 0))
        return dense_rows(emit, left, weight, put)
    left = emit.reshaped(left, (1, *a)) if len(a) == 1 else left
    right = emit.reshaped(right, (*b, 1)) if len(b) == 1 else right
    if len(a) > 1 and len(b) > 1:
        return put("matmul", left, right)
    result = emit.temp("matmul", left, right)
    shape = emit.shape(result)
    keep = (*shape[:-2], *shape[-2 : -1 if len(a) > 1 else -2], *(shape[-1:] if b[1:] else ()))
    return put("reshape", result, shape=keep)


def dense_rows(emit: Emitter, left: str, weight: str, put: Callable[..., T]) -> T:
    """Rows [..., k] times the transpose of a weight [m, k]; `put` makes the last op."""
    shape = emit.shape(left)
    if len(shape) == 2:
        return put("dense", left, weight)
    rows = emit.reshaped(left, (prod(shape[:-1]), shape[-1]))
    result = emit.temp("dense", rows, weight)
    return put("reshape", result, shape=(*shape[:-1], emit.shape(weight)[0]))


@onnx_op("Constant", folded=True, limits="no text")
def constant(node: OnnxNode, emit: Emitter) -> None:
    """A value stated in the node."""
    kinds = {
        "value": None,
        "sparse_value": None,
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for key, dtype in kinds.items():
        if key in node.attrs:
            emit.build.constant(node.outputs[0], np.asarray(node.attrs[key], dtype))
            return
    raise emit.refuse(f"text ({', '.join(node.attrs)})", "expected numbers or truth values")


@onnx_op("ConstantOfShape", folded=True, limits="shape known while importing")
def constant_of_shape(node: OnnxNode, emit: Emitter) -> None:
    """An array filled with one value, 0.0 by default."""
    shape = emit.index_list(0, "the shape")
    value = np.asarray(node.attrs.get("value", np.zeros(1, np.float32))).reshape(-1)[0]
    emit.out_filled(shape, np.asarray(value))


@onnx_op("Shape", folded=True)
def shape_of(node: OnnxNode, emit: Emitter) -> None:
    """The extents of the input, or those between start and end."""
    shape = emit.shape(node.inputs[0])
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    emit.build.define_extents(node.outputs[0], array_of_extents(shape[start:end]))


@onnx_op("Size", folded=True)
def size_of(node: OnnxNode, emit: Emitter) -> None:
    """The number of elements of the input."""
    count = emit.type(node.inputs[0]).elements
    emit.build.define_extents(node.outputs[0], array_of_extents(count))


@onnx_op("Range", folded=True, limits="bounds known while importing")
def numbers(node: OnnxNode, emit: Emitter) -> None:
    """start, start + delta, ... below limit; all three must be known, but for what is a size."""
    if any(value in emit.build.extents for value in node.inputs):
        return _sized_range(node, emit)
    bounds = [emit.contents(i, "a bound").reshape(-1) for i in range(3)]
    start, limit, delta = (bound.tolist()[0] for bound in bounds)
    made = np.arange(start, limit, delta, dtype=bounds[0].dtype)
    emit.build.constant(node.outputs[0], made)
    return None


def _sized_range(node: OnnxNode, emit: Emitter) -> None:
    """The numbers between bounds that depend on sizes, whole ones, whatever their type."""
    start, limit, delta = (emit.whole_number(i, "a bound") for i in range(3))
    count = (limit - start + delta - 1) // delta if delta > 0 else (start - limit - 1) // -delta + 1
    dtype = emit.type(node.inputs[0]).dtype
    extent = count if count > 0 else 0
    if is_fixed(extent) and not dtype.is_float:
        values = array_of_extents([start + delta * i for i in range(extent)])
        emit.build.define_extents(node.outputs[0], values, dtype)
    else:
        emit.out(POSITIONS, shape=(extent,), steps=(delta,), begin=start, to=dtype)
