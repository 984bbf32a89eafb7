"""Questions about records, answered as tables."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import retune.records as records
from retune.cli.main import run_command
from retune.core.errors import InputError, LookupFailed
from retune.records.schema import TuningRecord, failed, succeeded
from retune.records.store import RecordStore
from retune.report.plots import plot
from tests.support.store import DAY, DEVICE, record

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def trial(number: int, us: float | None, **changes: object) -> TuningRecord:
    """The trial of that number, which took so long; None: it failed."""
    measured = (
        failed("timeout", "no answer\nwithin 10 s")
        if us is None
        else succeeded([us], max_abs_err=0.0, reference_us=100.0, build_s=0, run_s=0)
    )
    when = replace(measured, timestamp=DAY + timedelta(seconds=number))
    return record(number, trial=number, measurement=when, **changes)


def rows_of(folder: Path, *items: TuningRecord, **asked: str) -> pd.DataFrame:
    RecordStore(folder).append(items)
    return records.load(folder, **asked)  # type: ignore[arg-type]


def test_the_best_of_each_task_is_of_its_own_conditions(store: Path):
    items = [trial(0, 30.0), trial(1, 20.0), trial(2, None), trial(3, 10.0, device="another")]
    table = records.best(rows_of(store, *items))
    assert table[["device", "median_us", "trials", "failed"]].to_numpy().tolist() == [
        [DEVICE, 20.0, 3, 1],
        ["another", 10.0, 1, 0],
    ]
    assert table["gflops"].tolist() == [100.0, 200.0]


def test_the_best_have_their_own_decisions_and_no_others(store: Path):
    tiles = [trial(0, 30.0, knobs=(("tile", (2, 3)),)), trial(1, 9.0, knobs=(("unroll", (4,)),))]
    items = [replace(item, task_key=f"task {n}") for n, item in enumerate(tiles)]
    assert records.best(rows_of(store, *items))["knobs"].tolist() == [
        {"tile": [2, 3]},
        {"unroll": [4]},
    ]


def test_a_finalist_counts_by_the_middle_one_of_its_times(store: Path):
    lucky = [trial(n, us, phase="final", config_hash="a") for n, us in enumerate((9.0, 12.0, 13.0))]
    table = records.best(rows_of(store, *lucky, trial(3, 11.0, config_hash="b")))
    assert table["median_us"].tolist() == [11.0]


def test_a_night_that_searched_nothing_has_its_finalists(store: Path):
    table = records.best(rows_of(store, trial(0, 9.0, phase="final")))
    assert table[["median_us", "trials", "failed"]].to_numpy().tolist() == [[9.0, 0, 0]]


def test_records_are_asked_for_by_the_name_of_a_file(store: Path):
    RecordStore(store).append([trial(1, 2.0, model="zoo:mlp")])
    RecordStore(store).append([trial(2, 3.0, model="/home/folder/own.onnx")])
    own = trial(0, 1.0, model="folder/own.onnx")
    assert len(rows_of(store, own, model="own")) == 2
    assert len(records.load(store, model="own.onnx")) == 2
    assert records.load(store, model="folder/own.onnx")["median_us"].tolist() == [1.0]
    assert records.load(store, model="mlp")["median_us"].tolist() == [2.0]


def test_neither_a_night_nor_a_run_lists_what_there_is(
    store: Path, capsys: pytest.CaptureFixture[str]
):
    RecordStore(store).append([trial(0, 30.0, night="one")])
    assert run_command(["records", "compare", "one", "two", "--records", str(store)]) == 2
    said = (
        "two: expected a night or a run with such records; the latest nights: one; runs: run-1234"
    )
    assert said in capsys.readouterr().err


def test_a_curve_holds_every_trial_and_no_finalist(store: Path):
    items = [trial(n, us) for n, us in enumerate((None, 30.0, 40.0, 20.0))]
    table = records.curve(rows_of(store, *items, trial(4, 1.0, phase="final")))
    assert table["trial"].tolist() == [1, 2, 3, 4]
    assert table["best_us"].isna().tolist() == [True, False, False, False]
    assert table["best_us"].tolist()[1:] == [30.0, 30.0, 20.0]


def test_curves_of_two_devices_are_two_lines(store: Path, capsys: pytest.CaptureFixture[str]):
    RecordStore(store).append([trial(0, 30.0), trial(1, 10.0, device="other|1")])
    assert run_command(["records", "curve", "--records", str(store)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "dense_0" in line]
    assert [line[-1] for line in lines] == ["30.00", "10.00"]


@pytest.mark.parametrize("command", ["best", "curve", "failures", "importance", "tuners"])
def test_an_empty_store_has_empty_tables(
    store: Path, command: str, capsys: pytest.CaptureFixture[str]
):
    store.mkdir(exist_ok=True)
    assert run_command(["records", command, "--records", str(store)]) == 0
    assert capsys.readouterr().out.endswith(": none\n")


def test_failures_have_a_share_of_what_was_measured(store: Path):
    table = records.failures(rows_of(store, *(trial(n, us) for n, us in enumerate((None, 1.0)))))
    assert table[["status", "reason", "count", "share"]].to_numpy().tolist() == [
        ["timeout", "no answer", 1, 0.5]
    ]


def test_two_nights_are_compared_task_by_task(store: Path):
    first = [trial(0, 20.0, night="one"), trial(1, 5.0, night="one", task_key="task-b")]
    RecordStore(store).append([*first, trial(2, 10.0, night="two")])
    before, after = (records.load(store, night=night) for night in ("one", "two"))
    table = records.compare(before, after)
    assert table["task_key"].tolist() == ["task-a", "task-b"]
    assert table["ratio"][0] == pytest.approx(0.5)
    assert table["ratio"].isna()[1]


def test_the_knob_that_decides_explains_the_spread(store: Path):
    items = [
        trial(n, 10.0 + 10 * (n % 2), knobs=(("tile", (n % 2,)), ("unroll", (n // 2 % 2,))))
        for n in range(8)
    ]
    table = records.importance(rows_of(store, *items))
    assert table[["knob", "explained", "best", "trials"]].to_numpy().tolist() == [
        ["tile", 1.0, "0", 8],
        ["unroll", 0.0, "0", 8],
    ]


def test_tuners_are_compared_with_the_best_of_all(store: Path):
    items = [
        trial(0, 40.0),
        trial(1, 20.0),
        trial(2, 10.2, tuner="xgb"),
        trial(3, 10.0, tuner="xgb"),
    ]
    table = records.tuners(rows_of(store, *items)).set_index("tuner")
    assert table["ratio_to_best"].to_dict() == {"xgb": 1.0, "random": 2.0}
    assert table["trials_to_near"]["xgb"] == 1
    assert table["trials_to_near"].isna()["random"]


def test_tables_of_no_rows_are_empty(store: Path):
    rows = rows_of(store, trial(0, None))[:0]
    for question in (records.best, records.curve, records.failures, records.importance):
        assert question(rows).empty
    assert records.tuners(rows).empty
    assert records.compare(rows, rows).empty


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "rows: expected those of retune.records.load, with all columns, got NoneType"),
        ("artifacts/records", "got str"),
        (pd.DataFrame({"status": []}), "got a table without task_name, place, task_key, device"),
    ],
)
def test_other_things_than_rows_are_refused(wrong: Any, message: str):
    questions = (records.best, records.curve, records.failures, records.importance, records.tuners)
    for question in (*questions, lambda rows: records.compare(rows, rows)):
        with pytest.raises(InputError, match=message):
            question(wrong)


def test_a_shape_is_several_extents(store: Path):
    RecordStore(store).append([record(0)])
    for wrong in (5, "1,10"):
        with pytest.raises(InputError, match=r"shape: expected extents such as \[1, 1000\], got"):
            records.load(store, shape=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"model": "zoo:mpl"}, r"model zoo:mpl: no record is of this model; there are: zoo:mlp; "),
        ({"model": "zoo:mpl"}, "did you mean zoo:mlp"),
        ({"device": "gpu"}, r"device gpu: no record is of this device; there are: cpu one\|"),
        ({"run": "9"}, "run 9: no record is of this run; there are: run-1234567890"),
        ({"night": "x"}, r"night x: no record is of this night; there are: \(none\)"),
        ({"shape": (1, 2)}, r"shape \[1, 2\]: no task among these records reads or makes it"),
    ],
)
def test_what_no_record_is_of_is_said(store: Path, asked: dict[str, str], message: str):
    RecordStore(store).append([record(0)])
    with pytest.raises(LookupFailed, match=message):
        records.load(store, **asked)  # type: ignore[arg-type]


def test_records_are_found_by_what_people_call_them(store: Path):
    RecordStore(store).append([record(0), record(1, run_id="other", output_shape=(3, 4))])
    assert len(records.load(store, device="cpu one")) == 2
    assert len(records.load(store, run="run-12")) == 1
    assert records.load(store, ["run_id"], shape=(3, 4)).to_dict("list") == {"run_id": ["other"]}
    assert len(records.load(store, shape=(10, 100))) == 2


def test_a_table_of_each_kind_is_plotted(store: Path, tmp_path: Path):
    knobs = [(("tile", (n % 2,)),) for n in range(6)]
    items = [trial(n, 10.0 + n % 2, knobs=each) for n, each in enumerate(knobs)]
    rows = rows_of(store, *items, trial(6, None))
    for question in (records.best, records.curve, records.failures, records.importance):
        assert plot(question(rows)).charts
    assert ">none</text>" in plot(records.failures(rows[:0])).charts[0][1]
    assert plot(records.tuners(rows)).charts[0][0] == "best of each tuner over the best of all"
    page = plot(records.compare(rows, rows)).save(tmp_path / "plot.html").read_text("utf-8")
    assert "data:image/svg+xml" in page
    for wrong in (rows[["status"]], 3):
        with pytest.raises(InputError, match=r"expected an answer of retune\.records"):
            plot(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"plot\.png: expected the name of an \.html file"):
        plot(records.curve(rows)).save(tmp_path / "plot.png")


def test_the_notebook_runs(store: Path, monkeypatch: pytest.MonkeyPatch):
    rows_of(store, *(trial(n, 10.0 + n) for n in range(4)))
    monkeypatch.setenv("RETUNE_RECORDS", str(store))
    notebook = json.loads((EXAMPLES / "12_plots.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    found: dict[str, object] = {}
    for cell in cells:
        exec(cell, found)  # noqa: S102  of the repository
    assert len(cells) == 7 and found["rows"] is not None
