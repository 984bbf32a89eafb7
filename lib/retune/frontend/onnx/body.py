"""Importing bodies of nodes: the model's graph, functions, branches and turns of loops.

Read `BodyImporter.run` and `_import` first. For each node the first of these ways is taken: a
handler of `ops`; the function that states the operator; evaluation, where its inputs are all
known; a host step. What no way exists for is counted, and told once at the end, all of it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from retune.core.dims import Condition, apart, note
from retune.core.dtypes import TensorType
from retune.core.errors import ModelError
from retune.frontend.onnx.counts import has_bound
from retune.frontend.onnx.functions import (
    Functions,
    call_attributes,
    has_schema_function,
    input_problem,
    local_function,
    schema_function,
)
from retune.frontend.onnx.host import HostPart, evaluate, runs_on_host
from retune.frontend.onnx.ops import Emitter, Handler, OnnxNode, Values, full_name, handler_of
from retune.frontend.onnx.ops.registry import InnerGraph, NotConstant
from retune.graph.graph import GraphBuilder
from retune.ops.registry import HOST
from retune.proto.file import initializers, value_info
from retune.proto.scope import (
    NameScope,
    attributes_of,
    bodies_of,
    free_names,
    label_of,
    opsets_of,
    read_by,
    rename_seen,
    seen_by,
    standard,
)

_MALFORMED = (IndexError, ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError)
"""What handlers run into where inputs and attributes are not as ONNX defines them."""
_DEEPEST = 64
"""Bodies in bodies: a function that calls itself has no end."""


class BodyImporter:
    """Adds bodies of nodes to a graph under construction; errors are collected, not raised."""

    def __init__(
        self,
        build: GraphBuilder,
        functions: Functions,
        scope: NameScope,
        folder: Path,
        *,
        counts: bool = False,
        on_host: Collection[str] = (),
    ) -> None:
        """With `counts`, extents that data decide are sizes; nodes of these names run on the host
        then."""
        self._build = build
        self._functions = functions
        self._folder = folder
        self._unknown: set[str] = set()
        self._depth = 0
        self.values = Values()
        self.host = HostPart(build, scope.opsets, functions, counts=counts)
        self._on_host = on_host
        self.undecided: set[str] = set()
        """Names of nodes whose import depends on a count."""
        self.missing: Counter[str] = Counter()
        """Operators for which there is no way, with the number of their nodes."""
        self.first: dict[str, str] = {}
        """The first node of each of them."""
        self.errors: list[ModelError] = []

    def run(self, nodes: Iterable[onnx.NodeProto], scope: NameScope) -> None:
        """The nodes' meaning is in the graph, and the scope knows their outputs."""
        self._depth += 1
        for proto in nodes:
            call = self._called(proto, scope)
            try:
                self._node(call, scope)
            except ModelError as error:
                self.errors.append(error)
                self._unknown.update(call.output)
            for name, value in zip(proto.output, call.output, strict=True):
                scope.names[name] = self.values.resolve(value)
        self._depth -= 1

    def name_output(self, name: str, value: str) -> None:
        """A value that has another name in the graph is there under `name` too."""
        if value in self.host.kept_values:
            self.host.keep(helper.make_node("Identity", [value], [name], name=name), {})
        else:
            self._build.add("identity", [value], outputs=[name], name=name)

    def _called(self, proto: onnx.NodeProto, scope: NameScope) -> onnx.NodeProto:
        """The node with the graph's names for what it reads and makes, and its own attributes."""
        label = scope.prefix + label_of(proto)
        call = onnx.NodeProto(
            op_type=proto.op_type, domain=proto.domain, overload=proto.overload, name=label
        )
        for name in proto.input:
            value = scope.value(name)
            if value is None:
                self._unknown.add(name)
                where = f"{self._build.name}: node '{label}' ({proto.op_type})"
                self.errors.append(ModelError(f"{where} reads '{name}', which nothing makes"))
            call.input.append(name if value is None else value)
        call.output.extend(self._own(name, scope) if name else "" for name in proto.output)
        call.attribute.extend(attributes_of(proto, scope.attributes))
        return call

    def _own(self, name: str, scope: NameScope) -> str:
        """The graph's name for what a body makes: its own, one that was agreed, or a fresh one."""
        if not scope.prefix:
            return name
        return scope.names.get(name) or self._build.reserve(scope.prefix + name)

    def _node(self, call: onnx.NodeProto, scope: NameScope) -> None:
        around = (scope.value(name) or "" for name in seen_by(call))
        read = {*filter(None, call.input), *filter(None, around)}
        if read & self._unknown:
            self._count(call, scope)
        elif read & self.host.kept_values:
            self.run_on_host(call, scope, keep=True)
        elif call.name in self._on_host:
            self.run_on_host(call, scope)
        else:
            try:
                self._import(call, scope)
            except MemoryError as error:  # an array of constants, folded while importing
                where = f"{self._build.name}: node '{call.name}' ({call.op_type})"
                raise ModelError(f"{where}: its values do not fit into memory ({error})") from error

    def _count(self, call: onnx.NodeProto, scope: NameScope) -> None:
        """The node cannot be imported, for what it reads; what it would lack itself is counted."""
        function = local_function(call, self._functions)
        if function is not None:
            self._expand(function, call, scope)
        elif not (
            _handler(call, scope)
            or has_schema_function(call, scope.version(call.domain))
            or runs_on_host(call, scope.opsets, self._functions)
        ):
            self._miss(call)
        self._unknown.update(call.output)

    def _import(self, call: onnx.NodeProto, scope: NameScope) -> None:
        handler, version = _handler(call, scope), scope.version(call.domain)
        problem = input_problem(call, version)
        if problem:
            raise ModelError(
                f"{self._build.name}: node '{call.name}' ({call.op_type}): {problem}; ONNX opset "
                f"{version} does not allow that; export the model again"
            )
        if handler is not None:
            try:
                with apart() as assumed:
                    self._handle(handler, call, scope)
                return self._note(call, assumed.conditions)
            except NotConstant:
                if self._fold(call, scope):
                    return None
                if has_bound(call):
                    return self.run_on_host(call, scope)
                raise
            except ModelError:
                if self._fold(call, scope):
                    return None
                raise
        function = local_function(call, self._functions) or schema_function(
            call, version, [self._type(value) for value in call.input]
        )
        if function is not None:
            return self._expand(function, call, scope)
        if self._fold(call, scope):
            return None
        if not runs_on_host(call, scope.opsets, self._functions):
            return self._miss(call)
        return self.run_on_host(call, scope)

    def _note(self, call: onnx.NodeProto, conditions: Iterable[Condition]) -> None:
        """What was made of the node holds where these do; none may be on a count."""
        if any(condition.counted for condition in conditions):
            self.undecided.add(call.name)
        else:
            note(conditions)

    def refuse(self, opset: int) -> None:
        """Nothing, if everything was imported. Raises: ModelError with all that is missing."""
        if self.missing:
            rows = [
                f"  {op}: {n} x, first '{self.first[op]}'" for op, n in sorted(self.missing.items())
            ]
            raise ModelError(
                f"{self._build.name}: {len(rows)} ops of opset {opset} are not supported "
                f"({self.missing.total()} nodes); replace them in the model, or cut it before "
                "them:\n" + "\n".join(rows)
            )
        if self.errors:
            raise self.errors[0]

    def _miss(self, call: onnx.NodeProto) -> None:
        op_type = _full_name(call)
        self.missing[op_type] += 1
        self.first.setdefault(op_type, call.name)
        self._unknown.update(call.output)

    def _handle(self, handler: Handler, call: onnx.NodeProto, scope: NameScope) -> None:
        version = scope.version(call.domain)
        where = f"{self._build.name}: node '{call.name}' ({call.op_type})"
        node = OnnxNode.of(call, version, self._folder, where)
        around = _Around(
            importer=self, call=call, scope=scope, errors=len(self.errors), missing=+self.missing
        )
        try:
            handler(node, Emitter(self._build, node, around, self.values))
        except ModelError as error:  # of the node itself, or of an operator that it calls
            inner = str(error).removeprefix(f"{self._build.name}: ")
            raise type(error)(f"{where}: {inner}") from error
        except _MALFORMED as error:
            raise ModelError(
                f"{where}: malformed ({error}); expected inputs and attributes as ONNX opset "
                f"{version} defines them; got inputs {list(node.inputs)} and attributes "
                f"{sorted(node.attrs)}; check the model with onnx.checker"
            ) from error

    def _type(self, value: str) -> onnx.TypeProto:
        """The ONNX type of a value; empty where there is none."""
        if value in self.values.sequences:
            parts = self.values.sequences[value]
            return helper.make_sequence_type_proto(self._type(parts[0] if parts else ""))
        if value not in self._build.types:
            return onnx.TypeProto()
        return value_info(value, self._build.types[value]).type

    def _expand(self, function: onnx.FunctionProto, call: onnx.NodeProto, scope: NameScope) -> None:
        """The function's body replaces the node; its outputs have the node's names."""
        if len(call.input) > len(function.input):
            raise ModelError(
                f"{self._build.name}: node '{call.name}' ({call.op_type}): expected at most "
                f"{len(function.input)} inputs, as its function takes, got {len(call.input)}"
            )
        given = [*call.input, *[""] * (len(function.input) - len(call.input))]
        names = dict(zip(function.input, given, strict=True))
        made = dict(zip(function.output, call.output, strict=False))
        names |= {name: value for name, value in made.items() if value and name not in names}
        inner = NameScope(
            opsets=opsets_of(function) or scope.opsets,
            prefix=f"{call.name}/",
            attributes=call_attributes(function, call, scope.version(call.domain)),
            names=names,
        )
        self._enter(function.name)
        self.run(function.node, inner)
        for name, value in made.items():
            if value:
                self.values.alias(value, inner.names[name])

    def _enter(self, name: str) -> None:
        if self._depth >= _DEEPEST:
            raise ModelError(
                f"{self._build.name}: '{name}' lies {_DEEPEST} bodies deep; expected functions "
                "that do not call themselves"
            )

    def body(
        self, graph: onnx.GraphProto, inputs: Sequence[str], label: str, scope: NameScope
    ) -> tuple[str, ...]:
        """The outputs of a branch, or of a loop's body applied to these values."""
        self._enter(label)
        inner = scope.inner(label)
        inner.names.update(zip((entry.name for entry in graph.input), inputs, strict=False))
        own = initializers(graph, self._folder, lambda name: name not in inner.names)
        for weight, array in own:
            name = self._build.fresh(inner.prefix + weight)
            inner.names[weight] = self._build.constant(name, array)
        self.run(graph.node, inner)
        return tuple(inner.value(entry.name) or "" for entry in graph.output)

    def inside(
        self,
        loop: InnerGraph,
        graph: onnx.GraphProto,
        inputs: Sequence[str],
        label: str,
        scope: NameScope,
    ) -> tuple[str, ...]:
        """The outputs of a loop's body, in the graph of that body, applied to its values.

        Raises: ModelError if it has no meaning on the device that is the same in every step.
        """
        self._enter(label)
        names = dict(zip((entry.name for entry in graph.input), inputs, strict=False))
        around = {name: scope.value(name) for name in free_names(graph) if name not in names}
        names |= {name: loop.capture(value) for name, value in around.items() if value}
        build = loop.emit.build
        for weight, array in initializers(graph, self._folder, lambda name: name not in names):
            names[weight] = build.constant(build.fresh(weight), array)
        inner = NameScope(
            opsets=scope.opsets, prefix=f"{label}/", attributes=scope.attributes, names=names
        )
        importer = BodyImporter(build, self._functions, inner, self._folder)
        importer._depth = self._depth
        importer.run(graph.node, inner)
        importer.refuse(scope.version(""))
        outputs = [inner.value(entry.name) or "" for entry in graph.output]
        if build.uses(HOST) or any(value not in build.types for value in outputs):
            raise ModelError("a loop's body: expected tensors that kernels make")
        return tuple(outputs)

    def apply(self, proto: onnx.NodeProto, opset: int | None, scope: NameScope) -> tuple[str, ...]:
        """The outputs of a node that a handler made, whose names are those of the graph."""
        stated = {} if opset is None else {"": opset}
        self._import(proto, NameScope(opsets={**scope.opsets, **stated}))
        return tuple(self.values.resolve(name) for name in proto.output)

    def _fold(self, call: onnx.NodeProto, scope: NameScope) -> bool:
        """True if the node's inputs are all known, and now its outputs are."""
        read = [name for name in call.input if name]
        if not read or not all(name in self._build.constants for name in read):
            return False
        if any(True for _ in bodies_of(call)):
            return False
        arrays = {name: self._build.constants[name] for name in read}
        results = evaluate(call, arrays, scope.opsets, self._functions)
        for name, array in (results or {}).items():
            self._build.constant(name, array)
        return results is not None

    def run_on_host(
        self,
        call: onnx.NodeProto,
        scope: NameScope,
        types: Sequence[TensorType] = (),
        *,
        keep: bool = False,
    ) -> None:
        """The node runs on the host; kept back for the last host step where that has to be.

        `types` are those of its outputs where ONNX does not say them.
        """
        proto = onnx.NodeProto()
        proto.CopyFrom(call)
        rename_seen(proto, {name: scope.value(name) or "" for name in seen_by(call)})
        for value in read_by(proto):
            if value in self.values.sequences and value not in self.host.kept_values:
                parts = self.values.sequences[value]
                whole = helper.make_node("SequenceConstruct", list(parts), [value], name=value)
                self.host.keep(whole, scope.opsets)
        if keep or self.host.kept_values.intersection(read_by(proto)):
            return self.host.keep(proto, scope.opsets)
        return self.host.add(proto, scope.opsets, types)


