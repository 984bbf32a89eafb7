"""Runs of pruned nights go from the server, with their tasks, artifacts and logs; others stay."""

from typing import Any
from uuid import UUID

import pytest

from tests.support.flow_runs import run_in_flow

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("server")]


def night(name: str, fleet: str) -> UUID:
    """A night with a member whose run has an artifact and a task run."""
    from prefect import flow, task
    from prefect.runtime import flow_run as current

    from retune.prefect.artifacts import show_markdown
    from retune.prefect.flow_run import flow_run

    @task(name="stage")
    def stage() -> None:
        """Nothing."""

    def member() -> None:
        stage()
        show_markdown("summary", "mlp", markdown="# mlp")

    @flow(name="night")
    def body() -> str:
        with flow_run(tags=[f"fleet:{fleet}", f"night:{name}"]):
            run_in_flow(member)
            return str(current.id)

    return UUID(body())


def left(run: UUID) -> bool:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            return bool(client.read_flow_run(run))
        except ObjectNotFound:
            return False


def test_only_what_is_of_the_nights_of_the_fleet_goes():
    from retune.prefect.pruning import ServerPruning, plan_server_pruning, prune_server

    old, other, new = night("1", "lab"), night("1", "field"), night("2", "lab")
    found = plan_server_pruning("lab", ["1"])
    assert len(found.flow_runs) == 2
    assert found.flow_runs[-1] == old
    assert len(found.artifacts) == 1
    prune_server(found)
    assert [left(run) for run in (*found.flow_runs, other, new)] == [False, False, True, True]
    again: Any = plan_server_pruning("lab", ["1"])
    assert again == ServerPruning()
