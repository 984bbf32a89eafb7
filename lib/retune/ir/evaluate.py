"""The numpy meaning of scalar expressions, over whole arrays of points at once.

The same function gives the value of one candidate, of ten thousand candidates, or of every point
of an iteration space: variables stand for numbers or for arrays that broadcast together.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import cast as typed

import numpy as np

from retune.core.dims import dim_of, example
from retune.core.dtypes import BOOL, INT32, dtype_of
from retune.ir.expr import (
    BITCAST,
    EITHER,
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    SizeVar,
    Var,
    cast,
    variables,
)
from retune.ir.functions import FUNCTIONS, ScalarFunction
from retune.ir.operators import OPERATORS

Value = np.ndarray | np.generic | int | float | bool
Fetch = Callable[[Load, tuple[Value, ...]], Value]


def _no_memory(load: Load, _indices: tuple[Value, ...]) -> Value:
    raise ValueError(f"evaluate: {load} cannot be read here")


def evaluate(expr: Expr, values: Mapping[Var, Value], fetch: Fetch = _no_memory) -> Value:
    """The expression's value; arrays broadcast. `fetch(load, indices)` answers memory reads.

    Where a selection's condition differs from point to point both sides are evaluated: `fetch` must
    bear indices that are out of range. One condition for all points leaves the other side out.

    Raises: KeyError for a variable without a value.
    """
    return Evaluation(values, fetch)(expr)


class Evaluation:
    """`evaluate` of expressions over the same variables and memory, which does not change: a part
    that they share, as an object, is evaluated once."""

    def __init__(self, values: Mapping[Var, Value], fetch: Fetch = _no_memory) -> None:
        self._values = values
        self._fetch = fetch
        self._done: dict[int, tuple[Expr, Value]] = {}
        """By identity, and the part itself, so that its identity stays its own."""

    def __call__(self, expr: Expr) -> Value:
        if isinstance(expr, Var):
            return self._values[expr]
        known = self._done.get(id(expr))
        if known is None:
            known = self._done[id(expr)] = (expr, self._value(expr))
        return known[1]

    def _value(self, expr: Expr) -> Value:
        if isinstance(expr, Binary):  # most are
            return OPERATORS[expr.op].numpy(self(expr.a), self(expr.b))
        match expr:
            case Const(value, dtype):
                return value if dtype in (INT32, BOOL) else dtype.numpy.type(value)
            case Select(condition, then, otherwise):
                test = np.asarray(self(condition))
                if not test.ndim:
                    return self(then if test else otherwise)
                return np.where(test, np.asarray(self(then)), np.asarray(self(otherwise)))
            case Cast(value, dtype):
                return np.asarray(self(value)).astype(dtype.numpy)
            case Call(function, (value,), dtype) if function == BITCAST:
                return np.array(self(value), value.dtype).view(dtype)
            case Call(function, args, _) if function == EITHER:
                test, value, other = (np.asarray(self(a)) for a in args)
                return np.where(test, value, other)
            case Call(function, args, _):
                return apply(FUNCTIONS[function], *(np.asarray(self(a)) for a in args))
            case Load(_, indices):
                read = self._fetch(expr, tuple(self(i) for i in indices))
                stored = expr.buffer.dtype is not expr.dtype
                return np.asarray(read).astype(expr.dtype.numpy) if stored else read
            case _:
                raise TypeError(f"evaluate: unexpected {type(expr).__name__}")


def apply(function: ScalarFunction, *arrays: np.ndarray, **attributes: float) -> np.ndarray:
    """The function of arrays, element by element: its own in numpy, or that of its expression."""
    given = {**function.attributes, **attributes}
    result = np.dtype(np.bool_) if function.predicate else arrays[0].dtype
    if function.numpy is not None:
        return np.asarray(function.numpy(*arrays, **given)).astype(result, copy=False)
    assert function.expression is not None
    operands = [Var(str(i), dtype_of(array).compute) for i, array in enumerate(arrays)]
    held = [array.astype(o.dtype.numpy) for o, array in zip(operands, arrays, strict=True)]
    first, *others = operands
    alike = [other if function.mixed else cast(other, first.dtype) for other in others]
    body = function.expression(first, *alike, **given)
    value = evaluate(body, dict(zip(operands, held, strict=True)))
    return np.asarray(value).astype(result, copy=False)


class Formulas:
    """Some expressions, to be evaluated again and again: equal parts of them are evaluated once.

    They are one list of operations on numbered slots, so that a small population costs little
    more than numpy's own calls.
    """

    def __init__(self, exprs: Iterable[Expr] = ()) -> None:
        """Starts with these expressions, see `row`. Raises: ValueError if one reads memory."""
        self._rows: dict[int, int] = {}
        self._slot: dict[Expr, int] = {}
        self._start: list[Value] = []
        self._inputs: list[tuple[Var, int]] = []
        self._steps: list[tuple[Callable[..., Value], tuple[int, ...], int]] = []
        for expr in exprs:
            self.row(expr)

    def row(self, expr: Expr) -> int:
        """The row of the expression's values; equal expressions have one row.

        Raises: ValueError if it reads memory.
        """
        return self._rows.setdefault(self._add(expr), len(self._rows))

    def __call__(self, values: Mapping[Var, Value], count: int) -> np.ndarray:
        """Each expression's value for each of `count` points. float64 [rows, count]

        Sizes have the values at hand unless others are given: nothing is noted. Raises: KeyError
        for another variable without a value.
        """
        known = list(self._start)
        for var, slot in self._inputs:
            if isinstance(var, SizeVar) and var not in values:
                known[slot] = example(dim_of(var.size))
            else:
                known[slot] = values[var]
        for operation, operands, slot in self._steps:
            known[slot] = operation(*[known[i] for i in operands])
        table = np.empty((len(self._rows), count))
        for line, slot in zip(table, self._rows, strict=True):
            line[...] = known[slot]
        return table

    def _add(self, expr: Expr) -> int:
        """The slot of the expression's value."""
        known = self._slot.get(expr)
        if known is not None:
            return known
        if isinstance(expr, Load):
            _no_memory(expr, ())
        operands = tuple(self._add(child) for child in expr.children)
        slot = self._slot[expr] = len(self._start)
        self._start.append(0)
        if isinstance(expr, Var):
            self._inputs.append((expr, slot))
        elif operands:
            self._steps.append((_operation(expr), operands, slot))
        else:
            self._start[slot] = evaluate(expr, {})
        return slot


