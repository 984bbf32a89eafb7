"""The options of layout assignment: layouts of activations, with kernels and copies.

Read `LayoutChoices`, then `choices_of`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from retune.core.dims import always_empty, counts_of
from retune.core.layouts import NHWC, ActivationLayout, IOLayouts
from retune.core.target import DeviceSpec
from retune.search.extract import Network
from retune.search.layout.aliases import AliasGroup, alias_groups, can_have, moves_channels
from retune.search.layout.assignment import group_activations, is_nhwc_only
from retune.search.layout.layouts import (
    IMAGE_RANK,
    layouts_for,
    padded,
    placed_shapes,
    supports,
    transform_task,
)
from retune.search.layout.views import find_views
from retune.search.task import Task

Layouts = tuple[ActivationLayout, ...]

Measured = tuple[str, IOLayouts]
"""What a measurement is of: a task, by its key, with these layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutKernel:
    """A group with a kernel that computes, and the activations that it reads and makes."""

    label: str
    """Name of the group."""
    op: str
    task_key: str
    input: str | None
    """Its first activation."""
    output: str | None
    others: tuple[str, ...]
    """Activations that it reads besides: they have the layout of what it makes."""
    nhwc: IOLayouts = IOLayouts()
    """Its layouts where all are NHWC: channels of a wider activation, as a concatenation makes of
    them, have room for more behind each pixel's (`NHWC+192`)."""
    possible: frozenset[IOLayouts] = frozenset((IOLayouts(),))
    """Those that it may have where its activations are in layouts of the device, one by one."""

    def in_network(self, io: IOLayouts) -> IOLayouts:
        """These layouts as they are in the network: what its time depends on."""
        first = self.nhwc.input if io.input == NHWC else io.input
        return IOLayouts(first, self.nhwc.output if io.output == NHWC else io.output)

    def measured(self, io: IOLayouts) -> Measured:
        """Its task in these layouts."""
        return self.task_key, self.in_network(io)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayoutChoices:
    """What there is to choose for the activations of a network on a device, whatever it costs."""

    network: Network
    kernels: tuple[LayoutKernel, ...]
    aliases: tuple[tuple[AliasGroup, Layouts], ...]
    """Each with the layouts in which all of its activations may be, NHWC first."""
    made: Mapping[str, Layouts]
    """The layouts in which an activation can be made, NHWC first."""
    read: Mapping[str, Layouts]
    """Those in which something can read it."""
    read_as_nhwc: frozenset[str]
    """The activations that something reads in NHWC whatever is chosen."""

    @cached_property
    def of_tasks(self) -> dict[str, tuple[IOLayouts, ...]]:
        """The layouts that some choice may give each task, as they are in the network; those of
        NHWC first, and alone without activations."""
        found: dict[str, dict[IOLayouts, None]] = {}
        for kernel in self.kernels:
            found.setdefault(kernel.task_key, {})[kernel.nhwc] = None
        for kernel in self.kernels:
            inputs = self.read[kernel.input] if kernel.input else (NHWC,)
            outputs = self.made[kernel.output] if kernel.output else (NHWC,)
            for io in (IOLayouts(*both) for both in product(inputs, outputs)):
                if io in kernel.possible:
                    found[kernel.task_key].setdefault(kernel.in_network(io))
        return {key: tuple(layouts) for key, layouts in found.items()}

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """Those of its kernels and of all copies, by their keys."""
        kinds = {self.network.graph.types[value] for value in self.made}
        copying = {task.key: task for task in map(transform_task, kinds)}
        return {key: self.network.tasks[key] for key in self.of_tasks} | {
            key: copying[key] for key, _ in self.copies
        }

    @cached_property
    def computing(self) -> tuple[Measured, ...]:
        """Each task of a kernel with the layouts that a plan may give it, NHWC first."""
        return tuple((key, io) for key, some in self.of_tasks.items() for io in some)

    @cached_property
    def copies(self) -> tuple[Measured, ...]:
        """The copies that some choice may ask for, each once."""
        found: dict[Measured, None] = {}
        for value, layouts in self.made.items():
            pairs = [IOLayouts(*both) for both in product(layouts, self.read[value])]
            wanted = [io for io in pairs if io.input != io.output]
            if wanted:
                key = transform_task(self.network.graph.types[value]).key
                found |= dict.fromkeys((key, io) for io in wanted)
        return tuple(found)

    @cached_property
    def nhwc(self) -> frozenset[Measured]:
        """Those of `computing` that are NHWC, with the padding of pixels that the network has."""
        return frozenset((kernel.task_key, kernel.nhwc) for kernel in self.kernels)


