"""Stages validate and compare: what the bundle of a selection adds to the selection's constraints.

Validate compares the bundle's outputs with the oracle's. A record was right alone when it was
measured; in the network it may be wrong all the same, or take the device down. Compare runs the
bundle interleaved with that of default schedules: what is not faster beyond doubt is given up.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import nextafter
from pathlib import Path

from retune.bundle.verify.bench import Benchmark, BenchOptions, Speedup
from retune.bundle.verify.compare import DIRECT_PART
from retune.bundle.verify.examination import Entrant
from retune.bundle.verify.farm_examiner import open_examiner
from retune.bundle.verify.peers import oracle_version
from retune.core.errors import DeviceError
from retune.core.layouts import ALL_NHWC, MEASURED
from retune.device.opening import spec_of
from retune.pipeline.bisection import bisect
from retune.pipeline.delivery import device_conditions, stage_compile, stage_verify
from retune.pipeline.finalists import compare_in_network
from retune.pipeline.manifest import (
    CompileManifest,
    Constraints,
    ImportManifest,
    Selection,
    TaskManifest,
    Variant,
    VerifyManifest,
)
from retune.pipeline.request import TuneRequest
from retune.pipeline.sampling import given_content
from retune.pipeline.selection import (
    selected_candidates,
    selected_network,
    stage_choose,
    stated_errors,
    untuned,
)
from retune.pipeline.stage import Inputs, stage
from retune.pipeline.summary import deviation_text
from retune.records.quarantine import quarantine
from retune.records.shared import records_named
from retune.records.store import RecordStore
from retune.targets.cost.estimate import default_candidate

_LOG = logging.getLogger("retune.pipeline")

_COMPARE = BenchOptions(budget_s=10.0, precision=0.005)
_SLOWER_S = 20.0
"""Seconds in which the tasks that are slower than their default schedules are found."""


def _inputs(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    constraints: Constraints,
) -> Inputs:
    del tasks  # they follow from the network
    known = (oracle_version(), device_conditions(request))
    asked = (request.max_error, given_content(request) or request.samples)
    return network.model_key, selection, constraints.content, *asked, *known


@stage(Constraints, "validate", _inputs)
def stage_validate(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    constraints: Constraints,
) -> Constraints:
    """The constraints, and what the outputs of the selection's bundle add to them.

    Where the bundle is wrong by more than its strategies' errors explain, or does not run, the
    offending records are denied and in quarantine afterwards. Where it is so without records as
    well, none is. While the bundle deviates more than one of direct convolutions may, the least
    exact strategies are given up: one of them, then two, then four.
    """
    made, found = _Made(request, network, tasks), constraints.content
    if offending := made.offending(selection):
        return replace(found, denied=(*found.denied, *offending))
    outputs = stage_verify(request, network, made.bundle(selection))
    if outputs.share <= DIRECT_PART:
        return found
    errors = stated_errors(request, selection)
    least = sorted(errors, key=lambda key: (-errors[key], key))[: 1 + len(found.limits)]
    limits = {**dict(found.limits), **{key: nextafter(errors[key], 0.0) for key in least}}
    return replace(found, limits=tuple(sorted(limits.items())))


@stage(Constraints, "compare", _inputs)
def stage_compare(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    constraints: Constraints,
) -> Constraints:
    """The constraints, and what times of the selection's bundle add to them.

    Layouts that were found by measuring are kept if the bundle is faster with them than in NHWC.
    Where the bundle is not faster than default schedules beyond the comparison's noise, tasks that
    are slower in the network get theirs back, whoever took their records. Where the rest is not
    faster either, all of them do; at once where finalists were compared in the network, and the
    bundle excludes the least gain for which the request searches on, or that comparison does not
    show so much. What compiles to the steps of default schedules is not compared with them: the
    bundles can differ in their forms alone, which follow from the load of a moment.
    """
    made, found = _Made(request, network, tasks), constraints.content
    if request.layout == MEASURED and selection.layouts.activations and found.nhwc_ratio is None:
        in_nhwc = replace(found, layouts=ALL_NHWC)
        nhwc = stage_choose(request, tasks, in_nhwc)
        gain = made.gain(replace(made.bundle(nhwc), variant="untuned"), selection)
        found = replace(found, nhwc_ratio=1 / gain.ratio)
        if gain.low <= 1.0:
            return replace(found, layouts=ALL_NHWC, limits=())
    if not selection.tuned:
        return replace(found, ratio=None)
    default = made.bundle(untuned(request, selection), "untuned")
    if made.bundle(selection).has_steps_of(default):
        return replace(found, ratio=None)
    gain = made.gain(default, selection)
    if gain.low > 1.0:
        return replace(found, ratio=1 / gain.ratio)
    every = selection.tuned
    least = request.least_gain
    little = found.iterations and (gain.high < 1.0 + least or found.saved[0] < least)
    slower = () if found.given_back or little else _slower_tasks(request, selection, every)
    return replace(found, ratio=None, given_back=(*found.given_back, *(slower or every)))


def compare_bundles(
    request: TuneRequest, untuned: CompileManifest, tuned: CompileManifest
) -> Benchmark:
    """Whole calls of both, interleaved; its ratio says how many times as long the untuned takes."""
    made: dict[str, Entrant] = {one.variant: one.file(one.module) for one in (untuned, tuned)}
    with open_examiner(request.device) as examiner:
        return examiner.compare(made, baseline="untuned", options=_COMPARE)


def verified(
    request: TuneRequest, network: ImportManifest, bundle: Callable[[], CompileManifest]
) -> VerifyManifest | DeviceError:
    """How far the bundle's outputs are from the oracle's, or how the device failed.

    A bundle that does not run is tried twice: it may have been the device's fault.
    """
    with suppress(DeviceError):
        return stage_verify(request, network, bundle())
    try:
        return stage_verify(request, network, bundle())
    except DeviceError as error:
        return error


@dataclass(frozen=True)
class _Made:
    """Bundles of selections, made as they are asked for."""

    request: TuneRequest
    network: ImportManifest
    tasks: TaskManifest

    @cached_property
    def weights(self) -> dict[str, int]:
        return {entry.key: entry.weight for entry in self.tasks.tasks}

    def bundle(self, selection: Selection, variant: Variant = "tuned") -> CompileManifest:
        return stage_compile(self.request, self.network, self.tasks, selection, variant)

    def gain(self, other: CompileManifest, selection: Selection) -> Speedup:
        """How many times as long the other bundle takes."""
        return compare_bundles(self.request, other, self.bundle(selection)).ratio("tuned")

    def offending(self, selection: Selection) -> list[tuple[str, str]]:
        """The least set of records without which the selection's bundle is right, in quarantine
        now; none if it is."""
        records = {best.task_key: best.record_id for best in selection.best}
        if not (reason := self._fault(selection, records)):
            return []
        _LOG.warning("%s; looking for the offending ones of %d records", reason, len(records))
        keys = bisect(list(records), lambda some: not self._fault(selection, some))
        found = [(key, records[key]) for key in keys]
        store = RecordStore(self.request.records)
        here = spec_of(self.request.device).fingerprint
        for record in records_named(store, {record_id: key for key, record_id in found}).values():
            _LOG.warning("record %s of task %s is in quarantine", record.record_id, record.task_key)
            quarantine(store.root, [replace(record, device=here)], reason)
        return found

    def _fault(self, selection: Selection, keys: Collection[str]) -> str:
        """What is wrong with the bundle of the selection's records of these tasks, as a sentence;
        '' if it is right.

        It is if it verifies, and also where the errors of the whole selection's strategies add up
        to what it deviates by: some of them will be given up.
        """
        name = self.request.name
        some = replace(selection, best=tuple(b for b in selection.best if b.task_key in keys))
        found = verified(self.request, self.network, lambda: self.bundle(some))
        if isinstance(found, DeviceError):
            return f"{name} does not run: {found}"
        if found.passed or found.max_rel <= self._explained(selection, keys):
            return ""
        return f"{name} is wrong: {deviation_text(found)}"

    def _explained(self, selection: Selection, keys: Collection[str]) -> float:
        errors = stated_errors(self.request, selection)
        return sum(errors.get(key, 0.0) * self.weights[key] for key in keys)


def _slower_tasks(
    request: TuneRequest, selection: Selection, every: tuple[str, ...]
) -> tuple[str, ...]:
    """Tasks that are not faster than their default schedule in the network; `every` one where they
    cannot be compared."""
    spec = spec_of(request.device)
    network = selected_network(request, selection)
    chosen = selected_candidates(request, selection)
    pairs = {
        key: list(dict.fromkeys([default_candidate(network.tasks[key].space(spec), spec), own]))
        for key, own in chosen.items()
    }
    try:
        compared = compare_in_network(network, pairs, spec, request.device, request.seed, _SLOWER_S)
    except DeviceError:
        return every
    return tuple(k for k in every if len(pairs[k]) > 1 and not compared.leaders[k])
