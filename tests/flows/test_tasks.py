"""Prefect tasks without Prefect's engine, cache keys, and which failures are tried again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.codec import from_json
from retune.core.errors import DeviceError, InputError, ModelError
from retune.stages.manifest import ImportManifest, RoundManifest, TaskManifest, TuneRequest
from tests.flows.fakes import TASKS, FakeStages, runs


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeStages]:
    fakes = FakeStages()
    fakes.install(monkeypatch)
    return fakes


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model="zoo:fake", out=str(tmp_path / "out"), records="records", work=str(tmp_path / "work")
    )


def test_tasks_hand_manifests_on(stages: FakeStages, request_: TuneRequest):
    from tasks.network import extract_tasks, import_network
    from tasks.tuning import tune_round

    network = from_json(ImportManifest, import_network.fn(request_))
    tasks = from_json(TaskManifest, extract_tasks.fn(request_, network))
    assert tasks.tasks == TASKS
    first = from_json(RoundManifest, tune_round.fn(request_, network, tasks, 0, None))
    assert first.index == 0
    assert network.file(network.onnx).read_bytes() == b"onnx"
    assert runs(Path(request_.work)) == ["import", "extract", "round0"]


def test_a_flow_sees_a_bad_place_before_anything_is_done(
    stages: FakeStages, request_: TuneRequest, tmp_path: Path
):
    from flows.tune_network import tune_network

    (tmp_path / "out").write_text("a file where a folder is to be")
    with pytest.raises(InputError, match="out"):
        tune_network.fn(request_)
    assert not (tmp_path / "work").exists()


def test_cache_key_ignores_where_things_lie(request_: TuneRequest):
    from retune_prefect.caching import cache_key

    tasks = TaskManifest(stage="extract", key="k", model_key="m", tasks=TASKS)
    key = cache_key("compile", {"request": request_, "tasks": tasks})
    moved = {"request": replace(request_, out="elsewhere"), "tasks": replace(tasks, folder="/x")}
    assert cache_key("compile", moved) == key
    assert cache_key("verify", moved) != key
    assert cache_key("compile", {**moved, "tasks": replace(tasks, key="other")}) != key
    assert cache_key("compile", {**moved, "request": replace(request_, seed=1)}) != key


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (DeviceError("busy"), True),
        (OSError("disk full"), True),
        (ModelError("no such op"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_only_passing_failures_are_tried_again(error: Exception, again: bool):
    from retune_prefect.caching import may_pass

    class Failed:
        def result(self, raise_on_failure: bool = True) -> Exception:
            return error

    assert may_pass(None, None, Failed()) is again  # type: ignore[arg-type]


def test_dead_runs_are_recognised():
    import os
    import subprocess
    import sys

    from retune_prefect.reap import is_dead, run_tags

    assert not is_dead(run_tags())
    assert not is_dead(["host:here"])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert is_dead([f"process:{ended.pid}-1"])
    assert is_dead([f"process:{os.getpid()}-1"])  # the number was used again
