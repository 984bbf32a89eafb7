"""The order of the stages, written once: from a request to a published bundle.

Read `_chain`. What calls a stage is passed in: this process does, or Prefect, which makes a task
run of each call. A new stage is one line here, beside its own file.
"""

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from retune.device.opening import spec_of
from retune.pipeline.calling import Caller
from retune.pipeline.delivery import stage_bench, stage_compile, stage_verify
from retune.pipeline.layouts import stage_layout
from retune.pipeline.manifest import (
    Constraints,
    ImportManifest,
    QuantizeManifest,
    Selection,
    TaskManifest,
)
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.publishing import stage_promote, stage_report
from retune.pipeline.quantization import quantized_network, stage_quantize
from retune.pipeline.request import TuneRequest, check_request
from retune.pipeline.results import FinishedRun, SlowerThanPeer, TuneEvent, TuneResult
from retune.pipeline.running import RecordedRun, recorded_run
from retune.pipeline.selection import stage_choose, untuned
from retune.pipeline.slowness import required_speed
from retune.pipeline.stage import Stage
from retune.pipeline.summary import check_verified, event_of, summarize, validated
from retune.pipeline.tuning import join_tuned, run_id, stage_finalists, stage_tune
from retune.pipeline.validation import stage_compare, stage_validate
from retune.pipeline.watch import tell

P = ParamSpec("P")
R = TypeVar("R")


def run_chain(request: TuneRequest, by: Caller, *, wait: bool = True) -> TuneResult:
    """All stages of a request. One process at a time has the run, from its import on.

    Another one waits for it, or without `wait` gets BusyError, which says who has it. Raises
    SlowerThanPeer once all is published, and otherwise: as `retune.api.tune_network` does.
    """
    check_request(request)
    network = by.call(stage_import, request)  # before the run: a bad model leaves nothing behind
    tell(event_of(request, network))
    quantized = None
    if request.quantize is not None:
        quantized = by.call(stage_quantize, request, network)
        tell(event_of(request, quantized))
        network = quantized_network(network, quantized)
    with recorded_run(request, wait=wait) as run:
        run.claim(run_id(request, network, spec_of(request.device)))
        return _chain(request, network, quantized, _Recorded(by, run), run)


def _chain(
    request: TuneRequest,
    network: ImportManifest,
    quantized: QuantizeManifest | None,
    by: Caller,
    run: RecordedRun,
) -> TuneResult:
    tasks = by.call(stage_extract, request, network)
    tell(event_of(request, tasks))
    keys = [entry.key for entry in tasks.tasks if entry.tunable]
    found = by.together(stage_tune, [(request, network, tasks, key) for key in keys])
    searched = join_tuned(request, network, tasks, dict(zip(keys, found, strict=True)))
    layouts = by.call(stage_layout, request, searched)
    finalists = by.call(stage_finalists, request, network, searched, layouts)
    if finalists.stopped or searched.stopped or layouts.stopped:
        run.cut_short(searched.reason)
    selection, constraints = select(request, network, tasks, finalists, by)
    nothing = untuned(request, selection)
    plain = by.call(stage_compile, request, network, tasks, nothing, "untuned")
    tuned = by.call(stage_compile, request, network, tasks, selection, "tuned")
    tell(event_of(request, tuned))
    verified = by.call(stage_verify, request, network, tuned)
    tell(TuneEvent(stage="validate", text=validated(constraints, verified)))
    if request.publish == "always":  # otherwise what is published stays, and the result says why
        check_verified(tuned, verified)
    bench = by.call(stage_bench, request, network, plain, tuned)
    finished = FinishedRun(
        network=network,
        tasks=tasks,
        searched=searched,
        selection=selection,
        constraints=constraints,
        tuned=tuned,
        verified=verified,
        bench=bench,
        quantized=quantized,
        layouts=layouts,
    )
    publish = stage_promote if request.publish == "faster" else stage_report
    result = summarize(request, finished, by.call(publish, request, finished))
    if reason := required_speed(bench, request.fail_if_slower_than):
        raise SlowerThanPeer(reason, result)
    return result


def select(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    constraints: Constraints,
    by: Caller,
) -> tuple[Selection, Constraints]:
    """What is compiled: its bundle is right, exact enough, and no slower than default schedules.

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
