"""Selection of layers to leave in floats, so that a quantized network keeps its answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from retune.core.errors import InputError
from retune.core.results import OutputQuality
from retune.graph.graph import Graph
from retune.graph.quantize.quality import compared, layer_noise, outputs_over
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array

T = TypeVar("T")


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

    @property
    def disagreement(self) -> float:
        """What is missing of full agreement, in points."""
        return 100 * (1 - self.top1)


def leave_in_floats(
    graph: Graph,
    known: Mapping[str, Array],
    new: Mapping[str, Array],
    settings: QuantizeSettings,
    *,
    drop: float,
) -> Left:
    """The network quantized, with its noisiest layers in floats until it disagrees little enough.

    `drop` is in points: the largest part of the rows, in percent, whose largest element may be
    another than in the float network, over the samples `new`; those that are `known` calibrate.
    How many layers it takes is found by halving, see `fewest`. If all do not suffice, all are left.
    Raises: InputError, as `quantize` does, for a drop outside 0 to 100, and for a network without
    an output that has a largest element.
    """
    if not 0 <= drop <= 100:
        raise InputError(f"accuracy drop: expected points from 0 to 100, got {drop:g}")
    noise = layer_noise(graph, known, new, settings)
    ranked = [entry.layer for entry in sorted(noise, key=lambda entry: entry.decibels)]
    expected = outputs_over(graph, new)

    def left(layers: tuple[str, ...]) -> Left:
        tried = replace(settings, skip=(*settings.skip, *layers)) if layers else settings
        made = quantize(graph, known, tried)
        top1 = _least_top1(graph, compared(expected, outputs_over(made, new)))
        return Left(graph=made, settings=tried, layers=layers, top1=top1)

    return fewest(ranked, left, lambda tried: tried.disagreement <= drop)


def fewest(
    ranked: Sequence[str],
    attempt: Callable[[tuple[str, ...]], T],
    enough: Callable[[T], bool],
) -> T:
    """The attempt with the fewest of the ranked layers, the first ones, that is good enough.

    It is found by halving: with one fewer it is not, unless that is so with some number in between
    alone. If all do not suffice, the attempt is with all.
    """
    best = attempt(())
    if enough(best) or not ranked:
        return best
    too_few, count, found = 0, len(ranked), False
    while count - too_few > 1:
        middle = (too_few + count) // 2
        tried = attempt(tuple(ranked[:middle]))
        if enough(tried):
            best, count, found = tried, middle, True
        else:
            too_few = middle
    return best if found else attempt(tuple(ranked[:count]))


def _least_top1(graph: Graph, found: Sequence[OutputQuality]) -> float:
    known = [entry.top1 for entry in found if entry.top1 is not None]
    if not known:
        raise InputError(
            f"{graph.name}: an accuracy drop needs an output with several scores along its last "
            "axis; got none; leave the drop out, or name what to skip"
        )
    return min(known)
