"""Integers of fewer than eight bits as those of eight: what makes, takes and returns them.

Stored integers of two and four bits are read as bytes, see `proto.file.tensor_array`. Read
`widened`.

    y = QuantizeLinear(x, scale, zero of int4)
 -> y = Clip(QuantizeLinear(x, scale, zero of int8), -8, 7)

    y = Cast(x) to int4
 -> y = Cast((Cast(x) to int32 + 8) mod 16 - 8) to int8
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retune.proto.file import NARROW, Narrow, integer_attribute


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose nodes make no integers of fewer than eight bits, and whose inputs and outputs
    are of eight then.

    The same object if there are none, outside of bodies of nodes.
    """
    types = {t.name: t.data_type for t in model.graph.initializer}
    types |= {e.name: e.type.tensor_type.elem_type for e in _stated(model.graph)}
    for node in model.graph.node:
        if node.op_type == "Constant":
            values = [a.t.data_type for a in node.attribute if a.name == "value"]
            types |= dict(zip(node.output, values, strict=False))  # a mutated node may lack either
    made = [_made(node, types) for node in model.graph.node]
    ends = {entry.type.tensor_type.elem_type for entry in _stated(model.graph)}
    if not NARROW.keys() & {*made, *ends}:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node, number in zip(copy.graph.node, made, strict=True):
        copied = onnx.NodeProto.FromString(node.SerializeToString())
        nodes += _wide(copied, number, copy.graph) if number in NARROW else [copied]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    for entry in _stated(copy.graph):
        kind = entry.type.tensor_type
        if kind.elem_type in NARROW:
            kind.elem_type = _number(NARROW[kind.elem_type])
    return copy


def _stated(graph: onnx.GraphProto) -> Sequence[onnx.ValueInfoProto]:
    """The values whose types the graph states."""
    return [*graph.input, *graph.value_info, *graph.output]


def _number(narrow: Narrow) -> int:
    """ONNX's number of the element type that holds them."""
    return helper.np_dtype_to_tensor_dtype(np.dtype(narrow.dtype))


def _made(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """The element type of what a quantizer or a cast makes, as far as it is stated; 0 for other
    nodes."""
    like = [types.get(value, 0) for value in node.input]
    match node.op_type if node.input and node.output else "":
        case "QuantizeLinear":
            stated = integer_attribute(node, "output_dtype", 0)
            return stated or (like[2] if len(like) > 2 else 0)
        case "Cast":
            return integer_attribute(node, "to", 0)
        case "CastLike":
            return like[1] if len(like) > 1 else 0
        case _:
            return 0


def _wide(node: onnx.NodeProto, number: int, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The same in eight bits."""
    if node.op_type == "QuantizeLinear":
        return _limited(node, NARROW[number], graph)
    return _wrapped(node, NARROW[number], graph)


def _limited(node: onnx.NodeProto, narrow: Narrow, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The quantizer to eight bits, and the limits of fewer."""
    output, dtype = node.output[0], np.dtype(narrow.dtype)
    kept = [a for a in node.attribute if a.name != "output_dtype"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(helper.make_attribute("output_dtype", _number(narrow)))
    node.output[0] = f"{output}.wide"
    limits = [_constant(graph, f"{output}.least", np.asarray(narrow.least, dtype))]
    limits.append(_constant(graph, f"{output}.most", np.asarray(narrow.most, dtype)))
    return [node, helper.make_node("Clip", [node.output[0], *limits], [output], f"{output}.limits")]


def _wrapped(node: onnx.NodeProto, narrow: Narrow, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The lowest bits of a number, as a cast takes them."""
    output, value = node.output[0], node.input[0]
    least = _constant(graph, f"{output}.least", np.asarray(narrow.least, np.int32))
    count = _constant(graph, f"{output}.count", np.asarray(1 << narrow.bits, np.int32))
    wide, above, turned, back = (f"{output}.{name}" for name in ("wide", "above", "turned", "back"))
    return [
        helper.make_node("Cast", [value], [wide], wide, to=TensorProto.INT32),
        helper.make_node("Sub", [wide, least], [above], above),
        helper.make_node("Mod", [above, count], [turned], turned),
        helper.make_node("Add", [turned, least], [back], back),
        helper.make_node("Cast", [back], [output], f"{output}.narrow", to=_number(narrow)),
    ]


def _constant(graph: onnx.GraphProto, name: str, array: np.ndarray) -> str:
    """The name of a constant that is in the graph from now on."""
    graph.initializer.append(numpy_helper.from_array(array, name))
    return name
