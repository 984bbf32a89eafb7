"""The report's data, from manifests and from records of a store; and the examples that read it."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import onnx
import pytest

from retune.core.results import KernelTime
from retune.pipeline.manifest import BestRecord, Selection
from retune.pipeline.report_data import report_data
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.rows import result_data
from retune.pipeline.summary import summarize, task_results
from retune.records.conditions import Conditions
from retune.records.schema import TuningRecord, failed, succeeded
from retune.records.store import RecordStore
from retune.report.html import render
from tests.flows.fakes import FakeStages
from tests.support.sized_networks import model_of
from tests.support.store import DEVICE as STORE_DEVICE
from tests.support.store import record as store_record

ROOT = Path(__file__).resolve().parents[3]
DEVICE = "fake device"


def fill(store: Path) -> None:
    """Four measurements of one task, one of them failed, and one of another run."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    outcomes = [40.0, None, 20.0, 30.0]
    records = [record(i, time, start, DEVICE) for i, time in enumerate(outcomes)]
    RecordStore(store).append(records)
    other = replace(record(9, 1.0, start, "another device"), run_id="another run")
    RecordStore(store).append([other])


def record(index: int, time: float | None, start: datetime, device: str) -> TuningRecord:
    if time is None:
        measured = failed("compile_error", "unknown type float99\nline 2")
    else:
        measured = succeeded((time,), max_abs_err=0.0, reference_us=1.0, build_s=0.1, run_s=0.1)
    return TuningRecord(
        run_id="run",
        model="fake",
        target=device,
        task_key="key0",
        task_name="conv0",
        sketch="tiled",
        decisions=(index, 2),
        trace="[]",
        config_hash=f"{index:016x}",
        device=device,
        measurement=replace(measured, timestamp=start + timedelta(seconds=index)),
    )


def request_in(folder: Path) -> TuneRequest:
    """Of a model that no stage reads."""
    folders = {name: str(folder / name) for name in ("out", "records", "work")}
    return TuneRequest(model="zoo:fake", **folders)


def test_times_that_were_taken_elsewhere_are_not_the_tasks(tmp_path: Path):
    best = BestRecord(task_key="key0", record_id="r", time_us=25.0, elsewhere=True)
    run = FakeStages().finished(request_in(tmp_path), Selection(target=DEVICE, best=(best,)))
    assert {t.entry.name: t.best_us for t in task_results(run)}["conv0"] is None


def test_report_shows_the_run_and_its_own_curves(tmp_path: Path):
    request = request_in(tmp_path)
    fill(Path(request.records))
    selection = Selection(
        target=DEVICE, best=(BestRecord(task_key="key0", record_id="r", time_us=25.0),)
    )
    run = FakeStages().finished(request, selection)
    data = report_data(request, run, created=datetime(2026, 1, 2, tzinfo=UTC))
    assert [(c.task, c.times_us) for c in data.curves] == [("conv0", (40.0, None, 20.0, 30.0))]
    assert {t.entry.name: t.default_us for t in data.tasks} == {
        "conv0": 40.0,
        "conv1": None,
        "conv2": None,
    }
    assert {t.entry.name: t.best_us for t in data.tasks}["conv0"] == 25.0, (
        "the one that was compiled"
    )
    assert data.failures == (("ok", 6), ("timeout", 3))
    assert [task.entry.name for task in data.tasks] == ["conv2", "conv1", "conv0"]
    page = render(data)
    assert "2026-01-02 00:00 UTC" in page
    assert "conv2d + bias + relu" in page


def test_title_has_the_model_of_the_device_and_the_details_its_fingerprint(tmp_path: Path):
    request = request_in(tmp_path)
    run = FakeStages().finished(request, Selection(target=DEVICE))
    target = "pthread-Fake CPU|3.0|OpenCL 3.0 Fake"
    run = replace(run, searched=replace(run.searched, target=target))
    data = report_data(request, run, created=datetime(2026, 1, 2, tzinfo=UTC))
    assert dict(data.facts)["device"] == f"pocl: {target}"
    assert "<title>zoo:fake on pthread-Fake CPU</title>" in render(data)
    assert render(data).count("OpenCL 3.0 Fake") == 1, "among the details alone"


def test_report_shows_host_steps_by_their_ops(tmp_path: Path):
    request = request_in(tmp_path)
    run = FakeStages().finished(request, Selection(target=DEVICE))
    step = KernelTime(label="h", kernel="NonMaxSuppression", us=9.0, flops=0, bytes=0, host=True)
    run = replace(
        run,
        bench=replace(run.bench, profile=(*run.bench.profile, step)),
        tuned=replace(run.tuned, host_steps=("NonMaxSuppression",)),
    )
    data = report_data(request, run, created=datetime(2026, 1, 2, tzinfo=UTC))
    assert (data.profile[-1].label, data.profile[-1].host) == ("NonMaxSuppression", True)
    assert dict(data.facts)["host steps"] == "NonMaxSuppression"


