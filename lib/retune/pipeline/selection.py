"""Stage select, and what a selection means: which candidate each task of the network is made of."""

from collections.abc import Mapping
from dataclasses import replace

from retune.core.errors import RecordError
from retune.core.layouts import ALL_NHWC, MEASURED
from retune.core.target import DeviceSpec
from retune.device.opening import spec_of
from retune.device.simulated.accelerator import BASE
from retune.pipeline.layout_manifest import UNPLANNED, LayoutManifest
from retune.pipeline.manifest import (
    BestRecord,
    FinalistsManifest,
    Selection,
    TaskManifest,
    TuneRequest,
)
from retune.pipeline.network import open_network
from retune.records.conditions import CONSTANTS
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.conditions import network_conditions
from retune.search.extract import Network
from retune.search.history import best_candidate, candidate_of
from retune.search.layout.assignment import with_layouts


def stage_select(
    request: TuneRequest,
    tasks: TaskManifest,
    finalists: FinalistsManifest,
    layouts: LayoutManifest = UNPLANNED,
) -> Selection:
    """The winner of each task; without one, the best record that today's spaces still know.

    So it is for the kernels beside an accelerator, which are not tasks. Layouts are those planned.

    A winner that came into quarantine since its race is none.
    """
    winners = {winner.task_key: winner for winner in finalists.winners}
    spec = spec_of(request.device)
    store = RecordStore(request.records)
    records = store.named([w.record_id for w in finalists.winners if w.record_id])
    network = open_network(request).network
    best: list[BestRecord] = []
    for entry in tasks.tasks:
        winner = winners.get(entry.key)
        if not entry.tunable or (winner and winner.record_id is None):
            continue
        space = network.tasks[entry.key].space(spec)
        record = records.get(winner.record_id or "") if winner else None
        if not record or not record.measurement.ok or not candidate_of(record, space):
            winner, record = None, _best_known(store, network, entry.key, spec)
        if record:
            best.append(best_record(entry.key, record, winner.default_us if winner else None))
    if spec.accelerator:
        best += _beside_accelerator(network, store)
    return Selection(target=spec.fingerprint, best=tuple(best), layouts=layouts.plan.layouts)


def _beside_accelerator(network: Network, store: RecordStore) -> list[BestRecord]:
    """The best records for the kernels beside an accelerator, which are not searched there."""
    tasks = network.tasks.items()
    waiting = [key for key, task in tasks if not task.searched and task.reduces]
    found = {key: _best_known(store, network, key, spec_of(BASE)) for key in waiting}
    return [best_record(key, record) for key, record in found.items() if record is not None]


def _best_known(
    store: RecordStore, network: Network, key: str, spec: DeviceSpec
) -> TuningRecord | None:
    """The best record of a task that today's space still knows.

    Of a task that is not searched on the device of the request, those of networks whose constants
    come from as far are looked at first, then any: there are no others, and times of different
    conditions are not compared.
    """
    task = network.tasks[key]
    conditions = network_conditions(spec, network.tasks.values())
    places = [conditions.constants, *(() if task.searched else CONSTANTS)]
    for place in dict.fromkeys(places):
        where = replace(conditions, constants=place).comparable
        found = best_candidate(store, key, where, task.space(spec))
        if found is not None:
            return found[1]
    return None


def best_record(task_key: str, record: TuningRecord, default_us: float | None = None) -> BestRecord:
    """The record as a task's choice."""
    return BestRecord(
        task_key=task_key,
        record_id=record.record_id,
        time_us=record.measurement.median_us or 0.0,
        default_us=default_us,
    )


def selected_network(request: TuneRequest, selection: Selection) -> Network:
    """The request's network, with the limits and the layouts of the selection."""
    limited = _limited(open_network(request).network, dict(selection.limits))
    return with_layouts(limited, selection.layouts)


def in_nhwc(request: TuneRequest, selection: Selection) -> Selection:
    """All in NHWC; tasks whose schedule is one for blocks have their best one for NHWC."""
    spec, network = spec_of(request.device), open_network(request).network
    store = RecordStore(request.records)
    best: list[BestRecord] = []
    for entry in selection.best:
        task = network.tasks[entry.task_key]
        record = store.named([entry.record_id]).get(entry.record_id)
        if record is None or record.sketch in {s.name for s in task.space(spec).sketches}:
            best.append(entry)
        elif (plain := _best_known(store, network, entry.task_key, spec)) is not None:
            best.append(best_record(entry.task_key, plain))
    return replace(selection, best=tuple(best), layouts=ALL_NHWC)


def untuned(request: TuneRequest, selection: Selection) -> Selection:
    """Default schedules; other layouts than NHWC only where these were asked for."""
    layouts = ALL_NHWC if request.layout == MEASURED else selection.layouts
    return replace(selection, best=(), layouts=layouts)


def selected_candidates(request: TuneRequest, selection: Selection) -> dict[str, Candidate]:
    """The candidates of the selected records, by task.

    Raises: RecordError where a record is gone or in quarantine, or the space of today lacks its
    candidate.
    """
    spec = spec_of(request.device)
    network = selected_network(request, selection)
    records = RecordStore(request.records).named([b.record_id for b in selection.best])
    found: dict[str, Candidate] = {}
    for best in selection.best:
        record = records.get(best.record_id)
        right = record if record and record.measurement.ok else None
        candidate = right and candidate_of(right, network.tasks[best.task_key].space(spec))
        if not candidate:
            raise RecordError(
                f"{request.records}: the chosen record {best.record_id} of task {best.task_key} is "
                "gone or in quarantine, or its schedule is no longer in the task's space; start "
                "the run again"
            )
        found[best.task_key] = candidate
    return found


def more_exact(
    request: TuneRequest, selection: Selection, limits: Mapping[str, float]
) -> Selection:
    """The selection with these largest errors of tasks, and the best records within them."""
    spec = spec_of(request.device)
    store = RecordStore(request.records)
    network = _limited(open_network(request).network, limits)
    best = {entry.task_key: entry for entry in selection.best if entry.task_key not in limits}
    for key in limits:
        device = spec if network.tasks[key].searched else spec_of(BASE)
        record = _best_known(store, network, key, device)
        if record is not None:
            best[key] = best_record(key, record)
    merged = {**dict(selection.limits), **limits}
    return replace(selection, best=tuple(best.values()), limits=tuple(sorted(merged.items())))


def _limited(network: Network, limits: Mapping[str, float]) -> Network:
    """The network, of which only the tasks with lower limits are other ones."""
    lowered = {
        key: replace(task, max_error=limits[key])
        for key, task in network.tasks.items()
        if key in limits and limits[key] < task.max_error
    }
    return replace(network, tasks={**network.tasks, **lowered})
