"""The layouts of a network as a table of costs: what each image may lie in, and what that costs.

A variable is an image, its options are the layouts in which it is kept (`Kept`): where it is made,
and what it is copied to. What a kernel takes follows from the image that it reads and the one that
it makes, each in a layout that there is; what copies take is an image's own cost. Read
`layout_problem`, then `LayoutProblem.choice`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from retune.core.dtypes import TensorType
from retune.core.target import DeviceSpec
from retune.layout.table import CostTable, TableBuilder
from retune.records.conditions import ROWS
from retune.search.extract import Network
from retune.search.laying import Kept, LayoutChoice
from retune.search.layout_options import (
    ImageLayouts,
    KernelPlace,
    image_layouts,
    kernel_places,
    read_in_rows,
)
from retune.search.layouts import IN_ROWS, Ends

KernelCost = Callable[[str, Ends], float | None]
"""Of a task, by its key, with its images lying so; None: it was not measured."""
CopyCost = Callable[[TensorType, Ends], float | None]
"""Of a copy of an image of that type from the one layout to the other; None: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCosts:
    """What is known of the time that layouts take, in microseconds."""

    kernel: KernelCost
    copy: CopyCost

    def of_kernel(self, task_key: str, ends: Ends) -> float:
        """What was not measured costs nothing in rows, and is impossible elsewhere."""
        found = self.kernel(task_key, ends)
        if found is None:
            return 0.0 if ends == IN_ROWS else inf
        return found

    def of_copies(self, kind: TensorType, kept: Kept) -> float:
        """Of all copies of an image; infinite where one was not measured."""
        found = [self.copy(kind, Ends(kept.made, layout)) for layout in kept.copies]
        return sum(inf if cost is None else cost for cost in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """A network whose images have a choice of layouts, and what every choice costs."""

    kernels: tuple[KernelPlace, ...]
    options: Mapping[str, tuple[Kept, ...]]
    """Image -> ways to keep it: rows first; a single one where it has no choice."""
    types: Mapping[str, TensorType]
    costs: LayoutCosts
    table: CostTable
    """Of the images that have a choice. What none of them changes is in no cost."""

    def choice(self, chosen: Sequence[int]) -> LayoutChoice:
        """What a solution of the table means; each kernel reads what it is the fastest with."""
        kept = {value: options[0] for value, options in self.options.items()}
        picked = zip(self.table.names, chosen, strict=True)
        kept |= {value: self.options[value][number] for value, number in picked}
        ends = {place.label: cheapest_ends(place, kept, self.costs) for place in self.kernels}
        return LayoutChoice(
            kept={value: how for value, how in kept.items() if how != Kept()},
            ends={label: found for label, found in ends.items() if found != IN_ROWS},
        )

    def numbers(self, kept: Mapping[str, Kept]) -> tuple[int, ...]:
        """The options of these ways to keep images; rows where one is none, or is not named."""
        options = (self.options[value] for value in self.table.names)
        wanted = (kept.get(value, Kept()) for value in self.table.names)
        pairs = zip(options, wanted, strict=True)
        return tuple(some.index(one) if one in some else 0 for some, one in pairs)

    def each_alone(self) -> LayoutChoice:
        """Every kernel with the ends that are the best for it, and all the copies that this takes:
        what one gets who tunes kernels and not networks. Where a copy was not measured, rows.
        """
        made: dict[str, str] = {}
        wanted: defaultdict[str, set[str]] = defaultdict(set)
        for place in self.kernels:
            possible = _possible(place, self.options)
            best = min(possible, key=lambda ends: self.costs.of_kernel(place.task_key, ends))
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
            place.label: self.costs.of_kernel(place.task_key, choice.ends.get(place.label, IN_ROWS))
            for place in self.kernels
        }

    def copies_us(self, choice: LayoutChoice) -> dict[str, float]:
        """What the copies of each image that has some take; microseconds."""
        return {
            value: self.costs.of_copies(self.types[value], kept)
            for value, kept in choice.kept.items()
            if kept.copies
        }


def layout_problem(network: Network, spec: DeviceSpec, costs: LayoutCosts) -> LayoutProblem:
    """The choices that a network has on a device, at these costs.

    An option needs a measurement: whatever was not measured otherwise than in rows stays there.
    """
    types, kernels = network.graph.types, kernel_places(network)
    options = _options(image_layouts(network, spec), read_in_rows(network), types, costs)
    builder = TableBuilder()
    own, pairs = _of_kernels(kernels, options, costs)
    for value, ways in options.items():
        if len(ways) > 1:
            copies = np.array([costs.of_copies(types[value], kept) for kept in ways])
            both = (copies + own.get(value, 0.0)).tolist()
            builder.variable(value, dict(zip(map(str, ways), both, strict=True)))
    for first, second, matrix in pairs:
        builder.between(first, second, matrix)
    return LayoutProblem(
        kernels=kernels, options=options, types=types, costs=costs, table=builder.table()
    )


def cheapest_ends(place: KernelPlace, kept: Mapping[str, Kept], costs: LayoutCosts) -> Ends:
    """The ends with which the kernel takes the least, where images are kept so."""
    made = kept[place.made].made if place.made else ROWS
    there = kept[place.read].layouts if place.read else (ROWS,)
    possible = (Ends(read, made) for read in there)
    return min(possible, key=lambda ends: costs.of_kernel(place.task_key, ends))


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


def _of_kernels(
    kernels: Sequence[KernelPlace], options: Mapping[str, Sequence[Kept]], costs: LayoutCosts
) -> tuple[dict[str, np.ndarray], list[tuple[str, str, np.ndarray]]]:
    """What kernels cost by one image alone, and by two of them."""
    own: dict[str, np.ndarray] = {}
    pairs: list[tuple[str, str, np.ndarray]] = []

    def add(first: str | None, second: str | None, matrix: np.ndarray) -> None:
        """A cost [options of the one, options of the other]; one option is none to choose."""
        choices = [(v, n) for v, n in zip((first, second), matrix.shape, strict=True) if n > 1]
        match choices:
            case [(str(a), _), (str(b), _)]:
                pairs.append((a, b, matrix))
            case [(str(a), _)]:
                own[a] = own.get(a, 0.0) + matrix.ravel()
            case _:
                pass

    for place in kernels:
        reads = options[place.read] if place.read else (Kept(),)
        mades = options[place.made] if place.made else (Kept(),)
        taken = [
            [
                min(costs.of_kernel(place.task_key, Ends(r, m.made)) for r in k.layouts)
                for m in mades
            ]
            for k in reads
        ]
        add(place.read, place.made, np.array(taken))
        for value in place.others:
            fits = [[0.0 if m.made in k.layouts else inf for m in mades] for k in options[value]]
            add(value, place.made, np.array(fits))
    return own, pairs
