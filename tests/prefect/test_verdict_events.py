"""Verdicts are events that Prefect's automations react to."""

from pathlib import Path

import pytest
import yaml
from prefect.events import Event
from prefect.events.clients import AssertingEventsClient
from prefect.events.schemas.automations import AutomationCore, EventTrigger
from prefect.events.worker import EventsWorker
from prefect.server.events.schemas import automations as server_side

from retune.prefect import events
from retune.prefect.verdicts import emit_verdicts, event_of
from tests.support.nights import night

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "automations.yaml"


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is emitted, as Prefect has it."""
    found: list[Event] = []

    def emit(event: str, **fields: object) -> None:
        found.append(Event(event=event, **fields))  # type: ignore[arg-type]

    monkeypatch.setattr(events, "emit_event", emit)
    return found


def test_changes_are_events_and_noise_is_none(emitted: list[Event]):
    rows = [
        night(0, network="a", verdict="real", change=1.1, why="the same bundle took longer"),
        night(0, network="b", verdict="real", change=0.9),
        night(0, network="c", verdict="hardware", change=1.2),
        night(0, network="d", verdict="method", change=1.2),
        night(0, network="e", verdict="noise", change=1.0),
        night(0, network="f"),
    ]
    emit_verdicts(rows)
    assert [event.event for event in emitted] == [
        "retune.regression.found",
        "retune.improvement.found",
        "retune.hardware.changed",
        "retune.method.changed",
    ]
    first = emitted[0]
    assert first.resource.id == "retune.network.fleet.board.a"
    assert first.resource["retune.night"] == "2026-03-01"
    assert first.resource.name == "a on board"
    assert first.payload["change"] == 1.1
    assert first.payload["why"] == "the same bundle took longer"


def test_the_example_s_automations_are_accepted_and_react_to_what_is_emitted(
    emitted: list[Event],
):
    automations = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["automations"]
    emit_verdicts([night(0, verdict="real", change=1.1)])
    ours = [each for each in automations if "retune.regression.found" in each["trigger"]["expect"]]
    assert len(ours) == 2
    for each in ours:
        known = AutomationCore.model_validate(each)
        made = server_side.AutomationCreate.model_validate(known.model_dump(mode="json"))
        assert isinstance(known.trigger, EventTrigger) and isinstance(
            made.trigger, server_side.EventTrigger
        )
        regression = event_of(night(0, verdict="real", change=1.1))
        assert f"retune.{regression}" in known.trigger.expect
        (event,) = emitted
        assert made.trigger.match.matches(event.resource)
        assert known.trigger.for_each <= set(event.resource.root)


def test_the_events_are_sent_through_prefect(monkeypatch: pytest.MonkeyPatch):
    sent: list[Event] = []

    class Worker:
        client_type = AssertingEventsClient

        def send(self, event: Event) -> None:
            sent.append(event)

    monkeypatch.setattr("prefect.events.utilities.should_emit_events", lambda: True)
    monkeypatch.setattr(EventsWorker, "instance", classmethod(lambda cls: Worker()))
    emit_verdicts([night(0, verdict="real", change=1.1)])
    assert [event.event for event in sent] == ["retune.regression.found"]
