"""Models that are quantized already: what QuantizeLinear and DequantizeLinear say, taken out.

Such a model (the QDQ form of onnxruntime, PyTorch and NNCF) is a float model with a pair of both
around each quantized value, and a DequantizeLinear behind each constant. `take_pairs` gives
the float model, the parameters of its values, and the integers behind its constants. Pairs that it
cannot take stay where they are, and mean what they say.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.core.dtypes import INT8, INT32, UINT8, DType, dtype_of
from retune.graph.quantize.arithmetic import QuantParams, signed_bytes
from retune.graph.quantize.given import GivenQuantization, GivenWeights
from retune.ops import Array
from retune.proto.file import initializer_names, initializers, integer_attribute
from retune.proto.scope import bodies_of

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_BYTES = (UINT8, INT8)
_LEAST_READ = 2
"""Data and a scale."""
_UINT8 = np.dtype(np.uint8)
"""The type of quantized values where nothing says it."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A model without its pairs, and what they said."""

    model: onnx.ModelProto
    params: Mapping[str, QuantParams]
    """Value of the model -> its parameters."""
    weights: GivenWeights
    sources: Mapping[str, str]
    """Value of the model -> the integers, of a type of their own, that it is made of."""
    outputs: Mapping[str, tuple[str, DType]]
    """Output of the model, in floats here -> the quantized output, and its type."""

    @property
    def given(self) -> GivenQuantization:
        """What realizing the network needs of it."""
        return GivenQuantization(self.params, self.weights, self.sources, self.outputs)


def take_pairs(model: onnx.ModelProto, folder: Path) -> Pairs | None:
    """The model without the pairs that can be taken out; None where there are none.

    Models with bodies of their own in nodes stay as they are.
    """
    graph = model.graph
    kinds = {node.op_type for node in graph.node}
    if not {_QUANTIZE, _DEQUANTIZE} <= kinds or any(any(bodies_of(n)) for n in graph.node):
        return None
    if any(len(n.input) < _LEAST_READ for n in graph.node if n.op_type in (_QUANTIZE, _DEQUANTIZE)):
        return None  # importing them says what is missing
    found = _Taking(graph, folder)
    found.take()
    if not found.params:
        return None
    return Pairs(found.without(model), found.params, found.weights, found.sources, found.quantized)


