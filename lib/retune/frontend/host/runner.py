"""Bodies of ONNX nodes, run in numpy one node after another.

Read `Body`, then `_opened`. For each node the first of these is taken: the operator's function on
the host (`ops`), its import (`programs`), the function that states it. What depends on
constants only is computed when a body is opened.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from retune.core.dtypes import DType, TensorType
from retune.core.errors import ModelError
from retune.frontend.host.ops import HostFunction, NodeCall, Value, host_function
from retune.frontend.host.programs import ImportedNode
from retune.frontend.onnx.functions import (
    Functions,
    call_attributes,
    has_schema_function,
    local_function,
    schema_function,
)
from retune.frontend.onnx.ops import OnnxNode, full_name, handler_of
from retune.frontend.onnx.ops.registry import claim_of
from retune.ops import Array
from retune.proto.file import initializers, value_info
from retune.proto.scope import (
    Opsets,
    attributes_of,
    label_of,
    opsets_of,
    read_by,
    standard,
)

REFUSALS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What numpy raises for arrays that do not fit an operator."""
_BY_CHANCE = {"Bernoulli"}
"""Operators that ONNX states by others which draw random numbers."""
_KEPT_BODIES = 64
"""Types of inputs for which a node keeps the function that states it."""
_DEEPEST = 64
"""Bodies in bodies: a function that calls itself has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyScope:
    """What the nodes of a body refer to besides values."""

    opsets: Opsets
    functions: Functions
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    """Those of the function's call."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Values around the body whose contents never change."""
    depth: int = 0

    def version(self, proto: onnx.NodeProto) -> int:
        """The version of the operator set that the node belongs to."""
        return self.opsets.get(standard(proto.domain), 1)


Run = Callable[[Sequence[Value], Mapping[str, Value]], Sequence[Value]]
"""A node's outputs from its inputs, and from the values around it that its bodies see."""


@dataclass(frozen=True, slots=True)
class _BodyStep:
    """A node of a body, ready to run."""

    label: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    """Its inputs, and what bodies inside it see around them."""
    run: Run
    last_reads: tuple[str, ...] = ()
    """Values that no later node reads."""


class Body:
    """Nodes in order, ready to run any number of times."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str],
        scope: BodyScope,
        stored: Mapping[str, Array] | None = None,
    ) -> None:
        """`stored` are the constants of the body's own.

        Raises: ModelError for a node that nothing runs.
        """
        if scope.depth > _DEEPEST:
            raise ModelError(
                f"bodies lie {_DEEPEST} deep; expected functions that do not call themselves"
            )
        self.outputs = tuple(outputs)
        constants = {**scope.constants, **(stored or {})}
        steps: list[_BodyStep] = []
        for proto in nodes:
            step = _open(proto, replace(scope, constants=constants))
            found = _folded(step, constants)
            if found is None:
                steps.append(step)
            constants |= found or {}
        read = {*outputs}.union(*(step.reads for step in steps))
        self._constants: dict[str, Value] = {n: a for n, a in constants.items() if n in read}
        self._steps = _with_last_reads(steps, self.outputs)

    def __call__(self, values: Mapping[str, Value]) -> tuple[Value, ...]:
        """The outputs, for the values of everything that the body reads and does not make.

        Raises: ModelError naming the node that cannot work with its inputs.
        """
        found: dict[str, Value] = {**values, **self._constants, "": None}
        for step in self._steps:
            try:
                made = step.run([found[name] for name in step.inputs], found)
            except ModelError as error:
                raise ModelError(f"node {step.label}: {error}") from error
            except REFUSALS as error:
                raise ModelError(
                    f"node {step.label}: it cannot work with its inputs ({error})"
                ) from error
            found.update(zip(step.outputs, made, strict=False))
            for name in step.last_reads:
                found.pop(name, None)
            found[""] = None
        return tuple([found[name] for name in self.outputs])


def _with_last_reads(steps: Sequence[_BodyStep], outputs: Sequence[str]) -> list[_BodyStep]:
    """The steps, each with what it is the last to read of what other steps make."""
    made = {name for step in steps for name in step.outputs if name} - {*outputs}
    done: list[_BodyStep] = []
    for step in reversed(steps):
        last = tuple(name for name in dict.fromkeys((*step.reads, *step.outputs)) if name in made)
        made -= {*last}
        done.append(replace(step, last_reads=last))
    return done[::-1]


def _folded(step: _BodyStep, constants: Mapping[str, Array]) -> dict[str, Array] | None:
    """The outputs of a node that reads constants only; None if they are not such tensors."""
    if not all(name in constants for name in step.reads):
        return None
    try:
        made = step.run([constants.get(name) for name in step.inputs], constants)
    except (ModelError, *REFUSALS):
        return None  # the node may be in a branch that is never taken
    found = {name: value for name, value in zip(step.outputs, made, strict=False) if name}
    arrays = all(hasattr(value, "dtype") for value in found.values())
    return found if arrays and len(found) == sum(map(bool, step.outputs)) else None


def _open(proto: onnx.NodeProto, scope: BodyScope) -> _BodyStep:
    """The node, ready to run. Raises: ModelError if nothing runs it."""
    own = onnx.NodeProto()
    own.CopyFrom(proto)
    del own.attribute[:]
    own.attribute.extend(attributes_of(proto, scope.attributes))
    own.name = label_of(proto)
    label = f"'{own.name}' ({proto.op_type})"
    run = _opened(own, scope, label)
    return _BodyStep(label, tuple(own.input), tuple(own.output), tuple(read_by(own)), run)


def _opened(proto: onnx.NodeProto, scope: BodyScope, label: str) -> Run:
    """What runs the node. Raises: ModelError if nothing does."""
    name = full_name(standard(proto.domain), proto.op_type)
    version = scope.version(proto)
    node = OnnxNode.of(proto, version, Path(), f"node {label}")
    function = host_function(name, version)
    if function is not None:
        return _calling(node, function, _inner(proto, scope))
    handler = handler_of(name, version)
    if handler is not None:
        by_rank = claim_of(name, version).by_rank
        imported = ImportedNode(
            node, handler, scope.constants, scope.opsets, scope.functions, by_rank=by_rank
        )
        return lambda args, _: imported(args)
    stated = local_function(proto, scope.functions)
    if stated is not None:
        return _Expanded(proto, scope).run
    if has_schema_function(proto, version) and name not in _BY_CHANCE:
        return _Expanded(proto, scope).run
    raise ModelError(
        f"node {label}: operator {name} of opset {version} is not supported on the host; replace "
        "it in the model, or cut the model before it"
    )


def _calling(node: OnnxNode, function: HostFunction, inner: Mapping[str, "_Inner"]) -> Run:
    if not inner:
        return lambda args, _: function(NodeCall(node, args))
    return lambda args, around: function(
        NodeCall(node, args, {key: _Bound(body, around) for key, body in inner.items()})
    )


@dataclass(frozen=True, slots=True)
class _Inner:
    """A body inside a node."""

    body: Body
    inputs: tuple[str, ...]
    seen: tuple[str, ...]
    """What it reads of the values around it."""
    stated: tuple[onnx.TypeProto, ...]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A body inside a node, with the values around the node."""

    inner: _Inner
    around: Mapping[str, Value]

    @property
    def stated(self) -> Sequence[Any]:
        """The ONNX types of its outputs, as far as the model states them."""
        return self.inner.stated

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """The body's outputs. Raises: ModelError for another number of inputs."""
        names = self.inner.inputs
        if len(names) != len(inputs):
            raise ModelError(f"its body takes {len(names)} inputs; the node gives {len(inputs)}")
        values = {name: self.around[name] for name in self.inner.seen}
        return self.inner.body({**values, **dict(zip(names, inputs, strict=True))})


