"""A real server has the events of a night, and takes the automations of the example."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "automations.yaml"

DEADLINE_S = 60.0

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("server")]


def test_the_events_of_a_night_are_in_the_feed_with_the_run_that_found_them():
    from prefect.client.orchestration import get_client

    from retune.prefect.launch import flush
    from retune.prefect.verdicts import emit_verdicts
    from tests.support.flow_runs import run_in_flow
    from tests.support.nights import night

    row = night(0, verdict="real", change=1.1, why="the same bundle took longer")
    run, _ = run_in_flow(lambda: emit_verdicts([row]))
    flush()
    asked = {"filter": {"event": {"name": ["retune.regression.found"]}}}
    found: list[dict[str, Any]] = []

    def stored() -> bool:
        with get_client(sync_client=True) as client:
            found[:] = client.request("POST", "/events/filter", json=asked).json()["events"]
        return bool(found)

    assert wait_until(stored, DEADLINE_S)  # the server stores events a few at a time
    (event,) = found
    assert event["resource"]["prefect.resource.id"] == "retune.network.fleet.board.mlp"
    assert event["payload"]["why"] == "the same bundle took longer"
    related = {each["prefect.resource.id"] for each in event["related"]}
    assert f"prefect.flow-run.{run}" in related


def test_the_server_takes_the_automations_of_the_example():
    import yaml
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    automations = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["automations"]
    with get_client(sync_client=True) as client:
        for each in automations:
            made = client.create_automation(AutomationCore.model_validate(each))
            assert client.read_automation(made)
            client.delete_automation(made)
