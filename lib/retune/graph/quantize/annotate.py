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
MEANS = ("global_avg_pool", "reduce_mean", "avg_pool2d")
ACTIVATIONS = ("relu", "clip")
"""Ops that only limit their input, so that the limits of the integers can do it."""


Kind = Literal["layer", "sum", "mean", "move", "scale"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Nodes that compute one integer value.

    Sums of products, of two operands, or of what a mean is of; moves; or a product with a constant,
    as a batch norm is that follows no layer.
    """

    kind: Kind
    node: Node
    bias: Node | None = None
    """The sum with a constant after a layer or a product."""
    limit: Node | None = None
    """The activation that follows."""

    @property
    def output(self) -> str:
        """The value that the region makes."""
        return (self.limit or self.bias or self.node).outputs[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The activations that it reads."""
        return self.node.inputs[:1] if self.kind in ("layer", "scale") else self.node.inputs


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
        biased = kind == "layer" or node.op == "multiply"
        bias = _follower(graph, uses, node, ("add",)) if biased else None
        limit = None
        if kind in ("layer", "sum", "scale"):
            limit = _follower(graph, uses, bias or node, ACTIVATIONS)
        region = Region(kind=kind, node=node, bias=bias, limit=limit)
        regions[node.outputs[0]] = region
        integers.add(region.output)
    return Annotation(regions=regions, scales=_shared(regions))


def _skipped(graph: Graph, settings: QuantizeSettings) -> set[str]:
    convolutions = [node for node in graph.nodes if "conv" in node.op]
    found = {n.outputs[0] for i, n in enumerate(convolutions) if i in settings.skip_conv_layers}
    return found | {n.outputs[0] for n in graph.nodes if {n.outputs[0], n.op} & {*settings.skip}}


def _kind(graph: Graph, node: Node, integers: set[str]) -> Kind | None:
    if graph.types[node.outputs[0]].dtype != "float32":
        return None
    if node.op in LAYERS:
        first = str(node.attrs.get("layout", "NC")).startswith("NC")
        return "layer" if first and node.inputs[1] in graph.constants else None
    if node.op in ("multiply", "add") and node.inputs[0] in integers:
        data, constant = node.inputs
        if constant in graph.constants and _by_channel(graph, data, constant):
            return "scale"
    if not integers.issuperset(node.inputs):
        return None
    if node.op == "add":
        same = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
        return "sum" if len(same) == 1 else None
    if node.op in MEANS:
        return "mean"
    return "move" if node.op in MOVES else None


def _by_channel(graph: Graph, data: str, constant: str) -> bool:
    """Whether the constant is one number for each channel of the data, or for all."""
    shape, own = graph.types[data].shape, graph.types[constant].shape
    whole = (1,) * (len(shape) - len(own)) + own
    return len(own) <= len(shape) and whole in ((1,) * len(shape), _column(shape))


def _column(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n if d == 1 else 1 for d, n in enumerate(shape))


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
