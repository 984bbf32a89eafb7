"""Two reports beside each other: their layers, latencies and settings. Read `compared`."""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.results import TaskResult
from retune.report.data import LayerDetail, ReportData

CHANGED = 0.03
"""Part of a time from which on a layer counts as faster or slower: runs differ by noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedLayer:
    """A task in two runs; at least one of them has it."""

    name: str
    weight: int
    """How often the network runs it, where it has it."""
    us: float | None
    other_us: float | None
    present: tuple[bool, bool]
    """Whether this report and the other one have the task."""
    strategy: str
    other_strategy: str

    @property
    def ratio(self) -> float | None:
        """Time over the other's: below 1, it got faster. None: one of them has none."""
        return self.us / self.other_us if self.us and self.other_us else None

    @property
    def saved_us(self) -> float:
        """Of one run of the network; negative where it got slower."""
        return ((self.other_us or 0.0) - (self.us or 0.0)) * self.weight if self.ratio else 0.0

    @property
    def spent_us(self) -> float:
        """Of one run of the network, where it takes longer."""
        return max(self.us or 0.0, self.other_us or 0.0) * self.weight

    @property
    def verdict(self) -> str:
        """For people: `faster`, `slower`, `same`, `not timed`, or where alone it is."""
        if not all(self.present):
            return "only here" if self.present[0] else "only in the other"
        if self.ratio is None:
            return "not timed"
        if abs(self.ratio - 1) <= CHANGED:
            return "same"
        return "faster" if self.ratio < 1 else "slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportComparison:
    """A report beside another one, of an earlier version or of another run."""

    title: str
    """Network, device and time of the other."""
    alike: bool
    """Whether both are of the same device and driver: otherwise ratios tell of those, too."""
    latency: tuple[tuple[str, float | None, float | None], ...]
    """Name, microseconds, and those of the other."""
    layers: tuple[ComparedLayer, ...]
    """The greatest change of the network's time first, then the costliest."""
    facts: tuple[tuple[str, str, str], ...]
    """Settings and sizes that differ: name, value, and that of the other."""


def compared(data: ReportData, other: ReportData) -> ReportComparison:
    """The report beside the other one. Tasks are matched by what they compute."""
    tasks = [{t.entry.key: t for t in d.tasks} for d in (data, other)]
    details = [{d.task_key: d for d in each.details} for each in (data, other)]
    layers = [
        _layer([each.get(key) for each in tasks], [each.get(key) for each in details])
        for key in dict.fromkeys((*tasks[0], *tasks[1]))
    ]
    times = [{row.name: row.median_us for row in each.latency} for each in (data, other)]
    facts, other_facts = dict(data.facts), dict(other.facts)
    return ReportComparison(
        title=f"{other.network} on {other.target}, {other.created}",
        alike=facts.get("device") == other_facts.get("device"),
        latency=tuple(
            (name, times[0].get(name), times[1].get(name))
            for name in dict.fromkeys((*times[0], *times[1]))
        ),
        layers=tuple(sorted(layers, key=lambda layer: (-abs(layer.saved_us), -layer.spent_us))),
        facts=tuple(
            (name, facts.get(name, "–"), other_facts.get(name, "–"))
            for name in dict.fromkeys((*facts, *other_facts))
            if facts.get(name) != other_facts.get(name)
        ),
    )


def _layer(
    tasks: Sequence[TaskResult | None], details: Sequence[LayerDetail | None]
) -> ComparedLayer:
    """Times are those in the bundles, or those of records if a run that has the task lacks one."""
    entry = next(task.entry for task in tasks if task is not None)
    times = [detail.measured_us if detail else None for detail in details]
    if any(task and not us for task, us in zip(tasks, times, strict=True)):
        times = [task.best_us if task else None for task in tasks]
    strategies = [
        dict(detail.chosen).get("strategy", "default schedule") if detail else ""
        for detail in details
    ]
    return ComparedLayer(
        name=entry.name,
        weight=entry.weight,
        us=times[0],
        other_us=times[1],
        present=(tasks[0] is not None, tasks[1] is not None),
        strategy=strategies[0],
        other_strategy=strategies[1],
    )
