"""Annotation: the parts of a network that compute with integers, and shared scales.

Read `QuantizedRegion` first. A value is in integers if a region makes it; a scale is stated for
each value that a region reads. Moves and maxima leave integers as they are, so that what they read
and make has one scale, as all operands of a concatenation do.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Literal

from retune.core.dims import is_fixed
from retune.core.dtypes import FLOAT32
from retune.graph.graph import Graph, Node
from retune.graph.quantize.arithmetic import whole_weights
from retune.graph.quantize.functions import Finder
from retune.graph.quantize.settings import QuantizeSettings
from retune.ops.registry import ints, number

LAYERS = ("conv2d", "depthwise_conv2d", "conv3d", "conv_transpose", "dense")
MOVES = (
    *("max_pool2d", "max_pool3d", "global_max_pool", "reshape", "transpose", "concat"),
    *("slice", "gather", "repeat", "extend", "pad", "depth_to_space"),
)
"""Ops that make nothing but what they read; or zeros, which are quantized exactly."""
MEANS = ("global_avg_pool", "reduce_mean", "avg_pool2d", "resample")
"""Ops that make sums of what they read, times numbers that the network knows."""
WITH_TABLES = ("gather", "resample")
"""Ops whose operands are constants but for the first."""
ACTIVATIONS = ("relu", "clip")
"""Ops that only limit their input, so that the limits of the integers can do it."""

Kind = Literal["layer", "sum", "product", "mean", "move", "scale", "table", "limit"]
CODED = ("sum", "product", "move", "table", "limit")
"""Kinds of regions that are worth it for what they quantize alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedRegion:
    """Nodes that compute one integer value.

    Sums of products, of two operands, or of what a mean or weights are of; products of two values;
    moves; a product with a constant, as a batch norm is that follows no layer; limits, where what
    is limited is quantized already; or any function of one value, element by element.
    """

    kind: Kind
    node: Node
    reads: tuple[str, ...]
    """The activations that it reads."""
    rest: tuple[Node, ...] = ()
    """The nodes of a function after its first."""
    bias: Node | None = None
    """The sum with a constant after a layer, by channel, or after a product with one."""
    limit: Node | None = None
    """The activation that follows."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, in order."""
        return (self.node, *self.rest, *(n for n in (self.bias, self.limit) if n is not None))

    @property
    def output(self) -> str:
        """The value that the region makes."""
        return self.nodes[-1].outputs[0]

    @property
    def limiter(self) -> Node | None:
        """The activation that limits its quantized value."""
        return self.node if self.kind == "limit" else self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """The regions by their first node's output, and who shares a scale with whom."""

    regions: Mapping[str, QuantizedRegion]
    scales: Mapping[str, str]
    """Every value that a region reads -> the value that stands for all with its scale."""


def annotate(graph: Graph, settings: QuantizeSettings, apart: Collection[str] = ()) -> Annotation:
    """The parts of a channels-first graph without batch norms that can be in integers.

    Regions end at values that are `apart`: those are quantized on their own, whoever makes them.
    None has a node whose output is to be skipped: who names the end of a layer means all of it.
    """
    skipped = _skipped(graph, settings)
    regions = _regions(graph, settings, apart, skipped)
    if cut := {r.node.outputs[0] for r in regions.values() if _has(r, settings.skip)}:
        regions = _regions(graph, settings, apart, skipped | cut)
    regions = _needed(regions, apart)
    return Annotation(regions=regions, scales=_shared(regions))


def _has(region: QuantizedRegion, names: Container[str]) -> bool:
    return any(node.outputs[0] in names for node in region.nodes)


def _regions(
    graph: Graph, settings: QuantizeSettings, apart: Collection[str], skipped: Container[str]
) -> dict[str, QuantizedRegion]:
    """The regions by their first node's output; none begins with what is skipped."""
    functions = Finder(graph, skipped, apart)
    uses = {v: nodes for v, nodes in graph.uses().items() if v not in apart}
    regions: dict[str, QuantizedRegion] = {}
    integers = {*apart}
    inside: set[str] = set()
    for node in graph.nodes:
        if node.outputs[0] in skipped or node.outputs[0] in inside:
            continue
        region = _function(node, integers, functions) or _region(graph, uses, node, integers)
        if region is None and settings.pools_of_codes and _pools_for(graph, uses, node, skipped):
            region = QuantizedRegion(kind="move", node=node, reads=node.inputs)
        if region is not None:
            regions[node.outputs[0]] = region
            integers.add(region.output)
            inside.update(n.outputs[0] for n in region.nodes)
    return regions


def _function(node: Node, integers: Container[str], functions: Finder) -> QuantizedRegion | None:
    """The function of one value in integers that begins with the node."""
    read = {value for value in node.inputs if value in integers}
    if len(read) != 1:
        return None
    found = functions.follow(node, *read)
    if not found:
        return None
    kind = "limit" if len(found) == 1 and node.op in ACTIVATIONS else "table"
    return QuantizedRegion(kind=kind, node=node, rest=found[1:], reads=(*read,))


