"""Flow runs around a few lines of a test, and what their server knows of them."""

from collections.abc import Callable
from uuid import UUID


def run_in_flow(body: Callable[[], object], *, device: str | None = None) -> tuple[UUID, object]:
    """The id of a flow run around the body, and what came out: a value or an exception.

    With a device, it has the slot of that.
    """
    from prefect import flow
    from prefect.client.schemas.objects import State
    from prefect.runtime import flow_run as current
    from prefect.states import Cancelled
    from prefect.task_runners import ThreadPoolTaskRunner

    from retune.prefect.cancelling import RunCancelled
    from retune.prefect.flow_run import HOOKS, flow_run

    ids: list[UUID] = []

    @flow(name="test-flow", task_runner=ThreadPoolTaskRunner(max_workers=8), **HOOKS)
    def around() -> object:
        ids.append(UUID(str(current.id)))
        try:
            with flow_run(tags=["model:test"], device=device):
                return body()
        except RunCancelled as cancelled:
            return Cancelled(message=str(cancelled))

    state: State = around(return_state=True)
    return ids[0], state.result(raise_on_failure=False)


def task_runs(flow_run: UUID) -> dict[str, str]:
    """Name -> state of the task runs of a flow run."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    with get_client(sync_client=True) as client:
        found = client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run]))
        )
    return {run.name: run.state_name or "" for run in found}
