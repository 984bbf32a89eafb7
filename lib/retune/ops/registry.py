"""The registry of operators: what each one makes of types, as a tensor expression, and in ONNX.

`OpDef` says what an operator is, `op` registers one, `lookup` finds one. The attributes of an
operator are plain values that the importer made canonical (positive axes, complete shapes, explicit
pads). The numpy meaning follows from the tensor expression, by the interpreter; where that takes
too long, an operator has a `numpy` of its own, which tests hold against the expression.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from retune.core.dims import always_equal, always_same, is_fixed
from retune.core.dtypes import Array, DType, TensorType
from retune.core.errors import LookupFailed, ModelError
from retune.ir.evaluate import evaluate
from retune.ir.expr import Expr, Load, as_expr, const
from retune.ir.expr import cast as cast_to
from retune.ir.plan import Plan, is_quiet, quiet
from retune.ir.te import Axis, Compute, Dag, Reducer, Tensor, compute, placeholder, stored


class Subgraph:
    """A network inside a node: the base of `graph.graph.Graph`, which is above this package."""

    __slots__ = ()


AttrValue: TypeAlias = (
    bool | int | float | str | bytes | tuple[int, ...] | tuple[float, ...] | Subgraph
)
Attrs: TypeAlias = Mapping[str, AttrValue]

OpKind = Literal[
    "elementwise", "broadcast", "table", "reduction", "heavy", "injective", "opaque", "host",
    "offload", "loop",
]  # fmt: skip
"""How an op is fused. `table`: element by element of its first input, by other inputs whose shapes
have nothing to do with it. `host`: never, as it runs in numpy between the kernels; it alone may
have outputs of unknown extents. `offload`: never, an accelerator runs it. `loop`: never, its body
is a network of its own. Host steps and loops may have several outputs."""

SEVERAL_OUTPUTS: frozenset[OpKind] = frozenset({"host", "loop"})
"""Kinds of ops that passes take as they are: with several outputs, of types of their own."""

HOST = "host"
"""The op of a host step (`frontend.host.step`)."""

Infer: TypeAlias = Callable[[Sequence[TensorType | None], Attrs], tuple[TensorType, ...]]
Numpy: TypeAlias = Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]

_FEW_ELEMENTS = 1 << 18
"""Arrays of so few elements take less time than finding out how to use their memory again."""
_KEPT_PROGRAMS = 4096
"""Tensor programs of operators that are kept ready: importing folds thousands of small nodes."""


class Names:
    """Gives each stage of one DAG a name of its own: `T_add`, `T_add_1`, ..."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def __call__(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One op to be expressed: its input tensors, attributes and output type."""

    op: str
    inputs: Sequence[Tensor]
    attrs: Attrs
    output: TensorType
    name: Names

    def stage(
        self,
        body: Callable[..., Expr],
        inputs: Sequence[Tensor] | None = None,
        *,
        stem: str = "",
        shape: Sequence[int] | None = None,
        reduce: Sequence[Axis] = (),
        reducer: Reducer = "sum",
        axes: Sequence[str] = (),
    ) -> Tensor:
        """A compute `T_<op>` of the output's shape over the op's inputs, but for what is given."""
        return compute(
            self.name(stem or f"T_{self.op}"),
            self.output.shape if shape is None else shape,
            body,
            self.inputs if inputs is None else inputs,
            reduce=reduce,
            reducer=reducer,
            axes=axes,
        )

    def read(self, tensor: Tensor, axes: Sequence[Expr]) -> Load:
        """The element that broadcasting pairs with element `axes` of the output."""
        return read(tensor, axes, self.output.shape)


Expression: TypeAlias = Callable[[OpCall], Tensor]


