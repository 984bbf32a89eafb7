"""Cutting parts out of ONNX models, for other programs to run.

Read `cut_out`. The part is found by the names of values in the file; nothing in it is changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from retune.core.dtypes import TensorType

_IR_VERSION = 10
"""What every program of today reads, whatever this installation of onnx would write."""


def cut_out(path: Path, inputs: Mapping[str, TensorType], outputs: Sequence[str]) -> bytes | None:
    """The part of the file's network between these values, as a model of its own.

    None if the file has no such values outside of its subgraphs and functions, if it needs more
    than `inputs` to make them, or if it is too large for a model in memory.
    """
    model = onnx.load(str(path))
    graph = model.graph
    makers = {value: node for node in graph.node for value in node.output if value}
    stored = {tensor.name for tensor in graph.initializer}
    stored |= {tensor.values.name for tensor in graph.sparse_initializer}
    left, needed = list(outputs), set[str]()
    seen = {*inputs, *stored}
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        if value not in makers:
            return None
        needed.update(filter(None, makers[value].output))
        left += [name for name in _reads(makers[value]) if name in makers or name in outputs]
    kept = [node for node in graph.node if needed.intersection(node.output)]
    read = {name for node in kept for name in _reads(node)}
    if (read & {entry.name for entry in graph.input}) - {*inputs, *stored}:
        return None
    part = helper.make_graph(
        kept,
        graph.name,
        [_typed(name, kind) for name, kind in inputs.items() if name in read],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [tensor for tensor in graph.initializer if tensor.name in read],
        sparse_initializer=[t for t in graph.sparse_initializer if t.values.name in read],
    )
    return _serialised(part, model)


def with_types(model: bytes, inputs: Sequence[TensorType]) -> bytes:
    """The model, whose inputs state these types, in their order."""
    found = onnx.ModelProto.FromString(model)
    stored = {tensor.name for tensor in found.graph.initializer}
    names = [entry.name for entry in found.graph.input if entry.name not in stored]
    del found.graph.input[:]
    found.graph.input.extend(_typed(n, kind) for n, kind in zip(names, inputs, strict=True))
    found.ir_version = min(found.ir_version or _IR_VERSION, _IR_VERSION)
    return found.SerializeToString()


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What the node reads, and what graphs in it name: some of that is their own."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (entry.name for entry in graph.output)
            for inner in graph.node:
                yield from _reads(inner)


def _typed(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
    return helper.make_tensor_value_info(name, element, kind.shape)


def _serialised(graph: onnx.GraphProto, source: onnx.ModelProto) -> bytes | None:
    made = helper.make_model(graph, opset_imports=source.opset_import, functions=source.functions)
    made.ir_version = min(source.ir_version or _IR_VERSION, _IR_VERSION)
    try:
        return made.SerializeToString()
    except ValueError:  # a message has 2 GiB at most
        return None
