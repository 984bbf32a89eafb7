"""Wrong input of all kinds: exit code 2, one sentence, and nothing left behind."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from retune.bundle.format import write_bundle
from retune.cli.commands.run import read_arrays
from retune.cli.main import run_command
from retune.core.errors import InputError
from retune.farm.scheduler import run_scheduler
from retune.nightly.members import processes_of_this_machine
from retune.nightly.night import run_night
from retune.records.store import RecordStore
from tests.support.bundle_fixtures import make_plan
from tests.support.refused import assert_refused
from tests.support.store import DEVICE, record

HUGE = "99999999999999999999"
RANDOM = ("--calibration", "random", "--trials", "0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tasks", ""], "'': expected an ONNX file, zoo:NAME or light:NAME, got no file"),
        (["tasks", "zoo:mlp", "--shape", f"data={HUGE},784"], "at most 2147483647 elements"),
        (["devices", "--certs", "c"], "--certs c: expected --scheduler beside it"),
        (["devices", "--profiles", "--scheduler", "tls://h"], "expected one of them, got both"),
        (["tune", "zoo:mlp", "--out", ""], "expected the name of a folder, got ''"),
        (["records", "summary", "--records", ""], "expected the name of a folder, got ''"),
        (
            ["tune", "zoo:mlp", "--out", "o", "--layout-solver", "greedy"],
            "--layout-solver greedy: there is one solver",
        ),
        (
            ["tune", "zoo:mlp", "--out", "o", "--quantize", "int8", "--global-scale", "4", *RANDOM],
            "--global-scale: expected --ranges global_scale beside it, got minmax",
        ),
        (
            ["tune", "zoo:mlp", "--out", "o", "--quantize", "power2", "--global-scale", "nan"],
            "expected a positive number",
        ),
        (
            ["tune", "zoo:mlp", "--out", "o", "--effort", "none", "--minutes", "5"],
            "--effort none and --minutes: expected one of them, got both",
        ),
        (["quantize", "zoo:mlp", "--scheme", "int4"], "--scheme int4: expected"),
        (["quantize", "zoo:mlp", "--device", "farm:k"], "write --scheduler tls://HOST:8786"),
        (["plan", "zoo:mlp", "--device", "farm:k"], "write --scheduler tls://HOST:8786"),
        (["farm", "certs", "/dev/null"], "farm /dev/null: expected a folder, got something else"),
        (["farm", "certs", "/dev/null/f"], "farm /dev/null/f: expected a folder"),
        (
            ["report", "build", "--out", "/tmp"],
            "--out /tmp: expected the name of a file, got a folder",
        ),
    ],
)
def test_one_sentence_and_nothing_is_left(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    error = assert_refused(arguments, message, capsys, tmp_path, monkeypatch)
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", [["prune"], ["nightly", "prune", "--config", "c"]])
def test_days_before_the_first_year_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
):
    assert run_command([*command, "--days", "1000000"]) == 2
    assert "Invalid value for '--days'" in capsys.readouterr().err


def test_a_file_without_records_is_not_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    RecordStore("store").append([record()])
    words = ["records", "distill", "best.jsonl", "--records", "store", "--model", "zoo:mpl"]
    assert run_command(words) == 2
    assert "store: expected correct candidates of zoo:mpl, got none" in capsys.readouterr().err
    assert not Path("best.jsonl").exists()


@pytest.mark.parametrize("command", ["best", "curve", "failures"])
def test_records_are_asked_for_by_the_name_of_a_device(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    RecordStore(tmp_path).append([record()])
    named = SimpleNamespace(fingerprint=DEVICE)
    monkeypatch.setattr("retune.device.opening.spec_of", lambda name: {"pocl": named}[name])
    words = ["records", command, "--records", str(tmp_path), "--device", "pocl"]
    assert run_command(words) == 0, capsys.readouterr().err


def test_a_night_without_a_name_starts_no_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('out = "o"\n[[model]]\nmodel = "zoo:mlp"\n[[device]]\nname = "pocl"\n')
    assert run_command(["nightly", "run", "--config", "fleet.toml", "--campaign", "../x"]) == 2
    assert "campaign: expected letters, digits" in capsys.readouterr().err
    assert run_command(["nightly", "status", "--config", "fleet.toml"]) == 2
    where = f"in the work folder {os.environ['RETUNE_CACHE']};"
    assert f"fleet.toml: no night was run yet {where}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [fleet]


def test_a_night_that_was_stopped_says_how_it_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    fleet = tmp_path / "fleet.toml"
    text = f'out = "o"\nwork = "{tmp_path}"\n[[model]]\nmodel = "zoo:mlp"\n'
    fleet.write_text(text + '[[device]]\nname = "pocl"\n')
    machine = processes_of_this_machine()
    with run_night(tmp_path, "first", machine, lambda: datetime.now(UTC)) as night:
        night.plan({("mlp", "pocl"): 1.0})
    assert run_command(["nightly", "status", "--config", str(fleet)]) == 0
    printed = capsys.readouterr().out
    assert "night first, stopped" in printed
    assert f"goes on   retune nightly run --config {fleet} --campaign first" in printed
    assert "page " not in printed, "there is none yet"


def test_a_scheduler_without_tls_takes_no_certificates():
    with pytest.raises(InputError, match="--plain and --certs: expected one of them, got both"):
        run_scheduler(plain=True, certs=Path("c"))


def test_memory_that_does_not_suffice_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def load(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 27.9 PiB")

    monkeypatch.setattr("retune.pipeline.network.import_network", load)
    assert run_command(["tasks", "zoo:mlp"]) == 1
    assert capsys.readouterr().err.startswith("retune: out of memory: Unable to allocate 27.9 PiB")


def test_a_model_is_not_trained_on_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Before a server is started for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    assert run_command(["model", "train", "--records", "store"]) == 2
    assert "run `retune tune` first" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_recipe_is_written_into_a_new_folder(tmp_path: Path):
    recipe = tmp_path / "new" / "recipe.json"
    arguments = ["quantize", "zoo:mlp", "--calibration", "random", "--out", str(recipe)]
    assert run_command(arguments) == 0
    assert recipe.read_text().startswith("{")
    assert [path.name for path in recipe.parent.iterdir()] == ["recipe.json"]


@pytest.mark.parametrize("skip", ["nowhere", "#7"])
def test_what_shall_stay_in_floats_has_to_be_there(skip: str, capsys: pytest.CaptureFixture[str]):
    arguments = ["quantize", "zoo:mlp", "--calibration", "random", "--skip", skip]
    assert run_command(arguments) == 2
    assert f"0 convolutions; got {skip}; close names:" in capsys.readouterr().err


def test_the_best_records_of_a_device_by_model_and_fingerprint(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    RecordStore(tmp_path).append([record(0), record(1)])
    fingerprint = record(0).device
    for name in (fingerprint, fingerprint.partition("|")[0]):
        assert run_command(["records", "best", "--records", str(tmp_path), "--device", name]) == 0
    capsys.readouterr()
    assert run_command(["records", "best", "--records", str(tmp_path), "--device", "toaster"]) == 2
    assert f"no record is of this device; there are: {fingerprint}" in capsys.readouterr().err


def test_a_folder_around_a_bundle_leads_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    bundle = write_bundle(make_plan(), tmp_path / "out" / "module")
    assert run_command(["bench", str(bundle.parent)]) == 2
    assert f"got a folder around one; name {bundle}\n" in capsys.readouterr().err
    assert run_command(["bench", str(bundle), "--size", "batch=3"]) == 2
    assert "--size batch=3: the bundle is for fixed shapes" in capsys.readouterr().err


def test_a_bundle_that_was_copied_as_a_link_says_how_to_copy_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    copied = tmp_path / "module"
    copied.symlink_to("current/module")
    assert run_command(["bench", str(copied)]) == 2
    said = capsys.readouterr().err
    assert f"{copied}: expected a bundle, got a link to current/module, which is not there" in said
    assert "copy it by `cp -rL`" in said


def test_outputs_are_written_to_a_file_of_their_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    bundle = write_bundle(make_plan(), tmp_path / "module")
    assert run_command(["run", str(bundle), "--input", "x.npy", "--output", "o.txt"]) == 2
    assert "--output o.txt: expected a name that ends with .npz" in capsys.readouterr().err
    assert run_command(["records", "distill", "best.txt"]) == 2
    assert "best.txt: expected a name that ends with .jsonl, .jsonl.gz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "kept", "message"),
    [
        ("x.npy", 200, "expected a whole .npy file: "),
        ("x.npy", 20, "expected a whole .npy file: "),
        ("x.npy", 2, "expected an .npz or .npy file, got another kind"),
        ("objects.npy", None, "expected arrays of numbers, got pickled objects, which are not"),
        ("x.npz", 200, "expected an .npz or .npy file, got another kind"),
    ],
)
def test_inputs_that_are_cut_off_say_so(file: str, kept: int | None, message: str, tmp_path: Path):
    path = tmp_path / file
    np.save(tmp_path / "x.npy", np.zeros((8, 8)))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.zeros((8, 8)))
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=re.escape(f"--input {path}: {message}")):
        read_arrays(path)