@dataclass(frozen=True, slots=True)
class OnnxForm:
    """An ONNX operator that means the same: inputs and attributes are those of our operator."""

    name: str
    since: int = 1
    """The oldest operator set in which that holds."""
    attrs: Mapping[str, float] = field(default_factory=dict[str, float])
    """The attributes, with ONNX's defaults."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpDef:
    """One operator: what it makes of types (`infer`) and of tensors (`expression`)."""

    name: str
    kind: OpKind
    infer: Infer
    expression: Expression | None = None
    """None for what no kernel of ours computes: such an op has a `numpy`."""
    numpy: Numpy | None = None
    """The meaning over arrays, where the interpreter would take too long for it."""
    by_element: bool = False
    """The expression reads of each input the element that broadcasting pairs with that of the
    output (`OpCall.read`), and nothing else."""
    onnx: OnnxForm | None = None
    doc: str = ""

    def reference(self, arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
        """The op's outputs for these inputs, by numpy; None stands for an optional input left out.

        Raises: ModelError for an input that is missing.
        """
        if self.numpy is not None:
            return self.numpy(arrays, attrs)
        given = [
            a if type(a) is np.ndarray else np.asarray(present(arrays, index))
            for index, a in enumerate(arrays)
        ]
        if self.by_element and max([a.size for a in given]) <= _FEW_ELEMENTS:
            body, names = _element(self, tuple([a.dtype for a in given]), tuple(attrs.items()))
            return (_over_arrays(body, dict(zip(names, given, strict=True))),)
        kinds = tuple([(a.shape, a.dtype) for a in given])
        plan, names = _plan(self, kinds, tuple(attrs.items()))
        return (plan.first(given, names),)


@lru_cache(maxsize=_KEPT_PROGRAMS)
def _element(
    definition: OpDef,
    dtypes: tuple[np.dtype[Any], ...],
    attrs: tuple[tuple[str, AttrValue], ...],
) -> tuple[Tensor, tuple[str, ...]]:
    """One element of what an op `by_element` makes, and the names of its inputs."""
    return _tensor(definition, tuple([((), dtype) for dtype in dtypes]), attrs)


def _over_arrays(element: Tensor, arrays: Mapping[str, Array]) -> Array:
    """The element's expression over whole arrays, which broadcast, whatever their shapes."""
    assert isinstance(element.op, Compute)
    with nullcontext() if is_quiet() else quiet():
        found = evaluate(element.op.body, {}, lambda load, _: arrays[load.buffer.name])
    result = np.asarray(found, element.dtype.numpy)
    shape = np.broadcast_shapes(*[array.shape for array in arrays.values()])
    if result.shape != shape:  # one condition chose a side for all elements
        return np.array(np.broadcast_to(result, shape), order="C")
    if any(result is array for array in arrays.values()):
        return result.copy()
    return np.ascontiguousarray(result).reshape(result.shape)


@lru_cache(maxsize=_KEPT_PROGRAMS)
def _plan(
    definition: OpDef,
    kinds: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...],
    attrs: tuple[tuple[str, AttrValue], ...],
) -> tuple[Plan, tuple[str, ...]]:
    """What computes the op over inputs of these shapes and types, and the names of its inputs."""
    made, names = _tensor(definition, kinds, attrs)
    return Plan(Dag((made,))), names


def _tensor(
    definition: OpDef,
    kinds: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...],
    attrs: tuple[tuple[str, AttrValue], ...],
) -> tuple[Tensor, tuple[str, ...]]:
    """What the op makes of inputs of these shapes and types, and the names of its inputs."""
    types = tuple(TensorType(shape, DType(dtype.name)) for shape, dtype in kinds)
    assert definition.expression is not None, f"op {definition.name} has no meaning"
    inputs = [placeholder(f"in{i}", t.shape, t.dtype) for i, t in enumerate(types)]
    (output,) = definition.infer(types, dict(attrs))
    call = OpCall(op=definition.name, inputs=inputs, attrs=dict(attrs), output=output, name=Names())
    made = stored(definition.expression(call), output.dtype)
    return made, tuple(tensor.name for tensor in inputs)


