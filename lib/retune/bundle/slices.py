"""Which values of a network can be written straight into the concatenation that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass

from retune.codegen.embed import Slice
from retune.graph.graph import Node
from retune.search.extract import Network, PlacedGroup


@dataclass(frozen=True, slots=True)
class Embedded:
    """A value that lies inside another one."""

    target: str
    """The concatenation's result."""
    where: Slice


def find_embedded(network: Network) -> dict[str, Embedded]:
    """Values that only one concatenation along the last axis reads, by name.

    Their producers compute them row by row, so that a wider row costs nothing.
    """
    graph, uses = network.graph, network.graph.uses()
    makers = {
        placed.group.outputs[0]: placed
        for placed in network.groups
        if placed.task_key is not None and len(placed.group.outputs) == 1
    }
    found: dict[str, Embedded] = {}
    for placed in network.groups:
        node = placed.group.nodes[0]
        target = placed.group.outputs[0]
        if not _joins_rows(network, node) or target in found:
            continue
        width = graph.types[target].shape[-1]
        offset = 0
        for value in node.inputs:
            single = node.inputs.count(value) == 1 and len(uses[value]) == 1
            inside = value not in graph.outputs and value in makers
            if single and inside and _writes_rows(network, makers[value], value):
                found[value] = Embedded(target, Slice(offset, width))
            offset += graph.types[value].shape[-1]
    return found


def _joins_rows(network: Network, node: Node) -> bool:
    if node.op != "concat":
        return False
    rank = len(network.graph.types[node.outputs[0]].shape)
    return node.attrs["axis"] == rank - 1


def _writes_rows(network: Network, maker: PlacedGroup, value: str) -> bool:
    """True if the value's last axis is still an axis of its own after axes were merged."""
    assert maker.task_key is not None
    dag = network.tasks[maker.task_key].dag
    return (
        maker.group.nodes[0].op != "concat"
        and dag.outputs[0].shape[-1] == network.graph.types[value].shape[-1]
    )


def remaining_parts(inputs: tuple[str, ...], embedded: Mapping[str, Embedded]) -> list[int]:
    """Positions of a concatenation's inputs that still have to be copied."""
    return [i for i, value in enumerate(inputs) if value not in embedded]
