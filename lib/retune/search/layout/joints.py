"""Images that lie in each other: those that a concatenation joins, or a slice is cut from.

Whoever joins or cuts channels has nothing to do where all of these images lie alike, whole blocks
beside whole blocks. So the images of a joint have one layout. Read `joints`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from retune.core.layouts import ROWS
from retune.graph.graph import Graph
from retune.graph.passes.joins import inclusions_of
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.layouts import (
    IMAGE_RANK,
    Ends,
    channels_of,
    image_storage,
    may_have,
    may_lie_in_blocks,
    placed_shapes,
)


@dataclass(frozen=True, slots=True)
class Joint:
    """Groups that move channels between images, linked by images that they share."""

    groups: tuple[PlacedGroup, ...]

    @property
    def label(self) -> str:
        """A name that no image has."""
        return f"joint of {self.groups[0].group.name}"

    @property
    def made(self) -> tuple[str, ...]:
        """The images that they make."""
        return tuple(value for placed in self.groups for value in placed.group.outputs)

    @property
    def read(self) -> tuple[str, ...]:
        """Those that others make, less constants."""
        own = {*self.made}
        values = (value for placed in self.groups for value in placed.group.inputs)
        return tuple(value for value in dict.fromkeys(values) if value not in own)


def joints(network: Network) -> tuple[Joint, ...]:
    """All of a network, in its order; no two of them share an image."""
    found: list[list[PlacedGroup]] = []
    for placed in network.groups:
        if not moves_channels(placed, network.graph):
            continue
        shared = [some for some in found if any(_share(placed, other) for other in some)]
        found = [some for some in found if some not in shared]
        found.append([*chain.from_iterable(shared), placed])
    return tuple(Joint(tuple(some)) for some in found)


def moves_channels(placed: PlacedGroup, graph: Graph) -> bool:
    """Whether all that the group does is to join images by their channels, or to cut them."""
    group = placed.group
    if placed.task_key is None or group.aside:
        return False
    rank = len(graph.types[group.outputs[0]].shape)
    return rank == IMAGE_RANK and bool(inclusions_of(group, graph))


def may_lie(joint: Joint, layout: str, network: Network) -> bool:
    """Whether its images can lie so, each in the ones that it is part of.

    Callers find and leave images in rows, and so does whoever makes them without a kernel.
    """
    graph = network.graph
    if layout == ROWS:
        return True
    if not {*joint.made}.isdisjoint(graph.outputs):
        return False
    if not all(_lies(placed, layout, network) for placed in joint.groups):
        return False
    return all(_fits(*part, layout, graph) for part in _parts(joint, graph))


def _share(some: PlacedGroup, other: PlacedGroup) -> bool:
    values = {*some.group.inputs, *some.group.outputs}
    return not values.isdisjoint((*other.group.inputs, *other.group.outputs))


def _lies(placed: PlacedGroup, layout: str, network: Network) -> bool:
    assert placed.task_key is not None, "it moves channels"
    task = network.tasks[placed.task_key]
    return may_have(task, Ends(layout, layout), placed_shapes(placed, task, network.graph))


def _parts(joint: Joint, graph: Graph) -> Iterator[tuple[str, str, int]]:
    for placed in joint.groups:
        yield from inclusions_of(placed.group, graph)


def _fits(value: str, wider: str, first: int, layout: str, graph: Graph) -> bool:
    """Whether the value, lying so, is channels of the wider one, lying so."""
    kind, whole = graph.types[value], image_storage(layout, graph.types[wider].shape)
    return may_lie_in_blocks(kind.dtype) and channels_of(whole, first, kind.shape[-1]) is not None