OPS: dict[str, OpDef] = {}
SOURCES: list[Callable[[], None]] = []
"""What registers operators that came to be by other registries, when one is asked for."""


def register(definition: OpDef) -> OpDef:
    """The definition, now found by `lookup`. Raises: ValueError if the name is taken."""
    if definition.name in OPS:
        raise ValueError(f"op {definition.name} is registered twice")
    OPS[definition.name] = definition
    return definition


def op(
    *names: str,
    kind: OpKind,
    infer: Infer,
    numpy: Numpy | None = None,
    by_element: bool = False,
    onnx: OnnxForm | None = None,
) -> Callable[[Expression], Expression]:
    """Decorator: the function expresses these ops as tensors, its docstring is theirs."""

    def wrap(expression: Expression) -> Expression:
        for name in names:
            register(
                OpDef(
                    name=name,
                    kind=kind,
                    infer=infer,
                    expression=expression,
                    numpy=numpy,
                    by_element=by_element,
                    onnx=onnx,
                    doc=expression.__doc__ or "",
                )
            )
        return expression

    return wrap


def lookup(name: str) -> OpDef:
    """The op of that name. Raises: LookupFailed naming close ones."""
    if name not in OPS:
        _refresh()
    if name in OPS:
        return OPS[name]
    close = difflib.get_close_matches(name, OPS, n=3)
    raise LookupFailed(f"op '{name}' is not known; close names: {', '.join(close) or 'none'}")


def expression_of(name: str) -> Expression:
    """What expresses the op as tensors. Raises: LookupFailed naming close ones."""
    found = lookup(name).expression
    if found is not None:
        return found
    close = difflib.get_close_matches(name, (o.name for o in OPS.values() if o.expression), n=3)
    raise LookupFailed(f"op '{name}' has no tensor expression; close: {', '.join(close) or 'none'}")


def _refresh() -> None:
    for register_new in SOURCES:
        register_new()


def forms_of(onnx_name: str) -> list[OpDef]:
    """The ops that are an ONNX operator of that name."""
    _refresh()
    return [entry for entry in OPS.values() if entry.onnx and entry.onnx.name == onnx_name]


def read(tensor: Tensor, axes: Sequence[Expr], shape: Sequence[int]) -> Load:
    """The element that broadcasting pairs with element `axes` of an output of that shape."""
    if always_same(tensor.shape, shape):
        return tensor[tuple(axes)]
    first = len(axes) - len(tensor.shape)
    rows = zip(axes[first:], tensor.shape, shape[first:], strict=True)
    return tensor[tuple([const(0) if is_single(e, whole) else a for a, e, whole in rows])]


def is_single(extent: int, whole: int) -> bool:
    """Whether a dimension has one element, which broadcasting repeats where `whole` is more."""
    return extent == 1 if is_fixed(extent) else not always_equal(extent, whole) and extent == 1


def share_of(count: int, dtype: DType) -> float | Expr:
    """What a sum of so many numbers is multiplied by for their mean."""
    return 1.0 / count if is_fixed(count) else 1.0 / cast_to(as_expr(count), dtype)


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """The attribute as a tuple of integers."""
    return cast("tuple[int, ...]", attrs[key])


def integer(attrs: Attrs, key: str) -> int:
    """The attribute as an integer."""
    return cast("int", attrs[key])


def number(attrs: Attrs, key: str) -> float:
    """The attribute as a float."""
    return float(cast("float", attrs[key]))


def literal(attrs: Attrs, key: str) -> float:
    """The attribute as the number that it is: floats do not hold all integers."""
    return cast("float", attrs[key])


def present(items: Sequence[Any], index: int = 0) -> Any:
    """The input at `index`, which the op does not allow to be omitted. Raises: ModelError."""
    item = items[index]
    if item is None:
        raise ModelError(f"input {index} is missing; the op does not allow that")
    return item
