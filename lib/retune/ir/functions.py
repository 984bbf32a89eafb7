"""Scalar functions: one entry each, which everything that treats them reads.

Read `ScalarFunction` and `call`. An entry is all that a new function needs:

    function("hard_tanh", lambda x: minimum(maximum(x, -1.0), 1.0))     # an expression of others
    function("cbrt", numpy=np.cbrt, opencl="cbrt")                      # a function of OpenCL C
    function("celu", celu, attributes={"alpha": 1.0}, onnx="Celu")      # with an ONNX operator

From it follow the expression (`call`), the numpy meaning (`evaluate.apply`), the text of each
renderer, the operator of graphs and the import of the ONNX operator. Those of two arguments
broadcast as in numpy. Functions with `opencl` are nodes of expressions (`Call`), by their name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import erf, inf, pi, sqrt
from typing import Any, Literal

import numpy as np

from retune.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    TF32,
    UINT32,
    DType,
)
from retune.ir.expr import (
    Call,
    Expr,
    all_of,
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


@dataclass(frozen=True, slots=True)
class Rational:
    """An odd function between -1 and 1 as x * p(x*x) / q(x*x); it is constant beyond a limit."""

    p: tuple[float, ...]
    """Coefficients, the constant one first."""
    q: tuple[float, ...]
    limit: float


@dataclass(frozen=True, slots=True)
class Exponential:
    """e to the x as 2 to the n times a polynomial in x - n*log(2), where n is the nearest integer.

    Results below the least normal number are 0, and those beyond the largest one infinity.
    """

    coefficients: tuple[float, ...]
    """The constant one first."""
    least: float
    most: float
    """Arguments of the least normal and of the largest result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarFunction:
    """A function of scalars: an expression of others, or one that each renderer can write."""

    name: str
    """As numpy calls it, where numpy has it."""
    expression: Callable[..., Expr] | None = None
    """The value of the arguments, with the attributes as keywords; None makes a `Call` of it."""
    numpy: Callable[..., Any] | None = None
    """The value of arrays, with the attributes as keywords; None evaluates the expression."""
    opencl: str = ""
    """A function of OpenCL C, or a template. `{0}` is the first argument, without parentheses;
    `{bits}`, `{magnitude}` and `{infinity}` are the integer type of its bits, the mask of all of
    them but the sign, and infinity's."""
    builtin: str = ""
    """Clang's function instead of it, which is one instruction on x86 and Arm."""
    near: float = 0.0
    """A lane beyond it spoils those below it, which are kept apart; 0: lanes are independent."""
    of_vectors: Rational | Exponential | None = None
    """The function on vectors of float32; None: that of OpenCL C."""
    arity: int = 1
    attributes: Mapping[str, float] = field(default_factory=dict[str, float])
    """Names and defaults, which are those of the ONNX operator too."""
    logical: bool = False
    """Whether the arguments must be truth values."""
    predicate: bool = False
    """Whether the result is a truth value; else it has the first argument's type."""
    mixed: bool = False
    """Whether the second argument keeps its type; else it is converted to the first one's."""
    positive: bool = False
    """Whether the argument must be positive for the result to be finite."""
    operator: str | None = None
    """The operator of graphs; None for one of the same name, empty for none."""
    onnx: str = ""
    """The ONNX operator that is this function with the same inputs and attributes, if any."""
    onnx_since: int = 1
    """The opset in which it came to be."""

    @property
    def op(self) -> str:
        """The operator of graphs that applies it to each element; empty for none."""
        return self.name if self.operator is None else self.operator


FUNCTIONS: dict[str, ScalarFunction] = {}
"""Name -> entry, see `function`."""


def function(
    name: str, expression: Callable[..., Expr] | None = None, **facts: Any
) -> ScalarFunction:
    """The entry of these facts, found by its name from now on. Raises: ValueError if taken."""
    entry = ScalarFunction(name=name, expression=expression, **facts)
    if name in FUNCTIONS:
        raise ValueError(f"scalar function '{name}' is registered twice")
    if expression is None and not (entry.opencl and entry.numpy):
        raise ValueError(f"scalar function '{name}': expected an expression, or numpy and opencl")
    FUNCTIONS[name] = entry
    return entry


