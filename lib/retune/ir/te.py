"""Tensor expressions: a DAG of computes over placeholders.

A compute states one element of its output: spatial axes, reduce axes and a scalar body. Example,
a dense layer with bias and rectifier::

    x = placeholder("x", (1, 784))
    w = placeholder("w", (128, 784), constant=True)
    b = placeholder("b", (128,), constant=True)
    k = reduce_axis("k", 784)
    y = compute("y", (1, 128), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))
    z = compute("z", (1, 128), lambda i, j: maximum(y[i, j] + b[j], 0.0), [y, b])
    print(Dag((z,)))

Shapes are integers: a tensor expression is one workload. They may depend on sizes (`core.dims`):
then it is one for each value of these, see `at_sizes`. What a schedule does with it is not known
here.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Literal

from retune.core.dims import SizeValues, at
from retune.core.dtypes import FLOAT32, DType, as_dtype
from retune.core.keys import content_key
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Buffer,
    Call,
    Cast,
    Expr,
    Load,
    Operand,
    Select,
    Var,
    as_expr,
    const,
    converted,
    fixed_sizes,
    loads,
    substitute,
    walk,
)

Reducer = Literal["sum", "prod", "max", "min", "bitand"]
"""How the values over the reduce axes combine."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named index range [0, extent)."""

    var: Var
    extent: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A placeholder (no op) or the result of a compute; index it to read an element."""

    buffer: Buffer
    op: "Compute | Concat | None" = None

    @property
    def name(self) -> str:
        """Name of its buffer; unique within one DAG."""
        return self.buffer.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, as integers, which may depend on sizes."""
        return tuple(evaluate_int(e) for e in self.buffer.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.buffer.dtype

    def __getitem__(self, indices: Operand | Axis | tuple[Operand | Axis, ...]) -> Load:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.buffer.shape):
            raise ValueError(
                f"{self.name}: expected {len(self.buffer.shape)} indices, got {len(items)}"
            )
        return Load(self.buffer, tuple(i.var if isinstance(i, Axis) else as_expr(i) for i in items))


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """`out[axes] = body`, or `out[axes] = reducer over reduce_axes of body`."""

    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    body: Expr
    reducer: Reducer | None
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Concat:
    """The inputs side by side along one dimension."""

    dim: int
    inputs: tuple[Tensor, ...]


def placeholder(
    name: str, shape: Sequence[int], dtype: DType | str = FLOAT32, *, constant: bool = False
) -> Tensor:
    """An input: an array of that shape (integers) and element type that the caller provides.

    A constant one is known at compile time: schedules may pack it, or compute from it beforehand.
    """
    scope = "constant" if constant else "global"
    return Tensor(Buffer(name, tuple(as_expr(e) for e in shape), as_dtype(dtype), scope))


def stored(tensor: Tensor, dtype: DType) -> Tensor:
    """The tensor with its elements in memory as that type, if they have its compute type."""
    if dtype.compute is not tensor.dtype or dtype is tensor.dtype:
        return tensor
    return Tensor(replace(tensor.buffer, dtype=dtype), tensor.op)


def reduce_axis(name: str, extent: int) -> Axis:
    """An axis to reduce over: `x[i, k]` indexes by it, `x[i + k.var]` calculates with it."""
    return Axis(Var(name), extent)


