"""The ranges of activations: what they were over a data set, cut off as the method says.

Read `calibrate` first. All but `minmax` and `global_scale` choose a largest magnitude from a
histogram of magnitudes, and limit the range by it at both ends.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from retune.core.errors import InputError
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, without_dead
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array

_BINS = 2048
_LEVELS = 128
"""Magnitudes that an integer of eight bits tells apart."""
_STEP = 16
"""Bins from one candidate for the largest magnitude to the next."""
_SMALLEST = 2.0**-110
"""The largest magnitude of a range that is not all zeros: devices may take a float below 2**-126
for zero, such as the step from one bin to the next."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The smallest and the largest value; 0 is always between them."""

    low: float
    high: float

    @property
    def magnitude(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


def calibrate(
    graph: Graph,
    scales: Mapping[str, str],
    data: Mapping[str, Array],
    settings: QuantizeSettings,
) -> dict[str, ValueRange]:
    """The range of each value that stands for others in `scales`, by name.

    `data` holds samples one after another along the first dimension of each input, and is run in
    parts of the graph's own extent. Raises: InputError, also for values that are not finite.
    """
    if settings.method == "global_scale":
        limit = settings.global_scale
        return {stands: ValueRange(-limit, limit) for stands in scales.values()}
    ranges: dict[str, ValueRange] = {}
    for value, array in values_over(graph, scales, parts_of(graph, data)):
        old = ranges.get(scales[value], ValueRange(0.0, 0.0))
        least, most = float(array.min()), float(array.max())
        if not isfinite(least) or not isfinite(most):
            raise InputError(
                f"calibrating {graph.name}: '{value}' is infinite or no number for some sample; "
                "expected finite numbers; calibrate with samples for which they are, or leave in "
                "floats, by skip, what reads it"
            )
        ranges[scales[value]] = ValueRange(min(old.low, least), max(old.high, most))
    ranges = {name: _or_zero(entry) for name, entry in ranges.items()}
    if settings.method == "minmax":
        return ranges
    counts = {stands: np.zeros(_BINS) for stands in ranges}
    for value, array in values_over(graph, scales, parts_of(graph, data)):
        limit = ranges[scales[value]].magnitude or 1.0
        counts[scales[value]] += np.histogram(np.abs(array), _BINS, (0.0, limit))[0]
    return {stands: _cut(entry, counts[stands], settings) for stands, entry in ranges.items()}


def values_over(
    graph: Graph, values: Collection[str], parts: Iterable[Mapping[str, Array]]
) -> Iterator[tuple[str, Array]]:
    """Each of the values for each part of the data."""
    inner = tuple(value for value in values if value not in graph.inputs)
    network = without_dead(replace(graph, outputs=inner))
    for inputs in parts:
        found = run_graph(network, inputs)
        yield from ((value, inputs[value] if value in inputs else found[value]) for value in values)


def parts_of(graph: Graph, data: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """All whole parts of the data, as inputs of the graph. Raises: InputError for none."""
    missing = [name for name in graph.inputs if name not in data]
    if missing:
        raise InputError(f"running {graph.name}: input '{missing[0]}' has no samples")
    extents = {name: (graph.types[name].shape or (1,))[0] for name in graph.inputs}
    parts = min(len(data[name]) // extents[name] for name in graph.inputs)
    if not parts:
        raise InputError(f"running {graph.name}: expected at least {extents} samples")
    for part in range(parts):
        yield {n: data[n][part * e : (part + 1) * e] for n, e in extents.items()}


def _or_zero(entry: ValueRange) -> ValueRange:
    return entry if entry.magnitude >= _SMALLEST else ValueRange(0.0, 0.0)


def _cut(whole: ValueRange, counts: Array, settings: QuantizeSettings) -> ValueRange:
    """The range within the largest magnitude that the method chooses."""
    if settings.method == "percentile":
        inside = np.cumsum(counts) >= settings.percentile * counts.sum()
        bins = int(np.argmax(inside)) + 1
    else:
        loss = _divergence if settings.method == "kl" else _squared_error
        candidates = range(_LEVELS, _BINS + 1, _STEP)
        bins = min(reversed(candidates), key=lambda count: loss(counts, count))
    limit = whole.magnitude * bins / _BINS
    return ValueRange(max(whole.low, -limit), min(whole.high, limit))


def _squared_error(counts: Array, bins: int) -> float:
    """The squared error of magnitudes rounded to the levels of that many bins, or cut off."""
    centres = np.arange(_BINS) + 0.5
    step = bins / (_LEVELS - 1)
    rounded = np.minimum(np.rint(centres / step), _LEVELS - 1) * step
    return float(np.sum(counts * (centres - rounded) ** 2))


def _divergence(counts: Array, bins: int) -> float:
    """How much of the distribution the levels of that many bins lose (Kullback, Leibler)."""
    counts = np.concatenate((counts[1:2], counts[1:]))  # zeros are exact at any scale
    kept = counts[:bins].copy()
    level = np.arange(bins) * _LEVELS // bins
    filled = counts[:bins] > 0
    total = np.bincount(level, weights=kept, minlength=_LEVELS)
    sharing = np.maximum(np.bincount(level, weights=filled, minlength=_LEVELS), 1)
    spread = np.where(filled, (total / sharing)[level], 0.0)
    kept[-1] += counts[bins:].sum()
    if not spread.sum():
        return np.inf
    p, q = kept / kept.sum(), np.maximum(spread / spread.sum(), 1e-9)
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / q[some])))
