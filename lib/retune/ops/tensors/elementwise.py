"""Element-wise bodies: one scalar expression for each op."""

from collections.abc import Callable
from math import inf, pi, sqrt
from typing import Literal

from retune.core.dtypes import BOOL, FLOAT64, INT32
from retune.ir.expr import (
    Expr,
    all_of,
    as_expr,
    binary,
    bitcast,
    cast,
    const,
    equal,
    maximum,
    minimum,
    power,
    select,
)
from retune.ir.functions import call
from retune.ir.te import Tensor, compute
from retune.ops import Attrs
from retune.ops.registry import number
from retune.ops.tensors.registry import OpCall, read, tensors_of


def _clip(x: Expr, attrs: Attrs) -> Expr:
    low, high = number(attrs, "min"), number(attrs, "max")
    x = x if low == -inf else maximum(x, low)
    return x if high == inf else minimum(x, high)


def _elu(x: Expr, alpha: float) -> Expr:
    return select(x > 0.0, x, (call("exp", minimum(x, 0.0)) - 1.0) * alpha)


def _softplus(x: Expr, _: Attrs) -> Expr:
    return maximum(x, 0.0) + call("log", call("exp", -call("abs", x)) + 1.0)


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / (call("exp", -x) + 1.0)


def _gelu(x: Expr, _: Attrs) -> Expr:
    return x * 0.5 * (call("erf", x * sqrt(0.5)) + 1.0)


def _gelu_tanh(x: Expr, _: Attrs) -> Expr:
    """x / 2 * (1 + tanh(y)) is x * sigmoid(2 * y)."""
    return x * _sigmoid((x + x * x * x * 0.044715) * (2 * sqrt(2 / pi)))


def _mish(x: Expr, attrs: Attrs) -> Expr:
    return x * call("tanh", _softplus(x, attrs))


def _hard_sigmoid(x: Expr, attrs: Attrs) -> Expr:
    return minimum(maximum(x * number(attrs, "alpha") + number(attrs, "beta"), 0.0), 1.0)


def _absolute(x: Expr, _: Attrs) -> Expr:
    if x.dtype.is_float:
        return call("abs", x)
    if x.dtype.is_unsigned:
        return x
    wide = _at_least_32_bits(x)
    return cast(maximum(wide, -wide), x.dtype)


def _at_least_32_bits(x: Expr) -> Expr:
    """Narrow integers as int32, so that their arithmetic has one type in C too."""
    return x if x.dtype.itemsize >= 4 else cast(x, INT32)


def _sign(x: Expr, _: Attrs) -> Expr:
    negative = x if x.dtype.is_unsigned else select(x < 0, -1, x)
    return select(x > 0, 1, negative)


def _bitwise_not(x: Expr, _: Attrs) -> Expr:
    ones = 2 ** (8 * x.dtype.itemsize) - 1 if x.dtype.is_unsigned else -1
    return binary("bitxor", x, ones)


_FUNCTIONS = (
    *("sin", "cos", "tan", "arcsin", "arccos", "arctan"),
    *("sinh", "cosh", "arcsinh", "arccosh", "arctanh"),
)
"""Ops that are functions of expressions, by the same names."""


def _call_of(name: str) -> Callable[[Expr, Attrs], Expr]:
    return lambda x, _: call(name, x)


UNARY: dict[str, Callable[[Expr, Attrs], Expr]] = {
    "relu": lambda x, _: maximum(x, 0),
    "clip": _clip,
    "sigmoid": lambda x, _: _sigmoid(x),
    "tanh": lambda x, _: call("tanh", x),
    "leaky_relu": lambda x, a: select(x < 0.0, x * number(a, "alpha"), x),
    "elu": lambda x, a: _elu(x, number(a, "alpha")),
    "selu": lambda x, a: _elu(x, number(a, "alpha")) * number(a, "gamma"),
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": lambda x, _: x * minimum(maximum(x * (1 / 6) + 0.5, 0.0), 1.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "swish": lambda x, a: x * _sigmoid(x * number(a, "alpha")),
    "mish": _mish,
    "exp": lambda x, _: call("exp", x),
    "log": lambda x, _: call("log", x),
    "sqrt": lambda x, _: call("sqrt", x),
    "abs": _absolute,
    "negative": lambda x, _: -x,
    "floor": lambda x, _: call("floor", x),
    "ceil": lambda x, _: call("ceil", x),
    "round": lambda x, _: call("round", x),
    "reciprocal": lambda x, _: 1.0 / x,
    "softplus": _softplus,
    "softsign": lambda x, _: x / (call("abs", x) + 1.0),
    "erf": lambda x, _: call("erf", x),
    "sign": _sign,
    "bitwise_not": _bitwise_not,
    "bitcast": lambda x, a: bitcast(x, str(a["to"])),
    "is_nan": lambda x, _: call("isnan", x),
    "is_inf": lambda x, _: call("isinf", x),
    "logical_not": lambda x, _: equal(x, False),
    "identity": lambda x, _: x,
    **{name: _call_of(name) for name in _FUNCTIONS},
}
"""Op -> body."""


def divide(a: Expr, b: Expr) -> Expr:
    """Floats divide; integers divide toward zero, from the floor division of magnitudes."""
    if a.dtype.is_float:
        return a / b
    if a.dtype.is_unsigned:
        return a // b
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    quotient = maximum(left, -left) // maximum(right, -right)
    return cast(select(equal(left < 0, right < 0), quotient, -quotient), a.dtype)


_QUOTIENTS_END = 1 << 24
"""Larger quotients are integers as they are: nothing is to be mended."""


