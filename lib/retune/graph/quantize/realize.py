"""The network with integers in its regions.

Read `_Realizer` first: each old value has up to three forms in the new graph, and those that are
not there yet are made when somebody reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, prod

import numpy as np

from retune.core.dtypes import INT7, DType
from retune.core.errors import ModelError
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.graph.quantize.annotate import Annotation, QuantizedRegion
from retune.graph.quantize.arithmetic import (
    QuantizedWeight,
    QuantParams,
    ScaleError,
    added,
    centred,
    dequantized,
    layer_weight,
    quantized,
    quantized_bias,
    rescaled,
    retyped,
    whole_weights,
)
from retune.graph.quantize.functions import table
from retune.graph.quantize.settings import QuantizeSettings
from retune.intrinsics.dot4 import PACK
from retune.ops import Array, lookup
from retune.ops.registry import ints, number

_STEPS = 64
"""Of a quantized value in products with a number for each channel: they stay within 15 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the values of a network are quantized."""

    params: Mapping[str, QuantParams]
    """Of all that regions read, and of what moves make."""
    settings: QuantizeSettings
    """For weights."""
    weights: Mapping[str, QuantizedWeight] = field(default_factory=dict[str, QuantizedWeight])
    """Those that are quantized already."""
    corrections: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """What is added to biases, by layers' first nodes' outputs. [channels]"""
    binding: bool = False
    """Whether everybody reads a quantized value as it was rounded; else only integers do."""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Quantized value -> the value that holds its integers, in an eight-bit type of its own."""
    outputs: Mapping[str, tuple[str, DType]] = field(default_factory=dict[str, tuple[str, DType]])
    """Quantized output -> the name and the eight-bit type of its integers, which replace it."""

    def layer(self, graph: Graph, region: QuantizedRegion) -> tuple[QuantizedWeight, Array]:
        """The weight of a layer, and its bias as floats that broadcast with what it makes."""
        node = region.node
        weight = graph.constants[node.inputs[1]]
        bias = graph.constants[region.bias.inputs[1]] if region.bias else np.zeros(1)
        if node.outputs[0] in self.corrections:
            column = self.corrections[node.outputs[0]].reshape(-1, *[1] * (weight.ndim - 2))
            bias = bias.astype(np.float64) + column
        made = self.weights.get(node.inputs[1])
        return made or layer_weight(weight, bias, self.params[region.reads[0]], self.settings), bias

    def in_32_bits(self, graph: Graph, region: QuantizedRegion) -> bool:
        """Whether all that the layer adds up stays there, its bias in the scale of its sums."""
        made, bias = self.layer(graph, region)
        return _fits(made.whole, _whole_bias(made, bias, self.params[region.reads[0]])[1])


@dataclass(frozen=True, slots=True)
class Sum:
    """An old value as int32 values times scales, plus a bias, limited as the region says."""

    region: QuantizedRegion
    total: str
    scale: Array
    bias: Array = field(default_factory=lambda: np.zeros(()))


@dataclass(frozen=True, slots=True)
class Realized:
    """The graph whose regions compute with integers; inputs and outputs keep names and types."""

    graph: Graph
    sums: Mapping[str, Sum]
    """Where they are, by the old values."""


def realized(graph: Graph, annotation: Annotation, quantization: Quantization) -> Realized:
    """The graph in integers, and what it sums."""
    made = _Realizer(graph, annotation, quantization)
    return Realized(made.graph(), made.sums)


def realize(graph: Graph, annotation: Annotation, quantization: Quantization) -> Graph:
    """The graph in integers."""
    return realized(graph, annotation, quantization).graph