def compute(
    name: str,
    shape: Sequence[int],
    body: Callable[..., Expr],
    inputs: Iterable[Tensor],
    *,
    reduce: Sequence[Axis] = (),
    reducer: Reducer = "sum",
    axes: Sequence[str] = (),
) -> Tensor:
    """A tensor whose element at the given axis variables is `body(*axes)`.

    `inputs` lists every tensor that the body reads. `axes` names the axes; by default the body's
    parameter names are used (or i0, i1, ... for a variadic body).

    Raises: ValueError when the body reads a tensor that is not listed, or the number of axes is
    not the rank.
    """
    names = tuple(axes) or _parameter_names(body, len(shape))
    if len(names) != len(shape):
        raise ValueError(f"{name}: {len(names)} axis names for {len(shape)} dimensions")
    own = tuple(Axis(Var(n), evaluate_int(as_expr(e))) for n, e in zip(names, shape, strict=True))
    value = body(*(a.var for a in own))
    by_name = {tensor.buffer: tensor for tensor in inputs}
    read = dict.fromkeys(load.buffer for load in loads(value))
    missing = [b.name for b in read if b not in by_name]
    if missing:
        raise ValueError(f"{name}: reads {', '.join(missing)}, not listed in inputs")
    op = Compute(
        own, tuple(reduce), value, reducer if reduce else None, tuple(by_name[b] for b in read)
    )
    return Tensor(Buffer(name, tuple(as_expr(e) for e in shape), value.dtype), op)


def concat(name: str, inputs: Sequence[Tensor], dim: int) -> Tensor:
    """The inputs, at least one, side by side along dimension `dim`; other extents are equal."""
    first = inputs[0]
    shape = list(first.shape)
    shape[dim] = sum(t.shape[dim] for t in inputs)
    buffer = Buffer(name, tuple(as_expr(e) for e in shape), first.dtype)
    return Tensor(buffer, Concat(dim, tuple(inputs)))


def _parameter_names(body: Callable[..., Expr], rank: int) -> tuple[str, ...]:
    parameters = list(inspect.signature(body).parameters.values())
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return tuple(f"i{d}" for d in range(rank))
    return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)


