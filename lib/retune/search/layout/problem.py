"""The layouts of a network as a table of costs: what each image may lie in, and what that costs.

A variable is an image, its options are the layouts in which it is kept (`Kept`): where it is made,
and what it is copied to. What a kernel takes follows from the image that it reads and the one that
it makes, each in a layout that there is; what copies take is an image's own cost. A joint of images
is a variable, too, of its layout, and costs nothing where all of them are there. Read
`layout_problem`, then `LayoutProblem.choice`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from retune.core.dtypes import TensorType
from retune.core.layouts import ROWS
from retune.search.layout.joints import Joint
from retune.search.layout.laying import Kept, LayoutChoice
from retune.search.layout.layouts import IN_ROWS, Ends
from retune.search.layout.options import Choices, ImageLayouts, KernelPlace
from retune.search.layout.solver import CostTable

KernelCost = Callable[[str, Ends], float | None]
"""Of a task, by its key, with its images lying so; None: it was not measured."""
CopyCost = Callable[[TensorType, Ends], float | None]
"""Of a copy of an image of that type from the one layout to the other; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCosts:
    """What is known of the time that layouts take, in microseconds."""

    kernel: KernelCost
    copy: CopyCost
    doubt: float = 0.0
    """Part of their time by which kernels whose images are not in rows count for slower."""

    def in_rows(self, place: KernelPlace) -> float | None:
        """Of the kernel with its images in rows, as they are in the network; else in rows alone."""
        there = self.kernel(place.task_key, place.rows)
        return self.kernel(place.task_key, IN_ROWS) if there is None else there

    def of_kernel(self, place: KernelPlace, ends: Ends) -> float:
        """What was not measured costs nothing in rows, and is impossible elsewhere."""
        if ends == IN_ROWS:
            return self.in_rows(place) or 0.0
        if ends not in place.possible:
            return inf
        found = self.kernel(place.task_key, place.lying(ends))
        return inf if found is None else found * (1.0 + self.doubt)

    def of_copies(self, kind: TensorType, kept: Kept) -> float:
        """Of all copies of an image; infinite where one was not measured."""
        found = [self.copy(kind, Ends(kept.made, layout)) for layout in kept.copies]
        return sum(inf if cost is None else cost for cost in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """A network whose images have a choice of layouts, and what every choice costs."""

    kernels: tuple[KernelPlace, ...]
    joints: Mapping[str, Joint]
    """By their labels."""
    options: Mapping[str, tuple[Kept, ...]]
    """Image, or label of a joint -> ways to keep it: rows first; a single one where it has no
    choice. Joints have no copies."""
    types: Mapping[str, TensorType]
    costs: LayoutCosts
    table: CostTable
    """Of the images and joints. A kernel without images is in no cost."""

    @property
    def measured(self) -> bool:
        """Whether of any kernel a time is known with an image in another layout than rows."""
        return any(
            self.costs.of_kernel(place, ends) < inf
            for place in self.kernels
            for ends in place.possible
            if ends != IN_ROWS
        )

    def choice(self, chosen: Mapping[str, int]) -> LayoutChoice:
        """What a solution of the table means; each kernel reads what it is the fastest with."""
        kept = {value: self.options[value][number] for value, number in chosen.items()}
        ends = {place.label: cheapest_ends(place, kept, self.costs) for place in self.kernels}
        for label, joint in self.joints.items():
            alike = Ends(kept[label].made, kept.pop(label).made)
            ends |= dict.fromkeys((placed.group.name for placed in joint.groups), alike)
        return LayoutChoice(
            kept={value: how for value, how in kept.items() if how != Kept()},
            ends={label: found for label, found in ends.items() if found != IN_ROWS},
        )

    def numbers(self, kept: Mapping[str, Kept]) -> dict[str, int]:
        """The options of these ways to keep images; rows where one is none, or is not named."""
        joined = {label: kept.get(joint.made[0], Kept()) for label, joint in self.joints.items()}
        known = {**kept, **{label: Kept(how.made) for label, how in joined.items()}}
        found: dict[str, int] = {}
        for value, some in self.options.items():
            one = known.get(value, Kept())
            found[value] = some.index(one) if one in some else 0
        return found

    def each_alone(self) -> LayoutChoice:
        """Every kernel with the ends that are the best for it, and all the copies that this takes:
        what one gets who tunes kernels and not networks. Where a copy was not measured, rows.
        """
        made: dict[str, str] = {}
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for value in (value for joint in self.joints.values() for value in joint.read):
            wanted[value].add(ROWS)
        for place in self.kernels:
            possible = _possible(place, self.options)
            best = min(possible, key=lambda ends: self.costs.of_kernel(place, ends))
            if place.made:
                made[place.made] = best.made
            for value in (place.read, *place.others):
                if value:
                    wanted[value].add(best.read if value == place.read else best.made)
        kept: dict[str, Kept] = {}
        for value, options in self.options.items():
            needed = wanted[value] | {made.get(value, ROWS)}
            fits = [k for k in options if k.made == made.get(value, ROWS)]
            enough = (k for k in fits if needed <= set(k.layouts))
            kept[value] = min(enough, key=lambda k: len(k.copies), default=options[0])
        return self.choice(self.numbers(kept))

    def kernel_us(self, choice: LayoutChoice) -> dict[str, float]:
        """What each kernel takes, by its group; microseconds."""
        return {
            place.label: self.costs.of_kernel(place, choice.ends.get(place.label, IN_ROWS))
            for place in self.kernels
        }

    def copies_us(self, choice: LayoutChoice) -> dict[str, float]:
        """What the copies of each image that has some take; microseconds."""
        return {
            value: self.costs.of_copies(self.types[value], kept)
            for value, kept in choice.kept.items()
            if kept.copies
        }


def layout_problem(choices: Choices, costs: LayoutCosts) -> LayoutProblem:
    """The choices that a network has on a device, at these costs.

    An option needs a measurement: whatever was not measured otherwise than in rows stays there.
    """
    types, kernels, joined = choices.network.graph.types, choices.kernels, choices.joints
    options = _options(choices.images, choices.in_rows, types, costs)
    ways = {joint.label: tuple(map(Kept, layouts)) for joint, layouts in joined}
    table = CostTable()
    for value, some in options.items():
        table.variable(value, [costs.of_copies(types[value], kept) for kept in some])
    for label, some in ways.items():
        table.variable(label, np.zeros(len(some)))
    options |= ways
    for place in kernels:
        _add_kernel(table, place, options, costs)
    for joint, _ in joined:
        _add_joint(table, joint, options)
    return LayoutProblem(
        kernels=kernels,
        joints={joint.label: joint for joint, _ in joined},
        options=options,
        types=types,
        costs=costs,
        table=table,
    )


def cheapest_ends(place: KernelPlace, kept: Mapping[str, Kept], costs: LayoutCosts) -> Ends:
    """The ends with which the kernel takes the least, where images are kept so."""
    made = kept[place.made].made if place.made else ROWS
    there = kept[place.read].layouts if place.read else (ROWS,)
    possible = (Ends(read, made) for read in there)
    return min(possible, key=lambda ends: costs.of_kernel(place, ends))


def _options(
    layouts: ImageLayouts,
    in_rows: frozenset[str],
    types: Mapping[str, TensorType],
    costs: LayoutCosts,
) -> dict[str, tuple[Kept, ...]]:
    return {
        value: tuple(
            kept
            for kept in _ways(mades, layouts.read[value])
            if (value not in in_rows or ROWS in kept.layouts)
            and costs.of_copies(types[value], kept) < inf
        )
        for value, mades in layouts.made.items()
    }


def _ways(mades: Sequence[str], readable: Sequence[str]) -> Iterator[Kept]:
    """All ways to keep an image; rows alone first."""
    for made in mades:
        others = sorted(set(readable) - {made})
        for count in range(len(others) + 1):
            for copies in combinations(others, count):
                yield Kept(made, copies)


def _possible(place: KernelPlace, options: Mapping[str, Sequence[Kept]]) -> list[Ends]:
    """The ends that the kernel may have, whatever others would like."""
    reads = [way.layouts for way in options[place.read]] if place.read else [(ROWS,)]
    mades = [way.made for way in options[place.made]] if place.made else [ROWS]
    found = {Ends(read, made): None for some in reads for read in some for made in mades}
    return list(found)


def _add_kernel(
    table: CostTable,
    place: KernelPlace,
    options: Mapping[str, tuple[Kept, ...]],
    costs: LayoutCosts,
) -> None:
    """It reads its first image in the best of the layouts that there are, all others as what it
    makes."""

    def taken(kept: Kept, made: Kept) -> float:
        return min(costs.of_kernel(place, Ends(r, made.made)) for r in kept.layouts)

    reads = options[place.read] if place.read else (Kept(),)
    mades = options[place.made] if place.made else (Kept(),)
    _add(table, [[taken(k, m) for m in mades] for k in reads], place.read, place.made)
    for value in place.others:
        _add(table, _there(options[value], mades), value, place.made)


def _add(table: CostTable, costs: object, *values: str | None) -> None:
    """Adds a cost [options of each]; no image has a single one."""
    names = [value for value in values if value]
    if names:
        table.add(np.reshape(np.array(costs), [len(table.own[name]) for name in names]), *names)


def _add_joint(table: CostTable, joint: Joint, options: Mapping[str, tuple[Kept, ...]]) -> None:
    """It takes no time, in the layout that all of its images are made in, or copied to."""
    layouts = options[joint.label]
    for value in joint.made:
        alike = [[0.0 if k.made == j.made else inf for j in layouts] for k in options[value]]
        table.add(alike, value, joint.label)
    for value in joint.read:
        table.add(_there(options[value], layouts), value, joint.label)


def _there(kept: Sequence[Kept], wanted: Sequence[Kept]) -> np.ndarray:
    """Nothing where an image is kept in the layout that is wanted, else infinity."""
    return np.array([[0.0 if w.made in k.layouts else inf for w in wanted] for k in kept])
