"""Which layers to leave in floats, so that a quantized network still answers as the float one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retune.core.errors import InputError
from retune.graph.graph import Graph
from retune.graph.ops import Array
from retune.graph.quantize.quality import agreement, layer_noise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A quantized network with as many layers in floats as it took."""

    graph: Graph
    settings: QuantizeSettings
    """Those asked for, with the layers left in floats among `skip`."""
    layers: tuple[str, ...]
    """What was left in floats, the noisiest first."""
    top1: float
    """The smallest agreement of an output with the float network's."""


def leave_in_floats(
    graph: Graph, data: Mapping[str, Array], settings: QuantizeSettings, *, drop: float
) -> Left:
    """The network quantized, with its noisiest layers in floats until it disagrees little enough.

    `drop` is in points: the largest part of the rows, in percent, whose largest element may be
    another than in the float network, over `data`, which calibrates as well. If that takes all
    layers, all are left. Raises: InputError, as `quantize` does, for a drop outside 0 to 100, and
    for a network without an output that has a largest element.
    """
    if not 0 <= drop <= 100:
        raise InputError(f"accuracy drop: expected points from 0 to 100, got {drop:g}")
    noise = layer_noise(graph, data, data, settings)
    ranked = [entry.layer for entry in sorted(noise, key=lambda entry: entry.signal_to_noise)]
    layers: tuple[str, ...] = ()
    while True:
        tried = replace(settings, skip=(*settings.skip, *layers))
        made = quantize(graph, data, tried)
        top1 = _least_top1(graph, made, data)
        if 100 * (1 - top1) <= drop or len(layers) == len(ranked):
            return Left(graph=made, settings=tried, layers=layers, top1=top1)
        layers = tuple(ranked[: len(layers) + 1])


def _least_top1(graph: Graph, made: Graph, data: Mapping[str, Array]) -> float:
    found = [entry.top1 for entry in agreement(graph, made, data) if entry.top1 is not None]
    if not found:
        raise InputError(
            f"{graph.name}: an accuracy drop needs an output with several scores along its last "
            "axis; got none; leave the drop out, or name what to skip"
        )
    return min(found)
