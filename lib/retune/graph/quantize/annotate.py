"""Which parts of a network compute with integers, and which values share a scale.

Read `Region` first. A value is in integers if a region makes it; a scale is stated for each value
that a region reads. Moves and maxima leave integers as they are, so that what they read and make
has one scale, as all operands of a concatenation do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from retune.graph.graph import Graph, Node
from retune.graph.quantize.settings import QuantizeSettings

LAYERS = ("conv2d", "depthwise_conv2d", "conv3d", "dense")
MOVES = ("max_pool2d", "max_pool3d", "global_max_pool", "reshape", "transpose", "concat")
"""Ops that make nothing but what they read."""
MEANS = ("global_avg_pool", "reduce_mean")
ACTIVATIONS = ("relu", "clip")
"""Ops that only limit their input, so that the limits of the integers can do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes that compute one integer value: sums of products, of operands, means, or moves."""

    kind: Literal["layer", "sum", "mean", "move"]
    node: Node
    bias: Node | None = None
    """The sum with a constant after a layer."""
    limit: Node | None = None
    """The activation that follows."""

    @property
    def output(self) -> str:
        """The value that the region makes."""
        return (self.limit or self.bias or self.node).outputs[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The activations that it reads."""
        return self.node.inputs[:1] if self.kind == "layer" else self.node.inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The regions by their first node's output, and who shares a scale with whom."""

    regions: Mapping[str, Region]
    scales: Mapping[str, str]
    """Every value that a region reads -> the value that stands for all with its scale."""


def annotate(graph: Graph, settings: QuantizeSettings) -> Annotation:
    """The parts of a channels-first graph without batch norms that can be in integers."""
    uses = graph.uses()
    skipped = _skipped(graph, settings)
    regions: dict[str, Region] = {}
    integers: set[str] = set()
    for node in graph.nodes:
        kind = None if node.outputs[0] in skipped else _kind(graph, node, integers)
        if kind is None:
            continue
        bias = _follower(graph, uses, node, ("add",)) if kind == "layer" else None
        limit = None
        if kind in ("layer", "sum"):
            limit = _follower(graph, uses, bias or node, ACTIVATIONS)
        region = Region(kind=kind, node=node, bias=bias, limit=limit)
        regions[node.outputs[0]] = region
        integers.add(region.output)
    return Annotation(regions=regions, scales=_shared(regions))


def _skipped(graph: Graph, settings: QuantizeSettings) -> set[str]:
    convolutions = [node for node in graph.nodes if "conv" in node.op]
    found = {n.outputs[0] for i, n in enumerate(convolutions) if i in settings.skip_conv_layers}
    return found | {n.outputs[0] for n in graph.nodes if {n.outputs[0], n.op} & {*settings.skip}}


def _kind(
    graph: Graph, node: Node, integers: set[str]
) -> Literal["layer", "sum", "mean", "move"] | None:
    if graph.types[node.outputs[0]].dtype != "float32":
        return None
    if node.op in LAYERS:
        first = str(node.attrs.get("layout", "NC")).startswith("NC")
        return "layer" if first and node.inputs[1] in graph.constants else None
    if not integers.issuperset(node.inputs):
        return None
    if node.op == "add":
        same = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
        return "sum" if len(same) == 1 else None
    if node.op in MEANS:
        return "mean"
    return "move" if node.op in MOVES else None


def _follower(
    graph: Graph, uses: Mapping[str, tuple[Node, ...]], node: Node, ops: tuple[str, ...]
) -> Node | None:
    """The node of these ops that alone reads what `node` makes, any other operand constant."""
    value = node.outputs[0]
    readers = uses.get(value, ())
    if len(readers) != 1 or readers[0].op not in ops or value in graph.outputs:
        return None
    reader = readers[0]
    rest = reader.inputs[1:]
    same = graph.types[reader.outputs[0]] == graph.types[value]
    fits = reader.inputs[0] == value and all(other in graph.constants for other in rest)
    return reader if fits and same else None


def _shared(regions: Mapping[str, Region]) -> dict[str, str]:
    """Every value that a region reads, with the first of those that share its scale."""
    stands: dict[str, str] = {}

    def root(value: str) -> str:
        while stands.setdefault(value, value) != value:
            value = stands[value]
        return value

    read = {value for region in regions.values() for value in region.reads}
    for region in regions.values():
        if region.kind == "move":
            for value in (*region.reads, region.output):
                stands[root(value)] = root(region.reads[0])
            read.add(region.output)
    return {value: root(value) for value in sorted(read)}
