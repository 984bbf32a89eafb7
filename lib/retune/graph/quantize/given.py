"""Networks whose codes are given, by whoever quantized them: nothing is calibrated.

Read `realize_given`: the regions are those of any network, as far as all that they read and make
has codes, and the layers' weights are the given integers.
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
from retune.graph.quantize.arithmetic import CodedWeight, Codes
from retune.graph.quantize.realize import Coding, realize
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops import Array
from retune.ops.registry import number


@dataclass(frozen=True, slots=True)
class GivenWeights:
    """Integers by the floats that they stand for, as an importer turns and renames constants."""

    known: dict[str, CodedWeight] = field(default_factory=dict[str, CodedWeight])

    def add(
        self,
        floats: Array,
        whole: tuple[Array, Array],
        scale: Array,
        axis: int | None,
        groups: int = 0,
    ) -> None:
        """Remembers codes and their rest with a scale for each element along an axis, or for all.

        As they are; matrices turned as well, whose output channels are then along the other axis;
        and kernels of one dimension as those of images of height 1. Those of a transposed
        convolution in so many groups, if there are any, as the graph has them.
        """
        codes, rest = whole
        if groups and floats.ndim > 2 and floats.shape[0] % groups == 0 and axis in (None, 1):
            floats, codes = (_transposed_kernel(array, groups) for array in (floats, codes))
            scale, rest = (
                np.tile(a.reshape(-1), groups) if a.size > 1 else a for a in (scale, rest)
            )
            axis = None if axis is None else 0
        for made, turned, along in _turns(floats, codes, axis):
            if made.ndim and along in (None, 0):
                scales = np.broadcast_to(scale.reshape(-1).astype(np.float64), made.shape[:1])
                kept = np.ascontiguousarray(turned)
                less = np.broadcast_to(rest.reshape(-1), made.shape[:1]) if np.any(rest) else rest
                self.known[_key(made)] = CodedWeight(kept, scales, less)

    def find(self, floats: Array) -> CodedWeight | None:
        """The integers that stand for these floats."""
        return self.known.get(_key(floats))


@dataclass(frozen=True, slots=True)
class GivenCodes:
    """The codes of values by their names, and of weights by their contents."""

    values: Mapping[str, Codes]
    weights: GivenWeights
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    """Value -> integers that are its codes, but for the type that they have."""
    outputs: Mapping[str, tuple[str, DType]] = field(default_factory=dict[str, tuple[str, DType]])
    """Output that is wanted as its codes -> their name and type."""


def realize_given(graph: Graph, given: GivenCodes) -> Graph | None:
    """The channels-first float graph in integers where codes are given; None if no layer is.

    Every value with codes is rounded to them, whoever reads it, as the pairs said that were there.
    """
    graph = absorb_names(graph, _alone(graph, given))
    values = _without_limited(graph, _spread(graph, given.values))
    found: dict[str, QuantizedRegion] = {}
    weights: dict[str, CodedWeight] = {}
    coding = Coding(
        codes=values,
        settings=QuantizeSettings(),
        weights=weights,
        binding=True,
        sources=given.sources,
        outputs=given.outputs,
    )
    for name, region in annotate(graph, QuantizeSettings(), values).regions.items():
        codes = _weight(graph, region, given)
        if not values.keys() >= {*region.reads} or (region.kind == "layer" and codes is None):
            continue
        if region.kind in CODED and region.output not in values:
            continue
        if codes is not None:
            weight = region.node.inputs[1]
            if not replace(coding, weights={weight: codes}).in_32_bits(graph, region):
                continue  # as where a channel of zeros has a bias, or no scale
            weights[weight] = codes
        found[name] = region
    if not weights:
        return None
    return realize(graph, Annotation(regions=found, scales={}), coding)


def _spread(graph: Graph, values: Mapping[str, Codes]) -> dict[str, Codes]:
    """The codes, also of what moves make of values with codes, or make those of.

    An importer adds such moves, as to images of height 1 and back; they neither know nor change
    what the elements stand for.
    """
    found = dict(values)
    readers = Counter(value for node in graph.nodes for value in node.inputs)
    made = {value for node in graph.nodes for value in node.outputs} - graph.ends
    for node in reversed(graph.nodes):
        codes, source = found.get(node.outputs[0]), node.inputs[0] if node.inputs else ""
        if node.op == "reshape" and codes and source in made and readers[source] == 1:
            found.setdefault(source, codes)
    for node in graph.nodes:
        data = node.inputs[:1] if node.op in WITH_TABLES else node.inputs
        codes = {found.get(value) for value in data}
        others = node.op == "pad" and number(node.attrs, "value")
        if node.op in MOVES and not others and len(codes) == 1 and (one := next(iter(codes))):
            found.setdefault(node.outputs[0], one)
    return found


def _without_limited(graph: Graph, values: Mapping[str, Codes]) -> dict[str, Codes]:
    """The codes without those of what only an activation reads whose output has the same ones.

    The limits of the codes are those of the activation then: rounding before it changes nothing.
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
    return {value: codes for value, codes in values.items() if value not in limited}


def _alone(graph: Graph, given: GivenCodes) -> set[str]:
    """Names with codes of values that have no other readers under another name."""
    readers = Counter(value for node in graph.nodes for value in node.inputs)
    nodes = [n for n in graph.nodes if n.op == "identity" and readers[n.inputs[0]] == 1]
    return {n.outputs[0] for n in nodes} & given.values.keys()


def _weight(graph: Graph, region: QuantizedRegion, given: GivenCodes) -> CodedWeight | None:
    """The layer's integers; none where channels come in groups whose sums a rest would need."""
    if region.kind != "layer":
        return None
    found = given.weights.find(graph.constants[region.node.inputs[1]])
    grouped = region.node.op != "depthwise_conv2d" and region.node.attrs.get("groups", 1) != 1
    return None if found is not None and grouped and np.any(found.rest) else found


def _turns(
    floats: Array, codes: Array, axis: int | None
) -> Iterator[tuple[Array, Array, int | None]]:
    yield floats, codes, axis
    if floats.ndim == 2:
        yield floats.T, codes.T, None if axis is None else 1 - axis
    if floats.ndim == 3:
        yield floats[:, :, None], codes[:, :, None], axis


def _transposed_kernel(array: Array, groups: int) -> Array:
    """[in, made / groups, taps...] as [made, in / groups, taps...]."""
    inner, each, *taps = array.shape
    parts = array.reshape(groups, inner // groups, each, *taps).swapaxes(1, 2)
    return parts.reshape(groups * each, inner // groups, *taps)


def _key(array: Array) -> str:
    return content_key(np.ascontiguousarray(array))
