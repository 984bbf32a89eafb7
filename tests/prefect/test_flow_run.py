"""Flow runs of ours on a server: their log, pausing, slots of devices, and the dead."""

import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from retune.pipeline.watch import stopping
from tests.support.flow_runs import run_in_flow
from tests.support.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("server")]

DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from retune.prefect import cancelling, slots

    monkeypatch.setattr(cancelling, "ASK_INTERVAL_S", 0.0)
    monkeypatch.setattr(slots, "ASK_S", 0.0)


def ask(question: Callable[[Any], Any]) -> Any:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return question(client)


def this_run() -> UUID:
    from prefect.runtime import flow_run

    return UUID(str(flow_run.id))


def state_of(run: UUID) -> Any:
    return ask(lambda client: client.read_flow_run(run)).state


def running_elsewhere(*, host: str, process: str, device: str = "board") -> UUID:
    """A flow run that counts as running, of a process of that host."""
    from prefect import flow
    from prefect.states import Running

    @flow(name="lost")
    def lost() -> None:
        """Nothing."""

    tags = ["retune", f"host:{host}", f"process:{process}", f"device:{device}"]
    run = ask(lambda client: client.create_flow_run(lost, state=Running(), tags=tags))
    return run.id


def dead_process() -> str:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return f"{ended.pid}-1"


def logged(run: UUID, words: str) -> int:
    """How many lines of the run on the server have these words."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    lines = ask(lambda client: client.read_logs(wanted, limit=200))
    return sum(words in line.message for line in lines)


@pytest.mark.parametrize("extra", [False, True])
def test_the_log_of_retune_is_the_log_of_its_run_once(extra: bool):
    """Also where PREFECT_LOGGING_EXTRA_LOGGERS has put a handler on the logger."""
    from prefect.logging.handlers import APILogHandler

    from retune.prefect.flow_run import flow_run  # noqa: F401 - Prefect sets up logging once
    from retune.prefect.launch import flush

    logger, handler = logging.getLogger("retune"), APILogHandler()
    before = logger.level, list(logger.handlers)
    logger.handlers[:] = [handler] if extra else []  # as on a worker
    logger.setLevel(logging.NOTSET)
    try:
        run, _ = run_in_flow(lambda: logging.getLogger("retune.search").info("best 41.2 us"))
        flush()
        assert wait_until(lambda: logged(run, "best 41.2 us") > 0, DEADLINE_S)
        assert logged(run, "best 41.2 us") == 1
        assert logger.level == logging.NOTSET
        assert logger.handlers == ([handler] if extra else [])
    finally:
        logger.setLevel(before[0])
        logger.handlers[:] = before[1]


def test_a_paused_run_measures_nothing_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch):
    from prefect.states import Paused, Running

    from retune.prefect import cancelling

    slept: list[float] = []
    runs: list[UUID] = []

    def resume(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 9
        if len(slept) == 3:
            ask(lambda client: client.set_flow_run_state(runs[0], Running(), force=True))

    monkeypatch.setattr(cancelling, "sleep", resume)

    def body() -> list[bool]:
        runs.append(this_run())
        ask(lambda client: client.set_flow_run_state(runs[0], Paused(), force=True))
        return [stopping()]

    run, found = run_in_flow(body)
    assert found == [False]
    assert len(slept) == 3
    assert state_of(run).is_completed()


def test_a_suspended_run_ends_and_stays_suspended():
    from prefect.exceptions import Pause
    from prefect.states import Suspended

    from retune.prefect.stage_task import AsTasks

    runs: list[UUID] = []

    def body() -> None:
        runs.append(this_run())
        ask(lambda client: client.set_flow_run_state(runs[0], Suspended(), force=True))
        AsTasks({}).call(body)

    with pytest.raises(Pause):
        run_in_flow(body)
    assert state_of(runs[0]).name == "Suspended"


def artifacts_of(run: UUID) -> dict[str, str]:
    """Key -> data of the run's artifacts."""
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    found = ask(lambda client: client.read_artifacts(artifact_filter=wanted))
    return {entry.key: str(entry.data) for entry in found if entry.key}


def test_two_fleets_have_artifacts_of_their_own(tmp_path: Path):
    from retune.prefect.artifacts import of_fleet, show_file, show_markdown

    def shows() -> None:
        for fleet in ("Lab 1", "field"):
            with of_fleet(fleet):
                show_markdown("night", markdown=f"# {fleet}")
        show_file("bundle", "mlp", "mali", path=tmp_path, title="Bundle of mlp on mali")

    run, _ = run_in_flow(shows)
    assert artifacts_of(run) == {
        "lab-1-night": "# Lab 1",
        "field-night": "# field",
        "bundle-mlp-mali": f"[Bundle of mlp on mali]({tmp_path.as_uri()})",
    }


