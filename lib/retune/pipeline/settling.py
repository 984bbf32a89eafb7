"""Stage settle: the last check of a selection, before a bundle of it is published.

The bundle is compared with the oracle: while it deviates more than one of direct convolutions may,
the least exact strategies are given up. Then it is compared with the bundle of default schedules,
in turns: a bundle that is not faster beyond doubt is never published. Read `stage_settle`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import nextafter
from pathlib import Path

from retune.bundle.verify.bench import Benchmark, BenchOptions, Ratio
from retune.bundle.verify.compare import DIRECT_PART
from retune.bundle.verify.farm_examiner import open_examiner
from retune.bundle.verify.peers import oracle_version
from retune.core.errors import DeviceError
from retune.core.layouts import MEASURED
from retune.device.opening import spec_of
from retune.pipeline.delivery import device_conditions, stage_compile, stage_verify
from retune.pipeline.manifest import (
    CompileManifest,
    ImportManifest,
    Selection,
    SettledManifest,
    TaskManifest,
    TuneRequest,
    Variant,
)
from retune.pipeline.racing import race_in_place
from retune.pipeline.selection import (
    in_nhwc,
    more_exact,
    selected_candidates,
    selected_network,
    untuned,
)
from retune.pipeline.stage import Inputs, stage
from retune.schedule.space import Candidate
from retune.targets.cost.estimate import default_candidate

_COMPARE = BenchOptions(budget_s=10.0, precision=0.005)
_RACE_S = 20.0
"""Seconds in which the steps that lose are found."""

Build = Callable[[Selection, Variant], CompileManifest]
"""The bundle of a selection."""


def _settle_inputs(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, selection: Selection
) -> Inputs:
    del tasks  # they follow from the network
    known = (oracle_version(), device_conditions(request))
    return network.model_key, selection, request.max_error, request.samples, *known


@stage(SettledManifest, "settle", _settle_inputs)
def stage_settle(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
) -> SettledManifest:
    """The selection as it is published: exact enough, and faster than default schedules or equal.

    Layouts that were found by measuring are kept if the bundle is faster with them, in turns.
    Tasks that lose time get their default schedule back; where the rest is not faster beyond the
    noise of the comparison either, all of them do.
    """

    def build(chosen: Selection, variant: Variant) -> CompileManifest:
        return stage_compile(request, network, tasks, chosen, variant)

    planned, rows_ratio = _planned_or_nhwc(request, selection, build)
    exact, deviation = _exact_enough(request, network, planned, build)
    settled, ratio = _faster_or_default(request, exact, build)
    if settled.best != exact.best:
        settled, deviation = _exact_enough(request, network, settled, build)
    kept = {best.task_key for best in settled.best}
    lost = (best.task_key for best in exact.best if best.task_key not in kept)
    return SettledManifest(
        selection=settled,
        given_back=tuple(lost),
        ratio=ratio,
        deviation=deviation,
        rows_ratio=rows_ratio,
    )


def _planned_or_nhwc(
    request: TuneRequest, selection: Selection, build: Build
) -> tuple[Selection, float | None]:
    """The selection with its layouts, or in NHWC; time of the one over that of the other."""
    if request.layout != MEASURED or not selection.layouts.activations:
        return selection, None
    nhwc = in_nhwc(request, selection)
    plain = replace(build(nhwc, "tuned"), variant="untuned")
    gain = compare_bundles(request, plain, build(selection, "tuned")).ratio("tuned")
    return (selection if gain.low > 1.0 else nhwc), 1 / gain.ratio


def _exact_enough(
    request: TuneRequest, network: ImportManifest, selection: Selection, build: Build
) -> tuple[Selection, float]:
    """The selection, without the strategies for which the network deviates too far; its deviation.

    Of the least exact ones one is given up, then two, four: each step compiles and verifies anew.
    """
    dropped = 1
    while True:
        found = stage_verify(request, network, build(selection, "tuned"))
        if found.max_rel <= DIRECT_PART * found.tolerance:
            return selection, found.max_rel
        errors = stated_errors(request, selection)
        if not errors:
            return selection, found.max_rel
        least = sorted(errors, key=lambda key: (-errors[key], key))[:dropped]
        limits = {key: nextafter(errors[key], 0.0) for key in least}
        selection = more_exact(request, selection, limits)
        dropped *= 2


def stated_errors(request: TuneRequest, selection: Selection) -> dict[str, float]:
    """The stated error of each task's strategy, where it has one."""
    spec = spec_of(request.device)
    chosen = selected_candidates(request, selection)
    found: dict[str, float] = {}
    for key, task in selected_network(request, selection).tasks.items():
        space = task.space(spec)
        candidate = chosen.get(key) or default_candidate(space, spec)
        found[key] = space.sketch(candidate.sketch).error
    return {key: error for key, error in found.items() if error > 0}


def _faster_or_default(
    request: TuneRequest, selection: Selection, build: Build
) -> tuple[Selection, float | None]:
    """The selection without what makes the network slower, and its time over the defaults'."""
    nothing = untuned(request, selection)
    if not selection.best:
        return nothing, None
    plain = build(nothing, "untuned")

    def compared(some: Selection) -> Ratio:
        return compare_bundles(request, plain, build(some, "tuned")).ratio("tuned")

    gain = compared(selection)
    if gain.low > 1.0:
        return selection, 1 / gain.ratio
    kept = _without_losers(request, selection)
    if kept.best and kept != selection:
        gain = compared(kept)
        if gain.low > 1.0:
            return kept, 1 / gain.ratio
    return nothing, None


def compare_bundles(
    request: TuneRequest, untuned: CompileManifest, tuned: CompileManifest
) -> Benchmark:
    """Whole calls of both in turns; its ratio says how many times as long the untuned one takes."""
    bundles = {made.variant: made.file(made.module) for made in (untuned, tuned)}
    with open_examiner(request.device) as examiner:
        return examiner.compare(bundles, baseline="untuned", options=_COMPARE)


def _without_losers(request: TuneRequest, selection: Selection) -> Selection:
    """What is faster than its default schedule in the network, by a race of these two."""
    spec = spec_of(request.device)
    network = selected_network(request, selection)
    chosen = selected_candidates(request, selection)
    pairs: Mapping[str, list[Candidate]] = {
        key: list(dict.fromkeys([default_candidate(network.tasks[key].space(spec), spec), own]))
        for key, own in chosen.items()
    }
    deadline = time.monotonic() + _RACE_S
    try:
        raced = race_in_place(
            network, pairs, spec, request.device, request.seed, lambda: time.monotonic() < deadline
        )
    except DeviceError:
        return replace(selection, best=())
    lost = {key for key, both in pairs.items() if len(both) > 1 and not raced.leaders[key]}
    return replace(selection, best=tuple(b for b in selection.best if b.task_key not in lost))
