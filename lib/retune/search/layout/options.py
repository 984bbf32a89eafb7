"""What layouts each image of a network may have, which kernels it lies between, and which copies
may be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from retune.core.dtypes import TensorType
from retune.core.layouts import ROWS
from retune.core.target import DeviceSpec
from retune.search.extract import Network, PlacedGroup
from retune.search.layout.joints import Joint, joints, may_lie, moves_channels
from retune.search.layout.laying import group_images, lays_rows
from retune.search.layout.layouts import (
    IMAGE_RANK,
    IN_ROWS,
    Ends,
    layouts_for,
    may_have,
    placed_shapes,
)
from retune.search.layout.views import find_views


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
    rows: Ends = IN_ROWS
    """How these images lie where they are in rows: columns of a wider image, as a concatenation
    makes of them, lie in rows with room for more (`rows+192`)."""
    possible: frozenset[Ends] = frozenset((IN_ROWS,))
    """Those that it may have where its images are in layouts of the device, one by one."""

    @property
    def label(self) -> str:
        """Name of the group."""
        return self.placed.group.name

    def lying(self, ends: Ends) -> Ends:
        """These ends as they are in the network: what its time depends on."""
        read = self.rows.read if ends.read == ROWS else ends.read
        return Ends(read, self.rows.made if ends.made == ROWS else ends.made)


@dataclass(frozen=True, slots=True)
class ImageLayouts:
    """The layouts in which an image can be made, and those in which someone can read it."""

    made: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    read: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def kernel_places(network: Network, spec: DeviceSpec) -> tuple[KernelPlace, ...]:
    """The groups with kernels that compute, whether or not they have images."""
    found: list[KernelPlace] = []
    pitched = _pitched(network, spec)
    for placed in network.groups:
        images = group_images(network, placed)
        moves = lays_rows(placed, network.graph) or moves_channels(placed, network.graph)
        if placed.task_key is None or moves:
            continue
        read = [value for value, made in images if not made]
        made = [value for value, output in images if output]
        rows = Ends(
            pitched.get(read[0], ROWS) if read else ROWS,
            pitched.get(made[0], ROWS) if made else ROWS,
        )
        task = network.tasks[placed.task_key]
        shapes = placed_shapes(placed, task, network.graph)
        place = KernelPlace(
            placed=placed,
            task_key=placed.task_key,
            read=read[0] if read else None,
            made=made[0] if made else None,
            others=tuple(value for value in read[1:] if value != read[0]),
            rows=rows if may_have(task, rows, shapes) else IN_ROWS,
        )
        ways = (_layouts(network, spec, value) for value in (place.read, place.made))
        ends = {Ends(*both) for both in product(*ways)}
        fits = {one for one in ends if may_have(task, place.lying(one), shapes)}
        found.append(replace(place, possible=frozenset((IN_ROWS, *fits))))
    return tuple(found)


def _layouts(network: Network, spec: DeviceSpec, value: str | None) -> tuple[str, ...]:
    return (ROWS,) if value is None else layouts_for(spec, network.graph.types[value])


def _pitched(network: Network, spec: DeviceSpec) -> dict[str, str]:
    """The images that lie in wider rows where all are in rows, and the layout that is."""
    found: dict[str, str] = {}
    for value, place in find_views(replace(network, layouts={}), spec).items():
        shape, storage = network.graph.types[value].shape, place.storage
        if len(shape) == IMAGE_RANK and storage.is_columns:
            more = storage.parts[-1].room - shape[-1]
            found |= {value: f"{ROWS}+{more}"} if more else {}
    return found


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """What there is to choose for the images of a network on a device, whatever it costs."""

    network: Network
    kernels: tuple[KernelPlace, ...]
    joints: tuple[tuple[Joint, tuple[str, ...]], ...]
    """Each with its layouts."""
    images: ImageLayouts
    in_rows: frozenset[str]
    """The images that someone finds in rows whatever is chosen."""

    @property
    def ends(self) -> dict[str, tuple[Ends, ...]]:
        """Of each task, the ends that some choice may give it, as they are in the network; those
        that are rows first, and alone without images."""
        found: dict[str, dict[Ends, None]] = {}
        for place in self.kernels:
            found.setdefault(place.task_key, {})[place.rows] = None
        for place in self.kernels:
            reads = self.images.read[place.read] if place.read else (ROWS,)
            mades = self.images.made[place.made] if place.made else (ROWS,)
            mine = found[place.task_key]
            for ends in (Ends(read, made) for read in reads for made in mades):
                if ends in place.possible:
                    mine.setdefault(place.lying(ends))
        return {key: tuple(ends) for key, ends in found.items()}

    @property
    def copies(self) -> list[tuple[TensorType, Ends]]:
        """The copies that some choice may ask for, each once."""
        types, read = self.network.graph.types, self.images.read
        found = {
            (types[value], Ends(made, other)): None
            for value, mades in self.images.made.items()
            for made in mades
            for other in read[value]
            if other != made
        }
        return list(found)


def choices_of(network: Network, spec: DeviceSpec) -> Choices:
    """All that there is to choose; inputs and outputs of the network are made in rows, and so is
    what no kernel makes."""
    kernels, joined = kernel_places(network, spec), tuple(joint_layouts(network, spec))
    return Choices(
        network=network,
        kernels=kernels,
        joints=joined,
        images=_image_layouts(network, spec, kernels, joined),
        in_rows=_read_in_rows(network),
    )


def _image_layouts(
    network: Network,
    spec: DeviceSpec,
    kernels: Sequence[KernelPlace],
    joined: Sequence[tuple[Joint, tuple[str, ...]]],
) -> ImageLayouts:
    """What a device can do with each image of a network, rows first."""
    graph, found = network.graph, ImageLayouts()
    by_kernel = {place.made for place in kernels}
    of_joint = {v: some for joint, some in joined for v in joint.made}
    makers = [value for placed in network.groups for value in placed.group.outputs]
    for value in (*graph.inputs, *makers):
        kind = graph.types[value]
        if len(kind.shape) != IMAGE_RANK or not kind.elements:
            continue
        layouts = layouts_for(spec, kind)
        free = value in by_kernel and value not in graph.outputs
        found.made[value] = of_joint.get(value, layouts if free else (ROWS,))
        found.read[value] = layouts
    return found


def _read_in_rows(network: Network) -> frozenset[str]:
    """Those of callers, and of who is no kernel."""
    graph = network.graph
    bound = (v for p in network.groups if lays_rows(p, graph) for v in p.group.inputs)
    return frozenset((*bound, *graph.outputs))
