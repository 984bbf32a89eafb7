"""A quantized network as a file for other programs: floats, and a pair around each quantized value.

Such a pair, QuantizeLinear and DequantizeLinear, says how the value is rounded; weights and biases
are stored as integers, each behind a DequantizeLinear. Read `qdq_model`. What it says is what
`realize` computes, up to a step of rounding.
"""

import numpy as np
import onnx

from retune.core.dtypes import INT8, UINT8
from retune.graph.graph import Graph, Node
from retune.graph.onnx_nodes import NodeWriter, write_node
from retune.graph.quantize.annotate import Annotation, QuantizedRegion
from retune.graph.quantize.arithmetic import QuantizedWeight, QuantParams, quantized_bias
from retune.graph.quantize.realize import Quantization
from retune.ops import Array

_LEAST = {UINT8: np.uint8, INT8: np.int8}


def qdq_model(graph: Graph, annotation: Annotation, quantization: Quantization) -> onnx.ModelProto:
    """The channels-first float graph with its regions' values in pairs.

    Raises: ModelError for a node that has no form in ONNX here.
    """
    return _Export(graph, annotation, quantization).model()


class _Export:
    """The model under construction. Values keep their names; rounded ones have others."""

    def __init__(self, graph: Graph, annotation: Annotation, quantization: Quantization) -> None:
        self.graph = graph
        self.regions = annotation.regions
        self.quantization = quantization
        self.to = NodeWriter(graph)
        self.made = {region.output for region in self.regions.values()}
        self.rounded: dict[str, str] = {}

    def model(self) -> onnx.ModelProto:
        inside: set[str] = set()
        for node in self.graph.nodes:
            region = self.regions.get(node.outputs[0])
            if region is not None:
                inside.update(n.outputs[0] for n in region.nodes)
                self.region(region)
            elif node.outputs[0] not in inside:
                inputs = [self.floating(value) for value in node.inputs]
                write_node(node, inputs, self.raw(node.outputs[0]), self.to)
        for output in self.graph.outputs:
            if self.floating(output) != output:
                self.to.node("Identity", [self.floating(output)], output)
        return self.to.model()

    def raw(self, value: str) -> str:
        """The value before it is rounded; an output's own name is that of what readers get."""
        apart = value in self.graph.ends and self._is_read_rounded(value)
        return f"{value}.exact" if apart else value

    def _is_read_rounded(self, value: str) -> bool:
        return value in self.made and value in self.quantization.params

    def floating(self, value: str) -> str:
        """What a reader in floats gets."""
        if value in self.graph.constants:
            return self.to.store(value, self.graph.constants[value])
        return self.dequantized(value) if self._is_read_rounded(value) else value

    def dequantized(self, value: str) -> str:
        """The value, quantized and dequantized; its pair is written once."""
        if value not in self.rounded:
            params = self.quantization.params[value]
            given = self.scale(value, params)
            whole = self.to.node("QuantizeLinear", [self.raw(value), *given], f"{value}.codes")
            made = self.to.node("DequantizeLinear", [whole, *given], f"{value}.rounded")
            self.rounded[value] = made
        return self.rounded[value]

    def scale(self, value: str, params: QuantParams) -> list[str]:
        """The names of the stored scale and zero point."""
        scale, zero = np.float32(params.scale), _LEAST[params.dtype](params.zero)
        return [
            self.to.store(f"{value}.scale", np.asarray(scale)),
            self.to.store(f"{value}.zero", np.asarray(zero)),
        ]

    def region(self, region: QuantizedRegion) -> None:
        """The region's nodes, on rounded values."""
        known = {value: self.dequantized(value) for value in region.reads}
        done: list[str] = []
        for node in region.nodes:
            if node is region.node and region.kind == "layer":
                inputs, done = self.layer(region)
            elif node.outputs[0] in done:
                continue
            else:
                inputs = [known.get(value) or self.floating(value) for value in node.inputs]
                done = [node.outputs[0]]
            made = self.raw(done[-1]) if done[-1] == region.output else f"{done[-1]}.inside"
            write_node(node, inputs, made, self.to)
            known[done[-1]] = made

    def layer(self, region: QuantizedRegion) -> tuple[list[str], list[str]]:
        """What the layer's node reads, integers among it, and the old values that it then makes.

        A bias of its channels belongs to it.
        """
        node, name = region.node, region.node.inputs[1]
        data, params = self.dequantized(node.inputs[0]), self.quantization.params[node.inputs[0]]
        made, bias = self.quantization.layer(self.graph, region)
        inputs = [data, self.kernel(f"{name}.{node.outputs[0]}", node, made)]
        if bias.size != len(made.scales) or not (region.bias or np.any(bias)):
            return inputs, [*node.outputs]
        scales = params.scale * made.scales
        whole = quantized_bias(bias.reshape(-1), scales).astype(np.int32)
        inputs.append(self.stored(f"{node.outputs[0]}.bias", whole, scales))
        return inputs, [*node.outputs, *(region.bias.outputs if region.bias else ())]

    def kernel(self, name: str, node: Node, made: QuantizedWeight) -> str:
        """The layer's weight as floats. ONNX has the scales of a transposed convolution in one
        group along the second axis; those of several groups are turned behind them."""
        if node.op != "conv_transpose" or node.attrs["groups"] != 1:
            return self.stored(name, made.values, made.scales)
        floats = self.stored(name, made.values.swapaxes(0, 1), made.scales, axis=1)
        self.to.kernels[floats] = floats
        return floats

    def stored(self, name: str, values: Array, scales: Array, axis: int = 0) -> str:
        """Integers with a scale for each element of an axis, as floats."""
        given = [
            self.to.store(f"{name}.codes", values),
            self.to.store(f"{name}.scales", scales.astype(np.float32)),
            self.to.store(f"{name}.zeros", np.zeros(len(scales), values.dtype)),
        ]
        return self.to.node("DequantizeLinear", given, f"{name}.floats", axis=axis)