def call(name: str, *args: Expr, **attributes: float) -> Expr:
    """The function's value, attributes by name. Raises: ValueError if there is no such function."""
    if name not in FUNCTIONS:
        raise ValueError(f"call: {name!r} is not one of {', '.join(sorted(FUNCTIONS))}")
    entry = FUNCTIONS[name]
    if entry.expression is not None:
        return entry.expression(*args, **{**entry.attributes, **attributes})
    return Call(name, args, BOOL if entry.predicate else args[0].dtype)


# -- functions that renderers write ------------------------------------------------------------

_erf = np.vectorize(erf, otypes=[np.float64])


def _absolute(x: Expr) -> Expr:
    if x.dtype.is_float:
        return Call("abs", (x,), x.dtype)
    if x.dtype.is_unsigned:
        return x
    wide = _at_least_32_bits(x)
    return cast(maximum(wide, -wide), x.dtype)


def _at_least_32_bits(x: Expr) -> Expr:
    """Narrow integers as int32, so that their arithmetic has one type in C too."""
    return x if x.dtype.itemsize >= 4 else cast(x, INT32)


_EXP = Exponential(
    (1.0, 1.0, 0.49999231, 0.16667116, 0.04189033, 0.0083125),
    -87.3365402,
    88.7228317,
)
"""Within 1.1e-7 of exp(x), relative, and 4e-7 in float32 (2e-7 between -20 and 20): fitted as
`_ERF`, starting with 1 + x."""
function("exp", numpy=np.exp, opencl="exp", of_vectors=_EXP, onnx="Exp")
function("log", numpy=np.log, opencl="log", onnx="Log", positive=True)
function("sqrt", numpy=np.sqrt, opencl="sqrt", onnx="Sqrt", positive=True)
function("abs", _absolute, numpy=np.abs, opencl="fabs", onnx="Abs")
function(
    "round", numpy=np.rint, opencl="rint", builtin="__builtin_elementwise_roundeven", onnx="Round"
)
"""To the nearest, halves to even."""
function(
    "floor", numpy=np.floor, opencl="floor", builtin="__builtin_elementwise_floor", onnx="Floor"
)
function("ceil", numpy=np.ceil, opencl="ceil", builtin="__builtin_elementwise_ceil", onnx="Ceil")
_ERF = Rational(
    (1.12837914, 0.193538021, 0.0531007869, 0.00388303112, 0.000284557076, 1.98681528e-06),
    (1.0, 0.504851164, 0.115347063, 0.0152066307, 0.00118549166, 3.74200495e-05),
    4.0,
)
"""Within 2.5e-8 of erf(x), relative, and 4e-7 in float32: the least squares of 4,000 Chebyshev
nodes, weighted until the error is even. PoCL's function takes 52 ns for sixteen lanes, this one 3
(Zen 5)."""
function("erf", numpy=lambda x: _erf(x).astype(x.dtype), opencl="erf", of_vectors=_ERF, onnx="Erf")
_NEAR = 1e6
"""PoCL's vectors of sines are of 0.01 for every small argument where one lane holds 1e7 or more."""
function("sin", numpy=np.sin, opencl="sin", onnx="Sin", near=_NEAR)
function("cos", numpy=np.cos, opencl="cos", onnx="Cos", near=_NEAR)
function("tan", numpy=np.tan, opencl="tan", onnx="Tan", near=_NEAR)
function("arcsin", numpy=np.arcsin, opencl="asin", onnx="Asin")
function("arccos", numpy=np.arccos, opencl="acos", onnx="Acos")
function("arctan", numpy=np.arctan, opencl="atan", onnx="Atan")
function("sinh", numpy=np.sinh, opencl="sinh", onnx="Sinh")
function("cosh", numpy=np.cosh, opencl="cosh", onnx="Cosh")
_TANH = Rational(
    (1.0, 0.133744687, 0.00348780327, 2.04810603e-05, 1.31773534e-08),
    (1.0, 0.467077821, 0.0258473586, 0.000327290734, 7.70397548e-07),
    9.1,
)
"""Within 2.3e-8 of tanh(x), relative, and 4e-7 in float32: fitted as `_ERF`."""
function("tanh", numpy=np.tanh, opencl="tanh", of_vectors=_TANH, onnx="Tanh")
function("arcsinh", numpy=np.arcsinh, opencl="asinh", onnx="Asinh")
function("arccosh", numpy=np.arccosh, opencl="acosh", onnx="Acosh")
function("arctanh", numpy=np.arctanh, opencl="atanh", onnx="Atanh")
# By the bits: compilers may assume that all results are valid.
function(
    "isnan",
    numpy=np.isnan,
    opencl="((as_{bits}({0}) & {magnitude}) > {infinity})",
    predicate=True,
    operator="is_nan",
    onnx="IsNaN",
    onnx_since=9,
)
function(
    "isinf",
    numpy=np.isinf,
    opencl="((as_{bits}({0}) & {magnitude}) == {infinity})",
    predicate=True,
    operator="is_inf",
)


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    width = 8 * x.dtype.itemsize
    bits = np.asarray(x).astype(f"int{width}").view(f"uint{width}").astype(np.uint64)
    high, low = (np.frexp((half).astype(np.float64))[1] for half in (bits >> 32, bits & 0xFFFFFFFF))
    return (width - np.where(bits >> 32, high + 32, low)).astype(x.dtype)


