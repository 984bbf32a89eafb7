"""The command line: what is printed where, and how it ends."""

import errno
import json
import os
import signal
import subprocess
import sys
import tomllib
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import retune
from retune.cli.main import run_command
from retune.cli.options import parse_shapes
from retune.core.errors import DeviceError, InputError, ModelError
from retune.pipeline.calling import Caller
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent, TuneResult
from retune.pipeline.watch import stopping, tell
from retune.records.store import RecordStore
from tests.support.cli import result
from tests.support.refused import assert_refused
from tests.support.store import record

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}", "PATH": "/usr/bin:/bin"}
COMMANDS = (
    *(
        "devices",
        "tasks",
        "ops",
        "tune",
        "build",
        "resume",
        "run",
        "bench",
        "verify",
        "pack",
        "export",
    ),
    "plan",
    *("records", "model", "nightly", "farm", "versions", "rollback"),
)
HELP = """
import atexit, sys
atexit.register(lambda: print(*{name.partition(".")[0] for name in sys.modules}, file=sys.stderr))
sys.argv = ["retune", "--help"]
from retune.cli.main import main
main()
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for the chain of stages; tests put `run_chain` on it."""
    module = types.ModuleType("retune.pipeline.chain")
    monkeypatch.setitem(sys.modules, "retune.pipeline.chain", module)
    return module


def tune(*arguments: str) -> int:
    return run_command(["tune", "zoo:fake", "--out", "out", "--no-prefect", *arguments])


@pytest.mark.parametrize(
    ("values", "shapes"),
    [
        (None, {}),
        (["data=1,3,224,224"], {"data": (1, 3, 224, 224)}),
        (["a=1", "b:0 = 2,3"], {"a": (1,), "b:0": (2, 3)}),
        (["x=y=4"], {"x=y": (4,)}),
        (["scalar="], {"scalar": ()}),
        (["data=1..8,3,32,32", "n=8..64:8"], {"data": ("1..8", 3, 32, 32), "n": ("8..64:8",)}),
        (["n=1:8,8:1"], {"n": ("1:8", "8:1")}),
    ],
)
def test_shapes_are_read(values: list[str] | None, shapes: dict[str, tuple[int | str, ...]]):
    assert parse_shapes(values) == shapes


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["data"], "--shape data: expected a name and a shape"),
        (["=1,2"], "expected a name and a shape"),
        (["a=1,x"], "whole numbers, or ranges such as 1..32, separated by commas"),
        (["a=1,,2"], "whole numbers"),
        (["a=-1,2"], "whole numbers of 0 or more, or ranges such as 1..32"),
        (["a=1", "a=2"], "'a' has two.*write --shape data=1,3,224,224"),
    ],
)
def test_bad_shapes_say_what_was_meant(values: list[str], message: str):
    with pytest.raises(InputError, match=message):
        parse_shapes(values)


def test_layout_is_checked(capsys: pytest.CaptureFixture[str]):
    assert TuneRequest(model="m", out="o", layout="nchw").layout == "NCHW"  # type: ignore[arg-type]
    assert tune("--layout", "HWC") == 2
    assert "layout: expected one of auto, NHWC, NCHW, NCHW16c, got 'HWC'" in capsys.readouterr().err


