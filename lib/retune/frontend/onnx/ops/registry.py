"""The registry of ONNX op handlers, and what a handler sees of a node.

A handler emits graph ops into a `GraphBuilder`, its last ones making `node.outputs`. Several
handlers of one op differ in `since`: the newest that is not newer than the model's opset wins.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import GraphProto, helper

from retune.core.dims import always_equal, always_same, is_fixed, sizes_of
from retune.core.dtypes import INT64, DType, TensorType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.values import Values
from retune.graph.graph import GraphBuilder
from retune.ops import OPS, Array, OpDef
from retune.ops.extents import POSITIONS, Ratio, array_of_extents, counted
from retune.ops.registry import forms_of
from retune.proto.file import attribute_value


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxNode:
    """One node of an ONNX model; attributes are plain Python values, tensors numpy arrays."""

    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int

    @classmethod
    def of(cls, proto: onnx.NodeProto, opset: int, folder: Path, where: str) -> "OnnxNode":
        """The node; `folder` holds what its attributes keep outside the file.

        Raises: ModelError naming `where` for an attribute that cannot be read.
        """
        return cls(
            op_type=proto.op_type,
            name=proto.name,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attrs={a.name: attribute_value(a, folder, where) for a in proto.attribute},
            opset=opset,
        )

    def has_input(self, index: int) -> bool:
        """True if the optional input is given."""
        return index < len(self.inputs) and self.inputs[index] != ""

    def has_output(self, index: int) -> bool:
        """True if somebody may read that output."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def integer(self, key: str, default: int) -> int:
        """An integer attribute."""
        return int(self.attrs.get(key, default))

    def number(self, key: str, default: float) -> float:
        """A float attribute, as the float32 that the file holds."""
        return float(self.attrs.get(key, default))

    def ints(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(int(item) for item in self.attrs.get(key, default))

    def text(self, key: str, default: str) -> str:
        """A string attribute."""
        return str(self.attrs.get(key, default))

    def choice(self, key: str, known: Collection[str], default: str = "") -> str:
        """A string attribute that is one of those known, by default the first one.

        Raises: ModelError for another.
        """
        stated = self.text(key, default or next(iter(known)))
        if stated not in known:
            raise ModelError(f"{key} '{stated}' is not known; expected one of {', '.join(known)}")
        return stated


class NotConstant(ModelError):
    """An input has to be known while importing, and depends on the network's input."""


CALLED_OPSET = 24
"""The operator set of the ONNX operators that handlers call."""


class Around(Protocol):
    """What a handler may ask for beyond its own node."""

    def apply(self, proto: onnx.NodeProto, opset: int | None) -> tuple[str, ...]:
        """The outputs of another ONNX operator, which reads values of the graph.

        Without an operator set it is of the model's.
        """
        ...

    def body(self, graph: onnx.GraphProto, inputs: Sequence[str], label: str) -> tuple[str, ...]:
        """The outputs of a body inside the node, applied to these values."""
        ...

    def inside(
        self, loop: "InnerGraph", graph: onnx.GraphProto, inputs: Sequence[str]
    ) -> tuple[str, ...]:
        """The outputs of a loop's body, in a graph of its own, applied to values of that graph."""
        ...

    def run_on_host(self, types: Sequence[TensorType]) -> None:
        """The node is a host step; `types` are its outputs' where ONNX does not say them."""
        ...


class InnerGraph(Protocol):
    """The graph of a loop's body under construction."""

    emit: "Emitter"
    """Adds to it."""

    def capture(self, value: str) -> str:
        """What a value of the network around it is in the body; '' stays ''."""
        ...


class Emitter:
    """A `GraphBuilder` with what handlers ask for: types, required constants, fresh names."""

    def __init__(self, build: GraphBuilder, node: OnnxNode, around: Around, values: Values) -> None:
        self.build = build
        self.node = node
        self._around = around
        self._values = values
        self._stem = next(filter(None, node.outputs), node.name)

    def into(self, build: GraphBuilder) -> "Emitter":
        """The same for another graph: what is inside of the node."""
        return Emitter(build, self.node, self._around, self._values)

    @property
    def label(self) -> str:
        """Begins the names of what the node makes."""
        return self._stem

    def type(self, value: str) -> TensorType:
        """The type of a value."""
        return self.build.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.build.types[value].shape

    def known(self, value: str) -> Array | None:
        """The value's contents, if they are known at import."""
        return self.build.constants.get(value)

    def extents(self, value: str) -> Array | None:
        """The value's integers as numbers and Dims, if they follow from shapes."""
        found = self.build.extents.get(value)
        return self.known(value) if found is None else found

    def decided(self, value: str) -> Array | None:
        """The value's contents, if they are known at import: those for the sizes at hand alone,
        where they depend on sizes."""
        extents = self.build.extents.get(value)
        if extents is None:
            return self.known(value)
        return np.asarray([int(e) for e in extents.reshape(-1)], np.int64).reshape(extents.shape)

    def contents(self, index: int, what: str) -> Array:
        """The contents of an input that must be known. Raises: NotConstant naming it."""
        value = self.node.inputs[index]
        array = self.build.contents(value)
        if array is None:
            raise NotConstant(f"{what} (input '{value}') {self._remedy(value)}")
        return array

    def _remedy(self, value: str) -> str:
        """What a value that is not known follows from, and what the user can do."""
        if value in self.build.extents:
            sizes = ", ".join(sorted(map(str, sizes_of(self.build.extents[value].reshape(-1)))))
            return f"depends on {sizes}; expected a single number: write one of the range"
        inputs = self.build.inputs_of(value)
        types = [self.build.types[name] for name in inputs]
        if inputs and all(t.fixed and not t.dtype.is_float for t in types):
            several = " and ".join(f"'{name}'" for name in inputs)
            options = " ".join(f"--value {name}=1..8" for name in inputs)
            return (
                f"follows from the values of the network's input {several}; expected their range: "
                f"write {options}, or such numbers as they have"
            )
        return (
            "depends on the network's input; expected a constant: make it an initializer, or fold "
            "the model's constants first"
        )

    def index_list(self, index: int, what: str) -> tuple[int, ...]:
        """The contents of an input as integers, which may depend on sizes. Raises: NotConstant."""
        known = self.build.extents.get(self.node.inputs[index])
        if known is not None and not self.type(self.node.inputs[index]).dtype.is_float:
            return tuple(known.reshape(-1).tolist())
        return tuple(int(item) for item in self.contents(index, what).reshape(-1))

    def whole_number(self, index: int, what: str) -> int:
        """The number that an input is, if that is a whole one, whatever its type.

        It may depend on sizes. Raises: NotConstant; ModelError for a fraction.
        """
        known = self.build.extents.get(self.node.inputs[index])
        array = self.contents(index, what) if known is None else known
        (value,) = array.reshape(-1).tolist()
        ratio = Ratio.of(value)
        if ratio.bottom != 1:
            raise ModelError(f"{what} is {value}; expected a whole number where sizes are open")
        return ratio.top

    def listed(self, key: str, index: int, what: str) -> tuple[int, ...]:
        """The integers of an input, or those of the attribute that came before it; () for neither.

        Raises: NotConstant.
        """
        return (
            self.index_list(index, what) if self.node.has_input(index) else self.node.ints(key, ())
        )

    def scalar(self, value: float, like: str, label: str) -> str:
        """A constant of shape [] and the element type of value `like`."""
        return self.stored(label, np.asarray(value, self.type(like).dtype))

    def stored(self, label: str, array: Array, dtype: DType | None = None) -> str:
        """A constant of the node's own, `<output>.<label>`, of `dtype` if its elements have it."""
        return self.build.constant(self.build.fresh(f"{self._stem}.{label}"), array, dtype)

    def counted(
        self,
        label: str,
        shape: tuple[int, ...],
        steps: tuple[int, ...],
        begin: int = 0,
        dtype: DType = INT64,
    ) -> str:
        """begin + the sum of steps times indices, in each element of that shape.

        A constant where it is the same for all sizes.
        """
        if all(map(is_fixed, (*shape, *steps, begin))):
            return self.stored(label, counted(shape, steps, begin, dtype))
        attrs: dict[str, Any] = {"shape": shape, "steps": steps, "begin": begin, "to": dtype}
        return self.temp(POSITIONS, label=label, **attrs)

    def numbers(self, label: str, values: Sequence[int], dtype: DType = INT64) -> str:
        """These integers, which may depend on sizes."""
        name = self.build.fresh(f"{self._stem}.{label}")
        return self.build.define_extents(name, array_of_extents(values), dtype)

    def filled(self, label: str, shape: tuple[int, ...], value: Array) -> str:
        """That number in every element, a constant where the shape is the same for all sizes."""
        if all(map(is_fixed, shape)):
            return self.stored(label, np.full(shape, value))
        return self.temp("broadcast_to", self.stored(label, value), label=label, shape=shape)

    def out_filled(self, shape: tuple[int, ...], value: Array, index: int = 0) -> None:
        """The node's output `index`: that number in every element, a constant where the shape is
        the same for all sizes."""
        if all(map(is_fixed, shape)):
            self.build.constant(self.node.outputs[index], np.full(shape, value))
        else:
            self.out("broadcast_to", self.stored("value", value), index=index, shape=shape)

    def temp(self, op: str, *inputs: str, label: str = "", **attrs: Any) -> str:
        """An intermediate value `<output>.<label>` made by a graph op."""
        name = self.build.fresh(f"{self._stem}.{label or op}")
        return self.build.add(op, inputs, attrs, outputs=[name], name=name)

    def out(self, op: str, *inputs: str, index: int = 0, **attrs: Any) -> None:
        """The node's output `index`, made by a graph op."""
        output = self.node.outputs[index]
        name = self.node.name if index == 0 else f"{self.node.name}.{index}"
        self.build.add(op, inputs, attrs, outputs=[output], name=name or output)

    def reshaped(self, value: str, shape: tuple[int, ...]) -> str:
        """The value under another shape; itself if it has that shape."""
        if always_same(self.shape(value), shape):
            return value
        return self.temp("reshape", value, shape=shape)

    def cast(self, value: str, dtype: DType) -> str:
        """The value as another element type; itself if it has that type."""
        return value if self.type(value).dtype == dtype else self.temp("cast", value, to=dtype)

    def onnx(
        self, op: str, *inputs: str, label: str = "", opset: int = CALLED_OPSET, **attrs: Any
    ) -> str:
        """An intermediate value that another ONNX operator makes; '' is an omitted input."""
        name = self.build.reserve(f"{self._stem}.{label or op}")
        return self._call(op, inputs, [name], opset, attrs)[0]

    def onnx_out(
        self, op: str, *inputs: str, index: int = 0, opset: int = CALLED_OPSET, **attrs: Any
    ) -> None:
        """The node's output `index`, made by another ONNX operator."""
        self._call(op, inputs, [self.node.outputs[index]], opset, attrs)

    def onnx_outs(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        opset: int | None = CALLED_OPSET,
        **attrs: Any,
    ) -> None:
        """Outputs of the node, made by another ONNX operator; '' is an omitted one.

        None is the operator set of the model.
        """
        self._call(op, inputs, outputs, opset, attrs)

    def _call(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        opset: int | None,
        attrs: Mapping[str, Any],
    ) -> tuple[str, ...]:
        name = next(filter(None, outputs), self.node.name)
        proto = helper.make_node(op, list(inputs), list(outputs), name, **attrs)
        return self._around.apply(proto, opset)

    def part(self, value: str, axis: int, begin: int, extent: int, label: str = "") -> str:
        """A range of the value along an axis; itself if that is all of it."""
        shape = self.shape(value)
        if always_equal(extent, shape[axis]):
            return value
        return self.temp(
            "slice",
            value,
            label=label,
            begins=tuple(begin if d == axis else 0 for d in range(len(shape))),
            steps=(1,) * len(shape),
            extents=(*shape[:axis], extent, *shape[axis + 1 :]),
        )

    def single(self, value: str, axis: int, position: int) -> str:
        """The slice of the value at a position along an axis, without that axis."""
        shape = self.shape(value)
        return self.reshaped(
            self.part(value, axis, position, 1), (*shape[:axis], *shape[axis + 1 :])
        )

    def stacked(self, values: Sequence[str], axis: int) -> str:
        """The values, of one shape, side by side along a new axis."""
        shape = self.shape(values[0])
        apart = [self.reshaped(value, (*shape[:axis], 1, *shape[axis:])) for value in values]
        return self.temp("concat", *apart, label="stack", axis=axis)

    def same(self, value: str, index: int = 0) -> None:
        """The node's output `index` is that value, which may be a sequence or an empty optional."""
        self._values.alias(self.node.outputs[index], value)

    def sequence(self, index: int) -> tuple[str, ...]:
        """The tensors of an input that is a sequence. Raises: ModelError if it is none."""
        value = self.node.inputs[index]
        if value not in self._values.sequences:
            raise ModelError(f"input '{value}': expected a sequence, got a tensor")
        return self._values.sequences[value]

    def out_sequence(self, parts: Sequence[str]) -> None:
        """The node's output is the sequence of these tensors."""
        self._values.sequences[self.node.outputs[0]] = tuple(parts)

    def is_empty(self, value: str) -> bool:
        """True if the value is an optional that holds nothing."""
        return not value or value in self._values.empty

    def out_empty(self) -> None:
        """The node's output is an optional that holds nothing."""
        self._values.empty.add(self.node.outputs[0])

    def body(self, key: str, inputs: Sequence[str], label: str = "") -> tuple[str, ...]:
        """The outputs of the body in attribute `key`, applied to these values."""
        return self._around.body(self._graph(key), inputs, label or key)

    def inside(self, key: str, loop: InnerGraph, inputs: Sequence[str]) -> tuple[str, ...]:
        """The outputs of the body in attribute `key`, in the graph of that loop.

        Raises: ModelError if it has no meaning on the device that is the same in every step.
        """
        return self._around.inside(loop, self._graph(key), inputs)

    def results(self, key: str) -> int:
        """How many outputs the body in attribute `key` has."""
        return len(self._graph(key).output)

    def _graph(self, key: str) -> GraphProto:
        graph = self.node.attrs[key]
        if not isinstance(graph, GraphProto):
            raise ModelError(f"attribute '{key}': expected a graph, the body of the operator")
        return graph

    def host(self, *types: TensorType) -> None:
        """The node runs on the host, in numpy, as a step of its own: the last way, a slow one.

        `types` are those of its outputs where ONNX does not say them.
        """
        self._around.run_on_host(types)

    def refuse(self, what: str, remedy: str) -> ModelError:
        """An error for a mode of the op that has no meaning here."""
        return ModelError(f"{what} is not supported; {remedy}")


Handler = Callable[[OnnxNode, Emitter], None]
"""Adds what the node means to the graph, and gives every output that is used a value. Raises:
ModelError for attributes, shapes or types that have no meaning here."""

HANDLERS: dict[str, dict[int, Handler]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a handler says of itself to people: `retune ops` prints it."""

    limits: str = ""
    """What it refuses, in a few words."""
    folded: bool = False
    """It leaves no node in the graph: all is known while importing."""
    refused: bool = False
    """It is refused with advice."""
    by_rank: bool = False
    """What it emits depends on the element types and the ranks of its inputs, on no extents: what
    runs it for other extents need not import it again."""


CLAIMS: dict[tuple[str, int], Claim] = {}
"""ONNX op and the opset of one of its handlers -> what that one says."""


def onnx_op(
    *names: str,
    domain: str = "",
    since: int = 1,
    limits: str = "",
    folded: bool = False,
    by_rank: bool = False,
) -> Callable[[Handler], Handler]:
    """Decorator: the function imports these ONNX ops from opset `since` on.

    Names of another domain than ONNX's own have it before them, `my.domain::SoftClip`, or stand
    with `domain`. `limits` and `folded` are told to people, `by_rank` to what imports a node for
    many extents. Raises: ValueError if there is one for that opset already.
    """
    claim = Claim(limits=limits, folded=folded, by_rank=by_rank)

    def wrap(handler: Handler) -> Handler:
        for name in names:
            _register(full_name(domain, name), since, handler, claim)
        return handler

    return wrap


def refuse_op(*names: str, domain: str, advice: str) -> None:
    """Models with these operators are refused with the advice: what to do instead."""

    def refused(node: OnnxNode, _: Emitter) -> None:
        raise ModelError(f"{full_name(domain, node.op_type)} is not supported; {advice}")

    refused.__doc__ = f"{advice[0].upper()}{advice[1:]}."
    for name in names:
        _register(full_name(domain, name), 1, refused, Claim(refused=True))


def full_name(domain: str, op_type: str) -> str:
    """The operator's name, with its domain if that is not the default one."""
    return f"{domain}::{op_type}" if domain else op_type


def _register(name: str, since: int, handler: Handler, claim: Claim) -> None:
    versions = HANDLERS.setdefault(name, {})
    if since in versions:
        raise ValueError(f"ONNX op {name} since {since} is registered twice")
    versions[since] = handler
    CLAIMS[name, since] = claim


def names() -> set[str]:
    """The ONNX ops that have a handler, or that are a graph op of ours."""
    return {*HANDLERS, *(entry.onnx.name for entry in OPS.values() if entry.onnx)}


def versions_of(op_type: str) -> Mapping[int, Handler]:
    """The handlers of an ONNX op by the opset from which each is right; most ops have no other
    meaning than a graph op, and need no handler of their own."""
    plain = {entry.onnx.since: _same_op(entry) for entry in forms_of(op_type) if entry.onnx}
    return {**plain, **HANDLERS.get(op_type, {})}


def _same_op(definition: OpDef) -> Handler:
    """The handler of the ONNX op that means what ours does."""
    attributes = definition.onnx.attrs if definition.onnx else {}

    def handler(node: OnnxNode, emit: Emitter) -> None:
        attrs: dict[str, Any] = {
            key: node.number(key, default) for key, default in attributes.items()
        }
        emit.out(definition.name, *node.inputs, **attrs)

    handler.__doc__ = definition.doc
    return handler


def handler_of(op_type: str, opset: int) -> Handler | None:
    """The newest handler that is not newer than `opset`, or None."""
    versions = versions_of(op_type)
    fitting = [since for since in versions if since <= opset]
    return versions[max(fitting)] if fitting else None


def claim_of(op_type: str, opset: int) -> Claim:
    """What the handler says that `handler_of` finds."""
    since = max((since for since in versions_of(op_type) if since <= opset), default=0)
    plain = since not in HANDLERS.get(op_type, {})
    return Claim(by_rank=True) if plain else CLAIMS.get((op_type, since), Claim())


def positive_axis(axis: int, rank: int) -> int:
    """The axis counted from the front. Raises: ModelError if the rank has no such axis."""
    if not -rank <= axis < max(rank, 1):
        raise ModelError(f"axis {axis} is out of range for {rank} dimensions")
    return axis % rank if rank else 0
