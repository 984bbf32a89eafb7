"""The end of a run, put together from its manifests; the library and the flow share it."""

from collections import Counter
from collections.abc import Sequence

from retune.stages.manifest import (
    BenchManifest,
    ImportManifest,
    ReportManifest,
    RoundManifest,
    TaskManifest,
    TaskResult,
    TuneRequest,
    TuneResult,
    VerifyManifest,
)


def summarize(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    rounds: Sequence[RoundManifest],
    *,
    verified: VerifyManifest,
    bench: BenchManifest,
    published: ReportManifest,
) -> TuneResult:
    """What the user is told; `rounds` has at least one round, the last one finished."""
    last = rounds[-1]
    return TuneResult(
        model=request.model,
        name=network.name,
        module=published.module,
        report=published.report,
        records=request.records,
        target=last.target,
        tasks=task_results(tasks, last),
        trials=last.trials_done,
        seconds=last.seconds_done,
        reason=last.reason,
        verified=verified,
        latency=bench.rows,
        statuses=count_statuses(rounds),
    )


def task_results(tasks: TaskManifest, last: RoundManifest) -> tuple[TaskResult, ...]:
    """Every task with what the last round knows of it, the costliest first."""
    known = {entry.task_key: entry for entry in last.progress}
    results = [TaskResult.of(entry, known.get(entry.key)) for entry in tasks.tasks]
    return tuple(sorted(results, key=_cost, reverse=True))


def count_statuses(rounds: Sequence[RoundManifest]) -> tuple[tuple[str, int], ...]:
    """Measurements of all rounds by status, the most frequent first."""
    counts: Counter[str] = Counter()
    for entry in rounds:
        counts.update(dict(entry.statuses))
    return tuple(counts.most_common())


def _cost(result: TaskResult) -> tuple[float, int]:
    weight = result.entry.weight
    return (result.best_us or 0.0) * weight, result.entry.flops * weight