def test_names_of_runs_are_no_paths(tmp_path: Path):
    from retune.prefect.flow_run import name_of

    board = tmp_path / "board.toml"
    board.write_text('name = "mali"\n')
    given = {"model": str(tmp_path / "squeezenet.onnx"), "device": f"sim:{board}"}
    assert name_of("tune-network", given) == "squeezenet on mali"
    assert name_of("nightly", {"config": str(tmp_path / "lab.toml")}) == "lab"
    assert name_of("retrain-cost-model", {"records": str(tmp_path)}) == "retrain-cost-model"


def test_a_night_is_called_by_its_date():
    from prefect import flow

    from retune.prefect.flow_run import flow_run

    @flow(name="nightly")
    def nightly() -> str:
        with flow_run(name="lab 2026-11-25", tags=["fleet:lab"]):
            return str(this_run())

    run = ask(lambda client: client.read_flow_run(UUID(nightly())))
    assert run.name == "lab 2026-11-25"
    assert {"retune", "fleet:lab"} <= set(run.tags)


def test_a_night_of_which_something_failed_is_a_failed_run_that_a_retry_goes_on_with(
    tmp_path: Path,
):
    from flows.nightly import nightly
    from retune.nightly.summary import NightFailed

    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        'out = "out"\nwork = "work"\nrecords = "records"\n[[model]]\nmodel = "lost.onnx"\n'
        '[[device]]\nname = "pocl"\n'
    )
    with pytest.raises(NightFailed, match="failed: lost/pocl; no network was tuned") as caught:
        nightly(str(fleet), campaign="first")
    assert [member.status for member in caught.value.state.members] == ["failed"]
    runs = ask(lambda client: client.read_flow_runs())
    (run,) = [each for each in runs if each.name == "fleet first"]
    assert run.state.is_failed() and "failed: lost/pocl" in run.state.message
    shown = ask(lambda client: client.read_artifacts())
    (advice,) = [each for each in shown if each.key == "failure-fleet"]
    assert f"prefect flow-run retry {run.id} --entrypoint flows.nightly.nightly" in advice.data


def test_a_run_that_is_tried_again_begins_others_than_before():
    """A night that went on with a network that had failed got the result of another network."""
    from prefect import flow

    from retune.prefect.flow_run import outcome

    tries: list[object] = []

    @flow(name="tuned", persist_result=True, result_serializer="json")
    def tuned(model: str) -> str:
        return model

    @flow(name="night", retries=1)
    def night() -> None:
        tries.append(outcome(tuned, {"model": "lost" if tries else "mlp"}))
        if len(tries) == 1:
            raise ValueError

    night()
    assert tries == ["mlp", "lost"]


@pytest.fixture
def limited() -> str:
    """A device with one slot."""
    from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

    from retune.prefect.slots import limit_name

    device = f"board{uuid4().hex[:6]}"
    made = GlobalConcurrencyLimitCreate(name=limit_name(device), limit=1)
    ask(lambda client: client.create_global_concurrency_limit(made))
    return device


def used(device: str) -> int:
    from retune.prefect.slots import limit_name

    found = ask(lambda client: client.read_global_concurrency_limit_by_name(limit_name(device)))
    return found.active_slots


def test_a_run_has_its_slot_and_gives_it_back(limited: str):
    assert run_in_flow(lambda: used(limited), device=limited)[1] == 1
    assert used(limited) == 0


def test_cancelling_ends_the_wait_for_a_slot(limited: str, caplog: pytest.LogCaptureFixture):
    from prefect.states import Cancelling

    from retune.core.waiting import interruptible
    from retune.prefect.cancelling import raise_if_cancelled
    from retune.prefect.slots import device_slot

    def waits() -> None:
        run = this_run()

        def cancel() -> None:  # somebody presses the button while the run waits
            ask(lambda client: client.set_flow_run_state(run, Cancelling(), force=True))
            raise_if_cancelled()

        with interruptible(cancel), device_slot(limited, run):
            pytest.fail("the slot is taken")

    ended: list[UUID] = []
    with caplog.at_level(logging.WARNING, "retune"):
        run_in_flow(lambda: ended.append(run_in_flow(waits)[0]), device=limited)
    assert any("is taken by flow run" in record.getMessage() for record in caplog.records)
    assert state_of(ended[0]).is_cancelled()
    assert used(limited) == 0