def test_help_loads_no_package_that_takes_its_time():
    """It takes a third of a second without them."""
    done = subprocess.run(
        [sys.executable, "-c", HELP], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    for name in COMMANDS:
        assert f"\n  {name}" in done.stdout
    loaded = set(done.stderr.split())
    assert "typer" in loaded
    assert not loaded & {"numpy", "onnx", "pandas", "prefect", "pyarrow", "pyopencl", "xgboost"}


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"retune {retune.__version__}\n"
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "lib/retune/__init__.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "missing.onnx", "--out", "o"], "expected an ONNX file, zoo:NAME or light:NAME"),
        (["tune", "zoo:x", "--out", "o", "--shape", "a"], "--shape a: expected"),
        (["tune", "zoo:x", "--out", "o", "--trials", "1", "--minutes", "1"], "got both"),
        (
            ["tune", "zoo:x", "--out", "o", "--trials", "-1"],
            "trials: expected a whole number",
        ),
        (["tune", "zoo:x", "--out", "o", "--minutes", "0"], "minutes: expected a number above 0"),
        (
            ["tune", "zoo:x", "--out", "o", "--seed", "-1"],
            "of at least 0, got -1",
        ),
        (
            ["tune", "zoo:x", "--out", "o", "--patience", "-1"],
            "patience: expected a whole",
        ),
        (
            ["tune", "zoo:x", "--out", "o", "--max-error", "nan"],
            "max_error: expected a number",
        ),
        (["tune", "zoo:x", "--out", "/dev/null"], "out /dev/null: expected a folder"),
        (["tune", "zoo:x", "--out", "o", "--records", "/dev/null/r"], "records /dev/null/r: exp"),
        (
            ["records", "export", "/dev/null/x.csv"],
            "expected a folder, got something else at /dev/null",
        ),
        (["tune", "zoo:x"], "--out"),
        (["tasks", "zoo:x", "--layout", "HW"], "layout: expected one of auto, NHWC, NCHW, NCHW16c"),
        (["nonsense"], "nonsense"),
        (["run", "nowhere", "--input", "a.npz", "--output", "b.npz"], "expected a bundle"),
        (["bench", "nowhere"], "expected a bundle"),
        (["bench", "nowhere", "--model", "zoo:mlp"], "expected --against PEER beside it"),
        (["bench", "nowhere", "--against", "onnxruntime"], "expected --model MODEL beside it"),
        (
            ["records", "export", "x.csv", "--model", "y", "--records", "."],
            "the store has no records yet",
        ),
        (["verify", "nowhere", "--model", "zoo:x"], "expected a bundle"),
        (["records", "summary", "--records", "nowhere"], "expected a record store, got no folder"),
        (["model", "train", "--records", "nowhere"], "expected a record store, got no folder"),
        (["model", "list", "--records", "nowhere"], "expected a record store, got no folder"),
        (["model", "evaluate", "9", "--records", "."], "no model '9'"),
        (["model", "train", "--seed", "x"], "Invalid value for '--seed'"),
        (["records", "export", "x.doc"], "ends with .csv"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    assert "Traceback" not in assert_refused(arguments, message, capsys, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("error", "code"), [(ModelError("bad model"), 2), (DeviceError("no device"), 1)]
)
def test_library_errors_end_with_their_exit_code(
    error: Exception, code: int, library: types.ModuleType, capsys: pytest.CaptureFixture[str]
):
    def fails(*arguments: object, **options: object) -> TuneResult:
        raise error

    library.run_chain = fails  # type: ignore[attr-defined]
    assert tune() == code
    assert capsys.readouterr().err == f"retune: {error}\n"


def test_unexpected_errors_are_kept_in_a_file(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def fails(*arguments: object, **options: object) -> TuneResult:
        raise ZeroDivisionError("first line\nsecond line")

    library.run_chain = fails  # type: ignore[attr-defined]
    assert tune() == 1
    printed = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: first line\n" in printed
    assert "second line" not in printed
    (written,) = (tmp_path / "cache" / "errors").iterdir()
    assert "second line" in written.read_text()
    assert str(written) in printed


@pytest.mark.parametrize(
    ("number", "path", "message"),
    [
        (errno.ENOSPC, None, "retune: No space left on device; make room there, and give the"),
        (errno.EROFS, "/there", "retune: /there: Read-only file system; name a folder that can be"),
    ],
)
def test_what_the_machine_refuses_is_no_bug(
    number: int,
    path: str | None,
    message: str,
    library: types.ModuleType,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    def fails(*arguments: object, **options: object) -> TuneResult:
        raise OSError(number, os.strerror(number), path)

    library.run_chain = fails  # type: ignore[attr-defined]
    assert tune() == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "cache" / "errors").exists()


def test_interrupt_says_how_to_continue(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str]
):
    def interrupted(*arguments: object, **options: object) -> TuneResult:
        raise KeyboardInterrupt

    library.run_chain = interrupted  # type: ignore[attr-defined]
    assert tune("--shape", "a b=1,2") == 130
    printed = capsys.readouterr().err
    expected = "retune tune zoo:fake --out out --no-prefect --shape 'a b=1,2'"
    assert f"continue with: {expected}\n" in printed


def test_an_interrupted_night_says_how_to_continue(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retune.cli.commands.nightly._checked", interrupted)
    assert run_command(["nightly", "run", "--now", "--campaign", "a b"]) == 130
    expected = "continue with: retune nightly run --now --campaign 'a b'\n"
    assert expected in capsys.readouterr().err


def stage(name: str) -> TuneEvent:
    return TuneEvent(stage=name, text=name)


@pytest.mark.parametrize("measuring", ["tune", "finalists"])
def test_first_ctrl_c_while_measuring_goes_on_to_the_bundle(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, measuring: str
):
    def run_chain(_: TuneRequest, by: Caller) -> TuneResult:
        tell(stage(measuring))
        assert not stopping()
        signal.raise_signal(signal.SIGINT)
        assert stopping()
        return result(tmp_path)

    library.run_chain = run_chain  # type: ignore[attr-defined]
    handler = signal.getsignal(signal.SIGINT)
    assert tune() == 0
    printed = capsys.readouterr()
    assert "no more is measured after this batch" in printed.err
    assert "bundle    " in printed.out
    assert signal.getsignal(signal.SIGINT) is handler
    assert not stopping()


@pytest.mark.parametrize(("before", "count"), [("import", 1), ("tune", 2), ("decided", 1)])
def test_ctrl_c_while_nothing_is_measured_or_again_ends_the_run(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], before: str, count: int
):
    def run_chain(_: TuneRequest, by: Caller) -> TuneResult:
        tell(stage(before))
        for _ in range(count):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("the run was not interrupted")

    library.run_chain = run_chain  # type: ignore[attr-defined]
    assert tune() == 130
    assert "everything measured is kept; continue with: retune tune" in capsys.readouterr().err


def test_tune_hands_options_to_the_library(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    seen: list[TuneRequest] = []

    def run_chain(request: TuneRequest, by: Caller) -> TuneResult:
        seen.append(request)
        tell(TuneEvent(stage="tune", text="task 1/3"))
        return result(tmp_path)

    library.run_chain = run_chain  # type: ignore[attr-defined]
    assert tune("--trials", "64", "--seed", "7", "--shape", "data=1,2", "--json") == 0
    printed = capsys.readouterr()
    data = json.loads(printed.out)
    assert data["verification"]["passed"] is True
    assert [row["name"] for row in data["latency"]] == ["untuned", "tuned", "onnxruntime"]
    assert len(data["tasks"]) == 3
    assert "task 1/3" in printed.err
    assert seen == [
        TuneRequest(
            model="zoo:fake",
            out="out",
            records=str(tmp_path / "records"),
            work=str(tmp_path / "cache"),
            trials=64,
            seed=7,
            shapes=(("data", (1, 2)),),
        )
    ]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--tuner", "tuner: expected one of evolutionary, xgb, ga, random, grid, got 'x'"),
        ("--task-scheduler", "task_scheduler: expected one of gradient, round-robin, sequential"),
        ("--allocator", "--allocator x: expected the new name of this option"),
        ("--allocator", "write --task-scheduler x"),
    ],
)
def test_unknown_ways_of_searching_are_refused_early(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], option: str, message: str
):
    assert tune(option, "x") == 2
    assert message in capsys.readouterr().err


