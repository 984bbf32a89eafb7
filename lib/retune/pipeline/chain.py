"""The order of the stages, written once: from a request to a published bundle.

Read `run_chain`. What calls a stage is passed in: this process does, or Prefect, which makes a task
run of each call. A new stage is one line here, beside its own file.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from retune.bundle.verify.farm_examiner import sharing_processes
from retune.core.ranges import TunedSizes, said_of, usual_sizes
from retune.device.opening import spec_of
from retune.pipeline.calling import Caller
from retune.pipeline.conclusion import conclusion
from retune.pipeline.delivery import stage_bench, stage_compile, stage_verify
from retune.pipeline.layout_manifest import LayoutManifest
from retune.pipeline.layouts import stage_layout
from retune.pipeline.manifest import (
    CompileManifest,
    Constraints,
    ImportManifest,
    PrecisionManifest,
    QuantizeManifest,
    Selection,
    TaskManifest,
    TunedTasks,
    Variant,
)
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.precision import mixed_network, stage_precision
from retune.pipeline.programs import stage_compile_programs
from retune.pipeline.publishing import stage_promote, stage_report
from retune.pipeline.quantization import quantized_network, stage_quantize
from retune.pipeline.request import MIXED, TuneRequest, check_request
from retune.pipeline.results import FinishedRun, SlowerThanPeer, TuneEvent, TuneResult
from retune.pipeline.running import RecordedRun, recorded_run
from retune.pipeline.selection import stage_choose, untuned
from retune.pipeline.sizes import tuned_requests
from retune.pipeline.slowness import required_speed
from retune.pipeline.stage import Stage
from retune.pipeline.summary import check_verified, event_of, summarize, validated
from retune.pipeline.tuning import (
    join_tuned,
    joined_searches,
    run_id,
    stage_finalists,
    stage_tune,
)
from retune.pipeline.valid_sizes import check_every_size
from retune.pipeline.validation import stage_compare, stage_validate
from retune.pipeline.watch import tell

P = ParamSpec("P")
R = TypeVar("R")


def run_chain(request: TuneRequest, by: Caller) -> TuneResult:
    """All stages of a request; those of the search for each of the sizes that it tunes for.

    One process at a time has the run, from its import on. Another one waits for it. Raises:
    SlowerThanPeer once all is published, and otherwise as `retune.api.tune_network` does.
    """
    check_request(request)
    check_every_size(request)
    points = tuned_requests(request)
    with ExitStack() as held:
        run: RecordedRun | None = None
        searches: list[_Search] = []
        for sizes, own in points:
            with said_of(sizes):  # before the run: a bad model leaves nothing
                network = by.call(stage_import, own)
            tell(event_of(own, network))
            quantized = None
            if own.quantize is not None:
                quantized = by.call(stage_quantize, own, network)
                tell(event_of(own, quantized))
                network = quantized_network(network, quantized)
            precision = None
            if own.precision == MIXED:
                precision = by.call(stage_precision, own, network)
                tell(event_of(own, precision))
                network = mixed_network(network, precision)
            run = run or held.enter_context(recorded_run(request))
            run.claim(run_id(own, network, spec_of(own.device)))
            recorded = _Recorded(by, run)
            searches.append(_searched(sizes, own, network, (quantized, precision), recorded, run))
        assert run is not None, "there is a part"
        held.enter_context(sharing_processes())  # nothing is searched any more
        recorded = _Recorded(by, run)
        return _delivered(request, [_selected(each, recorded) for each in searches], recorded)


_Lowered = tuple[QuantizeManifest | None, PrecisionManifest | None]
"""What made integers of a network, or mixed its types; neither for one that is as asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The search for sizes that a network is tuned for; of a fixed network there is one."""

    sizes: TunedSizes
    request: TuneRequest
    """With these sizes alone."""
    network: ImportManifest
    lowered: _Lowered
    tasks: TaskManifest
    searched: TunedTasks
    layouts: LayoutManifest
    finalists: Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The selection that follows a search."""

    search: _Search
    selection: Selection
    constraints: Constraints


def _searched(
    sizes: TunedSizes,
    request: TuneRequest,
    network: ImportManifest,
    lowered: _Lowered,
    by: Caller,
    run: RecordedRun,
) -> _Search:
    """The search of a network of fixed shapes."""
    tasks = by.call(stage_extract, request, network)
    tell(event_of(request, tasks, str(sizes)))
    keys = [entry.key for entry in tasks.tasks if entry.tunable]
    found = by.together(stage_tune, [(request, network, tasks, key) for key in keys])
    searched = join_tuned(request, network, tasks, dict(zip(keys, found, strict=True)))
    layouts = by.call(stage_layout, request, searched)
    finalists = by.call(stage_finalists, request, network, searched, layouts)
    if finalists.stopped or searched.stopped or layouts.stopped:
        run.cut_short(searched.reason)
    return _Search(
        sizes=sizes,
        request=request,
        network=network,
        lowered=lowered,
        tasks=tasks,
        searched=searched,
        layouts=layouts,
        finalists=finalists,
    )


