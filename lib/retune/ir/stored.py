"""Tensor expressions as JSON and back, so that records outlive the program that made them.

Read `to_text` and `from_text`. Each tensor is an object; an expression is a list that begins with
its kind. Nothing in a file chooses what is executed: kinds, operators and functions are those of
`ir.expr`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast as typed
from typing import get_args

from retune.core.dims import is_fixed
from retune.core.dtypes import as_dtype
from retune.core.errors import RecordError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Scope,
    Select,
    SizeVar,
    Var,
    as_expr,
)
from retune.ir.functions import FUNCTIONS
from retune.ir.operators import OPERATORS, BinaryOp
from retune.ir.te import Axis, Compute, Concat, Dag, Reducer, Tensor

_VERSION = 1
_MADE_BY_EXPR = frozenset(("bitcast", "either"))
"""Functions of Call that `ir.functions` does not list."""
Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


def to_text(dag: Dag) -> str | None:
    """The expression as JSON; None where it depends on sizes, or its tensors lie otherwise than in
    rows, which the text does not say."""
    order = (*dag.placeholders, *dag.stages)
    numbers = {tensor.buffer: number for number, tensor in enumerate(order)}
    try:
        tensors = [_tensor(tensor, numbers) for tensor in order]
    except _UnstatedError:
        return None
    outputs = [numbers[tensor.buffer] for tensor in dag.outputs]
    whole = {"version": _VERSION, "tensors": tensors, "outputs": outputs}
    return json.dumps(whole, separators=(",", ":"))


def from_text(text: str | bytes, key: str, where: str) -> Dag:
    """The expression that `to_text` wrote, whose content key is `key`.

    Raises: RecordError if the text is not that.
    """
    try:
        data = json.loads(text)
        if data["version"] > _VERSION:
            raise ValueError(f"version {data['version']} is newer than {_VERSION}")
        tensors: list[Tensor] = []
        for stated in data["tensors"]:
            tensors.append(_read_tensor(stated, tensors))
        dag = Dag(tuple(tensors[number] for number in data["outputs"]))
        found = dag.key
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error}"[:200]
        raise RecordError(f"{where}: expected a tensor expression, got none ({problem})") from error
    if found != key:
        raise RecordError(f"{where}: expected the expression {key}, got {found}; delete the file")
    return dag


class _UnstatedError(Exception):
    """The text has no word for this."""


def _tensor(tensor: Tensor, numbers: Mapping[Buffer, int]) -> dict[str, Json]:
    buffer = tensor.buffer
    if buffer.storage is not None or not all(isinstance(e, Const) for e in buffer.shape):
        raise _UnstatedError
    stated: dict[str, Json] = {
        "name": buffer.name,
        "shape": [evaluate_int(extent) for extent in buffer.shape],
        "dtype": str(buffer.dtype),
        "scope": buffer.scope,
    }
    match tensor.op:
        case None:
            return stated
        case Concat(dim, inputs):
            return {**stated, "concat": dim, "inputs": [numbers[t.buffer] for t in inputs]}
        case Compute() as op:
            return {
                **stated,
                "axes": [[a.var.name, _extent(a)] for a in op.axes],
                "reduce": [[a.var.name, _extent(a)] for a in op.reduce_axes],
                "reducer": op.reducer,
                "inputs": [numbers[t.buffer] for t in op.inputs],
                "body": _stated(op.body, numbers),
            }


def _extent(axis: Axis) -> int:
    if not is_fixed(axis.extent):
        raise _UnstatedError
    return axis.extent


def _stated(value: Expr, numbers: Mapping[Buffer, int]) -> Json:
    def inner(*items: Expr) -> list[Json]:
        return [_stated(item, numbers) for item in items]

    match value:
        case SizeVar():
            raise _UnstatedError
        case Var(name, dtype):
            return ["var", name, str(dtype)]
        case Const(number, dtype):
            return ["const", repr(number), str(dtype)]
        case Binary(op, a, b):
            return ["binary", op, *inner(a, b)]
        case Call(function, args, dtype):
            return ["call", function, str(dtype), *inner(*args)]
        case Cast(of, dtype):
            return ["cast", str(dtype), *inner(of)]
        case Select(condition, then, otherwise):
            return ["select", *inner(condition, then, otherwise)]
        case Load(buffer, indices):
            return ["load", numbers[buffer], *inner(*indices)]
        case _:
            raise _UnstatedError


def _read_tensor(stated: Mapping[str, Json], before: Sequence[Tensor]) -> Tensor:
    scope = stated["scope"]
    if scope not in get_args(Scope):
        raise ValueError(f"scope {scope!r}")
    shape = tuple(as_expr(_number(extent)) for extent in _items(stated["shape"]))
    dtype = as_dtype(str(stated["dtype"]))
    buffer = Buffer(str(stated["name"]), shape, dtype, typed(Scope, scope))
    if "inputs" not in stated:
        return Tensor(buffer)
    inputs = tuple(before[_number(number)] for number in _items(stated["inputs"]))
    if "concat" in stated:
        return Tensor(buffer, Concat(_number(stated["concat"]), inputs))
    axes, reduce_axes = (
        tuple(Axis(Var(str(name)), _number(extent)) for name, extent in _pairs(stated[part]))
        for part in ("axes", "reduce")
    )
    reducer = stated["reducer"]
    if reducer is not None and reducer not in get_args(Reducer):
        raise ValueError(f"reducer {reducer!r}")
    body = _read(stated["body"], before)
    return Tensor(buffer, Compute(axes, reduce_axes, body, typed(Reducer, reducer), inputs))


def _read(stated: Json, before: Sequence[Tensor]) -> Expr:
    kind, *rest = _items(stated)

    def inner(items: Sequence[Json]) -> tuple[Expr, ...]:
        return tuple(_read(item, before) for item in items)

    readers: Mapping[object, Callable[[], Expr]] = {
        "var": lambda: Var(str(rest[0]), as_dtype(str(rest[1]))),
        "const": lambda: _const(str(rest[0]), str(rest[1])),
        "binary": lambda: Binary(_operator(rest[0]), *inner(rest[1:])),
        "call": lambda: Call(_function(rest[0]), inner(rest[2:]), as_dtype(str(rest[1]))),
        "cast": lambda: Cast(_read(rest[1], before), as_dtype(str(rest[0]))),
        "select": lambda: Select(*inner(rest)),
        "load": lambda: Load(before[_number(rest[0])].buffer, inner(rest[1:])),
    }
    return readers[kind]()


def _const(text: str, dtype: str) -> Const:
    kind = as_dtype(dtype)
    if text in ("True", "False"):
        return Const(text == "True", kind)
    return Const(float(text) if kind.is_float else int(text), kind)


def _operator(name: Json) -> BinaryOp:
    if name not in OPERATORS:
        raise ValueError(f"operator {name!r}")
    return name


def _function(name: Json) -> str:
    if name not in FUNCTIONS and name not in _MADE_BY_EXPR:
        raise ValueError(f"function {name!r}")
    return str(name)


def _number(value: Json) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _items(value: Json) -> Sequence[Json]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {value!r}")
    return value


def _pairs(value: Json) -> list[tuple[Json, Json]]:
    pairs = [_items(item) for item in _items(value)]
    return [(first, second) for first, second in pairs]