def test_tune_ends_with_what_a_person_wants_to_know(
    library: types.ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    said = "The bundle takes 600 µs for one call; onnxruntime takes 450 µs (0.75x as long)."
    done = replace(result(tmp_path), conclusion=(said,))
    library.run_chain = lambda *a, **o: done  # type: ignore[attr-defined]
    assert tune() == 0
    printed = capsys.readouterr().out
    for text in ("conv2d+bias+relu", "1.00e-06"):
        assert text in printed
    assert printed.count("450 µs") == 1, "each time is said once"
    assert printed.splitlines()[-3:] == ["records   records", "", said]


def test_output_without_prefect_loads_no_prefect(tmp_path: Path):
    code = (
        "import sys, types; from retune.cli.main import run_command\n"
        "run_command(['tune', 'missing.onnx', '--out', 'o', '--no-prefect'])\n"
        "run_command(['records', 'summary', '--records', sys.argv[1]])\n"
        "assert 'prefect' not in sys.modules\n"
    )
    environment = {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_arrays_of_any_name_survive_a_file(tmp_path: Path):
    from retune.cli.commands.run import arrays_data, read_arrays

    arrays = {"file": np.arange(3), "a/b:0": np.zeros((2, 0), np.float32), "s": np.float32(2)}
    path = tmp_path / "arrays.npz"
    path.write_bytes(arrays_data(arrays))
    again = read_arrays(path)
    assert list(again) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array)


def test_a_cache_that_cannot_be_written_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RETUNE_CACHE", "/dev/null/cache")
    assert run_command(["tasks", "zoo:mlp"]) == 2
    assert "RETUNE_CACHE /dev/null/cache: expected a folder" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "text", "single", "pickle"])
def test_other_files_are_refused_as_input(content: str, tmp_path: Path):
    from retune.cli.commands.run import read_arrays

    path = tmp_path / "in.npz"
    match content:
        case "single":
            with path.open("wb") as stream:
                np.save(stream, np.arange(3))
        case "pickle":
            with path.open("wb") as stream:
                np.savez(stream, data=np.array([object()], dtype=object))
        case _:
            path.write_text(content)
    with pytest.raises(InputError, match=r"in.npz: expected") as caught:
        read_arrays(path)
    assert "allow_pickle" not in str(caught.value)


def test_records_are_exported(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    root, path = tmp_path / "store", tmp_path / "made" / "table.csv"
    RecordStore(root).append([record(0), record(1)])
    assert run_command(["records", "export", str(path), "--records", str(root)]) == 0
    assert capsys.readouterr().err == f"{path}: 2 records\n"
    assert len(path.read_text().splitlines()) == 3
    wrong = ["records", "export", str(path), "--records", str(root), "--model", "zoo:other"]
    assert run_command(wrong) == 2
    assert "no record is of this model; there are: zoo:mlp" in capsys.readouterr().err
