"""Scopes: what the names of one body of nodes stand for in the graph.

A body is a model's graph, a function, a branch of an If or one turn of a loop. A name in it means a
value of the graph under construction: its own if the body makes it, the caller's if it is an input
of the body. Nobody shares a scope: each call and each turn of a loop has its own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

Opsets = Mapping[str, int]
"""Domain -> version of its operator set; the default domain is ''."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameScope:
    """The names of one body; `names` grows while its nodes are imported."""

    opsets: Opsets
    prefix: str = ""
    """Begins the name of each value that the body makes; '' for the model's own graph."""
    outer: "NameScope | None" = None
    """Where names are looked up that the body does not make: bodies inside a node see around it."""
    attributes: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)
    """The attributes of the function's call, which its nodes refer to by name."""
    names: dict[str, str] = field(default_factory=dict)
    """Name in the body -> value of the graph; '' is an optional input that was omitted."""

    def value(self, name: str) -> str | None:
        """The value that the name stands for; None if there is none yet."""
        if not name:
            return ""
        scope: NameScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def inner(self, label: str) -> "NameScope":
        """The scope of a body inside one of this body's nodes."""
        return NameScope(
            opsets=self.opsets,
            prefix=f"{self.prefix}{label}/",
            outer=self,
            attributes=self.attributes,
        )

    def version(self, domain: str) -> int:
        """The version of that domain's operators; 1 where the body does not state it."""
        return self.opsets.get(standard(domain), 1)


def standard(domain: str) -> str:
    """The domain, '' for both names of the default one."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(holder: onnx.ModelProto | onnx.FunctionProto) -> Opsets:
    """What a model or a function says of the operator sets that it is written in."""
    return {standard(entry.domain): entry.version for entry in holder.opset_import}


def label_of(proto: onnx.NodeProto) -> str:
    """What the node is called: its name, or its first output."""
    return proto.name or next((output for output in proto.output if output), proto.op_type)


def attributes_of(
    proto: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> Iterator[onnx.AttributeProto]:
    """The node's attributes, those that refer to the function's own replaced by what was `given`.

    A reference to an attribute that was not given is as if the node did not state it.
    """
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            found = onnx.AttributeProto()
            found.CopyFrom(given[attribute.ref_attr_name])
            found.name = attribute.name
            yield found


def bodies_of(proto: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies inside a node: branches and loops."""
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def read_by(proto: onnx.NodeProto) -> list[str]:
    """Every name that the node reads, each once: its inputs, and what its bodies see around it."""
    return list(dict.fromkeys([*filter(None, proto.input), *seen_by(proto)]))


def seen_by(proto: onnx.NodeProto) -> list[str]:
    """The names that the bodies inside the node read and do not make."""
    return list(dict.fromkeys(name for body in bodies_of(proto) for name in free_names(body)))


def free_names(body: onnx.GraphProto) -> list[str]:
    """The names that the body reads and does not make, in order; some more than once."""
    own = _own(body)
    read = [name for proto in body.node for name in read_by(proto)]
    return [name for name in (*read, *(entry.name for entry in body.output)) if name not in own]


def _own(body: onnx.GraphProto) -> set[str]:
    own = {entry.name for entry in (*body.input, *body.initializer)}
    own |= {entry.values.name for entry in body.sparse_initializer}
    return own | {name for proto in body.node for name in proto.output}


def rename_seen(proto: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """The bodies inside the node read other names of what is around them."""
    for body in bodies_of(proto):
        _rename_free(body, names)


def _rename_free(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    names = {old: new for old, new in names.items() if old not in _own(body)}
    for inner in body.node:
        inner.input[:] = [names.get(name, name) for name in inner.input]
        rename_seen(inner, names)
    for entry in body.output:
        entry.name = names.get(entry.name, entry.name)
