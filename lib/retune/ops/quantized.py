"""Quantized operators: `requantize` and `add_codes` in 32 bits, and `lookup_codes` by tables.

For an int32 x, shifts `pre` of 0 to 31 and an int32 `offset`, both of which broadcast with it:

    y = (clip(x >> pre, -2**15, 2**15 - 1) * multiplier + offset) >> shift

limited to `min` and `max`, as type `to`. Without a multiplier shifts do it alone. Multipliers are
at most 2**15 and offsets 2**30, in magnitude: nothing then leaves 32 bits. Shifts round down; half
of 2**shift in the offset makes the last one round to the nearest.

The attribute `bits`, if there is one, says that multipliers have no sign and no more bits. With 15
the products are of 16-bit integers, which many processors multiply and add in one instruction.

For bytes a and b, and int32 multipliers of each of which 255 times the sum is at most 2**29,

    y = (a * multiplier_a + b * multiplier_b + offset) >> shift

A function of bytes is a table of 256 elements: the one of the lowest value first.
"""

from collections.abc import Sequence
from typing import cast as cast_type

from retune.core.dtypes import INT32, DType, TensorType
from retune.ir.expr import Expr, binary, cast, const, maximum, minimum
from retune.ir.te import Tensor
from retune.ops.linear import BYTES
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import common_shape, require

RESCALING = ("requantize", "add_codes", "lookup_codes")
"""The ops of this file: where they are, a network computes with quantized values."""
LIMIT = 2**15
"""Of the shifted sum in magnitude, before it is multiplied."""


def _infer_requantize(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    require(
        3 <= len(types) <= 4 and all(t is not None and t.dtype == INT32 for t in types),
        lambda: f"requantize of {', '.join(map(str, types))}: expected three or four of int32",
    )
    data = present(types)
    require(
        common_shape(types) == data.shape,
        lambda: f"requantize of {data}: expected operands that broadcast to it",
    )
    return (TensorType(data.shape, cast_type("DType", attrs["to"])),)


@op("requantize", kind="broadcast", infer=_infer_requantize)
def requantize(c: OpCall) -> Tensor:
    """T_requantize(i...) = uint8(clip((clip(x >> pre) * multiplier + offset) >> shift))."""

    def body(*i: Expr) -> Expr:
        x, pre, offset, *multiplier = (c.read(tensor, i) for tensor in c.inputs)
        near = _limited(binary("shr", x, pre), -LIMIT, LIMIT - 1)
        for factor in multiplier:
            near = near * _short(factor, c)
        return _shifted(near + offset, c)

    return c.stage(body)


def _infer_added(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = present(types), present(types, 1)
    require(
        a.shape == b.shape and a.dtype in BYTES and b.dtype in BYTES,
        lambda: f"add_codes of {a} and {b}: expected bytes of one shape",
    )
    return (TensorType(a.shape, cast_type("DType", attrs["to"])),)


@op("add_codes", kind="broadcast", infer=_infer_added)
def add_codes(c: OpCall) -> Tensor:
    """T_add_codes(i...) = uint8(clip((a * multiplier + b * multiplier + offset) >> shift))."""

    def body(*i: Expr) -> Expr:
        a, b, of_a, of_b, offset = (c.read(tensor, i) for tensor in c.inputs)
        # In this order each product and sum is one multiply-add of 16-bit integers, where there is.
        first = cast(a, INT32) * _short(of_a, c) + offset
        return _shifted(cast(b, INT32) * _short(of_b, c) + first, c)

    return c.stage(body)


def _infer_lookup(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    values, table = present(types), present(types, 1)
    require(
        values.dtype in BYTES and table.shape == (256,),
        lambda: f"lookup_codes of {values} in {table}: expected bytes, and a table of 256 elements",
    )
    return (TensorType(values.shape, table.dtype),)


@op("lookup_codes", kind="table", infer=_infer_lookup)
def lookup_codes(c: OpCall) -> Tensor:
    """T_lookup_codes(i...) = table[values(i...) - least]."""
    values, table = c.inputs
    least = values.dtype.limits[0]

    def body(*i: Expr) -> Expr:
        index = cast(values[i], INT32)
        return table[(index - least if least else index,)]

    return c.stage(body)


def _short(multiplier: Expr, c: OpCall) -> Expr:
    """The multiplier, of which compilers see how few bits it has."""
    if "bits" not in c.attrs:
        return multiplier
    return binary("bitand", multiplier, const((1 << integer(c.attrs, "bits")) - 1, INT32))


def _shifted(value: Expr, c: OpCall) -> Expr:
    """The end of both: shifted, limited, and as a byte."""
    whole = binary("shr", value, const(integer(c.attrs, "shift"), INT32))
    low, high = integer(c.attrs, "min"), integer(c.attrs, "max")
    return cast(_limited(whole, low, high), c.output.dtype)


def _limited(value: Expr, low: int, high: int) -> Expr:
    return minimum(maximum(value, const(low, INT32)), const(high, INT32))
