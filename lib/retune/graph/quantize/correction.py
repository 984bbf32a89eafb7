"""Bias correction: the average outputs of quantized layers become those of float ones.

Rounded weights and activations shift the mean of what a layer makes: the mean error over samples,
by channel, is added to its bias. Layer after layer, each over what the corrected layers before it
make. Source: Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", section 4.2; over samples instead of the statistics of batch norms.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from retune.graph.evaluate import run_parts
from retune.graph.graph import Graph
from retune.graph.quantize.annotate import Annotation, QuantizedRegion
from retune.graph.quantize.arithmetic import quantized_bias
from retune.graph.quantize.calibrate import parts_of, values_over
from retune.graph.quantize.realize import Quantization, realized
from retune.ops import Array

_PARTS = 32
"""Of the samples, at most: they run together, so that all are in memory."""
_MOST_SHIFT = 2**30
"""Of sums, in magnitude: as much as biases have; more only where the limits exclude all of the
values."""


def corrections(
    graph: Graph, annotation: Annotation, quantization: Quantization, data: Mapping[str, Array]
) -> dict[str, Array]:
    """What to add to the bias of each layer, by its first node's output. float64 [channels]

    Layers whose bias is not one number for each channel have none. `data` is as `calibrate` has it.
    Raises: InputError.
    """
    layers = [r for r in annotation.regions.values() if r.kind == "layer" and _fits(graph, r)]
    parts = list(islice(parts_of(graph, data), _PARTS))
    made = realized(graph, annotation, quantization)
    wanted = _float_means(graph, layers, parts)
    layer_of = {made.sums[layer.output].total: layer for layer in layers}
    found: dict[str, Array] = {}

    def correct(value: str, arrays: Sequence[Array]) -> Sequence[Array]:
        layer = layer_of.get(value)
        if layer is None:
            return arrays
        name, scale = layer.node.outputs[0], made.sums[layer.output].scale
        weight = graph.constants[layer.node.inputs[1]]
        column = (-1, *[1] * (weight.ndim - 2))
        mean = np.mean([_by_channel(array, weight) for array in arrays], axis=0)
        found[name] = wanted[name] - mean * np.broadcast_to(scale.reshape(-1), mean.shape)
        _, bias = quantization.layer(graph, layer)
        # As it is going to be quantized: the rounded sum, which is not the sum of what is rounded.
        corrected = quantized_bias(bias.astype(np.float64) + found[name].reshape(column), scale)
        shift = corrected - quantized_bias(bias, scale)
        shift = np.clip(shift, -_MOST_SHIFT, _MOST_SHIFT).astype(np.int32)
        return [array + shift for array in arrays]

    run_parts(made.graph, parts, correct)
    return found


def _fits(graph: Graph, layer: QuantizedRegion) -> bool:
    """Whether the layer's bias is one number, or one for each channel, or nothing."""
    channels = len(graph.constants[layer.node.inputs[1]])
    return layer.bias is None or graph.constants[layer.bias.inputs[1]].size in (1, channels)


def _float_means(
    graph: Graph, layers: Sequence[QuantizedRegion], parts: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """The mean of each channel of a layer, its bias included, by its first node's output."""
    ends = {(layer.bias or layer.node).outputs[0]: layer for layer in layers}
    found: dict[str, list[Array]] = {layer.node.outputs[0]: [] for layer in layers}
    for value, array in values_over(graph, tuple(ends), parts):
        node = ends[value].node
        found[node.outputs[0]].append(_by_channel(array, graph.constants[node.inputs[1]]))
    return {name: np.mean(means, axis=0) for name, means in found.items()}


def _by_channel(array: Array, weight: Array) -> Array:
    """The mean of each channel of what a layer with that weight makes. float64 [channels]"""
    channel = array.ndim - weight.ndim + 1
    others = tuple(axis for axis in range(array.ndim) if axis != channel)
    return array.mean(axis=others, dtype=np.float64)
