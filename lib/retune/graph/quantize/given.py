"""Networks that come quantized: their parameters are given, and nothing is calibrated.

Read `realize_given`: the regions are those of any network, as far as all that they read and make
has quantized values, and the layers' weights are the given integers.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from retune.core.dtypes import DType
from retune.core.keys import content_key
from retune.graph.graph import Graph
from retune.graph.passes.simplify import absorb_names
from retune.graph.quantize.annotate import (
    ACTIVATIONS,
    CODED,
    MOVES,
    WITH_TABLES,
    Annotation,
    QuantizedRegion,
    annotate,
)
from retune.graph.quantize.arithmetic import QuantizedWeight, QuantParams
from retune.graph.quantize.realize import Quantization, realize
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array
from retune.ops.registry import number


@dataclass(frozen=True, slots=True)
class GivenWeights:
    """Integers by the floats that they stand for, as an importer turns and renames constants."""

    known: dict[str, QuantizedWeight] = field(default_factory=dict[str, QuantizedWeight])

    def add(
        self,
        floats: Array,
        whole: tuple[Array, Array],
        scale: Array,
        axis: int | None,
        groups: int = 0,
    ) -> None:
        """Remembers values and their rest with a scale for each element along an axis, or for all.

        As they are; matrices turned as well, whose output channels are then along the other axis;
        and kernels of one dimension as those of images of height 1. Those of a transposed
        convolution in so many groups, if there are any, as the graph has them.
        """
        values, rest = whole
        if groups and floats.ndim > 2 and floats.shape[0] % groups == 0 and axis in (None, 1):
            floats, values = (_transposed_kernel(array, groups) for array in (floats, values))
            scale, rest = (
                np.tile(a.reshape(-1), groups) if a.size > 1 else a for a in (scale, rest)
            )
            axis = None if axis is None else 0
        for made, turned, along in _turns(floats, values, axis):
            if made.ndim and along in (None, 0):
                scales = np.broadcast_to(scale.reshape(-1).astype(np.float64), made.shape[:1])
                kept = np.ascontiguousarray(turned)
                less = np.broadcast_to(rest.reshape(-1), made.shape[:1]) if np.any(rest) else rest
                self.known[_key(made)] = QuantizedWeight(kept, scales, less)

    def find(self, floats: Array) -> QuantizedWeight | None:
        """The integers that stand for these floats."""
        return self.known.get(_key(floats))


@dataclass(frozen=True, slots=True)
class GivenQuantization:
    """Quantization parameters of values by their names, and weights by their contents."""

    values: Mapping[str, QuantParams]
    weights: GivenWeights
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Value -> the integers that quantize it, but for the type that they have."""
    outputs: Mapping[str, tuple[str, DType]] = field(default_factory=dict[str, tuple[str, DType]])
    """Output that is wanted quantized -> the name and type of its integers."""


def realize_given(graph: Graph, given: GivenQuantization) -> Graph | None:
    """The channels-first float graph in integers where its quantization is given; None if no layer
    is.

    Every quantized value is rounded, whoever reads it, as the pairs said that were there.
    """
    graph = absorb_names(graph, _alone(graph, given))
    values = _without_limited(graph, _spread(graph, given.values))
    found: dict[str, QuantizedRegion] = {}
    weights: dict[str, QuantizedWeight] = {}
    quantization = Quantization(
        params=values,
        settings=QuantizeSettings(),
        weights=weights,
        binding=True,
        sources=given.sources,
        outputs=given.outputs,
    )
    for name, region in annotate(graph, QuantizeSettings(), values).regions.items():
        made = _weight(graph, region, given)
        if not values.keys() >= {*region.reads} or (region.kind == "layer" and made is None):
            continue
        if region.kind in CODED and region.output not in values:
            continue
        if made is not None:
            weight = region.node.inputs[1]
            if not replace(quantization, weights={weight: made}).in_32_bits(graph, region):
                continue  # as where a channel of zeros has a bias, or no scale
            weights[weight] = made
        found[name] = region
    if not weights:
        return None
    return realize(graph, Annotation(regions=found, scales={}), quantization)


def _spread(graph: Graph, values: Mapping[str, QuantParams]) -> dict[str, QuantParams]:
    """The parameters, also of what moves make of quantized values, or make quantized values of.

    An importer adds such moves, as to images of height 1 and back; they neither know nor change
    what the elements stand for.
    """
    found = dict(values)
    readers = Counter(value for node in graph.nodes for value in node.inputs)
    made = {value for node in graph.nodes for value in node.outputs} - graph.ends
    for node in reversed(graph.nodes):
        params, source = found.get(node.outputs[0]), node.inputs[0] if node.inputs else ""
        if node.op == "reshape" and params and source in made and readers[source] == 1:
            found.setdefault(source, params)
    for node in graph.nodes:
        data = node.inputs[:1] if node.op in WITH_TABLES else node.inputs
        params = {found.get(value) for value in data}
        others = node.op == "pad" and number(node.attrs, "value")
        if node.op in MOVES and not others and len(params) == 1 and (one := next(iter(params))):
            found.setdefault(node.outputs[0], one)
    return found


def _without_limited(graph: Graph, values: Mapping[str, QuantParams]) -> dict[str, QuantParams]:
    """The parameters without those of what only an activation reads whose output has the same.

    The limits are those of the activation then: rounding before it changes nothing.
    """
    readers = Counter(value for node in graph.nodes for value in node.inputs)
    limited = {
        node.inputs[0]
        for node in graph.nodes
        if node.op in ACTIVATIONS
        and readers[node.inputs[0]] == 1
        and node.inputs[0] not in graph.ends
        and values.get(node.inputs[0]) == values.get(node.outputs[0])
    }
    return {value: params for value, params in values.items() if value not in limited}


def _alone(graph: Graph, given: GivenQuantization) -> set[str]:
    """Names of quantized values that have no other readers under another name."""
    readers = Counter(value for node in graph.nodes for value in node.inputs)
    nodes = [n for n in graph.nodes if n.op == "identity" and readers[n.inputs[0]] == 1]
    return {n.outputs[0] for n in nodes} & given.values.keys()


def _weight(
    graph: Graph, region: QuantizedRegion, given: GivenQuantization
) -> QuantizedWeight | None:
    """The layer's integers; none where channels come in groups whose sums a rest would need."""
    if region.kind != "layer":
        return None
    found = given.weights.find(graph.constants[region.node.inputs[1]])
    grouped = region.node.op != "depthwise_conv2d" and region.node.attrs.get("groups", 1) != 1
    return None if found is not None and grouped and np.any(found.rest) else found


def _turns(
    floats: Array, values: Array, axis: int | None
) -> Iterator[tuple[Array, Array, int | None]]:
    yield floats, values, axis
    if floats.ndim == 2:
        yield floats.T, values.T, None if axis is None else 1 - axis
    if floats.ndim == 3:
        yield floats[:, :, None], values[:, :, None], axis


def _transposed_kernel(array: Array, groups: int) -> Array:
    """[in, made / groups, taps...] as [made, in / groups, taps...]."""
    inner, each, *taps = array.shape
    parts = array.reshape(groups, inner // groups, each, *taps).swapaxes(1, 2)
    return parts.reshape(groups * each, inner // groups, *taps)


def _key(array: Array) -> str:
    return content_key(np.ascontiguousarray(array))