@dataclass(slots=True)
class _Taking:
    """What was found so far. Values are those of the model."""

    graph: onnx.GraphProto
    folder: Path
    params: dict[str, QuantParams] = field(default_factory=dict[str, QuantParams])
    weights: GivenWeights = field(default_factory=GivenWeights)
    floats: dict[str, Array] = field(default_factory=dict[str, Array])
    """Constants that nodes made of integers."""
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    """What a node read -> what it reads instead."""
    sources: dict[str, str] = field(default_factory=dict[str, str])
    quantized: dict[str, tuple[str, DType]] = field(default_factory=dict[str, tuple[str, DType]])
    """Value that is an output, quantized -> that output, and its type."""
    gone: set[str] = field(default_factory=set[str])
    """Outputs of nodes that are not there any more."""
    known: dict[str, Array] = field(init=False)
    readers: Counter[str] = field(init=False)
    outputs: set[str] = field(init=False)
    computed: set[str] = field(init=False)
    dequantized: set[str] = field(init=False)
    quantizers: dict[str, list[onnx.NodeProto]] = field(init=False)
    """Those of each value."""
    transposed: dict[str, int] = field(init=False)
    """Kernels of transposed convolutions, and their groups."""

    def __post_init__(self) -> None:
        nodes = self.graph.node
        own = {v for n in nodes if n.op_type in (_QUANTIZE, _DEQUANTIZE) for v in n.input}
        self.known = dict(initializers(self.graph, self.folder, own.__contains__))
        for node in nodes:
            value = node.attribute[0].t if node.op_type == "Constant" and node.attribute else None
            if value is not None and node.attribute[0].name == "value" and node.output[0] in own:
                self.known[node.output[0]] = numpy_helper.to_array(value)
        self.readers = Counter(value for node in nodes for value in node.input)
        self.computed = {value for node in nodes for value in node.output}
        self.dequantized = {v for n in nodes if n.op_type == _DEQUANTIZE for v in n.output}
        self.outputs = {entry.name for entry in self.graph.output}
        self.transposed = {
            node.input[1]: integer_attribute(node, "group", 1)
            for node in nodes
            if node.op_type == "ConvTranspose"
        }
        self.quantizers = {}
        for node in nodes:
            if node.op_type == _QUANTIZE:
                self.quantizers.setdefault(node.input[0], []).append(node)
                self.fold(node)

    def take(self) -> None:
        """All pairs, and the constants."""
        makers = {value: node for node in self.graph.node for value in node.output}
        makes: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            if node.op_type == _DEQUANTIZE and _is_plain(node):
                makes.setdefault(node.input[0], []).append(node)
        for source, nodes in makes.items():
            if source in self.known:
                for node in nodes:
                    self.constant(node, self.known[source])
                continue
            maker = makers.get(source)
            quantizer = maker if maker is not None and maker.op_type == _QUANTIZE else None
            self.pair(quantizer, nodes)
        for quantizers in self.quantizers.values():
            for quantizer in quantizers:
                if quantizer.output[0] not in makes:
                    self.pair(quantizer, [])

    def fold(self, node: onnx.NodeProto) -> None:
        """What a quantizer makes of a constant is known: weights may be stored as floats."""
        data = self.known.get(node.input[0])
        scale, zero = self.scale_of(node)
        if data is None or data.dtype != np.float32 or scale is None or not _is_plain(node):
            return
        if zero.dtype.name not in _BYTES or zero.size not in (1, scale.size):
            return
        shape = _along(node, data, scale)
        if shape is None:
            return
        rounded = np.rint(data / scale.reshape(shape))
        shifted = rounded + zero.reshape(shape if zero.size > 1 else ()).astype(np.float32)
        limits = np.iinfo(zero.dtype)
        self.known[node.output[0]] = np.clip(shifted, limits.min, limits.max).astype(zero.dtype)

    def constant(self, node: onnx.NodeProto, values: Array) -> None:
        """The node's output becomes a constant of floats."""
        scale, zero = self.scale_of(node)
        if scale is None or values.dtype.name not in (*_BYTES, INT32):
            return
        if zero.size not in (1, scale.size):
            return
        axis, column = _axis(node, values), _along(node, values, scale)
        if column is None:
            return
        scale, zero = scale.reshape(column), zero.reshape(column if zero.size > 1 else ())
        whole = values.astype(np.int64) - zero
        self.floats[node.output[0]] = (whole * scale.astype(np.float64)).astype(np.float32)
        self.gone.add(node.output[0])
        if values.dtype.name in _BYTES and values.size:
            made, along = self.floats[node.output[0]], axis if scale.size > 1 else None
            groups = self.transposed.get(node.output[0], 0)
            self.weights.add(made, signed_bytes(values, zero), scale, along, groups)

    def pair(self, quantizer: onnx.NodeProto | None, nodes: list[onnx.NodeProto]) -> None:
        """What some nodes make of the quantized values that the quantizer, or anything else, makes.

        A node without a zero point reads quantized values of whatever type they are.
        """
        usual = self.type_of(quantizer) if quantizer is not None else None
        if usual is None and not all(map(_is_typed, nodes)):
            return
        found = {self.params_of(node, usual or _UINT8) for node in (nodes or [quantizer]) if node}
        params = next(iter(found))
        if len(found) > 1 or params is None:
            return
        if (
            quantizer is None
            or self.params_of(quantizer) != params
            or not self.is_quantized(quantizer)
        ):
            self.params.update((node.output[0], params) for node in nodes)
            self.sources.update((node.output[0], node.input[0]) for node in nodes)
            return
        value, made = quantizer.input[0], quantizer.output[0]
        self.params[value] = params
        if self.readers[made] == len(nodes) and self.is_left(quantizer):
            self.gone.add(made)
        for node in nodes:
            self.gone.add(node.output[0])
            self.renamed[node.output[0]] = value

    def is_quantized(self, quantizer: onnx.NodeProto) -> bool:
        """Whether nothing reads what is quantized but quantizers by the same parameters.

        Other readers of the quantized values may as well make them from the floats. What a
        pair makes is quantized already: quantizing it again is what the quantizer says.
        """
        value, params = quantizer.input[0], self.params_of(quantizer)
        twins = [n for n in self.quantizers.get(value, ()) if self.params_of(n) == params]
        others = self.outputs | self.known.keys() | self.dequantized
        return self.readers[value] == len(twins) and value not in others

    def is_left(self, quantizer: onnx.NodeProto) -> bool:
        """Whether the graph can do without the quantized value; an output is made of its
        value's."""
        value, made = quantizer.input[0], quantizer.output[0]
        if made not in self.outputs:
            return True
        if value in self.quantized or value not in self.computed:
            return False
        self.quantized[value] = made, dtype_of(self.scale_of(quantizer)[1])
        return True

    def type_of(self, quantizer: onnx.NodeProto) -> np.dtype[Any] | None:
        """The type of the quantized values that it makes; None where that is not known here."""
        if _is_typed(quantizer):
            zero = self.known.get(quantizer.input[2])
            return zero.dtype if zero is not None else None
        return _UINT8 if _is_plain(quantizer) else None

    def params_of(self, node: onnx.NodeProto, usual: np.dtype[Any] = _UINT8) -> QuantParams | None:
        """The eight bits of a node of one scale for all; None for others.

        `usual` is the type of the quantized values where no zero point says it.

        Signed quantized values stand for the same numbers as unsigned ones with another zero point,
        and these are what more instructions multiply with signed weights.
        """
        scale, zero = self.scale_of(node, usual)
        if not _is_plain(node) or scale is None or scale.size != 1 or zero.size != 1:
            return None
        if zero.dtype.name not in _BYTES or not 0 < float(scale.flat[0]) < inf:
            return None
        shift = 128 if zero.dtype == np.int8 else 0
        return QuantParams(scale=float(scale.flat[0]), zero=int(zero.flat[0]) + shift, dtype=UINT8)

    def scale_of(
        self, node: onnx.NodeProto, usual: np.dtype[Any] = _UINT8
    ) -> tuple[Array | None, Array]:
        """The scale in float32, if it is known, and the zero points: 0 in the usual type."""
        scale = self.known.get(node.input[1])
        zero = self.known.get(node.input[2]) if _is_typed(node) else np.zeros((), usual)
        if scale is None or zero is None or scale.dtype != np.float32:
            return None, np.zeros((), np.uint8)
        return scale, zero

    def without(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """The model without what is gone; outputs keep their names."""
        made = onnx.ModelProto()
        made.CopyFrom(model)
        graph = made.graph
        kept = [node for node in graph.node if not self.gone.intersection(node.output)]
        for node in kept:
            for position, value in enumerate(node.input):
                node.input[position] = self.renamed.get(value, value)
        named = [
            helper.make_node("Identity", [value], [old])
            for old, value in self.renamed.items()
            if old in self.outputs
        ]
        for value, (output, _) in self.quantized.items():
            (entry,) = (entry for entry in graph.output if entry.name == output)
            entry.name, entry.type.tensor_type.elem_type = value, onnx.TensorProto.FLOAT
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend([*copies, *named])
        taken = initializer_names(graph)
        for value, array in self.floats.items():
            if value not in taken:
                graph.initializer.append(numpy_helper.from_array(array, value))
        return made


def _axis(node: onnx.NodeProto, array: Array) -> int:
    """The axis of the node's scales, counted from the front."""
    return integer_attribute(node, "axis", 1) % max(1, array.ndim)


def _along(node: onnx.NodeProto, array: Array, scale: Array) -> tuple[int, ...] | None:
    """The shape in which the scale broadcasts with the array; None where it does not fit."""
    if scale.size == 1:
        return ()
    axis = _axis(node, array)
    if not array.ndim or scale.shape != (array.shape[axis],):
        return None
    return tuple(-1 if d == axis else 1 for d in range(array.ndim))


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether nothing but an axis is stated: no blocks, and no other types."""
    return all(a.name == "axis" or not a.i for a in node.attribute if a.name != "saturate")


def _is_typed(node: onnx.NodeProto) -> bool:
    """Whether a zero point says of which type the quantized values are."""
    return len(node.input) > 2 and bool(node.input[2])
