"""The order of the stages, written once: from a request to a published bundle.

Read `run_chain`. What calls a stage is passed in: this process, or Prefect as a task run of its own.
A stage that is new is one line here, beside its own file.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from threading import Event
from typing import ParamSpec, Protocol, TypeVar

from retune.stages.delivery import stage_bench, stage_compile, stage_report, stage_verify
from retune.stages.manifest import FinishedRun, TuneRequest, TuneResult
from retune.stages.network import stage_extract, stage_import
from retune.stages.request import check_request
from retune.stages.selection import stage_select
from retune.stages.settling import stage_settle
from retune.stages.summary import check_verified, event_of, summarize
from retune.stages.tuning import join_searches, stage_finalists, stage_search
from retune.stages.watch import tell, watching

P = ParamSpec("P")
R = TypeVar("R")


class Caller(Protocol):
    """Calls stages: the chain says which, with what, and in what order."""

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the stage returns. Raises: what it raises, when it fails for good."""
        ...

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        """What it returns or raises for each of these arguments, all of them called at once."""
        ...


class InProcess:
    """A Caller that simply calls."""

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the stage returns."""
        return stage(*args, **kwargs)

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        """In a thread for each. An interrupt leaves after the batch in flight."""
        if not arguments:
            return []
        left = Event()
        with ThreadPoolExecutor(len(arguments), thread_name_prefix="search") as pool:
            with watching(stop=left.is_set):
                futures = [pool.submit(copy_context().run, stage, *each) for each in arguments]
            try:
                return [_outcome(future) for future in futures]
            except BaseException:
                left.set()
                raise


def _outcome(future: Future[R]) -> R | Exception:
    """What the future gives; an interrupt of this process is raised."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error


def run_chain(request: TuneRequest, by: Caller) -> TuneResult:
    """All stages of a request. Raises: as `retune.api.tune_network` does."""
    check_request(request)
    network = by.call(stage_import, request)
    tell(event_of(network))
    tasks = by.call(stage_extract, request, network)
    tell(event_of(tasks))
    wanted = [(request, network, tasks, entry.key) for entry in tasks.tasks if entry.tunable]
    searched = join_searches(request, tasks, by.together(stage_search, wanted))
    finalists = by.call(stage_finalists, request, network, searched)
    chosen = by.call(stage_select, request, tasks, finalists)
    settled = by.call(stage_settle, request, network, tasks, chosen)
    tell(event_of(settled))
    nothing = replace(settled.selection, best=())
    untuned = by.call(stage_compile, request, network, tasks, nothing, "untuned")
    tuned = by.call(stage_compile, request, network, tasks, settled.selection, "tuned")
    tell(event_of(tuned))
    verified = by.call(stage_verify, request, network, tuned)
    check_verified(tuned, verified)
    bench = by.call(stage_bench, request, network, untuned, tuned)
    finished = FinishedRun(
        network=network,
        tasks=tasks,
        searched=searched,
        settled=settled,
        tuned=tuned,
        verified=verified,
        bench=bench,
    )
    return summarize(request, finished, by.call(stage_report, request, finished))