def _operation(expr: Expr) -> Callable[..., Value]:
    """The function from the children's values to the expression's."""
    if isinstance(expr, Binary):
        return OPERATORS[expr.op].numpy
    stand_ins = tuple(Var(str(i), child.dtype) for i, child in enumerate(expr.children))
    one = expr.rebuild(stand_ins)
    return lambda *operands: evaluate(one, dict(zip(stand_ins, operands, strict=True)))


def evaluate_int(expr: Expr, values: Mapping[Var, Value] | None = None) -> int:
    """The value of an integer expression as a Python int, or in terms of sizes without a value."""
    if isinstance(expr, Const):
        return int(expr.value)
    if any(isinstance(v, SizeVar) and v not in (values or {}) for v in variables(expr)):
        return _extent(expr, values or {})
    result = evaluate(expr, values or {})
    return int(np.asarray(result))


def known_extent(expr: Expr) -> int | None:
    """The value of an extent, in terms of sizes at most; None where it holds other symbols."""
    if isinstance(expr, Const):
        return int(expr.value)
    own = variables(expr)
    return evaluate_int(expr) if all(isinstance(v, SizeVar) for v in own) else None


def _extent(expr: Expr, values: Mapping[Var, Value]) -> int:
    """The value of an integer expression over sizes, as an integer that depends on them."""
    match expr:
        case Const(value):
            return int(value)
        case SizeVar() if expr not in values:
            return dim_of(expr.size)
        case Var():
            return int(np.asarray(values[expr]))
        case Binary(op, a, b) if (combine := OPERATORS[op].fold) is not None:
            return typed(int, combine(_extent(a, values), _extent(b, values)))
        case _:
            raise TypeError(f"evaluate: {expr} is not an extent")
