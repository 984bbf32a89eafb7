"""ONNX functions: operators that are stated as bodies of other operators.

A model brings its own (exporters write their modules so), and the specification states many of its
operators so. What is not implemented here by a handler is imported as what its function says.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import defs

from retune.proto.scope import standard

Functions = Mapping[tuple[str, str, str], onnx.FunctionProto]
"""Domain, name and overload -> a function of the model."""


def functions_of(model: onnx.ModelProto) -> Functions:
    """The functions that the model brings."""
    return {
        (standard(found.domain), found.name, found.overload): found for found in model.functions
    }


def local_function(proto: onnx.NodeProto, functions: Functions) -> onnx.FunctionProto | None:
    """The model's function that the node calls, if it is one."""
    return functions.get((standard(proto.domain), proto.op_type, proto.overload))


def input_problem(proto: onnx.NodeProto, version: int) -> str:
    """What of the node's inputs the specification does not allow; '' if it allows them."""
    schema = _schema(proto, version)
    if schema is None:
        return ""
    if len(proto.input) > schema.max_input:
        return f"{len(proto.input)} inputs, of which there are at most {schema.max_input}"
    optional = defs.OpSchema.FormalParameterOption.Optional
    formal = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(proto.input))]
    needed = (
        (i, name)
        for i, (name, stated) in enumerate(zip(proto.input, formal, strict=True))
        if stated.option != optional
    )
    omitted = [i for i, name in needed if not name]
    return f"input {omitted[0]} is missing" if omitted else ""


def has_schema_function(proto: onnx.NodeProto, version: int) -> bool:
    """True if the specification states the operator as a function, for some types at least."""
    schema = _schema(proto, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def schema_function(
    proto: onnx.NodeProto, version: int, types: Sequence[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """What the specification says of the operator for inputs of those types; None if it does not.

    An omitted input has an empty type. Of several bodies, written in different operator sets, the
    newest is taken that is not newer than `version`.
    """
    schema = _schema(proto, version)
    if schema is None:
        return None
    if schema.has_function:
        written = _newest(schema.function_opset_versions, version)
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(written))
    if schema.has_context_dependent_function:
        written = _newest(schema.context_dependent_function_opset_versions, version)
        body = schema.get_context_dependent_function_with_opset_version(
            written, proto.SerializeToString(), [entry.SerializeToString() for entry in types]
        )
        return onnx.FunctionProto.FromString(body) if body else None
    return None


def _newest(versions: Sequence[int], version: int) -> int:
    return max((v for v in versions if v <= version), default=min(versions))


def _schema(proto: onnx.NodeProto, version: int) -> Any:
    """What the specification says of the operator, or None; the type's stub lacks half of it."""
    domain = standard(proto.domain)
    if not defs.has(proto.op_type, version, domain):
        return None
    schema: Any = defs.get_schema(proto.op_type, version, domain)
    return None if schema.deprecated else schema


def call_attributes(
    function: onnx.FunctionProto, proto: onnx.NodeProto, version: int
) -> dict[str, onnx.AttributeProto]:
    """The attributes that the function's body may refer to: the call's, else their defaults."""
    schema = _schema(proto, version)
    found: dict[str, onnx.AttributeProto] = {}
    if schema is not None:
        stated = {name: entry.default_value for name, entry in schema.attributes.items()}
        found |= {name: value for name, value in stated.items() if value.type}
    found |= {attribute.name: attribute for attribute in function.attribute_proto}
    return found | {attribute.name: attribute for attribute in proto.attribute}
