"""Ops that map elements on their own: of one input, and of several whose shapes broadcast.

A function of scalars is one entry in `ir.functions`; `operator_of` makes the operator of it. What
is here besides is not one function of numbers: a choice, and conversions.
"""

from collections.abc import Sequence
from typing import cast as cast_type

import numpy as np

from retune.core.dtypes import BOOL, DType, TensorType, numpy_dtype
from retune.ir.expr import Expr, as_expr, binary, bitcast, cast, const, select
from retune.ir.functions import FUNCTIONS, ScalarFunction, call
from retune.ir.te import Tensor
from retune.ops.registry import (
    OPS,
    SOURCES,
    Array,
    Attrs,
    OnnxForm,
    OpCall,
    OpDef,
    number,
    op,
    present,
    register,
)
from retune.ops.shapes import (
    broadcast_type,
    common_shape,
    compare_type,
    mixed_type,
    require,
    same_type,
)


def operator_of(entry: ScalarFunction) -> OpDef:
    """T_op(i...) = f(a[i...], b[i...], attributes), dimensions of extent 1 read at 0."""

    def expression(c: OpCall) -> Tensor:
        def element(*i: Expr) -> Expr:
            first, *more = (c.read(tensor, i) for tensor in c.inputs)
            others = (value if entry.mixed else cast(value, first.dtype) for value in more)
            return call(entry.name, first, *others, **numbers)

        numbers = {key: number(c.attrs, key) for key in entry.attributes}
        return c.stage(element)

    known = same_type if entry.arity == 1 else broadcast_type
    known = _infer_logic if entry.logical else compare_type if entry.predicate else known

    def infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
        count = len(types)
        require(
            count == entry.arity, lambda: f"{entry.op}: expected {entry.arity} inputs, got {count}"
        )
        return known(types, attrs)

    doc = "One element in, one out." if entry.arity == 1 else "Inputs with numpy's broadcasting."
    return OpDef(
        name=entry.op,
        kind="elementwise" if entry.arity == 1 else "broadcast",
        infer=infer,
        expression=expression,
        by_element=True,
        onnx=OnnxForm(entry.onnx, entry.onnx_since, entry.attributes) if entry.onnx else None,
        doc=doc,
    )


def _infer_logic(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    for entry in types:
        require(
            entry is not None and entry.dtype == BOOL,
            lambda entry=entry: f"a logical operator: expected values of type bool, got {entry}",
        )
    return compare_type(types, attrs)


def _register_functions() -> None:
    """Every scalar function is an operator, those too that came to be after this import."""
    for entry in FUNCTIONS.values():
        if entry.op and entry.op not in OPS:
            register(operator_of(entry))


_register_functions()
SOURCES.append(_register_functions)


def _infer_where(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    condition = present(types)
    require(
        condition.dtype == BOOL,
        lambda: f"where: expected a condition of type bool, got {condition}",
    )
    return (TensorType(common_shape(types), mixed_type(types[1:])),)


@op("where", kind="broadcast", infer=_infer_where, by_element=True, onnx=OnnxForm("Where"))
def where(c: OpCall) -> Tensor:
    """Elements of the second or third input by the first."""
    return c.stage(lambda *i: select(*(c.read(tensor, i) for tensor in c.inputs)))


def _infer_to(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(present(types).shape, cast_type("DType", attrs["to"])),)


@op("cast", kind="elementwise", infer=_infer_to, by_element=True)
def cast_elements(c: OpCall) -> Tensor:
    """The elements as another type, truncated toward zero for integers; all but zero is true."""
    (x,) = c.inputs
    to = c.output.dtype

    def body(*i: Expr) -> Expr:
        value = c.read(x, i)
        if to == BOOL and x.dtype != BOOL:
            return binary("ne", value, as_expr(0, x.dtype))
        if x.dtype == BOOL and to != BOOL:
            return select(value, const(1, to), const(0, to))
        return cast(value, to)

    return c.stage(body)


def _infer_bitcast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (data,), (made,) = types, _infer_to(types, attrs)
    require(
        data is not None
        and data.dtype.itemsize == made.dtype.itemsize
        and BOOL not in (data.dtype, made.dtype),
        lambda: f"bitcast of {data} to {made.dtype}: expected numbers of the same size",
    )
    return (made,)


def _bits(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    return (np.array(present(arrays)).view(numpy_dtype(str(attrs["to"]))),)


@op("bitcast", kind="elementwise", infer=_infer_bitcast, numpy=_bits)
def bitcast_elements(c: OpCall) -> Tensor:
    """The elements' bits as elements of another type (`to`) of the same size."""
    return c.stage(lambda *i: bitcast(c.read(c.inputs[0], i), c.output.dtype))