function("leading_zeros", numpy=_leading_zeros, opencl="clz", operator="")
"""Of an integer of 32 or 64 bits: how many of its highest bits are 0."""
function(
    "fma",
    numpy=lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype),
    opencl="fma",
    arity=3,
    operator="",
)

# -- activations -------------------------------------------------------------------------------


def _clip(x: Expr, min: float, max: float) -> Expr:  # the attributes' names
    x = x if min == -inf else maximum(x, min)
    return x if max == inf else minimum(x, max)


def _elu(x: Expr, alpha: float) -> Expr:
    return select(x > 0.0, x, (call("exp", minimum(x, 0.0)) - 1.0) * alpha)


def _softplus(x: Expr) -> Expr:
    return maximum(x, 0.0) + call("log", call("exp", -call("abs", x)) + 1.0)


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / (call("exp", -x) + 1.0)


def _gelu_tanh(x: Expr) -> Expr:
    """x / 2 * (1 + tanh(y)) is x * sigmoid(2 * y)."""
    return x * _sigmoid((x + x * x * x * 0.044715) * (2 * sqrt(2 / pi)))


def _sign(x: Expr) -> Expr:
    negative = x if x.dtype.is_unsigned else select(x < 0, -1, x)
    return select(x > 0, 1, negative)


def _bitwise_not(x: Expr) -> Expr:
    ones = 2 ** (8 * x.dtype.itemsize) - 1 if x.dtype.is_unsigned else -1
    return binary("bitxor", x, ones)


