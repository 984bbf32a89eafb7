"""Quantization: a float network to one of integers that means nearly the same.

`quantize` is the name to read first; `annotate` says what computes with integers, `calibrate` finds
the ranges of values, `realize` writes the new graph by what `arithmetic` knows of integers.
"""

from collections.abc import Mapping

from retune.graph.graph import Graph
from retune.graph.ops import Array
from retune.graph.passes import optimise
from retune.graph.quantize.annotate import annotate
from retune.graph.quantize.calibrate import calibrate
from retune.graph.quantize.realize import realize
from retune.graph.quantize.settings import POWER2, QuantizeSettings

__all__ = ["POWER2", "QuantizeSettings", "quantize"]


def quantize(graph: Graph, data: Mapping[str, Array], settings: QuantizeSettings) -> Graph:
    """The network in integers wherever the settings and its ops allow it, channels first.

    `data` holds samples of each input along its first dimension. Inputs and outputs keep their
    names and types. Raises: InputError for data that the network does not take.
    """
    graph = optimise(graph, "NCHW")
    annotation = annotate(graph, settings)
    ranges = calibrate(graph, annotation.scales, data, settings)
    return realize(graph, annotation, ranges, settings)
