"""Stage compile of a bundle for ranges of sizes: one program for each region of sizes.

Read `stage_compile_programs`. Each program is traced at sizes for which kernels were searched, with
what was chosen there, and serves all sizes that meet its conditions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.variants import join_plans, with_sizes_of
from retune.core.dims import Condition, Size, SizeValues, assuming
from retune.core.target import DeviceSpec
from retune.device.measure.gate import HOST
from retune.device.opening import spec_of
from retune.pipeline.delivery import (
    KEY_DIGITS,
    MODULE,
    bundle_notes,
    compiled,
    device_conditions,
    write_best_form,
)
from retune.pipeline.manifest import (
    CompileManifest,
    ImportManifest,
    SamplesManifest,
    Selection,
    Variant,
)
from retune.pipeline.network import open_network, traced_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.sampling import stage_samples
from retune.pipeline.selection import selected_candidates
from retune.pipeline.sizes import Traced, covering, fixed_request, sizes, usual_request
from retune.pipeline.stage import Inputs, stage
from retune.schedule.space import Candidate
from retune.search.extract import Network
from retune.search.layout.assignment import with_layouts
from retune.search.regret import SizeTimes

Chosen = tuple[Selection, ...]
"""What was found at each of the sizes to tune for, the least first."""


def _inputs(
    request: TuneRequest, network: ImportManifest, chosen: Chosen, variant: Variant
) -> Inputs:
    every = [str(size) for size in sizes(request)]
    return network.model_key, every, chosen, variant, request.max_error, device_conditions(request)


@stage(CompileManifest, "compile-programs", _inputs, doing="a bundle is compiled")
def stage_compile_programs(
    folder: Path, request: TuneRequest, network: ImportManifest, chosen: Chosen, variant: Variant
) -> CompileManifest:
    """The bundle of what was selected at some sizes; it serves all sizes of the request's ranges.

    Tasks without a record there get their default schedule, and so do those whose record's
    schedule does not serve more sizes. Raises: InputError if the device is unknown or lacks an
    element type, or if too many programs would be needed; RecordError if a record is gone.
    """
    spec = spec_of(request.device)
    programs = _Programs(request, network, choices_apart(chosen), spec, variant)
    traced, plan = _planned(programs)
    plan = write_best_form(plan, folder / MODULE, request.device)
    return replace(
        compiled(plan, folder / MODULE, spec, variant),
        from_records=programs.recorded,
        from_defaults=programs.default,
        programs=(*map(_served, traced[:-1]), "all other sizes"),
        regrets=tuple(each.regret for each in traced),
        traced=tuple(tuple(each.at.items()) for each in traced),
    )


def planned_programs(
    request: TuneRequest, network: ImportManifest, chosen: Chosen, variant: Variant
) -> NetworkPlan:
    """The plan of what was selected at some sizes. Raises: as `stage_compile_programs`."""
    spec, apart = spec_of(request.device), choices_apart(chosen)
    return _planned(_Programs(request, network, apart, spec, variant))[1]


def _planned(programs: "_Programs") -> tuple[Sequence[Traced[NetworkPlan]], NetworkPlan]:
    """The programs, and their plan."""
    tuned = [each.sizes for each in programs.chosen]
    every = sizes(programs.request)
    with HOST.working():
        traced = covering(every, tuned, programs.trace, programs.times)
        if len({_counts(each.program) for each in traced}) > 1:  # not all can serve them
            programs.behind_counts = False
            programs.counts.clear()
            traced = covering(every, tuned, programs.trace, programs.times)
        return traced, _joined(programs.network, traced)


def _counts(plan: NetworkPlan) -> frozenset[Size]:
    """The sizes that its host steps find."""
    return frozenset(each.size for each in plan.sizes if each.counted)


def choices_apart(chosen: Chosen) -> Chosen:
    """The choices that need programs of their own: of equal ones, the one at the largest sizes.

    Where nothing was measured, choices are equal: schedules are chosen by estimates over all sizes
    that a program serves, and one program for many sizes is smaller and loads faster than several.
    Sizes of one stay apart, as their loops are gone.
    """
    found: list[Selection] = []
    for each in chosen:
        same = (n for n, other in enumerate(found) if _is_like(other, each))
        if (number := next(same, None)) is not None:
            del found[number]
        found.append(each)
    return tuple(found)


def _is_like(a: Selection, b: Selection) -> bool:
    ones = ({name for name, value in each.sizes.values if value == 1} for each in (a, b))
    same = replace(a, sizes=b.sizes, model_key=b.model_key) == b
    return same and next(ones) == next(ones)


def _joined(network: ImportManifest, traced: Sequence[Traced[NetworkPlan]]) -> NetworkPlan:
    """The programs as one plan; the last one is for no region, and so it has all sizes."""
    every = traced[-1].program
    plans = [with_sizes_of(each.program, every, each.at) for each in traced]
    plan = join_plans(plans, [each.conditions for each in traced])
    return replace(plan, name=network.model_key[:KEY_DIGITS])


def _served(traced: Traced[NetworkPlan]) -> str:
    """The sizes that a program is for."""
    return " and ".join(map(str, traced.conditions))


@dataclass
class _Programs:
    """Plans of the network for sizes, by what was chosen near them."""

    request: TuneRequest
    network: ImportManifest
    chosen: Chosen
    spec: DeviceSpec
    variant: Variant
    behind_counts: bool = True
    """Kernels run there, where they can."""

    def trace(
        self,
        at: SizeValues,
        number: int,
        region: Sequence[Condition],
        defaults: Mapping[str, Candidate],
    ) -> tuple[NetworkPlan, Sequence[Condition]]:
        """The plan that is made at sizes of a region, and on what conditions it holds."""
        with assuming(at, region) as assumed:
            network, chosen = self._traced(at, number)
            tunable = sum(task.tunable for task in network.tasks.values())
            self.counts.append((len(chosen), tunable))
            plan = build_plan(
                network,
                {**defaults, **chosen},
                self.spec,
                model_key=self.network.model_key,
                notes={"variant": self.variant, **bundle_notes(self.request, self.network)},
                ranges={name: (low, high) for name, low, high in self.samples.ranges},
                shared=True,
            )
        return plan, assumed.conditions

    def times(self, at: SizeValues, number: int, region: Sequence[Condition]) -> SizeTimes:
        """The estimates of the tasks for which nothing is chosen, at sizes of a region."""
        with assuming(at, region):
            network, chosen = self._traced(at, number)
            tasks = (t for t in network.tasks.values() if t.tunable and t.at(at).key not in chosen)
            return SizeTimes.of(tasks, sizes(self.request), self.spec)

    def _traced(self, at: SizeValues, number: int) -> tuple[Network, dict[str, Candidate]]:
        """The network at the sizes that are assumed, and what is chosen there, by tasks' keys."""
        network = traced_network(self.request, self.network.recipe, counts=self.behind_counts)
        fixed = self._fixed_keys(network, number)
        chosen = self._candidates(network, number, fixed, at)
        return self._limited(network, number, fixed), chosen

    def _limited(self, network: Network, number: int, fixed: Mapping[str, str]) -> Network:
        """The network with the limits of tasks and the layouts of the selection."""
        selection = self.chosen[number]
        limits = dict(selection.limits)
        tasks = {
            key: replace(task, max_error=min(limits.get(fixed.get(key, ""), inf), task.max_error))
            for key, task in network.tasks.items()
        }
        return with_layouts(replace(network, tasks=tasks), selection.layouts)

    def _fixed_keys(self, network: Network, number: int) -> dict[str, str]:
        """The keys of the network's tasks where its sizes are those of a selection."""
        own = fixed_request(self.request, dict(self.chosen[number].sizes.values))
        named = open_network(own).network.task_keys
        return {key: named[name] for name, key in network.task_keys.items() if name in named}

    def _candidates(
        self, network: Network, number: int, fixed: Mapping[str, str], at: SizeValues
    ) -> dict[str, Candidate]:
        """The candidates of a selection, by the keys of tasks at the sizes at hand."""
        chosen = self._selected[number]
        return {
            task.at(at).key: candidate
            for key, task in network.tasks.items()
            if (candidate := chosen.get(fixed.get(key, ""))) is not None
        }

    @cached_property
    def samples(self) -> SamplesManifest:
        """On which inputs the bundle is checked."""
        return stage_samples(usual_request(self.request), self.network)

    @cached_property
    def _selected(self) -> list[Mapping[str, Candidate]]:
        """The candidates of each selection, by the keys of tasks of these sizes."""
        return [
            selected_candidates(fixed_request(self.request, dict(each.sizes.values)), each)
            for each in self.chosen
        ]

    @cached_property
    def counts(self) -> list[tuple[int, int]]:
        """Of each program: tasks with a record, and tasks that can be tuned."""
        return []

    @property
    def recorded(self) -> int:
        """Tasks of all programs that are compiled from a record."""
        return sum(count for count, _ in self.counts)

    @property
    def default(self) -> int:
        """Tasks that can be tuned, and have their default schedule."""
        return sum(every - count for count, every in self.counts)