def _region(
    graph: Graph, uses: Mapping[str, tuple[Node, ...]], node: Node, integers: set[str]
) -> QuantizedRegion | None:
    """Any other region that begins with the node."""
    kind = _kind(graph, node, integers)
    if kind is None:
        return None
    constant = kind in ("layer", "scale") or node.op in WITH_TABLES
    bias = limit = None
    if kind == "layer" or (kind == "scale" and node.op == "multiply"):
        bias = _follower(graph, uses, node, ("add",))
        if bias is not None and kind == "layer" and not _by_channel(graph, *bias.inputs):
            bias = None
    if kind in ("layer", "sum", "product", "scale"):
        limit = _follower(graph, uses, bias or node, ACTIVATIONS)
    reads = node.inputs[:1] if constant else node.inputs
    return QuantizedRegion(kind=kind, node=node, reads=reads, bias=bias, limit=limit)


def _pools_for(
    graph: Graph, uses: Mapping[str, tuple[Node, ...]], node: Node, skipped: Container[str]
) -> bool:
    """Whether the node takes maxima of floats for a layer that will read them quantized."""
    if node.op != "max_pool2d" or graph.types[node.outputs[0]].dtype != FLOAT32:
        return False
    readers = uses.get(node.outputs[0], ())
    return any(r.outputs[0] not in skipped and _kind(graph, r, set()) == "layer" for r in readers)


def _needed(
    regions: Mapping[str, QuantizedRegion], apart: Container[str]
) -> dict[str, QuantizedRegion]:
    """The regions without tables, limits and products that no region reads, if they are not
    quantized.

    Floats would read these, who may as well compute them: of sums, and not of quantized values.
    """
    kept: dict[str, QuantizedRegion] = {}
    read: set[str] = set()
    droppable = ("table", "limit", "product")
    for name, region in reversed([*regions.items()]):
        output = region.output
        if region.kind not in droppable or output in read or output in apart:
            kept[name] = region
            read.update(region.reads)
    return dict(reversed(kept.items()))


def _skipped(graph: Graph, settings: QuantizeSettings) -> set[str]:
    convolutions = [node for node in graph.nodes if "conv" in node.op]
    found = {n.outputs[0] for i, n in enumerate(convolutions) if i in settings.skip_conv_layers}
    return found | {n.outputs[0] for n in graph.nodes if {n.outputs[0], n.op} & {*settings.skip}}


def _kind(graph: Graph, node: Node, integers: set[str]) -> Kind | None:
    if graph.types[node.outputs[0]].dtype != FLOAT32:
        return None
    if node.op in LAYERS:
        first = str(node.attrs.get("layout", "NC")).startswith("NC")
        return "layer" if first and node.inputs[1] in graph.constants else None
    if node.op in ("multiply", "add") and node.inputs[0] in integers:
        data, constant = node.inputs
        if constant in graph.constants and _by_channel(graph, data, constant):
            return "scale"
    data = node.inputs[:1] if node.op in WITH_TABLES else node.inputs
    tables = node.inputs[len(data) :]
    if not integers.issuperset(data) or any(value not in graph.constants for value in tables):
        return None
    if node.op == "pad" and number(node.attrs, "value"):
        return None
    if node.op == "resample" and whole_weights([graph.constants[t] for t in tables[1::2]]) is None:
        return None
    if node.op == "multiply":
        return "product"
    if node.op == "add":
        same = {graph.types[value].shape for value in (*node.inputs, *node.outputs)}
        return "sum" if len(same) == 1 else None
    if node.op in MEANS:
        return "mean" if _has_counts(graph, node) else None
    return "move" if node.op in MOVES else None


def means_over_sizes(graph: Graph) -> tuple[str, ...]:
    """What averages numbers of elements that depend on sizes: none of it stays in integers."""
    means = (node for node in graph.nodes if node.op in MEANS)
    return tuple(node.outputs[0] for node in means if not _has_counts(graph, node))


def _has_counts(graph: Graph, node: Node) -> bool:
    """Whether the numbers of elements that the node averages are the same for all sizes."""
    shape = graph.types[node.inputs[0]].shape
    if node.op == "avg_pool2d":
        over = shape[2:] if ints(node.attrs, "pads") != ints(node.attrs, "counted") else ()
    elif node.op == "reduce_mean":
        over = tuple(shape[axis] for axis in ints(node.attrs, "axes"))
    else:
        over = shape[2:] if node.op == "global_avg_pool" else ()
    return all(is_fixed(extent) for extent in over)


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
    if len(readers) != 1 or readers[0].op not in ops or value in graph.ends:
        return None
    reader = readers[0]
    rest = reader.inputs[1:]
    same = graph.types[reader.outputs[0]] == graph.types[value]
    fits = reader.inputs[0] == value and all(other in graph.constants for other in rest)
    return reader if fits and same else None


def _shared(regions: Mapping[str, QuantizedRegion]) -> dict[str, str]:
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