def test_report_states_the_ranges_and_at_which_sizes_its_figures_are(tmp_path: Path):
    path = tmp_path / "open.onnx"
    onnx.save(model_of("(float[n, 8] x) => (float[n, 8] y) { y = Softmax(x) }"), path)
    run = FakeStages().finished(request_in(tmp_path), Selection(target=DEVICE))
    run = replace(run, tuned=replace(run.tuned, programs=("n < 2", "all other sizes")))
    request = replace(request_in(tmp_path), model=str(path), shapes={"n": ("1:3", "4:1")})
    facts = dict(_facts_of(request, run))
    assert facts["sizes"] == "n=1..4; latency and tasks are those at n=1"
    assert facts["programs"] == "n < 2; all other sizes"


def test_report_says_that_layers_run_in_micro_batches(tmp_path: Path):
    request = request_in(tmp_path)
    run = FakeStages().finished(request, Selection(target=DEVICE))
    assert "micro-batches" not in dict(_facts_of(request, run))
    parts = replace(run.tasks, micro_batches=((2, 4),))
    facts = dict(_facts_of(request, replace(run, tasks=parts)))
    assert facts["micro-batches"].startswith("4 layers of a batch: 2 images at a time")


def test_report_and_result_say_which_tasks_failed_and_why(tmp_path: Path):
    request = request_in(tmp_path)
    stages = FakeStages()
    run = stages.finished(request, Selection(target=DEVICE))
    assert "default schedule, as the search failed" not in dict(_facts_of(request, run))
    failed = (("key1", "DeviceError: the device is gone"),)
    run = replace(run, searched=replace(run.searched, failed=failed))
    facts = dict(_facts_of(request, run))
    assert facts["default schedule, as the search failed"] == (
        "conv1: DeviceError: the device is gone"
    )
    result = summarize(request, run, stages.stage_report(request, run))
    assert result.failed == (("conv1", "DeviceError: the device is gone"),)
    assert result_data(result)["failed"] == {"conv1": "DeviceError: the device is gone"}


def _facts_of(request: TuneRequest, run: FinishedRun) -> tuple[tuple[str, str], ...]:
    return report_data(request, run, created=datetime(2026, 1, 2, tzinfo=UTC)).facts


def example(name: str, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), str(store)],
        env={"PYTHONPATH": str(ROOT / "lib"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_example_prints_best_curve_and_reasons(tmp_path: Path):
    fill(tmp_path)
    done = example("04_analyse_records.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 measurements of 1 tasks" in done.stdout
    assert "unknown type float99" in done.stdout
    assert "line 2" not in done.stdout


WITHIN = Conditions(
    device=STORE_DEVICE, instance="pocl", host="", compute_units=2, affinity="",
    spread_bytes=0, constants="warm", flush=False, place="network:a",
)  # fmt: skip


def mixed(store: Path) -> None:
    """A task on two devices, and a finalist of it in its network."""
    alone = replace(WITHIN, place="alone")
    other = replace(alone, device="other")
    made = [
        store_record(1, conditions=alone),
        store_record(2, conditions=other, device="other"),
        store_record(-9, conditions=WITHIN, phase="final"),
    ]
    RecordStore(store).append(made)


def test_curves_hold_trials_of_one_device_and_no_times_of_networks(tmp_path: Path):
    mixed(tmp_path)
    done = example("04_analyse_records.py", tmp_path)
    assert done.returncode == 0, done.stderr
    best, curves = done.stdout.split("best so far")
    assert " 2.0 " in best and " 2.0" not in curves.partition("failures")[0]
    assert len([line for line in curves.splitlines() if " alone " in line]) == 2


def test_the_grouping_that_the_documentation_states_mixes_no_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each line of the page's program runs; its best times are those of `records best`."""
    mixed(tmp_path / "artifacts/records")
    page = (ROOT / "docs/records.md").read_text(encoding="utf-8")
    rows_part = page.partition("## The rows\n")[2]
    program = rows_part.partition("```python\n")[2].partition("```")[0]
    program = program.replace("right.groupby(alike)", "best = right.groupby(alike)", 1)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(program, found)  # noqa: S102  of docs/records.md
    assert sorted(found["best"].tolist()) == [2.0, 12.0, 13.0]
    rows = RecordStore(tmp_path / "artifacts/records").tasks()
    assert sorted(rows["best_us"].tolist()) == [2.0, 12.0, 13.0]


@pytest.mark.process
def test_example_asks_in_every_way_that_is_installed(tmp_path: Path):
    RecordStore(tmp_path).append([store_record(number) for number in range(3)])
    done = example("05_records_three_ways.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "181.818182" in done.stdout, "2 MFLOP in 11 us"
    assert "unroll" in done.stdout
    for way in ("duckdb", "polars"):
        assert f"== {way}" in done.stdout
