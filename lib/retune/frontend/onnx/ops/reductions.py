"""Reductions: plain ones, and those with something before or after; read `reduce`."""

from collections.abc import Callable
from typing import Any

from retune.core.dtypes import FLOAT64
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis

KNOWN_AXES = "axes known while importing"

PLAIN: dict[str, str] = {
    "ReduceMean": "reduce_mean",
    "ReduceSum": "reduce_sum",
    "ReduceProd": "reduce_prod",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
}
"""ONNX op -> graph op."""


def _absolute(emit: Emitter, value: str) -> str:
    return emit.temp("abs", value)


def _square(emit: Emitter, value: str) -> str:
    return emit.temp("multiply", value, value, label="square")


def _root(emit: Emitter, value: str) -> str:
    return _as_floats(emit, value, "sqrt")


def _logarithm(emit: Emitter, value: str) -> str:
    return _as_floats(emit, value, "log")


def _as_floats(emit: Emitter, value: str, op: str) -> str:
    """The op of the value, in double precision for integers."""
    own = emit.type(value).dtype
    if own.is_float:
        return emit.temp(op, value)
    return emit.temp("cast", emit.temp(op, emit.temp("cast", value, to=FLOAT64)), to=own)


def _nothing(_emit: Emitter, value: str) -> str:
    return value


Part = Callable[[Emitter, str], str]

SUMS: dict[str, tuple[Part, Part]] = {
    "ReduceL1": (_absolute, _nothing),
    "ReduceL2": (_square, _root),
    "ReduceLogSum": (_nothing, _logarithm),
    "ReduceSumSquare": (_square, _nothing),
}
"""ONNX op -> what is done to each element, and to the sum."""


@onnx_op(*PLAIN, *SUMS, "ReduceLogSumExp")
@onnx_op(
    *(op for op in PLAIN if op != "ReduceSum"),
    *SUMS,
    "ReduceLogSumExp",
    since=18,
    limits=KNOWN_AXES,
)
@onnx_op("ReduceSum", since=13, limits=KNOWN_AXES)
def reduce(node: OnnxNode, emit: Emitter) -> None:
    """Over some axes, or all; they are an input from opset 13 or 18 on, none with a no-op flag."""
    axes = emit.listed("axes", 1, "the axes")
    none = not axes and node.integer("noop_with_empty_axes", 0)
    _reduce(node, emit, () if none else _found(node, emit, axes))


def _found(node: OnnxNode, emit: Emitter, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes in order, counted from the front; all of them if none is named."""
    rank = len(emit.shape(node.inputs[0]))
    named = sorted({positive_axis(axis, rank) for axis in axes if rank})
    return tuple(named) or tuple(range(rank))


def _reduce(node: OnnxNode, emit: Emitter, axes: tuple[int, ...]) -> None:
    data = node.inputs[0]
    attrs: dict[str, Any] = {"axes": axes, "keepdims": bool(node.integer("keepdims", 1))}
    if node.op_type == "ReduceLogSumExp":
        return _log_sum_exp(emit, data, attrs)
    if node.op_type in PLAIN:
        if not axes:
            return emit.out("identity", data)
        return emit.out(PLAIN[node.op_type], data, **attrs)
    before, after = SUMS[node.op_type]
    changed = before(emit, data)
    total = emit.temp("reduce_sum", changed, label="sum", **attrs) if axes else changed
    return emit.out("identity", after(emit, total))


def _log_sum_exp(emit: Emitter, data: str, attrs: dict[str, Any]) -> None:
    """log(sum of exp(x - top)) + top, which overflows for no finite x."""
    own = emit.type(data).dtype
    if not own.is_float:
        data = emit.temp("cast", data, to=FLOAT64)
    if not attrs["axes"]:
        return emit.out("cast", data, to=own)
    kept, limit = {**attrs, "keepdims": True}, float(emit.type(data).dtype.finfo.max)
    highest = emit.temp("reduce_max", data, label="max", **kept)
    top = emit.temp("clip", highest, label="top", min=-limit, max=limit)
    powers = emit.temp("exp", emit.temp("subtract", data, top, label="shifted"))
    total = emit.temp("log", emit.temp("reduce_sum", powers, label="sum", **attrs))
    made = emit.temp("add", total, emit.reshaped(top, emit.shape(total)), label="sum_of_powers")
    return emit.out("cast", made, to=own)
