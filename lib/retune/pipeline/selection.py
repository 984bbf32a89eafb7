"""Stage choose, and what a selection means: which candidate each task of the network is made of."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from retune.core.errors import RecordError
from retune.core.keys import content_key
from retune.core.layouts import ALL_NHWC, MEASURED, IOLayouts, LayoutAssignment
from retune.core.target import DeviceSpec
from retune.device.opening import spec_of
from retune.device.simulated.names import BASE
from retune.pipeline.choose import choose, within_limit
from retune.pipeline.manifest import BestRecord, Constraints, Selection, TaskManifest
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.records.conditions import CONSTANTS, Conditions, within
from retune.records.quarantine import quarantined
from retune.records.ranking import top
from retune.records.schema import TuningRecord
from retune.records.shared import records_named
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Space
from retune.search.conditions import network_conditions
from retune.search.extract import Network
from retune.search.history import candidate_of
from retune.search.layout.assignment import with_layouts
from retune.search.matching import fitting_record
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate

_ATTEMPTS = 3
"""Records of a task that are denied before it keeps its default schedule."""
_ALTERNATIVES = 5
"""Records of a task, beside the denied ones, that are tried in turn."""


def stage_choose(
    request: TuneRequest, tasks: TaskManifest, constraints: Constraints | None = None
) -> Selection:
    """The best record of each task that complies with the constraints, by all that the store has.

    So it is for the kernels beside an accelerator, which are not tasks. Not cached: the store may
    have other records, and quarantine others.
    """
    given = constraints or Constraints()
    spec, store = spec_of(request.device), RecordStore(request.records)
    network = open_network(request).network
    limits, denials = dict(given.limits), Counter(key for key, _ in given.denied)
    kept = {*given.defaults, *given.given_back}
    kept |= {key for key, count in denials.items() if count >= _ATTEMPTS}
    chosen = {
        key: task
        for key, task in network.tasks.items()
        if key not in kept and (task.tunable or (task.reduces and not task.searched))
    }
    devices = {key: spec if task.searched else spec_of(BASE) for key, task in chosen.items()}
    spaces = {key: task.space(devices[key]) for key, task in chosen.items()}
    if given.layouts != ALL_NHWC:
        spaces = {key: space.whole for key, space in spaces.items()}
    conditions = {
        key: _conditions(network, task, devices[key], tasks.model_key, given.layouts)
        for key, task in chosen.items()
    }
    ordered = list(dict.fromkeys(where for each in conditions.values() for where in each))
    denied = {record_id for _, record_id in given.denied}
    winners = {winner.record_id: winner for winner in given.winners}
    ids = {winner.record_id: winner.task_key for winner in given.winners}
    known = [r for r in store.named(ids).values() if _is_of(r, given.layouts)]
    won = choose(known, ordered, limits, spaces, denied, winners)
    for key in spaces.keys() - won.keys():  # no other record of the rest matters
        sketches, count = within_limit(spaces[key], limits.get(key)), _ALTERNATIVES + denials[key]
        for where in conditions[key]:
            known += top(store, key, where.comparable, count, sketches)
    found = choose(known, ordered, limits, spaces, denied, winners)
    unknown = {k: t for k, t in chosen.items() if k not in found} if request.trials == 0 else {}
    others = _of_others(store, unknown, devices, spaces, limits, denied)
    best = {key: _named(r, winners, chosen[key], devices[key]) for key, r in found.items()}
    best |= {key: replace(best_record(r), elsewhere=True) for key, r in others.items()}
    return Selection(
        model_key=tasks.model_key,
        target=spec.fingerprint,
        best=tuple(best[key] for key in chosen if key in best),
        limits=given.limits,
        layouts=given.layouts,
    )


def _of_others(
    store: RecordStore,
    tasks: Mapping[str, Task],
    devices: Mapping[str, DeviceSpec],
    spaces: Mapping[str, Space],
    limits: Mapping[str, float],
    denied: Collection[str],
) -> dict[str, TuningRecord]:
    """Where nothing is measured, the records that a team or the package has of tasks, unless their
    schedules are the default ones. The bundle is compared with one of these."""
    if not tasks:
        return {}
    wrong = {(q.task_key, q.config_hash) for q in quarantined(store.root)}
    found: dict[str, TuningRecord] = {}
    for key, task in tasks.items():
        space, spec = spaces[key], devices[key]
        refused = {*denied, *(config for task_key, config in wrong if task_key == key)}
        sketches = within_limit(space, limits.get(key))
        record = fitting_record(task, space, spec, sketches, refused) if task.tunable else None
        if record and not _is_default(record, space, spec):
            found[key] = record
    return found


def _named(
    record: TuningRecord, winners: Mapping[str, BestRecord], task: Task, spec: DeviceSpec
) -> BestRecord:
    """The record as its task's choice, with the times that a winner has in the network."""
    own = winners.get(record.record_id) or best_record(record)
    return replace(own, default=_is_default(record, task.space(spec), spec))


