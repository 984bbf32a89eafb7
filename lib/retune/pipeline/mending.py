"""Stage mend: a selection is settled without the records that are wrong in its network.

A record was right alone when it was measured. In the network it may be wrong all the same, or take
the device down. Read `stage_mend`: it finds which records are to blame, puts them into quarantine,
and settles the next best.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from retune.core.errors import DeviceError
from retune.pipeline.bisection import bisect
from retune.pipeline.delivery import stage_compile, stage_verify
from retune.pipeline.manifest import (
    Convicted,
    ImportManifest,
    MendedManifest,
    Selection,
    TaskManifest,
)
from retune.pipeline.request import TuneRequest
from retune.pipeline.selection import more_exact
from retune.pipeline.settling import stage_settle, stated_errors
from retune.pipeline.stage import Inputs, stage
from retune.records.quarantine import quarantine
from retune.records.store import RecordStore

_LOG = logging.getLogger("retune.pipeline")

_ATTEMPTS = 3
"""Times that the guilty are looked for: the next best records may be wrong as well."""


def _mend_inputs(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, selection: Selection
) -> Inputs:
    del tasks  # they follow from the network
    return network.model_key, selection, request.max_error, request.samples


@stage(MendedManifest, "mend", _mend_inputs)
def stage_mend(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
) -> MendedManifest:
    """What settling the selection comes to, see `stage_settle`; mostly nothing else is done.

    Where its bundle is wrong by more than its strategies' errors explain, or does not run, the
    guilty records are in quarantine afterwards, and the next best ones have taken their places.
    Where it is so without records as well, none is guilty, and the selection is settled as it is.
    """
    convicted: list[Convicted] = []
    selection = _next_best(request, selection, _quarantined(request, selection))
    for _attempt in range(_ATTEMPTS):
        guilty = _guilty(request, network, tasks, selection)
        if not guilty:
            settled = stage_settle(request, network, tasks, selection)
            guilty = _guilty(request, network, tasks, settled.selection)
            if not guilty:
                return MendedManifest(settled=settled, convicted=tuple(convicted))
            selection = settled.selection
        _convict(request, guilty)
        convicted += guilty
        selection = _next_best(request, selection, [entry.task_key for entry in guilty])
    given_up = {entry.task_key for entry in convicted}
    kept = tuple(best for best in selection.best if best.task_key not in given_up)
    settled = stage_settle(request, network, tasks, replace(selection, best=kept))
    return MendedManifest(settled=settled, convicted=tuple(convicted))


def _guilty(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, selection: Selection
) -> list[Convicted]:
    """The least set of records without which the selection's bundle is right; none if it is."""
    records = {best.task_key: best.record_id for best in selection.best}
    weights = {entry.key: entry.weight for entry in tasks.tasks}

    @cache
    def errors() -> Mapping[str, float]:
        stated = stated_errors(request, selection)
        return {key: error * weights[key] for key, error in stated.items()}

    def fault(some: frozenset[str]) -> str:
        best = tuple(best for best in selection.best if best.task_key in some)
        return _fault(request, network, tasks, replace(selection, best=best), errors)

    reason = fault(frozenset(records))
    if not reason:
        return []
    _LOG.warning("%s; looking for those to blame among %d records", reason, len(records))
    found = bisect(list(records), lambda some: not fault(some))
    return [Convicted(task_key=k, record_id=records[k], reason=reason) for k in found]


def _fault(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    errors: Callable[[], Mapping[str, float]],
) -> str:
    """What is wrong with the selection's bundle, as a sentence; '' if it is right.

    It is if it verifies, and also where `errors`, of its tasks in the network, add up to what it
    deviates by: settling will give some of them up. A bundle that does not run is tried twice: it
    may have been the device's fault.
    """
    error = ""
    for _ in range(2):
        try:
            made = stage_compile(request, network, tasks, selection, "tuned")
            found = stage_verify(request, network, made)
        except DeviceError as lost:
            error = f"{network.name} does not run: {lost}"
            continue
        if found.passed or found.max_rel <= _sum(errors(), selection):
            return ""
        return (
            f"{network.name} is wrong: {found.max_rel:.1e} of the range from {found.oracle}'s "
            f"outputs, {found.tolerance:.0e} is allowed"
        )
    return error


def _sum(errors: Mapping[str, float], selection: Selection) -> float:
    return sum(errors.get(best.task_key, 0.0) for best in selection.best)


def _convict(request: TuneRequest, guilty: list[Convicted]) -> None:
    store = RecordStore(request.records)
    records = store.named([entry.record_id for entry in guilty])
    for entry in guilty:
        _LOG.warning("record %s of task %s is in quarantine", entry.record_id, entry.task_key)
        if entry.record_id in records:
            quarantine(store.root, [records[entry.record_id]], entry.reason)


def _quarantined(request: TuneRequest, selection: Selection) -> list[str]:
    """Tasks whose records are in quarantine: a process was killed after it had put them there."""
    records = RecordStore(request.records).named([best.record_id for best in selection.best])
    wrong = {key for key, record in records.items() if not record.measurement.ok}
    return [best.task_key for best in selection.best if best.record_id in wrong]


def _next_best(request: TuneRequest, selection: Selection, task_keys: list[str]) -> Selection:
    """The selection with the best records that are left for these tasks."""
    limits = dict(selection.limits)
    wanted = {key: limits.get(key, request.max_error) for key in task_keys}
    return more_exact(request, selection, wanted) if wanted else selection
