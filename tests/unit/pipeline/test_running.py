"""Runs: one process at a time has one, its record follows it, and it is found again by name."""

import logging
import subprocess
import sys
from contextvars import Context
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import BusyError, DeviceError, LookupFailed, RunStopped
from retune.core.processes import this_process
from retune.core.schema import from_json, to_json
from retune.pipeline import running
from retune.pipeline.request import TuneRequest
from retune.pipeline.running import RunRecord, find_run, recorded_run, run_name, runs
from tests.support.processes import heard, talk, tell

RUN = "import sys, tests.unit.pipeline.test_running as here; here.run_when_told(*sys.argv[1:])"


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    return request_in(tmp_path)


def request_in(folder: Path, out: str = "out") -> TuneRequest:
    return TuneRequest(
        model="models/kws net.onnx",
        out=str(folder / out),
        records=str(folder / "records"),
        work=str(folder / "work"),
        shapes=(("x", (1, 2)),),
        trials=9,
    )


def only(request: TuneRequest) -> RunRecord:
    (record,) = runs(Path(request.work))
    return record


def test_the_record_follows_the_run(request_: TuneRequest):
    assert runs(Path(request_.work)) == ()
    with recorded_run(request_) as run:
        begun = only(request_)
        assert (begun.name, begun.request, begun.stage) == (run.name, request_, "")
        assert begun.standing == "running"
        assert begun.holder.process == this_process().process
        assert begun.folder == str(Path.cwd())
        for stage in ("import", "tune"):
            run.entered(stage)
            assert (only(request_).stage, only(request_).standing) == (stage, "running")
    ended = only(request_)
    assert (ended.standing, ended.stage, ended.error) == ("finished", "tune", "")
    assert ended.started == begun.started <= ended.changed


@pytest.mark.parametrize(
    ("error", "standing", "said"),
    [
        (DeviceError("pocl: lost\nwith details"), "failed", "pocl: lost"),
        (ZeroDivisionError("by zero"), "failed", "ZeroDivisionError: by zero"),
        (RunStopped("cancelled by hand"), "stopped", "cancelled by hand"),
        (KeyboardInterrupt(), "stopped", "interrupted"),
    ],
)
def test_a_failure_is_written_down_with_its_stage(
    request_: TuneRequest, error: BaseException, standing: str, said: str
):
    def fail() -> None:
        with recorded_run(request_) as run:
            run.entered("verify")
            raise error

    with pytest.raises(type(error)):
        fail()
    record = only(request_)
    assert (record.standing, record.stage, record.error) == (standing, "verify", said)


def test_the_next_start_clears_what_was_wrong_with_the_last(request_: TuneRequest):
    with pytest.raises(DeviceError), recorded_run(request_):
        raise DeviceError("lost")
    with recorded_run(request_):
        assert (only(request_).standing, only(request_).error) == ("running", "")
    assert only(request_).standing == "finished"


def test_a_run_that_was_cut_short_is_not_finished(request_: TuneRequest):
    with recorded_run(request_) as run:
        run.cut_short("stopped by hand")
    assert (only(request_).standing, only(request_).error) == ("stopped", "stopped by hand")


def test_a_run_within_itself_is_one_run(request_: TuneRequest):
    with recorded_run(request_) as run:
        with recorded_run(request_, wait=False) as inner:
            inner.entered("tune")
        assert inner is run
        assert only(request_).standing == "running"
        with recorded_run(replace(request_, out=request_.out + "2"), wait=False) as other:
            assert other is not run
        with recorded_run(request_, wait=False) as inner:
            assert inner is run
    assert {record.standing for record in runs(Path(request_.work))} == {"finished"}


def refusal(request: TuneRequest, run_id: str = "") -> str:
    """Why a stranger cannot have such a run now; empty if he can."""

    def attempt() -> str:
        try:
            with recorded_run(request, wait=False) as run:
                if run_id:
                    run.claim(run_id)
        except BusyError as error:
            return str(error)
        return ""

    return Context().run(attempt)


def test_runs_exclude_each_other_by_where_they_publish_and_by_their_records(
    request_: TuneRequest, tmp_path: Path
):
    other = request_in(tmp_path, "other")
    spelled = replace(request_, out=f"{tmp_path}/records/../out", seed=1)
    with recorded_run(request_) as run:
        assert "a run that publishes there is carried out by this process" in refusal(request_)
        assert str(tmp_path / "out") in refusal(spelled)
        assert not refusal(other, "id")
        run.claim("id")
        assert f"run {run_name(other)} (id) is being tuned by this process" in refusal(other, "id")
        assert not refusal(other, "another id")
        assert not refusal(replace(other, trials=0), "id"), "it proposes nothing"
        assert not refusal(replace(other, records=str(tmp_path / "elsewhere")), "id")
        assert only_named(request_).standing == "running", "the refused have not touched it"
    assert not refusal(request_, "id")
    assert not refusal(other, "id")


def only_named(request: TuneRequest) -> RunRecord:
    return find_run(Path(request.work), run_name(request))


