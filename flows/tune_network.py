"""The flow of a tuning run: the chain of stages, each of them a Prefect task run.

Read `tune_network`. Each stage's output lies on disk under the key of its inputs, so a run that was
killed, cancelled or is started again redoes nothing that was finished.
"""

from dataclasses import asdict
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

import tasks
from retune.core.names import model_name
from retune.device.opening import display_name
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest, options
from retune.pipeline.results import SlowerThanPeer, TuneResult
from retune.prefect.artifacts import show_result, tuning_progress
from retune.prefect.cancelling import RunCancelled
from retune.prefect.events import tell_finished
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run
from retune.prefect.parameters import with_parameters
from retune.prefect.stage_task import AsTasks
from retune.prefect.surviving import kept


def parameters_of(request: TuneRequest) -> dict[str, Any]:
    """The parameters of the flow that ask for this request."""
    given = {name: getattr(request, name) for name in options()}
    for name in ("shapes", "values"):
        given[name] = {key: list(stated) for key, stated in getattr(request, name)}
    given["quantize"] = request.quantize and asdict(request.quantize)
    return given


MOST_SEARCHES = 1024
"""Threads for search tasks: nearly all of them wait for a batch."""


class SearchRunner(ThreadPoolTaskRunner[Any]):
    """Runs search tasks in threads. Ctrl-C does not wait for them, as it ends the process."""

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        if self._executor is not None and exc_type is KeyboardInterrupt:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
        super().__exit__(exc_type, exc_value, traceback)


@flow(
    name="tune-network",
    flow_run_name=name_of_run,
    task_runner=cast("TaskRunner[Any]", SearchRunner(max_workers=MOST_SEARCHES)),
    persist_result=True,
    result_serializer="json",
    **HOOKS,
)
@kept
@with_parameters(shapes=dict[str, list[int | str]], values=dict[str, list[int | str]])
def tune_network(request: TuneRequest) -> TuneResult | State[TuneResult]:
    """Tunes a network for a device, and publishes the bundle and the report."""
    device = display_name(request.device)
    tags = [f"model:{model_name(request.model)}"]
    try:
        with flow_run(tags=tags, device=device), tuning_progress(request.model, device):
            try:
                result = run_chain(request, AsTasks(tasks.TASKS))
            except SlowerThanPeer as slower:
                show_result(slower.result, device)
                raise
            show_result(result, device)
            tell_finished(result, device)
            return result
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))
