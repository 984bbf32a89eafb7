"""Products with weights that are quantized in blocks, as products that take them packed.

    w = DequantizeLinear(integers, scale, zero point, block_size)
    y = MatMul(x, w)
 -> y = MatMulNBits(x, packed, scales, zero points)

Gemm, and a weight behind a Transpose, likewise. Otherwise the weight would be a constant of floats,
which takes up to eight times the memory. Read `in_blocks`.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.ops.packed import packed
from retune.proto.file import NARROW, initializers, integer_attribute
from retune.proto.scope import MICROSOFT

_BITS = {onnx.TensorProto.INT8: 8, onnx.TensorProto.UINT8: 8} | {
    number: narrow.bits for number, narrow in NARROW.items()
}
_SIGNED = (onnx.TensorProto.INT2, onnx.TensorProto.INT4, onnx.TensorProto.INT8)
_DEQUANTIZE, _BIAS = "DequantizeLinear", 2
_WORD = 32
"""Bits: blocks are whole words."""
_DOMAIN_VERSION = 1


@dataclass(frozen=True, slots=True)
class _Weight:
    """A weight in blocks: what dequantizes it, and how the product reads it."""

    node: onnx.NodeProto
    turned: bool
    """Whether outputs are its first axis."""
    between: onnx.NodeProto | None
    """The Transpose behind it."""


def in_blocks(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model whose products read packed weights where they can. The same object if none can."""
    graph = model.graph
    makers = {value: node for node in graph.node for value in node.output}
    readers = Counter(value for node in graph.node for value in node.input)
    outputs = {entry.name for entry in graph.output}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    found: dict[str, _Weight] = {}
    for node in graph.node:
        weight = _weight_of(node, makers)
        if weight is None or not (_is_blocked(weight, stored) and _has_row(node, weight, stored)):
            continue
        inner = [weight.node, *([weight.between] if weight.between else [])]
        if all(readers[n.output[0]] == 1 and n.output[0] not in outputs for n in inner):
            found[node.output[0]] = weight
    if not found:
        return model
    wanted = {value for weight in found.values() for value in weight.node.input}
    arrays = dict(initializers(graph, folder, wanted.__contains__))
    return _with_products(model, found, arrays, stored)


def _weight_of(node: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> _Weight | None:
    """What a product multiplies by, if a node dequantizes it; None for other nodes."""
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    plain = attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0 and not attrs.get("transA")
    if node.op_type not in ("MatMul", "Gemm") or not plain or len(node.input) < len("xw"):
        return None
    turned, between, maker = bool(attrs.get("transB", 0)), None, makers.get(node.input[1])
    if maker is not None and maker.op_type == "Transpose":
        turned, between, maker = not turned, maker, makers.get(maker.input[0])
    return _Weight(maker, turned, between) if maker and maker.op_type == _DEQUANTIZE else None


def _is_blocked(weight: _Weight, stored: dict[str, onnx.TensorProto]) -> bool:
    """Whether a stored matrix has blocks of whole words along the inputs of the product."""
    node = weight.node
    if not all(value in stored for value in node.input if value) or len(node.input) < len("qs"):
        return False
    matrix, scale, block = stored[node.input[0]], stored[node.input[1]], _block(node)
    if len(matrix.dims) != len(scale.dims) or len(matrix.dims) != len("kn"):
        return False
    along = int(weight.turned)
    fits = integer_attribute(node, "axis", 1) % 2 == along and block > 0
    bits = _BITS.get(matrix.data_type, 0)
    whole = fits and scale.dims[along] == -(-matrix.dims[along] // block)
    return whole and bits > 0 and block * bits % _WORD == 0 and not _typed(node)


def _has_row(node: onnx.NodeProto, weight: _Weight, stored: dict[str, onnx.TensorProto]) -> bool:
    """Whether what the product adds, if anything, is a stored element for each output."""
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    outputs = stored[weight.node.input[0]].dims[1 - int(weight.turned)]
    return not bias or (bias in stored and list(stored[bias].dims) == [outputs])


def _block(node: onnx.NodeProto) -> int:
    return integer_attribute(node, "block_size", 0)


def _typed(node: onnx.NodeProto) -> bool:
    """Whether what is made is of a stated type."""
    return integer_attribute(node, "output_dtype", 0) != 0


def _with_products(
    model: onnx.ModelProto,
    found: dict[str, _Weight],
    arrays: dict[str, Any],
    stored: dict[str, onnx.TensorProto],
) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    gone = {weight.node.output[0] for weight in found.values()}
    gone |= {weight.between.output[0] for weight in found.values() if weight.between}
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        weight = found.get(node.output[0]) if node.output else None
        if weight is not None:
            kind = stored[weight.node.input[0]].data_type
            nodes.append(_product(node, weight, kind, arrays, made.graph))
        elif not gone.intersection(node.output):
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    if all(entry.domain != MICROSOFT for entry in made.opset_import):
        made.opset_import.append(helper.make_opsetid(MICROSOFT, _DOMAIN_VERSION))
    return made


def _product(
    node: onnx.NodeProto, weight: _Weight, kind: int, arrays: dict[str, Any], to: onnx.GraphProto
) -> onnx.NodeProto:
    """The node that multiplies by packed values; what it reads is stored in the graph."""
    bits, block, lift = _BITS[kind], _block(weight.node), (1 << (_BITS[kind] - 1))
    lift = lift if kind in _SIGNED else 0
    quantized, scale, *zero = (arrays[value] for value in weight.node.input if value)
    zero = zero or [np.zeros(scale.shape, quantized.dtype)]
    if not weight.turned:
        quantized, scale, zero = quantized.T, scale.T, [zero[0].T]
    count, depth = quantized.shape
    values = (quantized.astype(np.int16) + lift).astype(np.uint8)
    values = np.pad(values, ((0, 0), (0, -depth % block))).reshape(count, -1, block)
    zeros = (zero[0].astype(np.int16) + lift).astype(np.uint8)
    zeros = np.pad(zeros, ((0, 0), (0, -zeros.shape[1] % (8 // bits))))
    name = f"{node.output[0]}.blocks"
    parts = {
        name: packed(values, bits),
        f"{name}.scales": np.ascontiguousarray(scale).reshape(-1),
        f"{name}.zeros": packed(zeros, bits).reshape(-1),
    }
    for label, array in parts.items():
        to.initializer.append(numpy_helper.from_array(array, label))
    inputs = [node.input[0], *parts]
    if len(node.input) > _BIAS and node.input[_BIAS]:
        inputs += ["", node.input[_BIAS]]
    sizes: dict[str, Any] = {"K": depth, "N": count, "bits": bits, "block_size": block}
    return helper.make_node(
        "MatMulNBits", inputs, list(node.output), node.name, domain=MICROSOFT, **sizes
    )