function("identity", lambda x: x)
function("relu", lambda x: maximum(x, 0), onnx="Relu")
function("clip", _clip, attributes={"min": -inf, "max": inf})
function("sigmoid", _sigmoid, onnx="Sigmoid")
function(
    "leaky_relu",
    lambda x, alpha: select(x < 0.0, x * alpha, x),
    attributes={"alpha": 0.01},
    onnx="LeakyRelu",
)
function("elu", _elu, attributes={"alpha": 1.0}, onnx="Elu")
function(
    "selu",
    lambda x, alpha, gamma: _elu(x, alpha) * gamma,
    attributes={"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    onnx="Selu",
)
function(
    "hard_sigmoid",
    lambda x, alpha, beta: minimum(maximum(x * alpha + beta, 0.0), 1.0),
    attributes={"alpha": 0.2, "beta": 0.5},
    onnx="HardSigmoid",
)
function(
    "hard_swish",
    lambda x: x * minimum(maximum(x * (1 / 6) + 0.5, 0.0), 1.0),
    onnx="HardSwish",
)
function("gelu", lambda x: x * 0.5 * (call("erf", x * sqrt(0.5)) + 1.0))
function("gelu_tanh", _gelu_tanh)
function("swish", lambda x, alpha: x * _sigmoid(x * alpha), attributes={"alpha": 1.0}, onnx="Swish")
function("mish", lambda x: x * call("tanh", _softplus(x)), onnx="Mish")
function("softplus", _softplus, onnx="Softplus")
function("softsign", lambda x: x / (call("abs", x) + 1.0), onnx="Softsign")
function("negative", lambda x: -x, onnx="Neg")
function("reciprocal", lambda x: 1.0 / x, onnx="Reciprocal")
function("sign", _sign, onnx="Sign")
function("bitwise_not", _bitwise_not, onnx="BitwiseNot", onnx_since=18)
function("logical_not", lambda x: equal(x, False), predicate=True, onnx="Not")

# -- rounding to types that are only stored ------------------------------------------------------


def rounding(dtype: DType) -> str:
    """The function that rounds to the nearest number of such a type, halves to even."""
    return f"round_to_{dtype}"


def _rounded(x: Expr, dtype: DType) -> Expr:
    """By the bits of a float32, and between the least numbers by the step from one to the next."""
    x = cast(x, FLOAT32)
    shift, limits = FLOAT32.mantissa - dtype.mantissa, dtype.finfo
    bits = bitcast(x, UINT32)
    odd = binary("bitand", binary("shr", bits, shift), 1)
    up = bits + ((1 << (shift - 1)) - 1) + odd
    found = bitcast(binary("bitand", up, (1 << 32) - (1 << shift)), FLOAT32)
    if dtype.exponent < FLOAT32.exponent:
        step, most = float(limits.smallest_subnormal), float(limits.max)
        small = call("round", x * (1 / step)) * step
        found = select(call("abs", x) < float(limits.smallest_normal), small, found)
        found = select(found > most, inf, select(found < -most, -inf, found))
    return select(call("isnan", x), x, found)


def _of_fewer_bits(x: np.ndarray, shift: int) -> np.ndarray:
    """The numbers, rounded to the nearest without so many last bits of a float32's mantissa."""
    bits = x.astype(np.float32).view(np.uint32)
    up = bits + np.uint32((1 << (shift - 1)) - 1) + ((bits >> shift) & 1)
    found = (up & np.uint32((1 << 32) - (1 << shift))).view(np.float32)
    return np.where(np.isnan(x), x, found).astype(x.dtype)


def _register_roundings() -> None:
    for dtype in (FLOAT16, BFLOAT16, TF32):

        def expression(x: Expr, dtype: DType = dtype) -> Expr:
            return _rounded(x, dtype)

        def meaning(x: np.ndarray, dtype: DType = dtype) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):
                if dtype.numpy.itemsize == FLOAT32.itemsize:
                    return _of_fewer_bits(x, FLOAT32.mantissa - dtype.mantissa)
                return x.astype(dtype.numpy).astype(x.dtype)

        function(rounding(dtype), expression, numpy=meaning)


_register_roundings()

# -- functions of two arguments ----------------------------------------------------------------


def _divide(a: Expr, b: Expr) -> Expr:
    """Floats divide; integers divide toward zero, and wrap. By 0, the quotient is the dividend."""
    if a.dtype.is_float:
        return a / b
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    quotient = binary("truncdiv", left, _divisor(right))
    if not a.dtype.is_unsigned:
        quotient = select(equal(right, -1), -left, quotient)
    return cast(quotient, a.dtype)


def _divisor(b: Expr) -> Expr:
    """An integer to divide by: 1 instead of 0 and -1, by which processors may refuse to."""
    unfit = equal(b, 0) if b.dtype.is_unsigned else binary("or", equal(b, 0), equal(b, -1))
    return select(unfit, 1, b)


