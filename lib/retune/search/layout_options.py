"""What layouts each image of a network may have, which kernels it lies between, and which copies
may be asked for."""

from dataclasses import dataclass, field

from retune.core.dtypes import TensorType
from retune.core.layouts import ROWS
from retune.core.target import DeviceSpec
from retune.search.extract import Network, PlacedGroup
from retune.search.joints import Joint, joints, may_lie, moves_channels
from retune.search.laying import group_images, lays_rows
from retune.search.layouts import IMAGE_RANK, IN_ROWS, Ends, layouts_for, storages_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlace:
    """A group with a kernel, and the images at its ends."""

    placed: PlacedGroup
    task_key: str
    read: str | None
    """Its first image."""
    made: str | None
    others: tuple[str, ...]
    """Images that it reads besides: they lie as what it makes does."""

    @property
    def label(self) -> str:
        """Name of the group."""
        return self.placed.group.name


@dataclass(frozen=True, slots=True)
class ImageLayouts:
    """The layouts in which an image can be made, and those in which someone can read it."""

    made: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    read: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def kernel_places(network: Network) -> tuple[KernelPlace, ...]:
    """The groups with kernels that compute, whether or not they have images."""
    found: list[KernelPlace] = []
    for placed in network.groups:
        images = group_images(network, placed)
        moves = lays_rows(placed, network.graph) or moves_channels(placed, network.graph)
        if placed.task_key is None or moves:
            continue
        read = [value for value, made in images if not made]
        made = [value for value, output in images if output]
        found.append(
            KernelPlace(
                placed=placed,
                task_key=placed.task_key,
                read=read[0] if read else None,
                made=made[0] if made else None,
                others=tuple(value for value in read[1:] if value != read[0]),
            )
        )
    return tuple(found)


def joint_layouts(network: Network, spec: DeviceSpec) -> list[tuple[Joint, tuple[str, ...]]]:
    """The joints of a network, each with the layouts in which all of its images may lie, rows
    first.
    """
    types = network.graph.types
    found: list[tuple[Joint, tuple[str, ...]]] = []
    for joint in joints(network):
        common = layouts_for(spec, types[joint.made[0]])
        for value in (*joint.made, *joint.read):
            common = tuple(layout for layout in common if layout in layouts_for(spec, types[value]))
        found.append((joint, tuple(one for one in common if may_lie(joint, one, network))))
    return found


def image_layouts(network: Network, spec: DeviceSpec) -> ImageLayouts:
    """What a device can do with each image of a network, rows first.

    Inputs and outputs of the network are made in rows, and so is what no kernel makes.
    """
    graph, found = network.graph, ImageLayouts()
    by_kernel = {place.made for place in kernel_places(network)}
    joined = {v: some for joint, some in joint_layouts(network, spec) for v in joint.made}
    makers = [value for placed in network.groups for value in placed.group.outputs]
    for value in (*graph.inputs, *makers):
        kind = graph.types[value]
        if len(kind.shape) != IMAGE_RANK or not kind.elements:
            continue
        layouts = layouts_for(spec, kind)
        free = value in by_kernel and value not in graph.outputs
        found.made[value] = joined.get(value, layouts if free else (ROWS,))
        found.read[value] = layouts
    return found


def possible_ends(network: Network, spec: DeviceSpec) -> dict[str, tuple[Ends, ...]]:
    """Of each task, the ends that some choice may give it; rows first, and alone without images."""
    layouts = image_layouts(network, spec)
    found: dict[str, dict[Ends, None]] = {}
    for place in kernel_places(network):
        reads = layouts.read[place.read] if place.read else (ROWS,)
        mades = layouts.made[place.made] if place.made else (ROWS,)
        mine = found.setdefault(place.task_key, {IN_ROWS: None})
        task = network.tasks[place.task_key]
        for ends in (Ends(read, made) for read in reads for made in mades):
            if ends not in mine and storages_of(task, ends) is not None:
                mine[ends] = None
    return {key: tuple(ends) for key, ends in found.items()}


def possible_copies(network: Network, spec: DeviceSpec) -> list[tuple[TensorType, Ends]]:
    """The copies that some choice may ask for, each once."""
    layouts = image_layouts(network, spec)
    types = network.graph.types
    found = {
        (types[value], Ends(made, other)): None
        for value, mades in layouts.made.items()
        for made in mades
        for other in layouts.read[value]
        if other != made
    }
    return list(found)


def read_in_rows(network: Network) -> frozenset[str]:
    """The images that someone finds in rows whatever is chosen: callers, and who is no kernel."""
    graph = network.graph
    bound = (v for p in network.groups if lays_rows(p, graph) for v in p.group.inputs)
    return frozenset((*bound, *graph.outputs))
