"""A quantized network as a file for other programs: floats, and a pair around each coded value.

Such a pair, QuantizeLinear and DequantizeLinear, says how the value is rounded; weights and biases
are stored as integers, each behind a DequantizeLinear. Read `qdq_model`. What it says is what
`realize` computes, up to a step of rounding.
"""

import numpy as np
import onnx

from retune.graph.graph import Graph, Node
from retune.graph.onnx_nodes import NodeWriter, write_node
from retune.graph.ops import Array
from retune.graph.quantize.annotate import Annotation, Region
from retune.graph.quantize.arithmetic import Codes, layer_weight
from retune.graph.quantize.realize import Coding

_LEAST = {"uint8": np.uint8, "int8": np.int8}


def qdq_model(graph: Graph, annotation: Annotation, coding: Coding) -> onnx.ModelProto:
    """The channels-first float graph with its regions' values in pairs.

    Raises: ModelError for a node that has no form in ONNX here.
    """
    return _Export(graph, annotation, coding).model()


class _Export:
    """The model under construction. Values keep their names; rounded ones have others."""

    def __init__(self, graph: Graph, annotation: Annotation, coding: Coding) -> None:
        self.graph = graph
        self.regions = annotation.regions
        self.coding = coding
        self.to = NodeWriter(graph)
        self.made = {region.output for region in self.regions.values()}
        self.rounded: dict[str, str] = {}

    def model(self) -> onnx.ModelProto:
        inside: set[str] = set()
        for node in self.graph.nodes:
            region = self.regions.get(node.outputs[0])
            if region is not None:
                follow = [n for n in (region.bias, region.limit) if n is not None]
                inside.update(n.outputs[0] for n in follow)
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
        apart = value in self.graph.outputs and self._is_read_rounded(value)
        return f"{value}.exact" if apart else value

    def _is_read_rounded(self, value: str) -> bool:
        return value in self.made and value in self.coding.codes

    def floating(self, value: str) -> str:
        """What a reader in floats gets."""
        if value in self.graph.constants:
            return self.to.store(value, self.graph.constants[value])
        return self.coded(value) if self._is_read_rounded(value) else value

    def coded(self, value: str) -> str:
        """What the value's codes stand for; its pair is written once."""
        if value not in self.rounded:
            codes = self.coding.codes[value]
            given = self.scale(value, codes)
            whole = self.to.node("QuantizeLinear", [self.raw(value), *given], f"{value}.codes")
            made = self.to.node("DequantizeLinear", [whole, *given], f"{value}.rounded")
            self.rounded[value] = made
        return self.rounded[value]

    def scale(self, value: str, codes: Codes) -> list[str]:
        """The names of the stored scale and zero point."""
        scale, zero = np.float32(codes.scale), _LEAST[codes.dtype](codes.zero)
        return [
            self.to.store(f"{value}.scale", np.asarray(scale)),
            self.to.store(f"{value}.zero", np.asarray(zero)),
        ]

    def region(self, region: Region) -> None:
        """The region's nodes, on rounded values."""
        chain: list[tuple[Node, list[str]]] = []
        if region.kind == "layer":
            chain += self.layer(region)
        else:
            read = {value: self.coded(value) for value in region.reads}
            node = region.node
            chain.append((node, [read.get(v) or self.floating(v) for v in node.inputs]))
            if region.bias is not None:
                chain.append((region.bias, [self.floating(region.bias.inputs[1])]))
        if region.limit is not None:
            chain.append((region.limit, []))
        value = ""
        for place, (node, inputs) in enumerate(chain):
            last = place == len(chain) - 1
            made = self.raw(region.output) if last else f"{node.outputs[0]}.inside"
            write_node(node, [value, *inputs] if place else inputs, made, self.to)
            value = made

    def layer(self, region: Region) -> list[tuple[Node, list[str]]]:
        """The layer with its stored integers; a bias of its channels belongs to it."""
        node, name = region.node, region.node.inputs[1]
        data, codes = self.coded(node.inputs[0]), self.coding.codes[node.inputs[0]]
        bias = self.graph.constants[region.bias.inputs[1]] if region.bias else np.zeros(1)
        made = self.coding.weights.get(name) or layer_weight(
            self.graph.constants[name], bias, codes, self.coding.settings
        )
        inputs = [data, self.stored(f"{name}.{node.outputs[0]}", made.codes, made.scales)]
        if region.bias is None:
            return [(node, inputs)]
        if bias.size != len(made.scales):
            return [(node, inputs), (region.bias, [self.floating(region.bias.inputs[1])])]
        scales = codes.scale * made.scales
        whole = np.rint(bias.reshape(-1).astype(np.float64) / scales).astype(np.int32)
        inputs.append(self.stored(f"{region.bias.inputs[1]}.{node.outputs[0]}", whole, scales))
        return [(node, inputs)]

    def stored(self, name: str, codes: Array, scales: Array) -> str:
        """Integers with a scale for each element of their first axis, as floats."""
        given = [
            self.to.store(f"{name}.codes", codes),
            self.to.store(f"{name}.scales", scales.astype(np.float32)),
            self.to.store(f"{name}.zeros", np.zeros(len(scales), codes.dtype)),
        ]
        return self.to.node("DequantizeLinear", given, f"{name}.floats", axis=0)
