"""From sums to bytes in 32 bits, `requantize` and `add_codes`, and from bytes: `lookup_codes`.

For an int32 x, shifts `pre` of 0 to 31 and an int32 `offset`, both of which broadcast with it:

    y = (clip(x >> pre, -2**15, 2**15 - 1) * multiplier + offset) >> shift

limited to `min` and `max`, as type `to`. Without a multiplier shifts do it alone. Multipliers are
at most 2**15 and offsets 2**30, in magnitude: nothing then leaves 32 bits. Shifts round down; half
of 2**shift in the offset makes the last one round to the nearest.

The attribute `bits`, if there is one, says that multipliers have no sign and no more bits. With 15
the products are of 16-bit integers, which many processors multiply and add in one instruction.

For bytes a and b, and int32 multipliers of each of which 255 times the sum is at most 2**29,

    y = (a * multiplier_a + b * multiplier_b + offset) >> shift

A function of bytes is a table of 256 elements: that of the lowest code first.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from retune.core.dtypes import INT32, DType, TensorType
from retune.ops.linear import BYTES
from retune.ops.registry import Array, Attrs, integer, number, op, present
from retune.ops.shapes import common_shape, require

RESCALING = ("requantize", "add_codes", "lookup_codes")
"""The ops of this file: where they are, a network computes with codes."""
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
    return (TensorType(data.shape, cast("DType", attrs["to"])),)


@op("requantize", kind="broadcast", infer=_infer_requantize)
def requantize(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Inputs x, pre, offset and, if there is one, the multiplier."""
    x, pre, offset, *multiplier = (present(arrays, i) for i in range(len(arrays)))
    near = np.clip(x >> pre, -LIMIT, LIMIT - 1)
    for factor in multiplier:
        near = near * factor
    return (_limited((near + offset) >> np.int32(integer(attrs, "shift")), attrs),)


def _infer_added(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    a, b = present(types), present(types, 1)
    require(
        a.shape == b.shape and a.dtype in BYTES and b.dtype in BYTES,
        lambda: f"add_codes of {a} and {b}: expected bytes of one shape",
    )
    return (TensorType(a.shape, cast("DType", attrs["to"])),)


@op("add_codes", kind="broadcast", infer=_infer_added)
def add_codes(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Inputs a, b, multiplier_a, multiplier_b, offset."""
    a, b, of_a, of_b, offset = (present(arrays, i) for i in range(len(arrays)))
    whole = a.astype(np.int32) * of_a + b.astype(np.int32) * of_b + offset
    return (_limited(whole >> np.int32(integer(attrs, "shift")), attrs),)


def _infer_lookup(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    codes, table = present(types), present(types, 1)
    require(
        codes.dtype in BYTES and table.shape == (256,),
        lambda: f"lookup_codes of {codes} in {table}: expected bytes, and a table of 256 elements",
    )
    return (TensorType(codes.shape, table.dtype),)


@op("lookup_codes", kind="table", infer=_infer_lookup)
def lookup_codes(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    """The table's element for each code."""
    codes, table = present(arrays), present(arrays, 1)
    return (table[codes.astype(np.int32) - np.iinfo(codes.dtype).min],)


def _limited(whole: Array, attrs: Attrs) -> Array:
    return np.clip(whole, number(attrs, "min"), number(attrs, "max")).astype(str(attrs["to"]))