def _handler(call: onnx.NodeProto, scope: NameScope) -> Handler | None:
    """What imports the node, if there is something."""
    return handler_of(_full_name(call), scope.version(call.domain))


def _full_name(call: onnx.NodeProto) -> str:
    return full_name(standard(call.domain), call.op_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """What a handler may ask for beyond its own node."""

    importer: BodyImporter
    call: onnx.NodeProto
    scope: NameScope
    errors: int
    missing: Counter[str]

    def apply(self, proto: onnx.NodeProto, opset: int | None) -> tuple[str, ...]:
        """The outputs of another ONNX operator, which reads values of the graph."""
        return self.importer.apply(proto, opset, self.scope)

    def body(self, graph: onnx.GraphProto, inputs: Sequence[str], label: str) -> tuple[str, ...]:
        """The outputs of a body inside the node, applied to these values."""
        return self.importer.body(graph, inputs, f"{label_of(self.call)}/{label}", self.scope)

    def inside(
        self, loop: InnerGraph, graph: onnx.GraphProto, inputs: Sequence[str]
    ) -> tuple[str, ...]:
        """The outputs of a loop's body, in a graph of its own, applied to values of that graph."""
        return self.importer.inside(loop, graph, inputs, label_of(self.call), self.scope)

    def run_on_host(self, types: Sequence[TensorType]) -> None:
        """The node is a host step, whatever errors the bodies inside it met on the device's way."""
        del self.importer.errors[self.errors :]
        self.importer.missing = self.missing
        self.importer.run_on_host(self.call, self.scope, types)
