"""Recipes that quantize a network again: settings, and ranges from samples, without weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx

from retune.core.errors import RecordError
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.annotate import Annotation, annotate
from retune.graph.quantize.arithmetic import params_of
from retune.graph.quantize.calibrate import ValueRange, calibrate
from retune.graph.quantize.correction import corrections
from retune.graph.quantize.export import qdq_model
from retune.graph.quantize.realize import Quantization, realize
from retune.graph.quantize.settings import QuantizeSettings
from retune.graph.quantize.skips import check_skips
from retune.ops import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The same network and recipe give the same integers."""

    settings: QuantizeSettings
    ranges: tuple[tuple[str, float, float], ...]
    """Value, its smallest and its largest number: one of each set of values that share a scale."""
    corrections: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Layer, by its first node's output, and what is added to its bias for each channel."""


def calibrated(graph: Graph, data: Mapping[str, Array], settings: QuantizeSettings) -> Recipe:
    """The recipe for a float network, its ranges from samples along the first dimension of inputs.

    Raises: InputError for data that the network does not take, and for skipping what it has not.
    """
    written, graph = graph, optimise(graph, "NCHW", whole=True)
    check_skips(written, graph, settings)
    scales = annotate(graph, settings).scales
    found = calibrate(graph, scales, data, settings)
    ranges = tuple((name, entry.low, entry.high) for name, entry in sorted(found.items()))
    recipe = Recipe(settings=settings, ranges=ranges)
    if not settings.bias_correction:
        return recipe
    errors = corrections(*_quantized(graph, recipe), data)
    kept = tuple((name, tuple(map(_short, array))) for name, array in errors.items())
    return replace(recipe, corrections=kept)


def quantized(graph: Graph, recipe: Recipe) -> Graph:
    """The network in integers wherever the recipe and its ops allow it, channels first.

    Inputs and outputs keep their names and types. Raises: RecordError for the recipe of another
    network.
    """
    return realize(*_quantized(optimise(graph, "NCHW", whole=True), recipe))


def qdq(graph: Graph, recipe: Recipe) -> onnx.ModelProto:
    """The same network as a model of ONNX in floats, with pairs that say how values are rounded.

    Raises: ModelError for a node that has no form in ONNX here.
    """
    return qdq_model(*_quantized(optimise(graph, "NCHW", whole=True), recipe))


def _short(number: float) -> float:
    """Six digits, as many as calibration is good for: there is one number for each channel."""
    return float(f"{number:.6g}")


def _quantized(graph: Graph, recipe: Recipe) -> tuple[Graph, Annotation, Quantization]:
    ranges = {name: ValueRange(low, high) for name, low, high in recipe.ranges}
    settings, annotation = recipe.settings, annotate(graph, recipe.settings)
    missing = sorted({*annotation.scales.values()} - ranges.keys())
    if missing:
        raise RecordError(
            f"recipe for {graph.name}: expected a range for {missing[0]!r}, and for "
            f"{len(missing) - 1} more; it is of another network or of another version: quantize "
            "again"
        )
    params = {v: params_of(ranges[s], settings) for v, s in annotation.scales.items()}
    added = {name: np.asarray(numbers) for name, numbers in recipe.corrections}
    return graph, annotation, Quantization(params=params, settings=settings, corrections=added)


def quantize(graph: Graph, data: Mapping[str, Array], settings: QuantizeSettings) -> Graph:
    """The network in integers wherever the settings and its ops allow it, channels first.

    `data` holds samples of each input along its first dimension. Inputs and outputs keep their
    names and types. Raises: InputError for data that the network does not take.
    """
    return quantized(graph, calibrated(graph, data, settings))