def _selected(search: _Search, by: Caller) -> _Part:
    """The search's selection, validated in the network."""
    selection, constraints = select(
        search.request, search.network, search.tasks, search.finalists, by
    )
    return _Part(search=search, selection=selection, constraints=constraints)


def _delivered(request: TuneRequest, parts: Sequence[_Part], by: Caller) -> TuneResult:
    """The bundle of all parts, verified, timed and published."""
    usual = _usual(parts)
    search = usual.search
    network = search.network
    chosen = tuple(replace(part.selection, sizes=part.search.sizes) for part in parts)
    default = tuple(untuned(p.search.request, c) for p, c in zip(parts, chosen, strict=True))
    alike = chosen == default  # as without trials: one bundle is both
    plain = None if alike else _compiled(request, parts, default, by, "untuned")
    tuned = _compiled(request, parts, chosen, by, "tuned")
    plain = plain or replace(tuned, variant="untuned")
    tell(event_of(request, tuned))
    verified = by.call(stage_verify, request, network, tuned)
    tell(TuneEvent(stage="validate", text=validated(usual.constraints, verified)))
    if request.publish == "always":  # otherwise what is published stays, and the result says why
        check_verified(tuned, verified)
    bench = by.call(stage_bench, request, network, plain, tuned, _alone(parts, by))
    finished = FinishedRun(
        network=network,
        tasks=search.tasks,
        searched=joined_searches(search.searched, [part.search.searched for part in parts]),
        chosen=chosen,
        constraints=usual.constraints,
        tuned=tuned,
        verified=verified,
        bench=bench,
        quantized=search.lowered[0],
        precision=search.lowered[1],
        layouts=search.layouts,
    )
    publish = stage_promote if request.publish == "faster" else stage_report
    published = by.call(publish, request, finished)
    result = summarize(request, finished, published, conclusion(request, finished))
    if reason := required_speed(bench, request.fail_if_slower_than):
        raise SlowerThanPeer(reason, result)
    return result


def _usual(parts: Sequence[_Part]) -> _Part:
    """The part of the sizes that occur most."""
    points = [part.search.sizes for part in parts]
    return parts[points.index(usual_sizes(points))]


def _alone(parts: Sequence[_Part], by: Caller) -> tuple[CompileManifest, ...]:
    """The bundles for each of the sizes alone, as they were validated; none of a fixed network."""
    ranges = [part for part in parts if part.search.sizes.values]
    found = ((part.search, part.selection) for part in ranges)
    return tuple(
        by.call(stage_compile, own.request, own.network, own.tasks, selection, "tuned")
        for own, selection in found
    )


def _compiled(
    request: TuneRequest,
    parts: Sequence[_Part],
    chosen: tuple[Selection, ...],
    by: Caller,
    variant: Variant,
) -> CompileManifest:
    """The bundle of these selections."""
    first = parts[0].search
    if not first.sizes.values:
        return by.call(stage_compile, request, first.network, first.tasks, chosen[0], variant)
    return by.call(stage_compile_programs, request, _usual(parts).search.network, chosen, variant)


def select(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    constraints: Constraints,
    by: Caller,
) -> tuple[Selection, Constraints]:
    """The selection to compile: its bundle is right, exact enough, no slower than default
    schedules.

    Its outputs and its times add constraints, until they add none. A further constraint takes
    away records, so this ends. What was compiled and verified is not so again.
    """
    while True:
        selection = by.call(stage_choose, request, tasks, constraints)
        found = by.call(stage_validate, request, network, tasks, selection, constraints)
        if found.binding == constraints.binding:
            found = by.call(stage_compare, request, network, tasks, selection, constraints)
        if found.binding == constraints.binding:
            return selection, found
        constraints = found


class _Recorded:
    """A Caller of whose stages the run's record knows."""

    def __init__(self, by: Caller, run: RecordedRun) -> None:
        self._by = by
        self._run = run

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._run.entered(_name(stage))
        return self._by.call(stage, *args, **kwargs)

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        self._run.entered(_name(stage))
        return self._by.together(stage, arguments)


def _name(stage: Callable[..., object]) -> str:
    """A stage's own name; of a plain function the part after `stage_`."""
    return stage.name if isinstance(stage, Stage) else stage.__name__.removeprefix("stage_")
