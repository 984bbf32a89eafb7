"""Quantizing to integers of fewer than eight bits: to eight, and limits of what comes of it.

Stored integers of two and four bits are read as bytes, see `proto.file.tensor_array`. Read
`widened`.

    y = QuantizeLinear(x, scale, zero of int4)
 -> y = Clip(QuantizeLinear(x, scale, zero of int8), -8, 7)
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.proto.file import NARROW, integer_attribute


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose quantizers make no integers of fewer than eight bits.

    The same object if none does, outside of bodies of nodes.
    """
    types = {t.name: t.data_type for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            values = [a.t.data_type for a in node.attribute if a.name == "value"]
            types |= dict(zip(node.output, values, strict=False))  # a mutated node may lack either
    made = [_made(node, types) for node in model.graph.node]
    if not NARROW.keys() & {*made}:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node, number in zip(copy.graph.node, made, strict=True):
        copied = onnx.NodeProto.FromString(node.SerializeToString())
        nodes += _limited(copied, number, copy.graph) if number in NARROW else [copied]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


def _made(node: onnx.NodeProto, types: dict[str, int]) -> int:
    """The element type of what a quantizer makes, as far as it is stated; 0 for other nodes."""
    if node.op_type != "QuantizeLinear" or not node.output:
        return 0
    stated = integer_attribute(node, "output_dtype", 0)
    return stated or types.get(node.input[2] if len(node.input) > 2 else "", 0)


def _limited(node: onnx.NodeProto, number: int, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The quantizer to eight bits, and the limits of fewer."""
    output, narrow = node.output[0], NARROW[number]
    dtype = np.dtype(narrow.dtype)
    kept = [a for a in node.attribute if a.name != "output_dtype"]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.append(
        helper.make_attribute("output_dtype", helper.np_dtype_to_tensor_dtype(dtype))
    )
    node.output[0] = f"{output}.wide"
    names = [f"{output}.least", f"{output}.most"]
    for name, limit in zip(names, (narrow.least, narrow.most), strict=True):
        graph.initializer.append(numpy_helper.from_array(np.asarray(limit, dtype), name))
    return [node, helper.make_node("Clip", [node.output[0], *names], [output], f"{output}.limits")]
