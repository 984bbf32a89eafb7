"""Ops that map elements on their own: of one input, and of several whose shapes broadcast.

Read `elementwise` and `broadcast`: an operator is one entry, its scalar expression, with the ONNX
operator that means the same. What it computes on a device, what it means in numpy, and how it is
imported and written follow from that.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, pi, sqrt
from typing import Literal
from typing import cast as cast_type

from retune.core.dtypes import DType, TensorType, is_float, is_unsigned, itemsize
from retune.ir.expr import (
    Expr,
    all_of,
    as_expr,
    binary,
    bitcast,
    call,
    cast,
    const,
    equal,
    maximum,
    minimum,
    power,
    select,
)
from retune.ir.te import Tensor
from retune.ops.registry import Attrs, Infer, OnnxForm, OpCall, OpDef, number, op, present, register
from retune.ops.shapes import broadcast_type, common_shape, compare_type, require, same_type

Unary = Callable[[Expr, Attrs], Expr]
Binary = Callable[[Expr, Expr], Expr]


def elementwise(
    name: str,
    body: Unary,
    onnx: str = "",
    attrs: Mapping[str, float] | None = None,
    *,
    since: int = 1,
    infer: Infer = same_type,
    doc: str = "One element in, one out.",
) -> OpDef:
    """Registers T_name(i...) = body(x[i...], attributes); `attrs` are the defaults of ONNX."""
    return register(
        OpDef(
            name=name,
            kind="elementwise",
            infer=infer,
            expression=lambda c: c.stage(lambda *i: body(c.read(c.inputs[0], i), c.attrs)),
            onnx=OnnxForm(onnx, since, attrs or {}) if onnx else None,
            doc=doc,
        )
    )


def broadcast(
    name: str,
    body: Binary,
    onnx: str = "",
    *,
    since: int = 1,
    infer: Infer = broadcast_type,
    mixed: bool = False,
    doc: str = "Two inputs with numpy's broadcasting.",
) -> OpDef:
    """Registers T_name(i...) = body(a[i...], b[i...]), dimensions of extent 1 read at 0.

    The second operand takes the first one's type, unless types may be `mixed`.
    """

    def expression(c: OpCall) -> Tensor:
        a, b = c.inputs

        def element(*i: Expr) -> Expr:
            right: Expr = c.read(b, i)
            return body(c.read(a, i), right if mixed else cast(right, a.dtype))

        return c.stage(element)

    form = OnnxForm(onnx, since) if onnx else None
    return register(
        OpDef(name=name, kind="broadcast", infer=infer, expression=expression, onnx=form, doc=doc)
    )


def _function(name: str) -> Unary:
    return lambda x, _: call(name, x)


for _name, _onnx in {
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",  # halves to even
    "erf": "Erf",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "arcsin": "Asin",
    "arccos": "Acos",
    "arctan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "arcsinh": "Asinh",
    "arccosh": "Acosh",
    "arctanh": "Atanh",
}.items():
    elementwise(_name, _function(_name), _onnx)


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
    if is_float(x.dtype):
        return call("abs", x)
    if is_unsigned(x.dtype):
        return x
    wide = _at_least_32_bits(x)
    return cast(maximum(wide, -wide), x.dtype)


def _at_least_32_bits(x: Expr) -> Expr:
    """Narrow integers as int32, so that their arithmetic has one type in C too."""
    return x if itemsize(x.dtype) >= 4 else cast(x, "int32")


def _sign(x: Expr, _: Attrs) -> Expr:
    negative = x if is_unsigned(x.dtype) else select(x < 0, -1, x)
    return select(x > 0, 1, negative)


def _bitwise_not(x: Expr, _: Attrs) -> Expr:
    ones = 2 ** (8 * itemsize(x.dtype)) - 1 if is_unsigned(x.dtype) else -1
    return binary("bitxor", x, ones)


def _infer_predicate(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(present(types).shape, "bool"),)


_WITH_ATTRIBUTES = "One element in, one out, with float attributes."
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}

elementwise("identity", lambda x, _: x)
elementwise("relu", lambda x, _: maximum(x, 0), "Relu")
elementwise("clip", _clip)
elementwise("sigmoid", lambda x, _: _sigmoid(x), "Sigmoid")
elementwise(
    "leaky_relu",
    lambda x, a: select(x < 0.0, x * number(a, "alpha"), x),
    "LeakyRelu",
    {"alpha": 0.01},
    doc=_WITH_ATTRIBUTES,
)
elementwise(
    "elu", lambda x, a: _elu(x, number(a, "alpha")), "Elu", {"alpha": 1.0}, doc=_WITH_ATTRIBUTES
)
elementwise(
    "selu",
    lambda x, a: _elu(x, number(a, "alpha")) * number(a, "gamma"),
    "Selu",
    _SELU,
    doc=_WITH_ATTRIBUTES,
)
elementwise(
    "hard_sigmoid",
    _hard_sigmoid,
    "HardSigmoid",
    {"alpha": 0.2, "beta": 0.5},
    doc=_WITH_ATTRIBUTES,
)
elementwise(
    "hard_swish", lambda x, _: x * minimum(maximum(x * (1 / 6) + 0.5, 0.0), 1.0), "HardSwish"
)
elementwise("gelu", _gelu)
elementwise("gelu_tanh", _gelu_tanh)
elementwise(
    "swish",
    lambda x, a: x * _sigmoid(x * number(a, "alpha")),
    "Swish",
    {"alpha": 1.0},
    doc=_WITH_ATTRIBUTES,
)
elementwise("mish", _mish, "Mish")
elementwise("abs", _absolute, "Abs")
elementwise("negative", lambda x, _: -x, "Neg")
elementwise("reciprocal", lambda x, _: 1.0 / x, "Reciprocal")
elementwise("softplus", _softplus, "Softplus")
elementwise("softsign", lambda x, _: x / (call("abs", x) + 1.0), "Softsign")
elementwise("sign", _sign, "Sign")
elementwise("bitwise_not", _bitwise_not, "BitwiseNot", since=18)
elementwise("is_nan", _function("isnan"), "IsNaN", since=9, infer=_infer_predicate)
elementwise("is_inf", _function("isinf"), infer=_infer_predicate)
elementwise("logical_not", lambda x, _: equal(x, False), "Not", infer=_infer_predicate)


def divide(a: Expr, b: Expr) -> Expr:
    """Floats divide; integers divide toward zero, from the floor division of magnitudes."""
    if is_float(a.dtype):
        return a / b
    if is_unsigned(a.dtype):
        return a // b
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    quotient = maximum(left, -left) // maximum(right, -right)
    return cast(select(equal(left < 0, right < 0), quotient, -quotient), a.dtype)


_QUOTIENTS_END = 1 << 24
"""Larger quotients are integers as they are: nothing is to be mended."""


def _quotient(a: Expr, b: Expr) -> Expr:
    """The quotient to the last bit, on devices too, where `divide` may be off by it.

    Compilers may make a / b out of a * (1 / b): it is corrected by what it leaves of `a`.
    """
    near = a / b
    rest = call("fma", -near, b, a)
    mended = call("fma", rest, 1.0 / b, near)
    return select(call("abs", near) < float(_QUOTIENTS_END), mended, near)


def _mod(a: Expr, b: Expr) -> Expr:
    """The remainder with the divisor's sign."""
    if not is_float(a.dtype):
        return cast(_at_least_32_bits(a) % _at_least_32_bits(b), a.dtype)
    rest = call("fmod", a, b)
    other_side = all_of(binary("ne", rest, 0), binary("ne", rest < 0, b < 0))
    return select(other_side, rest + b, rest)


