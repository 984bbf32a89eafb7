"""Stages as task runs, on a server of their own: names, caching, retries, cancellation, hooks."""

import threading
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from retune.core.errors import DeviceError, InputError
from retune.pipeline.manifest import TaskManifest
from retune.pipeline.request import TuneRequest
from retune.pipeline.stage import Inputs, stage
from retune.pipeline.watch import stopping
from tests.support.flow_runs import run_in_flow, task_runs

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("server")]


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model="zoo:fake", out=str(tmp_path / "out"), records="records", work=str(tmp_path / "work")
    )


def test_a_result_is_used_again_only_while_its_files_are_there(
    request_: TuneRequest, tmp_path: Path
):
    from retune.prefect.stage_task import AsTasks, stage_task

    ran: list[int] = []

    def inputs(request: TuneRequest, number: int) -> Inputs:
        return (number,)

    @stage(TaskManifest, "numbered", inputs)
    def numbered(folder: Path, request: TuneRequest, number: int) -> TaskManifest:
        ran.append(number)
        (folder / "file").write_text("content")
        return TaskManifest(model_key=str(number), tasks=())

    made = stage_task(numbered, "numbered", run_name=lambda given: f"numbered {given['number']}")
    by = AsTasks({numbered: made})

    run, first = run_in_flow(lambda: by.call(numbered, request_, 1))
    assert first == numbered(request_, 1)
    again, second = run_in_flow(lambda: by.call(numbered, request_, 1))
    assert second == first
    assert ran == [1]
    assert task_runs(run) == {"numbered 1": "Completed"}
    assert task_runs(again) == {"numbered 1": "Cached"}

    elsewhere = replace(request_, work=str(tmp_path / "elsewhere"))
    _, third = run_in_flow(lambda: by.call(numbered, elsewhere, 1))
    assert isinstance(third, TaskManifest)
    assert third.file("file").is_relative_to(elsewhere.work), "an output lies in its work folder"
    ran.remove(1)

    assert isinstance(first, TaskManifest)
    first.file("file").unlink()
    _, mended = run_in_flow(lambda: by.call(numbered, request_, 1))
    assert isinstance(mended, TaskManifest)
    assert mended.outputs == first.outputs
    assert ran == [1, 1]
    assert first.file("file").is_file()


def test_runs_that_are_submitted_together_do_not_end_each_other(request_: TuneRequest):
    from retune.prefect.stage_task import AsTasks, stage_task

    met = threading.Barrier(3, timeout=60)

    def searched(request: TuneRequest, number: int) -> int:
        met.wait()  # all of them run at once
        if number == 1:
            raise InputError("one is wrong")
        return 10 * number

    made = stage_task(searched, "search", run_name=lambda given: f"search {given['number']}")
    by = AsTasks({searched: made})
    run, found = run_in_flow(
        lambda: [str(o) for o in by.together(searched, [(request_, n) for n in range(3)])]
    )
    assert found == ["0", "one is wrong", "20"]
    states = {"search 0": "Completed", "search 1": "Failed", "search 2": "Completed"}
    assert task_runs(run) == states


@pytest.mark.parametrize(
    ("error", "tries"), [(DeviceError("lost"), 3), (PermissionError(13, "no"), 1)]
)
def test_only_what_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    tries: int,
):
    from retune.prefect import stage_task

    monkeypatch.setattr(stage_task, "RETRY_DELAYS_S", [0.0, 0.0])
    tried: list[int] = []

    def failing() -> None:
        tried.append(1)
        raise error

    by = stage_task.AsTasks({failing: stage_task.stage_task(failing, "failing")})
    _, found = run_in_flow(lambda: by.call(failing))
    assert str(found) == str(error)
    assert len(tried) == tries
    said = "failing failed, and is tried again in a moment: lost"
    assert caplog.messages.count(said) == tries - 1


def test_a_cancelled_run_stops_after_its_batch_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, request_: TuneRequest
):
    from prefect.client.orchestration import get_client
    from prefect.runtime import flow_run as current
    from prefect.states import Cancelling

    from retune.prefect import cancelling
    from retune.prefect.stage_task import AsTasks, stage_task

    monkeypatch.setattr(cancelling, "ASK_INTERVAL_S", 0.0)
    batches: list[int] = []
    flow_runs: list[UUID] = []

    def begun(request: TuneRequest) -> None:
        flow_runs.append(UUID(str(current.id)))

    def searched(request: TuneRequest) -> None:
        while not stopping():
            batches.append(1)
            with get_client(sync_client=True) as client:  # somebody presses the button
                client.set_flow_run_state(flow_runs[0], Cancelling())

    stages = {searched: stage_task(searched, "search"), begun: stage_task(begun, "begin")}
    by = AsTasks(stages)

    def body() -> None:
        by.call(begun, request_)
        by.together(searched, [(request_,)])
        by.call(begun, request_)

    run, found = run_in_flow(body)
    assert batches == [1]
    assert len(flow_runs) == 1
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    assert state is not None
    assert state.is_cancelled(), found


def test_a_failed_run_says_how_to_go_on_and_is_tagged():
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    def fails() -> None:
        raise InputError("model.onnx: expected a file, got none")

    run, _ = run_in_flow(fails)
    with get_client(sync_client=True) as client:
        tags = client.read_flow_run(run).tags
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["failure-test-flow"]))
        )
    (artifact,) = [entry for entry in artifacts if entry.flow_run_id == run]
    assert {"retune", "model:test"} < set(tags)
    assert f"prefect flow-run retry {run}" in str(artifact.data)
    assert "expected a file" in str(artifact.data)


@pytest.mark.parametrize("name", ["nightly", "tune_network", "retrain_cost_model"])
def test_a_failed_flow_is_named_as_prefect_loads_it(name: str):
    from importlib import import_module

    from prefect.flows import load_flow_from_entrypoint

    from retune.prefect.flow_run import entrypoint

    flow = getattr(import_module(f"flows.{name}"), name)
    assert load_flow_from_entrypoint(entrypoint(flow)).fn is flow.fn


def test_what_a_crashed_run_says_is_its_own_and_no_warning():
    """Its hook is called when its flow is over; a warning would be an error here."""
    from prefect import flow
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
    from prefect.states import Crashed

    from retune.prefect.flow_run import HOOKS

    @flow(name="crashed-flow")
    def body() -> None:
        """Nothing."""

    run, _ = run_in_flow(lambda: None)
    (hook,) = HOOKS["on_crashed"]
    with get_client(sync_client=True) as client:
        hook(body, client.read_flow_run(run), Crashed(message="killed"))
        (artifact,) = client.read_artifacts(
            artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["failure-crashed-flow"]))
        )
    assert artifact.flow_run_id == run
    assert "killed" in str(artifact.data)
