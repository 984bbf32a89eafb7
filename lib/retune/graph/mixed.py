"""Selection of layers that stay in float32, where 16 bits for all are too coarse.

Read `mixed`. Graphs run by their numpy meaning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.core.dtypes import FLOAT32, DType, dtype_of
from retune.core.results import LayerQuality, OutputQuality, decibels
from retune.graph.evaluate import run_parts
from retune.graph.graph import Graph, Node
from retune.graph.passes.precision import Precision, in_precision, layers
from retune.graph.quantize.calibrate import parts_of
from retune.graph.quantize.leaving import fewest
from retune.graph.quantize.quality import compared, outputs_over
from retune.ir.plan import quiet
from retune.ops import Array, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A precision with as many layers in float32 as it took."""

    precision: Precision
    noise: tuple[LayerQuality, ...]
    """Of each layer, in the order of the network."""
    agreement: tuple[OutputQuality, ...]
    """Of each output with that of the network in float32."""

    @property
    def deviation(self) -> float:
        """The largest of an output, as a part of its range."""
        return max((entry.deviation for entry in self.agreement), default=0.0)

    def within(self, deviation: float, drop: float | None) -> bool:
        """Whether outputs deviate by no more, and disagree in no more points if that is asked."""
        rows = (entry.top1 for entry in self.agreement if entry.top1 is not None)
        least = min(rows, default=1.0)
        return self.deviation <= deviation and (drop is None or 100 * (1 - least) <= drop)


def mixed(
    graph: Graph,
    data: Mapping[str, Array],
    precision: Precision,
    *,
    deviation: float,
    drop: float | None = None,
) -> Mixed:
    """The precision, with the noisiest layers in float32 until outputs are as near as asked.

    `deviation` is a part of an output's range, `drop` is in points of top-1 agreement, both with
    the network in float32 over `data`. How many it takes is found by halving, see `fewest`. If all
    do not suffice, all are kept. Raises: InputError for data that the network does not take.
    """
    noise = rounding_noise(graph, data, precision.stored)
    ranked = [entry.layer for entry in sorted(noise, key=lambda entry: entry.decibels)]
    expected = outputs_over(graph, data)

    def attempt(kept: tuple[str, ...]) -> Mixed:
        tried = replace(precision, kept=kept)
        made = outputs_over(in_precision(graph, tried), data)
        return Mixed(precision=tried, noise=noise, agreement=compared(expected, made))

    return fewest(ranked, attempt, lambda tried: tried.within(deviation, drop))


def rounding_noise(
    graph: Graph, data: Mapping[str, Array], dtype: DType
) -> tuple[LayerQuality, ...]:
    """What rounding its operands does to each layer, while all others are exact, in their order.

    Raises: InputError for data of no whole part.
    """
    meters = {node.outputs[0]: _LayerDeviation(node, dtype) for node in layers(graph)}
    read = {value for meter in meters.values() for value in meter.node.inputs}
    for inputs in parts_of(graph, data):
        held: dict[str, Array] = {**graph.constants, **inputs}

        def measured(
            value: str, arrays: Sequence[Array], held: dict[str, Array] = held
        ) -> Sequence[Array]:
            if value in read:
                held[value] = arrays[0]
            if value in meters:
                meters[value].measure([held[name] for name in meters[value].node.inputs], arrays[0])
            return arrays

        with quiet():
            run_parts(graph, [inputs], measured)
    return tuple(meter.result() for meter in meters.values())


class _LayerDeviation:
    """Sums over samples for one layer."""

    def __init__(self, node: Node, dtype: DType) -> None:
        self.node, self._dtype = node, dtype
        self._signal = self._noise = 0.0

    def measure(self, operands: Sequence[Array], exact: Array) -> None:
        """Adds what the layer makes of these operands, rounded."""
        rounded = [self._rounded(array) for array in operands]
        (made,) = lookup(self.node.op).reference(rounded, self.node.attrs)
        wide = exact.astype(np.float64)
        self._signal += float(np.sum(wide**2))
        self._noise += float(np.sum((made - wide) ** 2))

    def _rounded(self, array: Array) -> Array:
        float32 = dtype_of(array) is FLOAT32
        return array.astype(self._dtype.numpy).astype(FLOAT32.numpy) if float32 else array

    def result(self) -> LayerQuality:
        """What came of all samples."""
        return LayerQuality(
            layer=self.node.outputs[0],
            op=self.node.op,
            decibels=decibels(self._signal, self._noise),
        )