def _inner(proto: onnx.NodeProto, scope: BodyScope) -> dict[str, _Inner]:
    """The bodies inside the node, by attribute."""
    found: dict[str, _Inner] = {}
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            graph = attribute.g
            holder = onnx.NodeProto(attribute=[attribute])
            stored = dict(initializers(graph, Path(), lambda _: True))
            own = {entry.name for entry in graph.input}
            outer = {n: a for n, a in scope.constants.items() if n not in own}
            inside = replace(scope, constants=outer, depth=scope.depth + 1)
            found[attribute.name] = _Inner(
                Body(graph.node, [entry.name for entry in graph.output], inside, stored),
                tuple(entry.name for entry in graph.input if entry.name not in stored),
                tuple(name for name in read_by(holder) if name not in scope.constants),
                tuple(entry.type for entry in graph.output),
            )
    return found


class _Expanded:
    """A node by the function that states its operator: one body for each kind of inputs."""

    def __init__(self, proto: onnx.NodeProto, scope: BodyScope) -> None:
        self._proto = proto
        self._scope = scope
        self._local = local_function(proto, scope.functions)
        self._bodies: dict[tuple[Any, ...], tuple[Body, tuple[str, ...]]] = {}
        """By the inputs' types, of which the specification's functions may make use."""
        if self._local is not None:
            self._bodies[()] = self._opened(self._local)

    def run(self, args: Sequence[Value], around: Mapping[str, Value]) -> Sequence[Value]:
        """The function's outputs. Raises: ModelError if it states nothing for such inputs."""
        del around
        key = () if self._local is not None else tuple(map(_kind, args))
        if key not in self._bodies:
            version = self._scope.version(self._proto)
            stated = schema_function(self._proto, version, [_type(kind) for kind in key])
            if stated is None:
                raise ModelError(
                    f"ONNX states no meaning of {self._proto.op_type} for inputs of these types"
                )
            while len(self._bodies) >= _KEPT_BODIES:
                del self._bodies[next(iter(self._bodies))]
            self._bodies[key] = self._opened(stated)
        body, names = self._bodies[key]
        omitted = dict.fromkeys(names[len(args) :])
        return body({**omitted, **dict(zip(names, args, strict=False))})

    def _opened(self, function: onnx.FunctionProto) -> tuple[Body, tuple[str, ...]]:
        scope = BodyScope(
            opsets=opsets_of(function) or self._scope.opsets,
            functions=self._scope.functions,
            attributes=call_attributes(function, self._proto, self._scope.version(self._proto)),
            depth=self._scope.depth + 1,
        )
        wanted = zip(function.output, self._proto.output, strict=False)
        outputs = [name if used else "" for name, used in wanted]
        return Body(function.node, outputs, scope), tuple(function.input)


def _kind(value: Value) -> tuple[Any, ...] | None:
    """The type of a value."""
    if value is None:
        return None
    if isinstance(value, tuple):
        return ("sequence", _kind(value[0]) if value else None)
    return (value.dtype.name, value.shape)


def _type(kind: tuple[Any, ...] | None) -> onnx.TypeProto:
    if kind is None:
        return onnx.TypeProto()
    first, second = kind
    if first == "sequence":
        return helper.make_sequence_type_proto(_type(second))
    return value_info("", TensorType(second, DType(first))).type


def open_body(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    opsets: Opsets,
    functions: Functions,
    stored: Mapping[str, Array] | None = None,
) -> Body:
    """The nodes, ready to run. Raises: ModelError naming one that nothing runs."""
    return Body(nodes, outputs, BodyScope(opsets=opsets, functions=functions), stored)
