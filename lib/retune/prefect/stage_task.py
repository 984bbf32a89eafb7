"""One Prefect task around each stage, and the Caller that runs a chain of them.

Read `stage_task` and `AsTasks`. There is one cache, and its truth is the stage's files: Prefect
remembers a result by the stage's key and work folder, and what it remembers is used only while the
files are there, undamaged.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.futures import PrefectFuture
from prefect.runtime import task_run
from prefect.utilities.annotations import NotSet

from retune.core.errors import may_pass, sentence
from retune.core.keys import content_key
from retune.pipeline.calling import Caller, InProcess
from retune.pipeline.manifest import Manifest
from retune.pipeline.request import TuneRequest
from retune.pipeline.stage import Stage, stage_intact
from retune.prefect.cancelling import raise_if_cancelled
from retune.prefect.contact import going_on, is_silence

P = ParamSpec("P")
R = TypeVar("R")

RETRY_DELAYS_S = [5.0, 30.0]
"""A device that is busy or lost, a disk that is full: first soon again, then later."""
LONGEST = timedelta(hours=2)
"""No stage but the search, which has its own budget, works for so long."""

_LOG = logging.getLogger("retune.prefect")

TASKS: dict[Callable[..., Any], Task[..., Any]] = {}
"""The Prefect task of each stage."""


def stage_task(
    stage: Callable[P, R],
    name: str,
    *,
    run_name: Callable[[dict[str, Any]], str] | None = None,
    timeout: timedelta | None = LONGEST,
) -> Task[P, R]:
    """The stage as a Prefect task of that name; `AsTasks` runs it instead of the stage.

    `run_name` names a run by the stage's arguments; by default it has the task's. Failures that
    may pass are tried again.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return stage(*args, **kwargs)

    run.__name__ = run.__qualname__ = name.replace("-", "_")
    run.__doc__ = stage.__doc__
    run.__signature__ = inspect.signature(stage)  # type: ignore[attr-defined]
    made = Task(
        run,
        name=name,
        task_run_name=(lambda: run_name(task_run.parameters)) if run_name else name,
        cache_policy=NotSet if isinstance(stage, Stage) else NO_CACHE,
        cache_key_fn=_key_of(stage) if isinstance(stage, Stage) else None,
        persist_result=True,
        result_serializer="json",
        retries=len(RETRY_DELAYS_S),
        retry_delay_seconds=RETRY_DELAYS_S,
        retry_condition_fn=_is_worth_another_try,
        timeout_seconds=timeout.total_seconds() if timeout else None,
    )
    TASKS[stage] = made
    return made


def _key_of(stage: Stage[..., Any]) -> Callable[[TaskRunContext, dict[str, Any]], str]:
    """The stage's own key, and the work folder: a result states where its output lies."""

    def key(_: TaskRunContext, parameters: dict[str, Any]) -> str:
        request = cast("TuneRequest", parameters["request"])
        return f"{stage.name}-{content_key(stage.key(**parameters), Path(request.work).resolve())}"

    return key


def _is_worth_another_try(_task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    error = state.result(raise_on_failure=False)
    if not isinstance(error, Exception) or not may_pass(error):
        return False
    _LOG.warning("%s failed, and is tried again in a moment: %s", run.name, sentence(error))
    return True


class AsTasks(Caller):
    """Calls each stage as a task run of the flow run that it is used in."""

    def __init__(self, tasks: Mapping[Callable[..., Any], Task[..., Any]]) -> None:
        """`tasks` are those of the stages that are called."""
        self._tasks = tasks

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What the task returns, or where the server is lost the stage itself.

        Raises: what the stage raises; RunCancelled if the flow run is to end.
        """
        raise_if_cancelled()
        return going_on(lambda: self._call(stage, *args, **kwargs), lambda: stage(*args, **kwargs))

    def _call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        made = cast("Task[P, R]", self._tasks[stage])
        if current_thread() is not main_thread():  # Prefect cannot interrupt it, and says so
            made = made.with_options(timeout_seconds=0)
        result = made(*args, **kwargs)
        if isinstance(result, Manifest) and not result.stopped and not stage_intact(result):
            return made.with_options(refresh_cache=True)(*args, **kwargs)
        return result

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        """Task runs that are submitted together; those that a lost server did not let begin are
        called without it."""
        raise_if_cancelled()
        submit = cast("Callable[..., PrefectFuture[R]]", self._tasks[stage].submit)
        futures = [submit(*each) for each in arguments]
        found = [_outcome(future) for future in futures]
        lost = [at for at, each in enumerate(found) if is_silence(each)]
        without = InProcess().together(stage, [arguments[at] for at in lost])
        for at, each in zip(lost, without, strict=True):
            found[at] = each
        return found


def _outcome(future: PrefectFuture[R]) -> R | Exception:
    found = future.result(raise_on_failure=False)
    if isinstance(found, BaseException) and not isinstance(found, Exception):
        raise found
    return found