@pytest.mark.parametrize("end", ["dead", "Crashed", "Cancelled"])
def test_the_slot_of_a_killed_run_is_free_for_the_next_one(limited: str, end: str):
    """Whether any flow finds it dead, or its worker has said so already."""
    from prefect.states import Cancelled, Crashed

    from retune.prefect.reap import LEASE, run_tags
    from retune.prefect.slots import LEASE_S, limit_name

    host = run_tags()[0].partition(":")[2]
    run = running_elsewhere(host=host, process=dead_process(), device=limited)
    names = [limit_name(limited)]
    lease = ask(
        lambda client: client.increment_concurrency_slots_with_lease(
            names, 1, "concurrency", LEASE_S
        )
    ).json()["lease_id"]
    ask(lambda client: client.update_flow_run_labels(run, {LEASE: lease}))
    if end != "dead":
        state = {"Crashed": Crashed, "Cancelled": Cancelled}[end]()
        ask(lambda client: client.set_flow_run_state(run, state, force=True))
    assert used(limited) == 1
    assert run_in_flow(lambda: used(limited), device=limited)[1] == 1
    assert state_of(run).is_final()
    assert used(limited) == 0


def test_a_run_that_goes_on_in_another_process_is_not_dead():
    """It has the tags of the process that it was killed in until it says otherwise."""
    from prefect import flow

    from retune.prefect.flow_run import flow_run
    from retune.prefect.reap import run_tags

    host, _ = run_tags()

    @flow(name="goes-on")
    def goes_on() -> str:
        run = this_run()
        tags = ["retune", host, f"process:{dead_process()}"]
        ask(lambda client: client.update_flow_run(run, tags=tags))
        with flow_run():
            return state_of(run).name

    assert goes_on() == "Running"


def test_tags_of_an_earlier_attempt_prove_no_death():
    from prefect.states import AwaitingRetry, Running

    from retune.prefect import reap

    host = reap.run_tags()[0].partition(":")[2]
    run = running_elsewhere(host=host, process=dead_process())
    for state in (AwaitingRetry(), Running()):  # another process goes on with it
        ask(lambda client, state=state: client.set_flow_run_state(run, state, force=True))
    attempt = ask(lambda client: client.read_flow_run(run)).run_count
    ask(lambda client: client.update_flow_run_labels(run, {reap.ATTEMPT: attempt - 1}))
    reap.mark_dead_runs()
    assert state_of(run).is_running()
    ask(lambda client: client.update_flow_run_labels(run, {reap.ATTEMPT: attempt}))
    reap.mark_dead_runs()
    assert state_of(run).is_crashed()


def heartbeat(run: UUID, moment: datetime) -> None:
    """As the engine of the run sends them."""
    from prefect.events import Event, Resource

    from retune.prefect.reap import HEARTBEAT

    made = Event(
        occurred=moment,
        event=HEARTBEAT,
        resource=Resource({"prefect.resource.id": f"prefect.flow-run.{run}"}),
        id=uuid4(),
    )
    ask(lambda client: client.request("POST", "/events", json=[made.model_dump(mode="json")]))


def test_tasks_of_a_dead_run_do_not_stay_running():
    from prefect import task
    from prefect.states import Running

    from retune.prefect.reap import mark_dead_runs, run_tags

    run = running_elsewhere(host=run_tags()[0].partition(":")[2], process=dead_process())
    made = ask(
        lambda client: client.create_task_run(
            task(lambda: None, name="stage"), run, "0", name="stage", state=Running()
        )
    )
    mark_dead_runs()
    assert ask(lambda client: client.read_task_run(made.id)).state_name == "Crashed"


def test_runs_of_a_lost_host_are_marked_by_any_flow():
    from retune.prefect.reap import SILENCE, mark_dead_runs

    now = datetime.now(UTC)
    lost, alive, silent = (running_elsewhere(host="elsewhere", process="1-1") for _ in range(3))
    heartbeat(lost, now - SILENCE - timedelta(minutes=1))
    heartbeat(alive, now)

    def is_marked() -> bool:  # the server writes events now and then
        mark_dead_runs()
        return state_of(lost).is_crashed()

    assert wait_until(is_marked, DEADLINE_S)
    assert state_of(alive).is_running()
    assert state_of(silent).is_running()  # it may be of a lab without heartbeats
    for run in (alive, silent):
        ask(lambda client, run=run: client.delete_flow_run(run))
