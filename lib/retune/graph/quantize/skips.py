"""Check that values which a user wants to keep in floats exist, and where others went.

Read `check_skips`. Networks are simplified before they are quantized: a batch norm becomes part of
its convolution, whose output then has the norm's name. Who reads names off the file has others.
"""

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from retune.core.errors import InputError
from retune.graph.graph import Graph
from retune.graph.quantize.annotate import QuantizedRegion, annotate
from retune.graph.quantize.settings import QuantizeSettings


def check_skips(written: Graph, graph: Graph, settings: QuantizeSettings) -> None:
    """Holds after the call: each thing that shall stay in floats is in the graph, and does so.

    `graph` is what simplifying made of the network as it is `written`.
    Raises: InputError, which names the layer that something else became a part of.
    """
    _check_known(written, graph, settings)
    regions = annotate(graph, replace(settings, skip=(), skip_conv_layers=())).regions
    values = {node.outputs[0] for node in graph.nodes}
    for op in dict.fromkeys(name for name in settings.skip if name not in values):
        layers = [*_layers_around(op, graph, [*regions.values()])]
        if layers:
            raise InputError(
                f"{graph.name}: skip: each {op} is computed by the layer that it follows; name "
                f"those to stay in floats, such as {layers[0]!r}"
            )


def _check_known(written: Graph, graph: Graph, settings: QuantizeSettings) -> None:
    count = sum("conv" in node.op for node in graph.nodes)
    far = [f"#{number}" for number in settings.skip_conv_layers if number >= count]
    known = {name for node in graph.nodes for name in (node.outputs[0], node.op)}
    unknown = [*far, *(name for name in settings.skip if name not in known)]
    if not unknown:
        return
    merged = [f"{name} (now {where})" for name in unknown if (where := _now(name, written, graph))]
    close = [c for name in unknown for c in get_close_matches(name, known, n=2)]
    why = f"merged with others as the network was simplified: {', '.join(merged)}; " * bool(merged)
    raise InputError(
        f"{graph.name}: skip: expected the name of what a node makes, an op, or # and the "
        f"number of one of {count} convolutions; got {', '.join(unknown)}; {why}close names: "
        f"{', '.join(close) or 'none'}"
    )


def _now(name: str, written: Graph, graph: Graph) -> str:
    """What a value or an op of the network as written became; empty for what it never had."""
    known = {node.outputs[0] for node in graph.nodes}
    values = [n.outputs[0] for n in written.nodes if name in (n.outputs[0], n.op)]
    uses = written.uses()
    for value in values:
        now = value
        while now not in known and len(readers := uses.get(now, ())) == 1:
            now = readers[0].outputs[0]
        if now in known:
            return f"part of {now!r}"
    return "gone" if values else ""


def _layers_around(op: str, graph: Graph, regions: list[QuantizedRegion]) -> Iterator[str]:
    """The layers with nodes of that op behind the first, if all nodes of that op are such."""
    behind = {n.outputs[0]: r for r in regions for n in r.nodes if n is not r.node}
    values = [node.outputs[0] for node in graph.nodes if node.op == op]
    if all(value in behind for value in values):
        yield from (behind[value].node.outputs[0] for value in values)
