"""The layouts of a network as a problem to solve: variables, their options, and what these cost.

A variable is an activation, its options are the layouts in which it is kept (`KeptLayouts`): that
of its kernel, and those that it is copied to. A kernel's time follows from the activation that it
reads and the one that it makes; what copies take is an activation's own cost. An alias group is a
variable, too: it costs nothing where all of its activations have its layout. Read
`LayoutProblem.of`, then `LayoutProblem.plan`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

import numpy as np

from retune.core.layouts import (
    NHWC,
    ActivationLayout,
    IOLayouts,
    KeptLayouts,
    LayoutAssignment,
    LayoutPlan,
)
from retune.search.layout.choices import LayoutChoices, LayoutKernel, Layouts, Measured
from retune.search.layout.layouts import transform_task
from retune.search.layout.solver import CostTable, Solution, solve

Cost = Callable[[Measured], float | None]
"""Microseconds that a task takes in these layouts, copies included; None: it was not measured."""
Options = Mapping[str, tuple[KeptLayouts, ...]]
"""Activation, or label of an alias group -> ways to keep it, NHWC first. Alias groups have no
copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProblem:
    """A network whose activations have a choice of layouts, and what every choice costs."""

    choices: LayoutChoices
    cost: Cost
    doubt: float
    """Part of their time by which kernels in other layouts than NHWC count for slower."""
    options: Options
    table: CostTable
    """Of the activations and alias groups. A kernel without activations is in no cost."""

    @classmethod
    def of(cls, choices: LayoutChoices, cost: Cost, doubt: float = 0.0) -> "LayoutProblem":
        """The choices that a network has on a device, at these costs.

        An option needs a measurement: whatever was not measured in another layout stays NHWC.
        """
        options: dict[str, tuple[KeptLayouts, ...]] = {}
        table = CostTable()
        problem = cls(choices=choices, cost=cost, doubt=doubt, options=options, table=table)
        for value, layouts in choices.made.items():
            ways = {
                kept: problem.copying_us(value, kept)
                for kept in _ways(layouts, choices.read[value])
                if value not in choices.read_as_nhwc or NHWC in kept.all
            }
            options[value] = tuple(kept for kept, us in ways.items() if us < inf)
            table.variable(value, [ways[kept] for kept in options[value]])
        for aliases, layouts in choices.aliases:
            options[aliases.label] = tuple(map(KeptLayouts, layouts))
            table.variable(aliases.label, np.zeros(len(layouts)))
        for kernel in choices.kernels:
            problem._add_kernel(kernel)
        for aliases, _ in choices.aliases:
            ways = options[aliases.label]
            for value in aliases.made:
                alike = [[0.0 if k.made == w.made else inf for w in ways] for k in options[value]]
                table.add(alike, value, aliases.label)
            for value in aliases.read:
                table.add(_available(options[value], ways), value, aliases.label)
        return problem

    def _add_kernel(self, kernel: LayoutKernel) -> None:
        """It reads its first activation in the best of the layouts that there are, all others in
        that of what it makes."""
        none = (KeptLayouts(),)
        reads = self.options[kernel.input] if kernel.input else none
        mades = self.options[kernel.output] if kernel.output else none
        best = [
            [min(self.kernel_us(kernel, IOLayouts(one, m.made)) for one in k.all) for m in mades]
            for k in reads
        ]
        _add(self.table, best, kernel.input, kernel.output)
        for value in kernel.others:
            _add(self.table, _available(self.options[value], mades), value, kernel.output)

    def nhwc_us(self, kernel: LayoutKernel) -> float | None:
        """What the kernel takes in NHWC, padded as in the network; where that was not measured,
        without padding."""
        there = self.cost((kernel.task_key, kernel.nhwc))
        return self.cost((kernel.task_key, IOLayouts())) if there is None else there

    def kernel_us(self, kernel: LayoutKernel, io: IOLayouts) -> float:
        """What was not measured costs nothing in NHWC, and is impossible elsewhere."""
        if io == IOLayouts():
            return self.nhwc_us(kernel) or 0.0
        found = self.cost(kernel.measured(io)) if io in kernel.possible else None
        return inf if found is None else found * (1.0 + self.doubt)

    def copying_us(self, value: str, kept: KeptLayouts) -> float:
        """What all copies of an activation take; infinite where one was not measured."""
        found = [self.cost(copy) for copy in self.copies(value, kept)]
        return sum(inf if us is None else us for us in found)

    def copies(self, value: str, kept: KeptLayouts) -> list[Measured]:
        """The copies of an activation that is kept so."""
        if not kept.copies:
            return []
        key = transform_task(self.choices.network.graph.types[value]).key
        return [(key, IOLayouts(kept.made, layout)) for layout in kept.copies]

    @property
    def measured(self) -> bool:
        """Whether of any kernel a time is known in another layout than NHWC."""
        return any(
            self.kernel_us(kernel, io) < inf
            for kernel in self.choices.kernels
            for io in kernel.possible
            if io != IOLayouts()
        )

    def solved(self) -> tuple[LayoutAssignment, Solution]:
        """The layouts that take the least time. Raises: InputError where there are none."""
        solution = solve(self.table)
        return self.assignment(solution.choice), solution

    def assignment(self, chosen: Mapping[str, int]) -> LayoutAssignment:
        """What a choice of options means; each kernel reads what it is the fastest with."""
        kept = {value: self.options[value][number] for value, number in chosen.items()}
        kernels: dict[str, IOLayouts] = {}
        for kernel in self.choices.kernels:
            output = kept[kernel.output].made if kernel.output else NHWC
            there = kept[kernel.input].all if kernel.input else (NHWC,)
            possible = (IOLayouts(one, output) for one in there)
            kernels[kernel.label] = min(possible, key=lambda io: self.kernel_us(kernel, io))
        for aliases, _ in self.choices.aliases:
            layout = kept.pop(aliases.label).made
            kernels |= {p.group.name: IOLayouts(layout, layout) for p in aliases.groups}
        return LayoutAssignment(
            activations={value: how for value, how in kept.items() if how != KeptLayouts()},
            kernels={label: io for label, io in kernels.items() if io != IOLayouts()},
        )

    def closest(self, kept: Mapping[str, KeptLayouts]) -> LayoutAssignment:
        """The assignment that keeps activations so; NHWC where that is not an option."""
        aliased = {
            aliases.label: KeptLayouts(kept.get(aliases.made[0], KeptLayouts()).made)
            for aliases, _ in self.choices.aliases
        }
        wanted = {**kept, **aliased}
        chosen: dict[str, int] = {}
        for value, options in self.options.items():
            one = wanted.get(value, KeptLayouts())
            chosen[value] = options.index(one) if one in options else 0
        return self.assignment(chosen)

    def each_alone(self) -> LayoutAssignment:
        """Every kernel in the layouts that are the best for it, and all the copies that this takes:
        what one gets who tunes kernels and not networks. Where a copy was not measured, NHWC.
        """
        made: dict[str, ActivationLayout] = {}
        wanted: defaultdict[str, set[ActivationLayout]] = defaultdict(set)
        for value in (value for aliases, _ in self.choices.aliases for value in aliases.read):
            wanted[value].add(NHWC)
        for kernel in self.choices.kernels:
            reads = (
                [one for k in self.options[kernel.input] for one in k.all]
                if kernel.input
                else [NHWC]
            )
            mades = [k.made for k in self.options[kernel.output]] if kernel.output else [NHWC]
            possible = dict.fromkeys(IOLayouts(one, other) for one in reads for other in mades)
            best = min(possible, key=lambda io: self.kernel_us(kernel, io))
            if kernel.output:
                made[kernel.output] = best.output
            if kernel.input:
                wanted[kernel.input].add(best.input)
            for value in kernel.others:
                wanted[value].add(best.output)
        kept: dict[str, KeptLayouts] = {}
        for value, options in self.options.items():
            own = made.get(value, NHWC)
            enough = (k for k in options if k.made == own and wanted[value] <= {*k.all})
            kept[value] = min(enough, key=lambda k: len(k.copies), default=options[0])
        return self.closest(kept)

    def plan(self, layouts: LayoutAssignment) -> LayoutPlan:
        """The assignment, with what kernels and copies take by their measurements."""
        kernels = self.choices.kernels
        return LayoutPlan(
            layouts=layouts,
            kernels_us={k.label: self.kernel_us(k, layouts.of_kernel(k.label)) for k in kernels},
            nhwc_us={k.label: self.nhwc_us(k) or 0.0 for k in kernels},
            copies_us={
                value: self.copying_us(value, kept)
                for value, kept in layouts.activations.items()
                if kept.copies
            },
        )


def _ways(mades: Layouts, readable: Layouts) -> Iterator[KeptLayouts]:
    """All ways to keep an activation; NHWC alone first."""
    for made in mades:
        others = sorted(set(readable) - {made})
        for count in range(len(others) + 1):
            for copies in combinations(others, count):
                yield KeptLayouts(made, copies)


def _available(kept: Sequence[KeptLayouts], wanted: Sequence[KeptLayouts]) -> np.ndarray:
    """Nothing where an activation is kept in the layout that is wanted, else infinity."""
    return np.array([[0.0 if w.made in k.all else inf for w in wanted] for k in kept])


def _add(table: CostTable, costs: object, *values: str | None) -> None:
    """Adds a cost [options of each]; no activation has a single one."""
    names = [value for value in values if value]
    if names:
        table.add(np.reshape(np.array(costs), [len(table.own[name]) for name in names]), *names)