@dataclass(frozen=True, slots=True, eq=False)
class Dag:
    """The computes behind some outputs, producers first, with unique buffer names."""

    outputs: tuple[Tensor, ...]
    placeholders: tuple[Tensor, ...] = field(init=False)
    stages: tuple[Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        order = _topological(self.outputs)
        names = Counter(t.name for t in order)
        repeated = sorted(name for name, count in names.items() if count > 1)
        if repeated:
            raise ValueError(f"tensor names are not unique: {', '.join(repeated)}")
        object.__setattr__(self, "placeholders", tuple(t for t in order if t.op is None))
        object.__setattr__(self, "stages", tuple(t for t in order if t.op is not None))

    def __str__(self) -> str:
        return show(self)

    @property
    def key(self) -> str:
        """Content key: names removed, shapes included; equal for equal computations."""
        return content_key(show(self, canonical=True))

    @property
    def flops(self) -> int:
        """Arithmetic operations: those of the bodies, times the extents of all axes."""
        return sum(stage_flops(stage) for stage in self.stages)


def remade(dag: Dag, change: Callable[[Tensor, Mapping[Buffer, Tensor]], Tensor]) -> Dag:
    """The DAG whose tensors are as `change` makes each, from those before it as they were made."""
    made: dict[Buffer, Tensor] = {}
    for tensor in (*dag.placeholders, *dag.stages):
        made[tensor.buffer] = change(tensor, made)
    return Dag(tuple(made[t.buffer] for t in dag.outputs))


def at_sizes(dag: Dag, values: SizeValues) -> Dag:
    """The DAG with these values of all its sizes: its extents are integers."""

    def change(tensor: Tensor, made: Mapping[Buffer, Tensor]) -> Tensor:
        buffer = Buffer(
            tensor.name,
            tuple(const(at(n, values)) for n in tensor.shape),
            tensor.dtype,
            tensor.buffer.scope,
        )
        match tensor.op:
            case None:
                return Tensor(buffer)
            case Concat(dim, inputs):
                return Tensor(buffer, Concat(dim, tuple(made[t.buffer] for t in inputs)))
            case Compute() as op:
                inputs = tuple(made[t.buffer] for t in op.inputs)
                axes, steps = (
                    tuple(Axis(a.var, at(a.extent, values)) for a in some)
                    for some in (op.axes, op.reduce_axes)
                )
                body = _rename(fixed_sizes(op.body, values), {b: t.buffer for b, t in made.items()})
                return Tensor(buffer, Compute(axes, steps, body, op.reducer, inputs))

    return remade(dag, change)


def _topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    order: list[Tensor] = []
    seen: set[int] = set()
    pending: list[tuple[Tensor | None, Iterator[Tensor]]] = [(None, iter(outputs))]
    while pending:
        tensor, sources = pending[-1]
        source = next((each for each in sources if id(each) not in seen), None)
        if source is not None:
            seen.add(id(source))
            pending.append((source, iter(source.op.inputs if source.op else ())))
            continue
        pending.pop()
        if tensor is not None:
            order.append(tensor)
    return order


def stage_flops(stage: Tensor) -> int:
    """Arithmetic operations of one compute: each float operator counts one, a combine one."""
    if not isinstance(stage.op, Compute):
        return 0
    op = stage.op
    points = prod(a.extent for a in (*op.axes, *op.reduce_axes))
    return points * (body_flops(op.body) + (1 if op.reducer else 0))


def body_flops(body: Expr) -> int:
    """Float operators and function calls in an expression."""
    count = 0
    for node in walk(body):
        match node:
            case Binary() if node.dtype.is_float:
                count += 1
            case Call():
                count += 1
            case _:
                pass
    return count


def show(dag: Dag, *, canonical: bool = False) -> str:
    """The DAG as text, one line a tensor; canonical text has neutral names and states shapes."""
    lines: list[str] = []
    names: dict[Buffer, Buffer] = {}
    order = (*dag.placeholders, *dag.stages)
    for position, tensor in enumerate(order):
        name = f"t{position}" if canonical else tensor.name
        names[tensor.buffer] = Buffer(name, tensor.buffer.shape, tensor.dtype, tensor.buffer.scope)
    for tensor in order:
        lines.append(_line(tensor, names, canonical))
    if canonical:
        lines.append("-> " + ", ".join(names[t.buffer].name for t in dag.outputs))
    return "\n".join(lines)


def _line(tensor: Tensor, names: dict[Buffer, Buffer], canonical: bool) -> str:
    own = names[tensor.buffer]
    kind = f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
    match tensor.op:
        case None:
            constant = " constant" if own.scope == "constant" else ""
            return f"{own.name} = PLACEHOLDER {kind}{constant}"
        case Concat() as op:
            sources = ", ".join(names[t.buffer].name for t in op.inputs)
            return f"{own.name} = concat({sources}; dim={op.dim})" + (kind if canonical else "")
        case Compute() as op:
            axes = (*op.axes, *op.reduce_axes)
            renamed = {a.var: Var(f"i{p}") if canonical else a.var for p, a in enumerate(axes)}
            body = converted(_rename(substitute(op.body, dict(renamed)), names), own)
            left = f"{own.name}({', '.join(renamed[a.var].name for a in op.axes)})"
            sign = {None: "=", "sum": "+="}.get(op.reducer, f"{op.reducer}=")
            over = f" over {[a.extent for a in op.reduce_axes]}" if canonical else ""
            return f"{left} {sign} {body}" + (f" : {kind}{over}" if canonical else "")


def _rename(body: Expr, names: dict[Buffer, Buffer]) -> Expr:
    match body:
        case Load():
            indices = tuple(_rename(i, names) for i in body.indices)
            return Load(names[body.buffer], indices)
        case Binary(op, a, b):
            return Binary(op, _rename(a, names), _rename(b, names))
        case Call(function, args, dtype):
            return Call(function, tuple(_rename(a, names) for a in args), dtype)
        case Cast(value, dtype):
            return Cast(_rename(value, names), dtype)
        case Select(condition, then, otherwise):
            return Select(
                _rename(condition, names), _rename(then, names), _rename(otherwise, names)
            )
        case _:
            return body