class _Realizer:
    """The new graph under construction, with the forms of each old value."""

    def __init__(self, graph: Graph, annotation: Annotation, quantization: Quantization) -> None:
        self.old = graph
        self.annotation = annotation
        self.quantization = quantization
        made = {value for node in graph.nodes for value in node.outputs}
        self.build = GraphBuilder(graph.name, fold=False, reserved=made)
        self.build.states = graph.states
        self.params = quantization.params
        self.floats: dict[str, str] = {}
        self.dequantized: dict[str, str] = {}
        """Old values, dequantized."""
        self.integers: dict[str, str] = {}
        """Old values, quantized."""
        self.sums: dict[str, Sum] = {}
        self.added: dict[str, QuantizedRegion] = {}
        """Old values that are sums of quantized ones."""
        self.tables: dict[str, QuantizedRegion] = {}
        """Old values that are functions of quantized ones."""

    def graph(self) -> Graph:
        for name in self.old.inputs:
            self.floats[name] = self.build.input(
                name, self.old.types[name], self.old.values.get(name, ())
            )
        for name, array in self.old.constants.items():
            self.floats[name] = self.build.constant(name, array, self.old.types[name].dtype)
        inside: set[str] = set()
        for node in self.old.nodes:
            region = self.annotation.regions.get(node.outputs[0])
            if region is not None:
                inside.update(n.outputs[0] for n in region.nodes)
                self.compute(region)
            elif node.outputs[0] not in inside:
                self.keep(node)
        outputs = [self.output(value) for value in self.old.outputs]
        return self.build.finish(outputs).verify()

    def output(self, value: str) -> str:
        """The output that the value is, now made."""
        output = value
        if value in self.quantization.outputs:
            output, dtype = self.quantization.outputs[value]
            made = retyped(self.build, self.integer(value), dtype)
        else:
            made = self.floating(value)
        if made != output:
            self.build.add("identity", (made,), outputs=(output,))
        return output

    def keep(self, node: Node) -> None:
        """The node as it is, in floats."""
        inputs = [self.floating(value) if value else "" for value in node.inputs]
        self.build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
        self.floats.update((value, value) for value in node.outputs)

    def floating(self, value: str) -> str:
        """The value as the old graph has it; sums that nobody reads quantized keep all bits."""
        if value in self.params and (self.quantization.binding or value not in self.floats):
            return self.rounded(value)
        if value not in self.floats:
            self.floats[value] = self.unlimited(value)
        return self.floats[value]

    def rounded(self, value: str) -> str:
        """The value, dequantized."""
        if value not in self.dequantized:
            params = self.params[value]
            whole = centred(self.build, self.integer(value), params)
            self.dequantized[value] = dequantized(self.build, whole, np.asarray(params.scale))
        return self.dequantized[value]

    def unlimited(self, value: str) -> str:
        """The sums as floats, which the region's activation then limits."""
        if value in self.added:
            region = self.added[value]
            left, right = (self.floating(term) for term in region.reads)
            found = self.build.add("add", (left, right))
        else:
            made = self.sums[value]
            region = made.region
            found = dequantized(self.build, made.total, made.scale)
            if np.any(made.bias):
                stored = self.build.constant(f"{value}.bias", np.asarray(made.bias, np.float32))
                found = self.build.add("add", (found, stored))
        limit = region.limiter
        return self.build.add(limit.op, (found,), limit.attrs) if limit else found

    def integer(self, value: str) -> str:
        """The value, quantized."""
        if value not in self.integers:
            params, source = self.params[value], self.quantization.sources.get(value)
            self.integers[value] = (
                retyped(self.build, self.floats[source], params.dtype)
                if source is not None
                else self.quantized(value, params)
            )
        return self.integers[value]

    def where(self, value: str) -> str:
        """The node that makes the value, as errors name it, and the value."""
        made = next((n for n in self.old.nodes if value in n.outputs), None)
        if made is None:
            return f"input {value!r}"
        return f"node {made.name or value!r} ({made.op}), which makes {value!r}"

    def requantized(self, value: str, params: QuantParams) -> str:
        """The value, quantized by parameters that may differ from its own."""
        own = self.params[value]
        if own == params:
            return self.integer(value)
        whole = centred(self.build, self.integer(value), own)
        try:
            return rescaled(self.build, whole, np.asarray(own.scale), params, params.limits)
        except ScaleError as error:
            raise ModelError(f"{self.old.name}: {self.where(value)}: {error}") from error

    def looked_up(self, region: QuantizedRegion, params: QuantParams) -> str:
        """The function of a quantized value, quantized: looked up in a table."""
        (read,) = region.reads
        made = table(region.nodes, read, self.old.constants, self.params[read])
        whole = np.asarray([params.quantize(number) for number in made], params.dtype)
        stored = self.build.constant(f"{region.output}.table", whole)
        return self.build.add("lookup_codes", (self.integer(read), stored))

    def quantized(self, value: str, params: QuantParams) -> str:
        if value in self.tables:
            return self.looked_up(self.tables[value], params)
        if value not in self.added and value not in self.sums:
            return quantized(self.build, self.floats[value], params)
        try:
            return (
                self.added_up(value, params) if value in self.added else self.summed(value, params)
            )
        except ModelError:  # scales that no multiplier is between, as where two terms cancel out
            return quantized(self.build, self.unlimited(value), params)

    def added_up(self, value: str, params: QuantParams) -> str:
        """The sum of quantized values, quantized. Raises: ModelError for scales too far apart."""
        region = self.added[value]
        terms = [(self.integer(term), self.params[term]) for term in region.reads]
        return added(self.build, terms, params, _limits(region.limiter, params))

    def summed(self, value: str, params: QuantParams) -> str:
        """A region's sums, quantized. Raises: ModelError for scales too far apart."""
        made = self.sums[value]
        limits = _limits(made.region.limiter, params)
        return rescaled(self.build, made.total, made.scale, params, limits, made.bias)

    def compute(self, region: QuantizedRegion) -> None:
        """The region's value: quantized for moves, else sums that are not yet rescaled."""
        node = region.node
        match region.kind:
            case "move":
                params, attrs = self.params[region.output], dict(node.attrs)
                inputs = [self.requantized(value, params) for value in region.reads]
                inputs += [self.floats[table] for table in node.inputs[len(inputs) :]]
                if node.op == "pad":
                    attrs["value"] = float(params.zero)
                self.integers[region.output] = self.build.add(node.op, inputs, attrs)
            case "layer":
                self.sums[region.output] = Sum(region, *self.layer(region))
            case "mean":
                self.sums[region.output] = Sum(region, *self.mean(node))
            case "scale":
                self.sums[region.output] = self.scaled(region)
            case "limit":
                (read,) = region.reads
                whole = centred(self.build, self.integer(read), self.params[read])
                self.sums[region.output] = Sum(region, whole, np.asarray(self.params[read].scale))
            case "product":
                self.sums[region.output] = self.product(region)
            case "sum":
                self.added[region.output] = region
            case "table":
                self.tables[region.output] = region

    def product(self, region: QuantizedRegion) -> Sum:
        """The product of quantized values without their zero points: at most 2**16 in magnitude."""
        whole = [centred(self.build, self.integer(v), self.params[v]) for v in region.reads]
        total = self.build.add("multiply", whole, name=region.node.name)
        scale = prod(self.params[value].scale for value in region.reads)
        return Sum(region, total, np.asarray(scale))

    def scaled(self, region: QuantizedRegion) -> Sum:
        """The quantized value less its zero point, times the constant."""
        data, constant = region.node.inputs
        params, factor = self.params[data], self.old.constants[constant].astype(np.float64)
        bias = self.old.constants[region.bias.inputs[1]] if region.bias else np.zeros(())
        if region.node.op == "add":
            factor, bias = np.ones(()), factor
        total = centred(self.build, self.integer(data), params)
        scale = np.asarray(params.scale * factor)
        if scale.size > 1:  # rescaling drops bits where a channel's factor is less than another's
            steps = self.build.constant(f"{data}.steps", np.asarray(_STEPS, np.int32))
            total, scale = self.build.add("multiply", (total, steps)), scale / _STEPS
        return Sum(region, total, scale, bias)

    def mean(self, node: Node) -> tuple[str, Array]:
        """The sums over what the node averages, less their zero points, and their scale."""
        if node.op == "avg_pool2d":
            return self.window_mean(node)
        if node.op == "resample":
            return self.resampled(node)
        data, params = node.inputs[0], self.params[node.inputs[0]]
        shape, attrs = self.old.types[data].shape, node.attrs
        if node.op == "global_avg_pool":
            attrs = {"axes": tuple(range(2, len(shape))), "keepdims": True}
        total = self.build.add("reduce_sum", (self.integer(data),), attrs, name=node.name)
        count = prod(shape[axis] for axis in ints(attrs, "axes"))
        total = self._less_zeros(total, data, count)
        return total, np.asarray(params.scale / count)

    def resampled(self, node: Node) -> tuple[str, Array]:
        """The sums with whole weights, and what one of them stands for."""
        data, *tables = node.inputs
        params = self.params[data]
        found = whole_weights([self.old.constants[weights] for weights in tables[1::2]])
        assert found is not None, "regions have such weights only"
        whole, shift = found
        inputs = [centred(self.build, self.integer(data), params)]
        for indices, name, weights in zip(tables[::2], tables[1::2], whole, strict=True):
            inputs += [self.floats[indices], self.build.constant(f"{name}.whole", weights)]
        total = self.build.add(node.op, inputs, node.attrs, name=node.name)
        return total, np.asarray(params.scale / 2**shift)

    def window_mean(self, node: Node) -> tuple[str, Array]:
        """The sums over windows, as a convolution with ones, and the scale of each of their means.

        What lies around the data adds nothing; how many elements a mean is of may differ.
        """
        data, params = node.inputs[0], self.params[node.inputs[0]]
        shape, kernel = self.old.types[data].shape, ints(node.attrs, "kernel")
        attrs = {key: node.attrs[key] for key in ("pads", "strides", "dilations", "layout")}
        attrs["groups"] = shape[1]
        ones = np.ones((shape[1], 1, *kernel), np.int8)
        border = {"border": params.zero} if params.zero and any(ints(attrs, "pads")) else {}
        stored = self.build.constant(f"{node.outputs[0]}.ones", ones)
        inputs = (self.integer(data), stored)
        total = self.build.add("depthwise_conv2d", inputs, attrs | border, name=node.name)
        total = self._less_zeros(total, data, prod(kernel))
        if ints(node.attrs, "pads") == ints(node.attrs, "counted"):
            return total, np.asarray(params.scale / prod(kernel))
        flat = np.ones((1, 1, *shape[2:]), np.float32)
        (mean,) = lookup(node.op).reference([flat], node.attrs)
        (whole,) = lookup("depthwise_conv2d").reference([flat, ones[:1].astype(flat.dtype)], attrs)
        counts = np.rint(whole / np.where(mean > 0, mean, 1.0))
        return total, params.scale / (
            counts.flat[0] if np.all(counts == counts.flat[0]) else counts
        )

    def _less_zeros(self, total: str, data: str, count: int) -> str:
        """The sums of so many quantized values of the data, less their zero points."""
        if not (zero := self.params[data].zero):
            return total
        less = self.build.constant(f"{data}.zeros", np.asarray(-zero * count, np.int32))
        return self.build.add("add", (total, less))

    def layer(self, region: QuantizedRegion) -> tuple[str, Array]:
        """The sums of products, with the bias, and their scales.

        Products are of quantized values as they are: the bias holds what the zero point adds.
        """
        node, params = region.node, self.params[region.node.inputs[0]]
        made, bias = self.quantization.layer(self.old, region)
        weight = made.values
        total = self.products(node, weight, params)
        if np.any(made.rest):
            total = self.less_rest(node, made, total, params)
        scale, whole = _whole_bias(made, bias, params)
        if not _fits(made.whole, whole):
            raise ModelError(
                f"{self.old.name}: {self.where(node.outputs[0])}: expected sums of 32 bits, got "
                f"{weight[0].size} products and a bias that may leave them; leave it in floats, by "
                f"its output's name {node.outputs[0]!r}"
            )
        if np.any(whole):
            name = f"{(region.bias or node).outputs[0]}.bias"
            stored = self.build.constant(name, whole.astype(np.int32))
            total = self.build.add("add", (total, stored))
        return total, scale

    def less_rest(self, node: Node, made: QuantizedWeight, total: str, params: QuantParams) -> str:
        """The sums less those of the data alone, times the rest of each channel."""
        count = len(made.values) if node.op == "depthwise_conv2d" else 1
        sums = self.products(node, np.ones((count, *made.values.shape[1:]), np.int8), params)
        rest = made.rest.reshape(-1, *[1] * (made.values.ndim - 2))
        stored = self.build.constant(f"{node.inputs[1]}.rest", rest)
        return self.build.add("subtract", (total, self.build.add("multiply", (sums, stored))))

    def products(self, node: Node, weight: Array, params: QuantParams) -> str:
        """The layer's sums over quantized values; their zero point is around and between them.

        Channels come in words of four, which is what instructions take: those that are missing
        have no weight.
        """
        value, attrs = self.integer(node.inputs[0]), dict(node.attrs)
        whole = weight.shape[1] == self.old.types[node.inputs[0]].shape[1]
        missing = -weight.shape[1] % PACK
        if missing and whole:
            none = [0] * weight.ndim
            pads = (*none, 0, missing, *none[2:])
            value = self.build.add("pad", (value,), {"pads": pads, "value": 0.0})
            weight = np.pad(weight, [(0, 0), (0, missing), *[(0, 0)] * (weight.ndim - 2)])
        surrounded = node.op == "conv_transpose" or any(
            ints(attrs, "pads") if "pads" in attrs else ()
        )
        if params.zero and surrounded:
            attrs["border"] = params.zero
        stored = self.build.constant(f"{node.inputs[1]}.codes", weight, INT7)
        return self.build.add(node.op, (value, stored), attrs, name=node.name)


