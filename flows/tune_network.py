"""The flow of a tuning run: import, extract, rounds, race, settle, compile, verify, bench, report.

Read `tune_network`. Every step is one Prefect task around one stage of the library. Each stage's
output lies on disk under the key of its inputs, so a run that was killed, or is started again,
redoes nothing that was finished. Importing this module imports Prefect; `retune_prefect.launch` first sees
to its server.
"""

from dataclasses import replace
from typing import Any, TypeVar

from prefect import Task, flow
from prefect.task_runners import ThreadPoolTaskRunner

from retune_prefect import artifacts
from retune.stages.codec import from_json, to_json
from retune.stages.manifest import (
    BenchManifest,
    CompileManifest,
    FinalistsManifest,
    FinishedRun,
    ImportManifest,
    Manifest,
    ReportManifest,
    RoundManifest,
    Selection,
    SettledManifest,
    TaskManifest,
    TuneRequest,
    TuneResult,
    VerifyManifest,
)
from retune.stages.request import check_request
from retune.stages.stage import stage_intact
from retune.stages.summary import check_verified, event_of, summarize
from tasks.delivery import (
    bench_bundles,
    compile_bundle,
    publish_report,
    settle_selection,
    verify_bundle,
)
from tasks.network import extract_tasks, import_network
from retune.stages.watch import log_event
from tasks.tuning import decide_finalists, select_records, tune_round

M = TypeVar("M", bound=Manifest)


@flow(
    name="tune-network",
    flow_run_name="tune-{request.model}",
    # One task at a time: a CPU device is measured with no build and no search beside it.
    task_runner=ThreadPoolTaskRunner(max_workers=1),  # type: ignore[arg-type]
    persist_result=True,
    result_serializer="json",
)
def tune_network(request: TuneRequest) -> str:
    """JSON of the TuneResult.

    Raises: InputError for a request that cannot be served, before anything is done for it; what a
    stage raised, when it fails for good.
    """
    check_request(request)  # a scheduled run comes here without passing the command line
    network = run(ImportManifest, import_network, request)
    log_event(event_of(network))
    tasks = run(TaskManifest, extract_tasks, request, network)
    log_event(event_of(tasks))
    rounds = _tune(request, network, tasks)
    finalists = run(FinalistsManifest, decide_finalists, request, network, rounds[-1])
    chosen = from_json(Selection, select_records(request, tasks, finalists))
    settled = run(SettledManifest, settle_selection, request, network, tasks, chosen)
    log_event(event_of(settled))
    selection = settled.selection
    nothing = replace(selection, best=())
    untuned = run(CompileManifest, compile_bundle, request, network, tasks, nothing, "untuned")
    tuned = run(CompileManifest, compile_bundle, request, network, tasks, selection, "tuned")
    log_event(event_of(tuned))
    verified = run(VerifyManifest, verify_bundle, request, network, tuned)
    check_verified(tuned, verified)
    bench = run(BenchManifest, bench_bundles, request, network, untuned, tuned)
    finished = FinishedRun(
        network=network,
        tasks=tasks,
        rounds=tuple(rounds),
        settled=settled,
        tuned=tuned,
        verified=verified,
        bench=bench,
    )
    published = from_json(ReportManifest, publish_report(request, finished))
    result = summarize(request, finished, published)
    artifacts.publish(result)
    return to_json(result)


def run(kind: type[M], stage: Task[..., str], *arguments: Any) -> M:
    """The manifest that the stage's task returns, whose files are there and undamaged.

    If Prefect remembers a result of which the files are gone or damaged, the task runs again.
    """
    manifest = from_json(kind, stage(*arguments))
    if stage_intact(manifest):
        return manifest
    return from_json(kind, stage.with_options(refresh_cache=True)(*arguments))


def _tune(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest
) -> list[RoundManifest]:
    """All rounds, the last one finished."""
    rounds: list[RoundManifest] = []
    with artifacts.tuning_progress() as progress:
        while not rounds or not rounds[-1].finished:
            previous = rounds[-1] if rounds else None
            arguments = (request, network, tasks, len(rounds), previous)
            rounds.append(run(RoundManifest, tune_round, *arguments))
            progress(_share(request, rounds[-1]))
    return rounds


def _share(request: TuneRequest, last: RoundManifest) -> float:
    """How much of the budget is spent, in percent."""
    if last.finished:
        return 100.0
    spent = last.trials_done / request.trials if request.trials else 0.0
    if request.minutes:
        spent = max(spent, last.seconds_done / 60 / request.minutes)
    return min(99.0, 100.0 * spent)


def result_of(text: str) -> TuneResult:
    """The result that the flow returned as JSON."""
    return from_json(TuneResult, text)
