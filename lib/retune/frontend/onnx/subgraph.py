"""Subgraphs of ONNX models, as models of their own for other programs to run.

Read `extract_subgraph`. A subgraph is found by names of values in the file; its nodes are as there.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import helper

from retune.core.dtypes import TensorType
from retune.proto.file import initializer_names, value_info
from retune.proto.scope import read_by

_IR_VERSION = 10
"""What every program of today reads, whatever this installation of onnx would write."""


_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def margin_name(value: str) -> str:
    """The name of the difference whose sign is the truth value."""
    return f"{value}.margin"


def extract_subgraph(
    path: Path,
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    margins: Collection[str] = (),
) -> bytes | None:
    """The part of the file's network between these values, as a model of its own.

    For those of `margins`, outputs as well, that a comparison makes it also gives the difference of
    what is compared, as `margin_name` names it. None if the file has no such values outside of its
    subgraphs and functions, if it needs more than `inputs` to make them, or if it is too large for
    a model in memory.
    """
    model = onnx.load(str(path))
    graph = model.graph
    producers = {value: node for node in graph.node for value in node.output if value}
    pending, needed = list(outputs), set[str]()
    seen = {*inputs, *initializer_names(graph)}
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value not in producers:
            return None
        needed.update(filter(None, producers[value].output))
        pending += read_by(producers[value])
    kept = [node for node in graph.node if needed.intersection(node.output)]
    made = [v for v in margins if v in producers and producers[v].op_type in _COMPARISONS]
    kept += [helper.make_node("Sub", producers[v].input, [margin_name(v)]) for v in made]
    read = {name for node in kept for name in read_by(node)}
    part = helper.make_graph(
        kept,
        graph.name,
        [value_info(name, kind) for name, kind in inputs.items() if name in read],
        [onnx.ValueInfoProto(name=name) for name in (*outputs, *map(margin_name, made))],
        [tensor for tensor in graph.initializer if tensor.name in read],
        sparse_initializer=[t for t in graph.sparse_initializer if t.values.name in read],
    )
    return _serialized(part, model)


def with_input_types(model: bytes, inputs: Sequence[TensorType]) -> bytes:
    """The model, whose inputs state these types, in their order."""
    found = onnx.ModelProto.FromString(model)
    stored = initializer_names(found.graph)
    names = [entry.name for entry in found.graph.input if entry.name not in stored]
    del found.graph.input[:]
    found.graph.input.extend(value_info(n, kind) for n, kind in zip(names, inputs, strict=True))
    found.ir_version = min(found.ir_version or _IR_VERSION, _IR_VERSION)
    return found.SerializeToString()


def _serialized(graph: onnx.GraphProto, source: onnx.ModelProto) -> bytes | None:
    made = helper.make_model(graph, opset_imports=source.opset_import, functions=source.functions)
    made.ir_version = min(source.ir_version or _IR_VERSION, _IR_VERSION)
    try:
        return made.SerializeToString()
    except ValueError:  # a message has 2 GiB at most
        return None
