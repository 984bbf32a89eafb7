"""Removal of pruned nights from a Prefect server's database.

Prefect's own service does the same by age, for the whole server: `server.services.db_vacuum` in
prefect.toml. It is for runs that are of no night.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterTags,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from retune.prefect.reap import OURS

T = TypeVar("T")

_PAGE = 200
"""The most that the server gives at once."""
_PART = 50
"""Flow runs that one question is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPruning:
    """What is to be removed, or was; task runs, states and logs go with their flow run."""

    flow_runs: tuple[UUID, ...] = ()
    """Those within others first."""
    task_runs: int = 0
    artifacts: tuple[UUID, ...] = ()
    logs: int = 0


def plan_server_pruning(fleet: str, nights: Sequence[str]) -> ServerPruning:
    """What the server has of these nights of the fleet; runs that have not ended are left out."""
    with get_client(sync_client=True) as client:
        tags = [[OURS, f"fleet:{fleet}", f"night:{night}"] for night in nights]
        found = [run for each in tags for run in _ended(client, each)]
        ids = [run.id for run in (*_within(client, found), *found)]
        parts = [ids[first : first + _PART] for first in range(0, len(ids), _PART)]
        return ServerPruning(
            flow_runs=tuple(ids),
            task_runs=sum(_task_runs(client, part) for part in parts),
            artifacts=tuple(each for part in parts for each in _artifacts(client, part)),
            logs=sum(_logs(client, part) for part in parts),
        )


def prune_server(pruning: ServerPruning) -> None:
    """The server has nothing of it any longer; logs go a moment later."""
    with get_client(sync_client=True) as client:
        for artifact in pruning.artifacts:
            with suppress(ObjectNotFound):  # another process was faster
                client.delete_artifact(artifact)
        for run in pruning.flow_runs:
            with suppress(ObjectNotFound):
                client.delete_flow_run(run)


def _ended(client: SyncPrefectClient, tags: list[str]) -> list[FlowRun]:
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=tags))
    found = _all(
        lambda offset: client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE, offset=offset)
    )
    return [run for run in found if run.state is not None and run.state.is_final()]


def _within(client: SyncPrefectClient, runs: Sequence[FlowRun]) -> list[FlowRun]:
    """The flow runs within these, the innermost first."""
    found: list[FlowRun] = []
    for run in runs:
        inner = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run.id]))
        found += _all(
            lambda offset, inner=inner: client.read_flow_runs(
                flow_run_filter=inner, limit=_PAGE, offset=offset
            )
        )
    return [*_within(client, found), *found] if found else []


def _task_runs(client: SyncPrefectClient, runs: Sequence[UUID]) -> int:
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(runs)))
    body = {"flow_runs": wanted.model_dump(mode="json", exclude_unset=True)}
    return int(client.request("POST", "/task_runs/count", json=body).json())


def _artifacts(client: SyncPrefectClient, runs: Sequence[UUID]) -> list[UUID]:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=list(runs)))
    found = _all(
        lambda offset: client.read_artifacts(artifact_filter=wanted, limit=_PAGE, offset=offset)
    )
    return [each.id for each in found]


def _logs(client: SyncPrefectClient, runs: Sequence[UUID]) -> int:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=list(runs)))
    return len(_all(lambda offset: client.read_logs(wanted, limit=_PAGE, offset=offset)))


def _all(page: Callable[[int], Sequence[T]]) -> list[T]:
    """Everything that the pages have, each of which begins at an offset."""
    found: list[T] = []
    while True:
        more = page(len(found))
        found += more
        if len(more) < _PAGE:
            return found
