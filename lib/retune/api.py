"""The Python interface: what the command line, the flow and other programs call.

`tune_network` does everything for a network; the `stage_*` functions are its steps, each of which
writes its output once under the key of its inputs. `tune` does it for one tensor expression or
task, and `compile_network` puts such results into a network. Importing this module imports
neither OpenCL nor Prefect.
"""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

from retune.bundle.bench import compare_times
from retune.bundle.build import build_plan
from retune.bundle.module import Module
from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.device.runtime import Device, open_device
from retune.search.defaults import DEFAULT_ALLOCATOR, DEFAULT_MAX_ERROR, DEFAULT_TUNER
from retune.search.program import Tuned, measure, space_for, tune
from retune.search.session import Stop, never
from retune.search.task import Task
from retune.stages.delivery import stage_bench, stage_compile, stage_report, stage_verify
from retune.stages.manifest import (
    FinishedRun,
    ImportManifest,
    Progress,
    SearchManifest,
    TaskManifest,
    TuneRequest,
    TuneResult,
)
from retune.stages.network import ImportedNetwork, import_network, stage_extract, stage_import
from retune.stages.request import check_request
from retune.stages.selection import stage_select
from retune.stages.settling import stage_settle
from retune.stages.summary import check_verified, event_of, summarize
from retune.stages.tuning import stage_finalists, stage_search, tuned
from retune.stages.watch import stopping, tell, watching

__all__ = [
    "ImportedNetwork",
    "Module",
    "Tuned",
    "compare_times",
    "compile_network",
    "extract_tasks",
    "import_network",
    "measure",
    "search_tasks",
    "space_for",
    "stage_bench",
    "stage_compile",
    "stage_extract",
    "stage_finalists",
    "stage_import",
    "stage_report",
    "stage_search",
    "stage_select",
    "stage_settle",
    "stage_verify",
    "tune",
    "tune_network",
    "tuned",
]


def extract_tasks(network: ImportedNetwork) -> tuple[Task, ...]:
    """The distinct tasks to tune, in order of first occurrence.

    Groups without a reduction are left out: data movements and element-wise chains run at memory
    speed by the default schedule.
    """
    return tuple(task for task in network.network.tasks.values() if task.tunable)


def compile_network(
    network: ImportedNetwork, tuned: Sequence[Tuned] = (), *, device: Device | str = "pocl"
) -> Module:
    """The network loaded on the device, with these results in place of the default schedules.

    Raises: InputError if a result is of a task that the network does not have.
    """
    tasks = dict(network.network.tasks)
    for result in tuned:
        if result.task.key not in tasks:
            raise InputError(
                f"{network.network.graph.name}: {result.task.name} is none of its tasks; tune one "
                "of extract_tasks(network)"
            )
        tasks[result.task.key] = result.task
    opened = open_device(device) if isinstance(device, str) else device
    plan = build_plan(
        replace(network.network, tasks=tasks),
        {result.task.key: result.candidate for result in tuned},
        opened.spec,
        model_key=content_key(str(network.onnx), list(tasks)),
        notes={"tuned": ", ".join(result.task.name for result in tuned) or "nothing"},
    )
    return Module(plan, opened)


def tune_network(
    model: str,
    out: Path,
    *,
    device: str = "pocl",
    trials: int | None = None,
    minutes: float | None = None,
    tuner: str = DEFAULT_TUNER,
    allocator: str = DEFAULT_ALLOCATOR,
    patience: int = 0,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    records: Path | None = None,
    layout: str = "NHWC",
    max_error: float = DEFAULT_MAX_ERROR,
    progress: Progress = lambda event: None,
    stop: Stop = never,
) -> TuneResult:
    """Tunes a network and publishes `out/module` and `out/report.html`.

    Measures until `trials` are done or `minutes` are over; without either, until no task has
    anything left to try. `records` is the store's folder (default: the one that RETUNE_RECORDS
    names); `shapes` binds inputs whose shape the model leaves open. `max_error` is the
    largest error of a layer, as a part of its output's range (0: only direct convolutions). The
    other options are those of `retune tune`, see TuneRequest.

    Doing the same again, or after a kill, redoes nothing that was finished. When `stop` says so,
    no further batch is measured, and the bundle is made of what was found. Raises: InputError
    for a model, option or folder that cannot be used, VerifyError if the bundle is wrong.
    """
    request = TuneRequest(
        model=model,
        out=str(out),
        records=str(records or records_root()),
        work=str(cache_root()),
        device=device,
        trials=trials,
        minutes=minutes,
        tuner=tuner,
        allocator=allocator,
        patience=patience,
        seed=seed,
        shapes=tuple(sorted((shapes or {}).items())),
        layout=layout,
        max_error=max_error,
    )
    return run_stages(request, progress, stop)


def run_stages(request: TuneRequest, progress: Progress, stop: Stop = never) -> TuneResult:
    """All stages of a request in order, in this process. Raises: as `tune_network` does."""
    with watching(progress, stop):
        return _run_stages(request)


def _run_stages(request: TuneRequest) -> TuneResult:
    check_request(request)
    network = stage_import(request)
    tell(event_of(network))
    tasks = stage_extract(request, network)
    tell(event_of(tasks))
    searched = tuned(request, network, tasks, search_tasks(request, network, tasks))
    finalists = stage_finalists(request, network, searched)
    chosen = stage_select(request, tasks, finalists)
    settled = stage_settle(request, network, tasks, chosen)
    tell(event_of(settled))
    selection = settled.selection
    nothing = replace(selection, best=())
    untuned = stage_compile(request, network, tasks, nothing, "untuned")
    compiled = stage_compile(request, network, tasks, selection, "tuned")
    tell(event_of(compiled))
    verified = stage_verify(request, network, compiled)
    check_verified(compiled, verified)
    bench = stage_bench(request, network, untuned, compiled)
    finished = FinishedRun(
        network=network,
        tasks=tasks,
        searched=searched,
        settled=settled,
        tuned=compiled,
        verified=verified,
        bench=bench,
    )
    return summarize(request, finished, stage_report(request, finished))


def search_tasks(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest
) -> dict[str, SearchManifest | Exception]:
    """The search of each tunable task, by its key, or why it failed: each in a thread of its own.

    An interrupt of the caller ends all of them after the batch in flight.
    """
    keys = [entry.key for entry in tasks.tasks if entry.tunable]
    interrupted, outside = threading.Event(), copy_context()

    def stop() -> bool:
        return interrupted.is_set() or outside.copy().run(stopping)

    def search(key: str) -> SearchManifest:
        with watching(stop=stop):
            return stage_search(request, network, tasks, key)

    with ThreadPoolExecutor(max(1, len(keys)), thread_name_prefix="search") as pool:
        try:
            searches = {key: pool.submit(copy_context().run, search, key) for key in keys}
            wait(searches.values())
        except BaseException:
            interrupted.set()
            raise
    return {key: _outcome(search) for key, search in searches.items()}


def _outcome(search: Future[SearchManifest]) -> SearchManifest | Exception:
    """Raises: what is no failure of the search but an end of the process."""
    error = search.exception()
    if error is None:
        return search.result()
    if isinstance(error, Exception):
        return error
    raise error