def _whole_bias(made: QuantizedWeight, bias: Array, params: QuantParams) -> tuple[Array, Array]:
    """The scale of a layer's sums, and what is added to sums of quantized values. float64

    That is the bias, less what the zero point of the data adds; no number where a scale is 0.
    """
    column = (-1, *[1] * (made.values.ndim - 2))
    scale = np.asarray(params.scale * made.scales[0])
    if np.any(made.scales != made.scales[0]):
        scale = (params.scale * made.scales).reshape(column)
    sums = made.whole.astype(np.int64).sum(axis=tuple(range(1, made.values.ndim)))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return scale, quantized_bias(bias, scale) - params.zero * sums.reshape(column)


def _fits(weight: Array, bias: Array) -> bool:
    """Whether sums of products of bytes with such weights, and the bias, stay in 32 bits."""
    reach = 255 * np.abs(weight.astype(np.int64)).sum(axis=tuple(range(1, weight.ndim))).max()
    return bool(reach + np.abs(bias).max() < 2**31)


def _limits(limit: Node | None, params: QuantParams) -> tuple[int, int]:
    """The least and the largest quantized value that the activation leaves."""
    if limit is None:
        return params.limits
    low, high = (0.0, inf) if limit.op == "relu" else _bounds(limit)
    least, most = params.limits
    return (
        least if low == -inf else params.quantize(low),
        most if high == inf else params.quantize(high),
    )


def _bounds(limit: Node) -> tuple[float, float]:
    return number(limit.attrs, "min"), number(limit.attrs, "max")
