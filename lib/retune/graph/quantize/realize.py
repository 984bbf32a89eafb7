"""The network with integers in its regions.

Read `_Realizer` first: each old value has up to three forms in the new graph, and those that are
not there yet are made when somebody reads them.
"""

from collections.abc import Mapping
from math import inf, prod

import numpy as np

from retune.graph.graph import Graph, GraphBuilder, Node
from retune.graph.ops import Array
from retune.graph.ops.registry import ints, number
from retune.graph.quantize.annotate import Annotation, Region
from retune.graph.quantize.arithmetic import (
    Codes,
    centred,
    coded_weight,
    codes_of,
    dequantized,
    quantized,
    rescaled,
)
from retune.graph.quantize.calibrate import Range
from retune.graph.quantize.settings import QuantizeSettings

_INT32 = np.iinfo(np.int32)


def realize(
    graph: Graph,
    annotation: Annotation,
    ranges: Mapping[str, Range],
    settings: QuantizeSettings,
) -> Graph:
    """The graph whose regions compute with integers; inputs and outputs keep names and types."""
    return _Realizer(graph, annotation, ranges, settings).graph()


class _Realizer:
    """The new graph under construction, with the forms of each old value."""

    def __init__(
        self,
        graph: Graph,
        annotation: Annotation,
        ranges: Mapping[str, Range],
        settings: QuantizeSettings,
    ) -> None:
        self.old = graph
        self.annotation = annotation
        self.settings = settings
        made = {value for node in graph.nodes for value in node.outputs}
        self.build = GraphBuilder(graph.name, fold=False, reserved=made)
        self.codes = {v: codes_of(ranges[s], settings) for v, s in annotation.scales.items()}
        self.floats: dict[str, str] = {}
        self.integers: dict[str, str] = {}
        """Old values whose codes are there."""
        self.sums: dict[str, tuple[Region, list[tuple[str, Array]]]] = {}
        """Old values that are sums of int32 values times scales, limited as the region says."""

    def graph(self) -> Graph:
        for name in self.old.inputs:
            self.floats[name] = self.build.input(name, self.old.types[name])
        for name, array in self.old.constants.items():
            self.floats[name] = self.build.constant(name, array)
        inside: set[str] = set()
        for node in self.old.nodes:
            region = self.annotation.regions.get(node.outputs[0])
            if region is not None:
                follow = (n for n in (region.bias, region.limit) if n is not None)
                inside.update(n.outputs[0] for n in follow)
                self.compute(region)
            elif node.outputs[0] not in inside:
                self.keep(node)
        for output in self.old.outputs:
            if self.floating(output) != output:
                self.build.add("identity", (self.floating(output),), outputs=(output,))
        return self.build.finish(self.old.outputs).verify()

    def keep(self, node: Node) -> None:
        """The node as it is, in floats."""
        inputs = [self.floating(value) if value else "" for value in node.inputs]
        self.build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
        self.floats.update((value, value) for value in node.outputs)

    def floating(self, value: str) -> str:
        """The value as the old graph has it; sums that nobody reads as codes keep all bits."""
        if value not in self.floats:
            if value in self.codes:
                whole = centred(self.build, self.integer(value), self.codes[value])
                self.floats[value] = dequantized(
                    self.build, whole, np.asarray(self.codes[value].scale)
                )
            else:
                self.floats[value] = self.unlimited(value)
        return self.floats[value]

    def unlimited(self, value: str) -> str:
        """The sums as floats, which the region's activation then limits."""
        region, terms = self.sums[value]
        found = ""
        for term, scale in terms:
            number_of = dequantized(self.build, term, scale)
            found = self.build.add("add", (found, number_of)) if found else number_of
        limit = region.limit
        return self.build.add(limit.op, (found,), limit.attrs) if limit else found

    def integer(self, value: str) -> str:
        """The value's codes."""
        if value not in self.integers:
            codes = self.codes[value]
            if value in self.sums:
                region, terms = self.sums[value]
                limits = _limits(region.limit, codes)
                self.integers[value] = rescaled(self.build, terms, codes, limits)
            else:
                self.integers[value] = quantized(self.build, self.floats[value], codes)
        return self.integers[value]

    def compute(self, region: Region) -> None:
        """The region's value: codes for moves, else sums that are not yet rescaled."""
        node = region.node
        if region.kind == "move":
            inputs = [self.integer(value) for value in node.inputs]
            self.integers[region.output] = self.build.add(node.op, inputs, node.attrs)
            return
        numbers = [
            (centred(self.build, self.integer(v), self.codes[v]), np.asarray(self.codes[v].scale))
            for v in region.reads
        ]
        if region.kind == "layer":
            numbers = [self.layer(region, *numbers[0])]
        elif region.kind == "mean":
            numbers = [self.mean(node, *numbers[0])]
        self.sums[region.output] = region, numbers

    def mean(self, node: Node, data: str, scale: Array) -> tuple[str, Array]:
        """The sums over what the node averages, and their scale."""
        shape = self.old.types[node.inputs[0]].shape
        attrs = node.attrs
        if node.op == "global_avg_pool":
            attrs = {"axes": tuple(range(2, len(shape))), "keepdims": True}
        total = self.build.add("reduce_sum", (data,), attrs, name=node.name)
        return total, scale / prod(shape[axis] for axis in ints(attrs, "axes"))

    def layer(self, region: Region, data: str, scale: Array) -> tuple[str, Array]:
        """The sums of products, with the bias, and their scales."""
        node = region.node
        weight, scales = coded_weight(self.old.constants[node.inputs[1]], self.settings)
        stored = self.build.constant(f"{node.inputs[1]}.int8", weight)
        wide = self.build.add("cast", (stored,), {"to": "int32"})
        total = self.build.add(node.op, (data, wide), node.attrs, name=node.name)
        if np.all(scales == scales[0]):
            made = np.asarray(scale * scales[0])
        else:
            made = (scale * scales).reshape(-1, *[1] * (weight.ndim - 2))
        if region.bias is not None:
            exact = self.old.constants[region.bias.inputs[1]] / made
            bias = np.clip(np.rint(exact), _INT32.min, _INT32.max).astype(np.int32)
            stored = self.build.constant(f"{region.bias.inputs[1]}.int32", bias)
            total = self.build.add("add", (total, stored), name=region.bias.name)
        return total, made


def _limits(limit: Node | None, codes: Codes) -> tuple[int, int]:
    """The codes between which the activation leaves its input."""
    if limit is None:
        return codes.limits
    low, high = (0.0, inf) if limit.op == "relu" else _bounds(limit)
    least, most = codes.limits
    return (
        least if low == -inf else codes.code(low),
        most if high == inf else codes.code(high),
    )


def _bounds(limit: Node) -> tuple[float, float]:
    return number(limit.attrs, "min"), number(limit.attrs, "max")