def choices_of(network: Network, spec: DeviceSpec) -> LayoutChoices:
    """All that there is to choose; inputs and outputs of the network are NHWC, and so is what no
    kernel makes."""
    graph, kernels = network.graph, layout_kernels(network, spec)
    aliases = tuple(
        (group, _common_layouts(group, network, spec)) for group in alias_groups(network)
    )
    computed = {kernel.output for kernel in kernels} - graph.ends
    aliased = {value: layouts for group, layouts in aliases for value in group.made}
    made: dict[str, Layouts] = {}
    read: dict[str, Layouts] = {}
    for value in (*graph.inputs, *(v for placed in network.groups for v in placed.group.outputs)):
        kind = graph.types[value]
        is_image = len(kind.shape) == IMAGE_RANK and not counts_of(kind.shape)
        if is_image and not always_empty(kind.shape):
            read[value] = layouts_for(spec, kind)
            made[value] = aliased.get(value, read[value] if value in computed else (NHWC,))
    bound = (v for p in network.groups if is_nhwc_only(p, graph) for v in p.group.inputs)
    return LayoutChoices(
        network=network,
        kernels=kernels,
        aliases=aliases,
        made=made,
        read=read,
        read_as_nhwc=frozenset((*bound, *graph.outputs)),
    )


def layout_kernels(network: Network, spec: DeviceSpec) -> tuple[LayoutKernel, ...]:
    """The groups with kernels that compute, whether or not they have activations of a layout."""
    graph, pitched = network.graph, _pitched(network, spec)
    found: list[LayoutKernel] = []
    for placed in network.groups:
        if placed.task_key is None or is_nhwc_only(placed, graph) or moves_channels(placed, graph):
            continue
        activations = group_activations(network, placed)
        read = [value for value, made in activations if not made]
        first = next(iter(read), None)
        output = next((value for value, made in activations if made), None)
        task = network.task_of(placed)
        shapes = placed_shapes(placed, task, graph)
        nhwc = IOLayouts(pitched.get(first or "", NHWC), pitched.get(output or "", NHWC))
        kernel = LayoutKernel(
            label=placed.group.name,
            op=placed.group.anchor.op,
            task_key=placed.task_key,
            input=first,
            output=output,
            others=tuple(value for value in read[1:] if value != first),
            nhwc=nhwc if supports(task, nhwc, shapes) else IOLayouts(),
        )
        ways = [
            layouts_for(spec, graph.types[value]) if value else (NHWC,) for value in (first, output)
        ]
        every = (IOLayouts(*both) for both in product(*ways))
        fits = [io for io in every if supports(task, kernel.in_network(io), shapes)]
        found.append(replace(kernel, possible=frozenset((IOLayouts(), *fits))))
    return tuple(found)


def _pitched(network: Network, spec: DeviceSpec) -> dict[str, ActivationLayout]:
    """The activations that are columns of wider ones where all are NHWC, and their layouts."""
    found: dict[str, ActivationLayout] = {}
    for value, view in find_views(replace(network, layouts={}), spec).items():
        shape, storage = network.graph.types[value].shape, view.storage
        if len(shape) == IMAGE_RANK and storage.is_columns:
            found[value] = padded(storage.parts[-1].room - shape[-1])
    return found


def _common_layouts(group: AliasGroup, network: Network, spec: DeviceSpec) -> Layouts:
    """The layouts in which all activations of an alias group may be."""
    first, *others = (layouts_for(spec, network.graph.types[v]) for v in (*group.made, *group.read))
    common = (layout for layout in first if all(layout in some for some in others))
    return tuple(layout for layout in common if can_have(group, layout, network))