def _is_default(record: TuningRecord, space: Space, spec: DeviceSpec) -> bool:
    """Whether the record is of the default schedule of that space."""
    return candidate_of(record, space) == default_candidate(space, spec)


def _is_of(record: TuningRecord, layouts: LayoutAssignment) -> bool:
    """False for a time in other layouts than NHWC where all activations are in NHWC."""
    where = record.conditions
    return layouts != ALL_NHWC or not where or IOLayouts(where.layout_in, where.layout_out).is_nhwc


def network_context(model_key: str, layouts: LayoutAssignment) -> str:
    """The value of `Conditions.place` for kernels timed in a network with these layouts."""
    named = "" if layouts == ALL_NHWC else content_key(layouts)
    return within(model_key, named)


def _conditions(
    network: Network, task: Task, spec: DeviceSpec, model_key: str, layouts: LayoutAssignment
) -> list[Conditions]:
    """Those whose records a task is chosen from: in the network, then alone.

    Of a task that is not searched on the device of the request, those of networks whose constants
    come from as far are looked at first, then any: there are no others, and times of different
    conditions are not compared.
    """
    alone = network_conditions(spec, network.tasks.values())
    if not task.searched:
        sources = dict.fromkeys((alone.constants, *CONSTANTS))
        return [replace(alone, constants=source) for source in sources]
    return [replace(alone, place=network_context(model_key, layouts)), alone]


def best_record(record: TuningRecord) -> BestRecord:
    """The record as its task's choice."""
    return BestRecord(
        task_key=record.task_key,
        record_id=record.record_id,
        time_us=record.measurement.median_us or 0.0,
    )


def selected_network(request: TuneRequest, selection: Selection) -> Network:
    """The request's network with the limits of tasks and the layouts of the selection."""
    network, limits = open_network(request).network, dict(selection.limits)
    lowered = {
        key: replace(network.tasks[key], max_error=limit)
        for key, limit in limits.items()
        if limit < network.tasks[key].max_error
    }
    limited = replace(network, tasks={**network.tasks, **lowered})
    return with_layouts(limited, selection.layouts)


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
    ids = {best.record_id: best.task_key for best in selection.best}
    records = records_named(RecordStore(request.records), ids)
    found: dict[str, Candidate] = {}
    for best in selection.best:
        record = records.get(best.record_id)
        right = record if record and record.measurement.ok else None
        space = network.tasks[best.task_key].space(spec)
        candidate = candidate_of(right, space) if right else None
        if not candidate:
            raise RecordError(
                f"{request.records}: the chosen record {best.record_id} of task {best.task_key} is "
                "gone or in quarantine, or its schedule is no longer in the task's space; start "
                "the run again"
            )
        found[best.task_key] = candidate
    return found


def stated_errors(request: TuneRequest, selection: Selection) -> Mapping[str, float]:
    """The stated error of each task's strategy, where it has one."""
    spec = spec_of(request.device)
    chosen = selected_candidates(request, selection)
    found: dict[str, float] = {}
    for key, task in selected_network(request, selection).tasks.items():
        space = task.space(spec)
        candidate = chosen.get(key) or default_candidate(space, spec)
        found[key] = space.sketch(candidate.sketch).error
    return {key: error for key, error in found.items() if error > 0}
