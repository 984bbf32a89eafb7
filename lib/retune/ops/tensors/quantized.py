"""`requantize`, `add_codes` and `lookup_codes`, one stage each: see `graph.ops.quantized`."""

from retune.core.dtypes import INT32
from retune.ir.expr import Expr, binary, cast, const, maximum, minimum
from retune.ir.te import Tensor, compute
from retune.ops.quantized import LIMIT
from retune.ops.registry import integer
from retune.ops.tensors.registry import OpCall, read, tensors_of


@tensors_of("requantize")
def requantize(c: OpCall) -> Tensor:
    """T_requantize(i...) = uint8(clip((clip(x >> pre) * multiplier + offset) >> shift))."""
    shape = c.output.shape

    def body(*i: Expr) -> Expr:
        x, pre, offset, *multiplier = (read(tensor, i, shape) for tensor in c.inputs)
        near = _limited(binary("shr", x, pre), -LIMIT, LIMIT - 1)
        for factor in multiplier:
            near = near * _short(factor, c)
        return _shifted(near + offset, c)

    return compute(c.name("T_requantize"), shape, body, list(c.inputs))


@tensors_of("add_codes")
def add_codes(c: OpCall) -> Tensor:
    """T_add_codes(i...) = uint8(clip((a * multiplier + b * multiplier + offset) >> shift))."""
    shape = c.output.shape

    def body(*i: Expr) -> Expr:
        a, b, of_a, of_b, offset = (read(tensor, i, shape) for tensor in c.inputs)
        # In this order each product and sum is one multiply-add of 16-bit integers, where there is.
        first = cast(a, INT32) * _short(of_a, c) + offset
        return _shifted(cast(b, INT32) * _short(of_b, c) + first, c)

    return compute(c.name("T_add_codes"), shape, body, list(c.inputs))


@tensors_of("lookup_codes")
def lookup_codes(c: OpCall) -> Tensor:
    """T_lookup_codes(i...) = table[codes(i...) - least]."""
    codes, table = c.inputs
    least = codes.dtype.limits[0]

    def body(*i: Expr) -> Expr:
        place = cast(codes[i], INT32)
        return table[(place - least if least else place,)]

    return compute(c.name("T_lookup_codes"), c.output.shape, body, [codes, table])


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