_QUOTIENTS_END = 1 << 24
"""Larger quotients are whole numbers as they are: there is no rounding error to correct."""


def _quotient(a: Expr, b: Expr) -> Expr:
    """The quotient to the last bit, corrected by what it leaves of `a`.

    Compilers may make a / b out of a * (1 / b), which is off by a bit here and there.
    """
    near = a / b
    rest = call("fma", -near, b, a)
    corrected = call("fma", rest, 1.0 / b, near)
    return select(call("abs", near) < float(_QUOTIENTS_END), corrected, near)


def _mod(a: Expr, b: Expr) -> Expr:
    """The remainder with the divisor's sign."""
    rest = _fmod(a, b)
    if a.dtype.is_unsigned:
        return rest
    other_side = all_of(binary("ne", rest, 0), binary("ne", rest < 0, b < 0))
    return select(other_side, rest + b, rest)


def _fmod(a: Expr, b: Expr) -> Expr:
    """The remainder with the dividend's sign; 0 of integers and a divisor of 0."""
    if a.dtype.is_float:
        return Call("fmod", (a, b), a.dtype)
    left, right = _at_least_32_bits(a), _at_least_32_bits(b)
    return cast(binary("truncmod", left, _divisor(right)), a.dtype)


def _quiet(remainder: Callable[..., Any]) -> Callable[..., Any]:
    """The function without numpy's warning of a divisor of 0."""

    def meaning(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return remainder(a, b)

    return meaning


def _shift(op: Literal["shl", "shr"], a: Expr, b: Expr) -> Expr:
    """A shift by less than nothing or by more than all bits leaves the sign, or nothing."""
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


def _of_two(name: str, expression: Callable[..., Expr], **facts: Any) -> None:
    function(name, expression, arity=2, **facts)


_of_two("add", lambda a, b: a + b, onnx="Add")
_of_two("subtract", lambda a, b: a - b, onnx="Sub")
_of_two("multiply", lambda a, b: a * b, onnx="Mul")
_of_two("divide", _divide, onnx="Div")
_of_two("quotient", _quotient, numpy=np.divide)
"""The quotient of floats to the last bit, on devices too, where `divide` may be off by it."""
_of_two("mod", _mod, numpy=_quiet(np.mod))
_of_two("fmod", _fmod, numpy=_quiet(np.fmod), opencl="fmod")
_of_two("power", _power, numpy=np.power, mixed=True, onnx="Pow")
_of_two("minimum", minimum)
_of_two("maximum", maximum)
_of_two("prelu", lambda x, slope: select(x < 0, x * slope, x), onnx="PRelu")
_of_two("equal", equal, predicate=True, onnx="Equal")
_of_two("less", lambda a, b: a < b, predicate=True, onnx="Less")
_of_two("greater", lambda a, b: a > b, predicate=True, onnx="Greater")
_of_two("less_equal", lambda a, b: a <= b, predicate=True, onnx="LessOrEqual", onnx_since=12)
_of_two("greater_equal", lambda a, b: a >= b, predicate=True, onnx="GreaterOrEqual", onnx_since=12)
_of_two("logical_and", lambda a, b: binary("and", a, b), predicate=True, logical=True, onnx="And")
_of_two("logical_or", lambda a, b: binary("or", a, b), predicate=True, logical=True, onnx="Or")
_of_two("logical_xor", lambda a, b: binary("ne", a, b), predicate=True, logical=True, onnx="Xor")
_of_two("bitwise_and", lambda a, b: binary("bitand", a, b), onnx="BitwiseAnd", onnx_since=18)
_of_two("bitwise_or", lambda a, b: binary("bitor", a, b), onnx="BitwiseOr", onnx_since=18)
_of_two("bitwise_xor", lambda a, b: binary("bitxor", a, b), onnx="BitwiseXor", onnx_since=18)
_of_two("shift_left", lambda a, b: _shift("shl", a, b))
_of_two("shift_right", lambda a, b: _shift("shr", a, b))
