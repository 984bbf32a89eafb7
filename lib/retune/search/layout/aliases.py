"""Alias groups: the activations that a concatenation joins, or that a slice is cut from.

Joining or cutting channels costs nothing where all of these activations have one layout, whole
blocks beside whole blocks: the parts are views of the whole. So an alias group has one layout. Read
`alias_groups`.
"""

from dataclasses import dataclass
from itertools import chain

from retune.core.layouts import NHWC, ActivationLayout, IOLayouts
from retune.graph.graph import Graph
from retune.graph.passes.joins import inclusions_of
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.layouts import (
    IMAGE_RANK,
    channels_of,
    layout_storage,
    may_be_blocked,
    placed_shapes,
    supports,
)


@dataclass(frozen=True, slots=True)
class AliasGroup:
    """Groups that move channels between activations, linked by activations that they share."""

    groups: tuple[PlacedGroup, ...]

    @property
    def label(self) -> str:
        """A name that no activation has."""
        return f"alias group of {self.groups[0].group.name}"

    @property
    def made(self) -> tuple[str, ...]:
        """The activations that they make."""
        return tuple(value for placed in self.groups for value in placed.group.outputs)

    @property
    def read(self) -> tuple[str, ...]:
        """Those that others make, less constants."""
        own = {*self.made}
        values = (value for placed in self.groups for value in placed.group.inputs)
        return tuple(value for value in dict.fromkeys(values) if value not in own)


def alias_groups(network: Network) -> tuple[AliasGroup, ...]:
    """All of a network, in its order; no two of them share an activation."""
    found: list[list[PlacedGroup]] = []
    for placed in network.groups:
        if not moves_channels(placed, network.graph):
            continue
        shared = [some for some in found if any(_share(placed, other) for other in some)]
        found = [some for some in found if some not in shared]
        found.append([*chain.from_iterable(shared), placed])
    return tuple(AliasGroup(tuple(some)) for some in found)


def moves_channels(placed: PlacedGroup, graph: Graph) -> bool:
    """Whether all that the group does is to join activations by their channels, or to cut them."""
    group = placed.group
    if placed.task_key is None or group.aside:
        return False
    rank = len(graph.types[group.outputs[0]].shape)
    return rank == IMAGE_RANK and bool(inclusions_of(group, graph))


def can_have(aliases: AliasGroup, layout: ActivationLayout, network: Network) -> bool:
    """Whether its activations can have the layout, each as a view of those that it is part of.

    Outputs of the network are NHWC.
    """
    graph = network.graph
    if layout == NHWC:
        return True
    if not graph.ends.isdisjoint(aliases.made):
        return False
    for placed in aliases.groups:
        assert placed.task_key is not None, "it moves channels"
        task = network.task_of(placed)
        if not supports(task, IOLayouts(layout, layout), placed_shapes(placed, task, graph)):
            return False
        for value, wider, first in inclusions_of(placed.group, graph):
            kind, whole = graph.types[value], layout_storage(layout, graph.types[wider].shape)
            if not may_be_blocked(kind) or channels_of(whole, first, kind.shape[-1]) is None:
                return False
    return True


def _share(some: PlacedGroup, other: PlacedGroup) -> bool:
    values = {*some.group.inputs, *some.group.outputs}
    return not values.isdisjoint((*other.group.inputs, *other.group.outputs))