def _fmod(a: Expr, b: Expr) -> Expr:
    """The remainder with the dividend's sign, for integers from that of magnitudes."""
    if is_float(a.dtype):
        return call("fmod", a, b)
    if is_unsigned(a.dtype):
        return a % b
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    rest = maximum(left, -left) % maximum(right, -right)
    return cast(select(left < 0, -rest, rest), a.dtype)


def _shift(op: Literal["shl", "shr"], a: Expr, b: Expr) -> Expr:
    """By less than nothing or more than all bits there is the sign left, or nothing."""
    inside, far = b < 8 * itemsize(a.dtype), const(0, a.dtype)
    if not is_unsigned(a.dtype):
        inside = all_of(b >= 0, inside)
        far = select(a < 0, -1, far) if op == "shr" else far
    return select(inside, binary(op, a, b), far)


def _power(a: Expr, b: Expr) -> Expr:
    """Integer bases are raised as float64, which holds their powers exactly below 2**53."""
    if is_float(a.dtype):
        return power(a, cast(b, a.dtype))
    value = power(cast(a, "float64"), cast(b, "float64"))
    whole = not is_float(b.dtype)
    return cast(call("round", value) if whole else value, a.dtype)


broadcast("add", lambda a, b: a + b, "Add")
broadcast("subtract", lambda a, b: a - b, "Sub")
broadcast("multiply", lambda a, b: a * b, "Mul")
broadcast("divide", divide, "Div")
broadcast("quotient", _quotient)
broadcast("power", _power, "Pow", mixed=True)
broadcast("minimum", minimum)
broadcast("maximum", maximum)
broadcast(
    "prelu",
    lambda x, slope: select(x < 0, x * slope, x),
    "PRelu",
    doc="x, or slope * x where x is negative; the slope broadcasts to x.",
)
broadcast("mod", _mod)
broadcast("fmod", _fmod)
broadcast("bitwise_and", lambda a, b: binary("bitand", a, b), "BitwiseAnd", since=18)
broadcast("bitwise_or", lambda a, b: binary("bitor", a, b), "BitwiseOr", since=18)
broadcast("bitwise_xor", lambda a, b: binary("bitxor", a, b), "BitwiseXor", since=18)
broadcast("shift_left", lambda a, b: _shift("shl", a, b))
broadcast("shift_right", lambda a, b: _shift("shr", a, b))