def _quotient(a: Expr, b: Expr) -> Expr:
    """The quotient to the last bit, mended by what it leaves of `a`.

    Compilers may make a / b out of a * (1 / b), which is off by a bit here and there.
    """
    near = a / b
    rest = call("fma", -near, b, a)
    mended = call("fma", rest, 1.0 / b, near)
    return select(call("abs", near) < float(_QUOTIENTS_END), mended, near)


def _mod(a: Expr, b: Expr) -> Expr:
    """The remainder with the divisor's sign."""
    if not a.dtype.is_float:
        return cast(_at_least_32_bits(a) % _at_least_32_bits(b), a.dtype)
    rest = call("fmod", a, b)
    other_side = all_of(binary("ne", rest, 0), binary("ne", rest < 0, b < 0))
    return select(other_side, rest + b, rest)


def _fmod(a: Expr, b: Expr) -> Expr:
    """The remainder with the dividend's sign, for integers from that of magnitudes."""
    if a.dtype.is_float:
        return call("fmod", a, b)
    if a.dtype.is_unsigned:
        return a % b
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    rest = maximum(left, -left) % maximum(right, -right)
    return cast(select(left < 0, -rest, rest), a.dtype)


def _shift(op: Literal["shl", "shr"], a: Expr, b: Expr) -> Expr:
    """By less than nothing or more than all bits there is the sign left, or nothing."""
    inside, far = b < 8 * a.dtype.itemsize, const(0, a.dtype)
    if not a.dtype.is_unsigned:
        inside = all_of(b >= 0, inside)
        far = select(a < 0, -1, far) if op == "shr" else far
    return select(inside, binary(op, a, b), far)


def _power(a: Expr, b: Expr) -> Expr:
    """Integer bases are raised as float64, which holds their powers exactly below 2**53."""
    if a.dtype.is_float:
        return power(a, cast(b, a.dtype))
    value = power(cast(a, FLOAT64), cast(b, FLOAT64))
    whole = not b.dtype.is_float
    return cast(call("round", value) if whole else value, a.dtype)


BINARY: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": divide,
    "quotient": _quotient,
    "mod": _mod,
    "fmod": _fmod,
    "power": _power,
    "minimum": minimum,
    "maximum": maximum,
    "prelu": lambda x, slope: select(x < 0, x * slope, x),
    "equal": equal,
    "less": lambda a, b: a < b,
    "greater": lambda a, b: a > b,
    "less_equal": lambda a, b: a <= b,
    "greater_equal": lambda a, b: a >= b,
    "logical_and": lambda a, b: binary("and", a, b),
    "logical_or": lambda a, b: binary("or", a, b),
    "logical_xor": lambda a, b: binary("ne", a, b),
    "bitwise_and": lambda a, b: binary("bitand", a, b),
    "bitwise_or": lambda a, b: binary("bitor", a, b),
    "bitwise_xor": lambda a, b: binary("bitxor", a, b),
    "shift_left": lambda a, b: _shift("shl", a, b),
    "shift_right": lambda a, b: _shift("shr", a, b),
}
"""Op -> body; but for powers, the second operand takes the first one's type."""


@tensors_of(*UNARY)
def unary(c: OpCall) -> Tensor:
    """T_op(i...) = f(x[i...])."""
    (x,) = c.inputs
    body = UNARY[c.op]
    return compute(
        c.name(f"T_{c.op}"),
        c.output.shape,
        lambda *i: body(read(x, i, c.output.shape), c.attrs),
        [x],
    )


@tensors_of(*BINARY)
def binary_op(c: OpCall) -> Tensor:
    """T_op(i...) = f(a[i...], b[i...]), dimensions of extent 1 read at 0."""
    a, b = c.inputs
    operation = BINARY[c.op]

    def body(*i: Expr) -> Expr:
        right: Expr = read(b, i, c.output.shape)
        if c.op != "power":
            right = cast(right, a.dtype)
        return operation(read(a, i, c.output.shape), right)

    return compute(c.name(f"T_{c.op}"), c.output.shape, body, [a, b])


@tensors_of("where")
def where(c: OpCall) -> Tensor:
    """T_where(i...) = select(condition[i...], a[i...], b[i...])."""
    test, a, b = c.inputs
    return compute(
        c.name("T_where"),
        c.output.shape,
        lambda *i: select(
            read(test, i, c.output.shape), read(a, i, c.output.shape), read(b, i, c.output.shape)
        ),
        [test, a, b],
    )


@tensors_of("cast")
def cast_elements(c: OpCall) -> Tensor:
    """T_cast(i...) = type(x[i...]); anything but zero is true."""
    (x,) = c.inputs
    to = c.output.dtype

    def body(*i: Expr) -> Expr:
        value = read(x, i, c.output.shape)
        if to == BOOL and x.dtype != BOOL:
            return binary("ne", value, as_expr(0, x.dtype))
        if x.dtype == BOOL and to != BOOL:
            return select(value, const(1, to), const(0, to))
        return cast(value, to)

    return compute(c.name("T_cast"), c.output.shape, body, [x])


@tensors_of("batch_norm")
def batch_norm(c: OpCall) -> Tensor:
    """T_batch_norm(i...) = (x[i...] - mean[c]) / sqrt(var[c] + epsilon) * scale[c] + bias[c]."""
    x, scale, bias, mean, variance = c.inputs
    axis, epsilon = int(number(c.attrs, "axis")), number(c.attrs, "epsilon")

    def body(*i: Expr) -> Expr:
        channel = i[axis]
        normal = (x[i] - mean[channel]) / call("sqrt", variance[channel] + epsilon)
        return normal * scale[channel] + bias[channel]

    return compute(c.name("T_batch_norm"), c.output.shape, body, c.inputs)
