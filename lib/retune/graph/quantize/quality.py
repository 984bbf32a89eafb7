"""Loss by quantization: noise of each layer, and agreement with the float outputs.

Read `layer_noise` and `agreement`. Both run the graphs by their numpy meaning.
"""

from collections.abc import Mapping

import numpy as np

from retune.core.results import LayerQuality, OutputQuality, decibels
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.annotate import QuantizedRegion, annotate
from retune.graph.quantize.arithmetic import QuantParams, params_of, quantized_weight
from retune.graph.quantize.calibrate import calibrate, parts_of, values_over
from retune.graph.quantize.settings import QuantizeSettings
from retune.graph.quantize.skips import check_skips
from retune.ops import Array, lookup


def layer_noise(
    graph: Graph,
    ranges_from: Mapping[str, Array],
    data: Mapping[str, Array],
    settings: QuantizeSettings,
) -> tuple[LayerQuality, ...]:
    """The noise of each convolution and dense layer that computes with integers, in their order.

    Ranges are calibrated on `ranges_from`; noise and saturation are those over `data`. Noise is of
    the quantization of what a layer reads and of its weights; biases, and the rounding of what it
    makes, are left to those that read it. Raises: InputError, as `quantize` does.
    """
    written, graph = graph, optimise(graph, "NCHW", whole=True)
    check_skips(written, graph, settings)
    annotation = annotate(graph, settings)
    ranges = calibrate(graph, annotation.scales, ranges_from, settings)
    layers = [region for region in annotation.regions.values() if region.kind == "layer"]
    stands = {r.reads[0]: annotation.scales[r.reads[0]] for r in layers}
    params = {value: params_of(ranges[root], settings) for value, root in stands.items()}
    meters = [_Meter(graph, layer, params[layer.reads[0]], settings) for layer in layers]
    for value, array in values_over(graph, stands, parts_of(graph, data)) if layers else ():
        for meter in meters:
            if meter.reads == value:
                meter.measure(array)
    return tuple(meter.result() for meter in meters)


def agreement(one: Graph, other: Graph, data: Mapping[str, Array]) -> tuple[OutputQuality, ...]:
    """Each output of floats, in order, of both graphs over all whole parts of the data.

    The graphs have the same inputs and outputs. Raises: InputError for data of no whole part.
    """
    return compared(outputs_over(one, data), outputs_over(other, data))


def outputs_over(graph: Graph, data: Mapping[str, Array]) -> dict[str, Array]:
    """Each output of floats, in order, for all whole parts of the data: their count comes first.

    Raises: InputError for data of no whole part.
    """
    names = [name for name in graph.outputs if graph.types[name].dtype.is_float]
    runs = [run_graph(graph, inputs) for inputs in parts_of(graph, data)]
    return {name: np.stack([run[name] for run in runs]).astype(np.float64) for name in names}


def compared(one: Mapping[str, Array], other: Mapping[str, Array]) -> tuple[OutputQuality, ...]:
    """The agreement of what two networks made of the same data, as `outputs_over` has it."""
    return tuple(_agreement(name, array, other[name]) for name, array in one.items())


class _Meter:
    """Sums over samples for one layer."""

    def __init__(
        self, graph: Graph, layer: QuantizedRegion, params: QuantParams, settings: QuantizeSettings
    ) -> None:
        self.reads = layer.reads[0]
        self._layer, self._params = layer, params
        self._weight = graph.constants[layer.node.inputs[1]]
        made = quantized_weight(self._weight, settings, least=np.zeros(1))
        integers, scales = made.values, made.scales
        column = scales.reshape(-1, *[1] * (self._weight.ndim - 1))
        self._rounded = (integers * column).astype(np.float32)
        self._signal = self._noise = 0.0
        self._outside = self._seen = 0

    def measure(self, array: Array) -> None:
        """Adds what the layer makes of these activations."""
        low, high = self._params.limits
        integers = np.rint(array.astype(np.float64) / self._params.scale) + self._params.zero
        self._outside += int(np.count_nonzero((integers < low) | (integers > high)))
        self._seen += array.size
        inside = (np.clip(integers, low, high) - self._params.zero) * self._params.scale
        exact = self._product(array, self._weight)
        error = self._product(inside.astype(np.float32), self._rounded) - exact
        self._signal += float(np.sum(exact**2))
        self._noise += float(np.sum(error**2))

    def result(self) -> LayerQuality:
        """The quality over all samples so far."""
        return LayerQuality(
            layer=self._layer.node.outputs[0],
            op=self._layer.node.op,
            decibels=decibels(self._signal, self._noise),
            saturation=self._outside / max(self._seen, 1),
        )

    def _product(self, array: Array, weight: Array) -> Array:
        node = self._layer.node
        (made,) = lookup(node.op).reference([array, weight], node.attrs)
        return np.asarray(made).astype(np.float64)


def _agreement(name: str, one: Array, other: Array) -> OutputQuality:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    same = bool(np.array_equal(one, other))
    cosine = float(np.sum(one * other)) / lengths if lengths else float(same)
    rows = one.ndim > 2 and one.shape[-1] > 1  # the first axis counts the parts
    top1 = float(np.mean(one.argmax(-1) == other.argmax(-1))) if rows else None
    extent = (float(np.ptp(one)) or float(np.abs(one).max()) or 1.0) if one.size else 1.0
    deviation = float(np.abs(one - other).max()) / extent if one.size else 0.0
    return OutputQuality(output=name, cosine=cosine, top1=top1, deviation=deviation)