broadcast("equal", equal, "Equal", infer=compare_type)
broadcast("less", lambda a, b: a < b, "Less", infer=compare_type)
broadcast("greater", lambda a, b: a > b, "Greater", infer=compare_type)
broadcast("less_equal", lambda a, b: a <= b, "LessOrEqual", since=12, infer=compare_type)
broadcast("greater_equal", lambda a, b: a >= b, "GreaterOrEqual", since=12, infer=compare_type)


def _infer_logic(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    for entry in types:
        require(
            entry is not None and entry.dtype == "bool",
            lambda entry=entry: f"a logical operator: expected values of type bool, got {entry}",
        )
    return compare_type(types, attrs)


broadcast("logical_and", lambda a, b: binary("and", a, b), "And", infer=_infer_logic)
broadcast("logical_or", lambda a, b: binary("or", a, b), "Or", infer=_infer_logic)
broadcast("logical_xor", lambda a, b: binary("ne", a, b), "Xor", infer=_infer_logic)


def _infer_where(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    condition, then = present(types), present(types, 1)
    require(
        condition.dtype == "bool",
        lambda: f"where: expected a condition of type bool, got {condition}",
    )
    return (TensorType(common_shape(types), then.dtype),)


@op("where", kind="broadcast", infer=_infer_where, onnx=OnnxForm("Where"))
def where(c: OpCall) -> Tensor:
    """Elements of the second or third input by the first."""
    return c.stage(lambda *i: select(*(c.read(tensor, i) for tensor in c.inputs)))


def _infer_to(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(present(types).shape, cast_type("DType", attrs["to"])),)


@op("cast", kind="elementwise", infer=_infer_to)
def cast_elements(c: OpCall) -> Tensor:
    """The elements as another type, truncated toward zero for integers; all but zero is true."""
    (x,) = c.inputs
    to = c.output.dtype

    def body(*i: Expr) -> Expr:
        value = c.read(x, i)
        if to == "bool" and x.dtype != "bool":
            return binary("ne", value, as_expr(0, x.dtype))
        if x.dtype == "bool" and to != "bool":
            return select(value, const(1, to), const(0, to))
        return cast(value, to)

    return c.stage(body)


def _infer_bitcast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    (data,), (made,) = types, _infer_to(types, attrs)
    require(
        data is not None
        and itemsize(data.dtype) == itemsize(made.dtype)
        and "bool" not in (data.dtype, made.dtype),
        lambda: f"bitcast of {data} to {made.dtype}: expected numbers of the same size",
    )
    return (made,)


elementwise("bitcast", lambda x, a: bitcast(x, str(a["to"])), infer=_infer_bitcast)
