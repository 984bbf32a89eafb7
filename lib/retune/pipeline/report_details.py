"""The report's details of each layer: nodes, schedule, kernels, and the trials of the search."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from retune.bundle.format import read_outline
from retune.codegen.source import KernelLaunch, KernelText
from retune.core.errors import RecordError
from retune.core.quantities import time_text
from retune.pipeline.manifest import BestRecord
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.sizes import usual_request
from retune.records.conditions import ALONE
from retune.records.schema import BESIDE_SEARCH, TuningRecord
from retune.records.shared import records_named
from retune.records.store import RecordStore
from retune.report.data import LayerDetail, LayerGroup, LayerKernel, TriedStrategy
from retune.schedule.trace import Trace
from retune.search.extract import Network

_MOST_REASON = 160
"""Characters of a reason."""


def layer_details(request: TuneRequest, run: FinishedRun) -> tuple[LayerDetail, ...]:
    """The details of each task of the tuned bundle; for ranges, at the sizes that occur most."""
    network = open_network(usual_request(request)).network
    outline = read_outline(run.tuned.file(run.tuned.module))
    kernels = {kernel.name: kernel for kernel in outline.kernels}
    launches: defaultdict[str, list[KernelLaunch]] = defaultdict(list)
    for launch in outline.launches:
        launches[launch.label].append(launch)
    best = {each.task_key: each for each in run.selection.best}
    trials = run_trials(Path(request.records), run.searched.run_id)
    first = _first_trials(trials)
    ids = {each.record_id: key for key, each in best.items()}
    ids |= {record_id: key for key, record_id in first.items() if key not in best}
    records = records_named(RecordStore(request.records), ids) if ids else {}
    tried = strategies(trials)
    groups = _groups(network)
    spent = _spent(run, network)
    return tuple(
        LayerDetail(
            task_key=key,
            groups=tuple(groups[key]),
            chosen=_chosen(best.get(key), records),
            schedule=_schedule(
                records.get(best[key].record_id if key in best else first.get(key, ""))
            ),
            kernels=_kernels([n for g in groups[key] for n in launches[g.name]], kernels),
            tried=tuple(tried.get(key, ())),
            measured_us=spent.get(key),
        )
        for key in dict.fromkeys(entry.key for entry in run.tasks.tasks)
    )


@dataclass(frozen=True, slots=True)
class RunTrial:
    """A trial, as the report shows it."""

    task_key: str
    record_id: str
    phase: str | None
    strategy: str | None
    sketch: str | None
    status: str
    error: str | None
    median_us: float | None


_COLUMNS = tuple(each.name for each in fields(RunTrial))


def run_trials(root: Path, run_id: str) -> list[RunTrial]:
    """The trials of a run in their order; none where there is no store."""
    table = RecordStore(root).table({"run_id": run_id}, [*_COLUMNS, "timestamp"])
    table = table.sort_by("timestamp")
    columns = [table[name].to_pylist() for name in _COLUMNS]
    rows = (RunTrial(*row) for row in zip(*columns, strict=True))
    return [row for row in rows if row.phase not in BESIDE_SEARCH and row.status != "skipped"]


def trial_notes(trials: Sequence[RunTrial]) -> list[tuple[str, float | None, str]]:
    """For each trial its task, its time (None: it failed), and its strategy or its failure."""
    found: list[tuple[str, float | None, str]] = []
    for trial in trials:
        name = trial.strategy or trial.sketch or ""
        if trial.status == "ok":
            found.append((trial.task_key, trial.median_us, name))
        else:
            reason = _reason(trial.status, trial.error or "")
            found.append((trial.task_key, None, f"{name}: {reason}"))
    return found


def strategies(trials: Sequence[RunTrial]) -> dict[str, list[TriedStrategy]]:
    """Task -> what was measured of each strategy, the fastest first."""
    times: defaultdict[tuple[str, str], list[float | None]] = defaultdict(list)
    reasons: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for key, us, note in trial_notes(trials):
        name, _, reason = note.partition(": ")
        times[key, name].append(us)
        if us is None:
            reasons[key, name][reason] += 1
    found: defaultdict[str, list[TriedStrategy]] = defaultdict(list)
    for (key, name), measured in times.items():
        right = [us for us in measured if us is not None]
        frequent = reasons[key, name].most_common(1)
        found[key].append(
            TriedStrategy(
                strategy=name,
                measured=len(measured),
                failed=len(measured) - len(right),
                best_us=min(right, default=None),
                reason=frequent[0][0] if frequent else "",
            )
        )
    for each in found.values():
        each.sort(key=lambda tried: tried.best_us or float("inf"))
    return found


def _reason(status: str, error: str) -> str:
    first = (error.strip().splitlines() or [""])[0][:_MOST_REASON]
    return f"{status.replace('_', ' ')}: {first}" if first else status.replace("_", " ")


def _groups(network: Network) -> Mapping[str, list[LayerGroup]]:
    """Task -> the groups of the network that are instances of it, with their nodes."""
    nodes = {
        placed.group.name: tuple(f"{node.op} {node.name}".strip() for node in placed.group.nodes)
        for placed in network.groups
    }
    found: defaultdict[str, list[LayerGroup]] = defaultdict(list)
    for name, key in network.task_keys.items():
        found[key].append(LayerGroup(name=name, nodes=nodes.get(name, ())))
    return found


def _spent(run: FinishedRun, network: Network) -> dict[str, float]:
    """Task -> time of one run of it in the bundle, the mean over its groups."""
    by_label: defaultdict[str, float] = defaultdict(float)
    for row in run.bench.profile:
        by_label[row.label] += row.us
    timed: defaultdict[str, list[float]] = defaultdict(list)
    for name, key in network.task_keys.items():
        if name in by_label:
            timed[key].append(by_label[name])
    return {key: sum(each) / len(each) for key, each in timed.items()}


def _chosen(
    best: BestRecord | None, records: Mapping[str, TuningRecord]
) -> tuple[tuple[str, str], ...]:
    if best is None:
        return (("compiled from", "its default schedule"),)
    record = records.get(best.record_id)
    if record is None:
        return (("compiled from", f"record {best.record_id}, which the store does not have"),)
    where = record.conditions
    place = where.place if where else ALONE
    knobs = "; ".join(f"{name}={list(values)}" for name, values in record.knobs)
    facts = {
        "compiled from": f"record {record.record_id}, {record.phase}, trial {record.trial}",
        "time of the record": "taken elsewhere" if best.elsewhere else time_text(best.time_us),
        "timed": "alone" if place == ALONE else "in the network",
        "constants from": where.constants if where else "",
        "layouts": f"{where.layout_in} to {where.layout_out}" if where else "",
        "strategy": record.strategy or record.sketch,
        "decisions": knobs,
        "proposed by": record.tuner,
        "night": record.night,
    }
    return tuple((name, value) for name, value in facts.items() if value)


def _first_trials(trials: Sequence[RunTrial]) -> dict[str, str]:
    """Task -> the record of its first trial, which is of its default schedule."""
    return {trial.task_key: trial.record_id for trial in reversed(trials)}


def _schedule(record: TuningRecord | None) -> str:
    if record is None:
        return ""
    try:
        return str(Trace.from_json(record.trace))
    except RecordError as error:
        return str(error)


def _kernels(
    launches: Sequence[KernelLaunch], kernels: Mapping[str, KernelText]
) -> tuple[LayerKernel, ...]:
    """Each kernel once, with its first launch."""
    counts = Counter(launch.kernel for launch in launches)
    first = {launch.kernel: launch for launch in reversed(launches)}
    return tuple(
        LayerKernel(
            name=name,
            launch=f"{_range(first[name].global_size)} work-items in groups of "
            f"{_range(first[name].local_size)}, launched {counts[name]}x for a run of the network",
            text=kernels[name].text,
        )
        for name in dict.fromkeys(launch.kernel for launch in launches)
    )


def _range(sizes: Sequence[object]) -> str:
    return " x ".join(map(str, sizes))