def run_when_told(folder: str, out: str) -> None:
    """What a process of a test does: goes on from stage to stage when it is told to."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    with recorded_run(request_in(Path(folder), out)) as run:
        for stage in ("import", "tune"):
            run.entered(stage)
            print(stage)
            sys.stdin.readline()
            run.claim("id")
    print("done")


def start(folder: Path, out: str = "out") -> subprocess.Popen[str]:
    return talk(RUN, str(folder), out)


def finish(process: subprocess.Popen[str]) -> list[str]:
    said: list[str] = []
    while not said or said[-1] not in ("done", ""):
        said.append(heard(process))
        if said[-1] in ("import", "tune"):
            tell(process)
    return said


@pytest.mark.process
def test_a_second_start_of_the_same_command_waits_for_the_first(
    request_: TuneRequest, tmp_path: Path
):
    with start(tmp_path) as first:
        assert heard(first) == "import"
        with start(tmp_path) as second:
            waiting = heard(second)
            assert f"is carried out by process {first.pid} on " in waiting
            assert " since " in waiting and waiting.endswith("; waiting until it ends")
            with pytest.raises(BusyError, match=f"by process {first.pid} on .*; try again"):
                recorded_run(request_, wait=False).__enter__()
            assert only(request_).holder.process == first.pid
            tell(first)
            assert finish(first) == ["tune", "done"]
            assert heard(second).startswith("the wait is over after ")
            assert finish(second) == ["import", "tune", "done"]
    assert only(request_).holder.process == second.pid
    assert only(request_).standing == "finished"


@pytest.mark.process
def test_runs_that_share_records_tune_one_after_the_other(tmp_path: Path):
    with start(tmp_path) as first, start(tmp_path, "other") as second:
        assert heard(first) == "import"
        tell(first)
        assert heard(first) == "tune"
        assert heard(second) == "import"
        tell(second)
        assert f"is being tuned by process {first.pid} on " in heard(second)
        tell(first)
        assert heard(first) == "done"
        assert heard(second).startswith("the wait is over after ")
        assert finish(second) == ["tune", "done"]


@pytest.mark.process
def test_a_killed_run_has_died_and_can_be_started_again(request_: TuneRequest, tmp_path: Path):
    with start(tmp_path) as first:
        assert heard(first) == "import"
        assert only(request_).standing == "running"
        first.kill()
    assert (only(request_).standing, only(request_).stage) == ("died", "import")
    with recorded_run(request_, wait=False):
        assert only(request_).standing == "running"


def test_names_are_short_and_the_same_for_the_same_request(
    request_: TuneRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = run_name(request_)
    assert name.startswith("kws-net-") and len(name) == len("kws-net-") + 8
    others = [
        replace(request_, seed=1),
        replace(request_, out=str(tmp_path / "other")),
        replace(request_, model="other/kws net.onnx"),
        replace(request_, device="other"),
    ]
    assert len({name, *map(run_name, others)}) == 1 + len(others)
    monkeypatch.chdir(tmp_path)
    here = replace(request_, model=str(tmp_path / "a.onnx"))
    assert run_name(replace(here, model="a.onnx", out="out", work="./work")) == run_name(here)
    for model, stem in (
        ("zoo:squeezenet_v1.1", "squeezenet_v1.1-"),
        ("light:vgg19", "vgg19-"),
        ("größe.onnx", "gr-e-"),
        ("網.onnx", "model-"),
    ):
        assert run_name(replace(request_, model=model)).startswith(stem)


def written(request: TuneRequest, **fields: object) -> RunRecord:
    """The record of a run of that request, rewritten with these fields."""
    with recorded_run(request) as run:
        pass
    record = replace(find_run(Path(request.work), run.name), **fields)  # type: ignore[arg-type]
    path = Path(request.work) / "runs" / record.name / "run.json"
    path.write_text(to_json(record))
    return record


def test_runs_are_found_by_name_by_how_it_begins_and_as_the_last(request_: TuneRequest):
    work = Path(request_.work)
    with pytest.raises(LookupFailed, match=r"run 'last': no run is recorded in .*runs"):
        find_run(work, "last")
    early, late = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    last = written(replace(request_, model="zoo:mlp", out=request_.out + "2"), changed=late)
    first = written(request_, changed=early)
    assert runs(work) == (first, last)
    assert find_run(work, "last") == find_run(work, "mlp") == find_run(work, last.name) == last
    assert find_run(work, "kws") == first
    with pytest.raises(LookupFailed, match=rf"'' begins .* several; .*{first.name}, {last.name}$"):
        find_run(work, "")
    with pytest.raises(LookupFailed, match=rf"'vgg' is not known; .*{first.name}, {last.name}$"):
        find_run(work, "vgg")


@pytest.mark.parametrize("damage", ["", "{", "{}", "\x00", '{"name": 3}'])
def test_a_record_that_cannot_be_read_is_left_out_and_named(
    request_: TuneRequest, damage: str, caplog: pytest.LogCaptureFixture
):
    record = written(request_)
    path = Path(request_.work) / "runs" / record.name / "run.json"
    path.write_text(damage)
    assert runs(Path(request_.work)) == ()
    assert f"{path}: the record of a run cannot be read" in caplog.text
    with recorded_run(request_):
        pass
    assert only(request_).standing == "finished"


def test_a_record_that_cannot_be_written_ends_no_run(
    request_: TuneRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running, "replacing", full)
    with recorded_run(request_) as run:
        run.entered("import")
    assert "run.json cannot be written (No space left on device)" in caplog.text


def test_a_record_is_plain_data(request_: TuneRequest):
    record = written(request_, state="failed", stage="tune", error="why")
    assert from_json(RunRecord, to_json(record)) == record
