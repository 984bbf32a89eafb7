"""What someone meets first: help texts, a nightly file, arrays in files, hints."""

import contextlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

from retune.bundle.format import write_bundle
from retune.bundle.verify import farm_examiner
from retune.bundle.verify.bench import Benchmark, known_times
from retune.cli.commands.run import output_summary, read_inputs, summary_row
from retune.cli.main import run_command
from retune.cli.progress import progress_on_stderr
from retune.core.errors import InputError
from retune.device.opencl.catalogue import find_bare
from retune.nightly.config import load_config
from retune.pipeline.request import options
from retune.records.schema import failed
from retune.records.store import RecordStore
from tests.support.bundle_fixtures import make_plan
from tests.support.store import record

Captured = pytest.CaptureFixture[str]


def test_help_shows_the_most_important_options_first_and_the_others_in_groups(capsys: Captured):
    assert run_command(["tune", "--help"]) == 0
    text = capsys.readouterr().out
    first, *groups = text.partition("\nOptions:\n")[2].split("\n\n")
    shown = [line.split()[0] for line in first.splitlines() if line.startswith("  -")]
    assert shown[:5] == ["--out", "--device", "--effort", "--minutes", "--shape"]
    headings = [group.strip().splitlines()[0].rstrip(":") for group in groups]
    assert headings[0] == "Search"
    assert {each.group for each in options().values()} - {""} <= set(headings)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "kl, mse, global_scale. [default: minmax]" in " ".join(text.split())


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("tune", "a GPU]"),
        ("bench", "[default: RETUNE_SCHEDULER]"),
        ("nightly prune", "[x>=1]"),
        ("init", "[default: pocl]"),
    ],
)
def test_help_states_defaults_in_one_way(capsys: Captured, command: str, shown: str):
    assert run_command([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "Default:" not in text and "by default" not in text.lower()
    assert shown in " ".join(text.split())


def test_the_usage_names_arguments_and_required_options(capsys: Captured):
    for command, usage in (
        ("tune", "--out PATH [OPTIONS] MODEL"),
        ("run", "--input TEXT [OPTIONS] BUNDLE"),
        ("bench", "[OPTIONS] BUNDLE [OTHER]"),
        ("init", "[OPTIONS] MODEL..."),
    ):
        assert run_command([command, "--help"]) == 0
        first, *others = capsys.readouterr().out.splitlines()
        assert first == f"Usage: retune {command} {usage}"
        assert not [line for line in others if "<" in line], "types as commands show them"


def test_a_shell_completes_names_of_devices():
    asked = {"COMP_WORDS": "retune tune zoo:mlp --device p", "COMP_CWORD": "4"}
    variables = {**os.environ, **asked, "_RETUNE_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "retune"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert {"pocl", "profile:mali-g76"} <= {*done.stdout.split()}


def test_commands_are_in_groups(capsys: Captured):
    assert run_command(["--help"]) == 0
    text = capsys.readouterr().out
    tuning, using = text.index("\nTune a network:\n"), text.index("\nUse a bundle:\n")
    assert tuning < text.index("\n  tune") < using < text.index("\n  bench") < text.index("--help")


@pytest.mark.parametrize("group", ["nightly", "farm", "records", "model", "vta"])
def test_lists_of_commands_cut_no_sentence_off(group: str, capsys: Captured):
    assert run_command([group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("\nCommands:\n")[2]
    assert commands and "..." not in commands


def test_a_verbose_run_prints_each_measurement_and_a_quiet_one_warnings(
    tmp_path: Path, capsys: Captured
):
    right = record(0)
    wrong = record(1, measurement=failed("wrong_result", "off by 3\nat [0, 1]"))
    with progress_on_stderr(verbose=True):
        RecordStore(tmp_path).append([right, wrong])
    good, bad = capsys.readouterr().err.splitlines()
    assert good == right.line
    assert "us" in good
    assert bad.endswith("wrong_result: off by 3 at [0, 1]")
    with progress_on_stderr():
        RecordStore(tmp_path).append([record(2)])
    with progress_on_stderr(quiet=True):
        logging.getLogger("retune.x").info("progress")
        logging.getLogger("retune.x").warning("look")
    assert capsys.readouterr().err == "warning: look\n"
    with (
        pytest.raises(InputError, match="--verbose and --quiet"),
        progress_on_stderr(verbose=True, quiet=True),
    ):
        pass


def test_commands_of_nights_read_what_init_writes(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert run_command(["nightly", "prune", "--keep", "1"]) == 2
    assert "`retune init MODEL --config nightly.toml` writes one" in capsys.readouterr().err
    assert run_command(["init", "zoo:mlp"]) == 0
    assert run_command(["nightly", "prune", "--keep", "1"]) == 0


def test_init_writes_a_nightly_file_that_can_be_read(tmp_path: Path, capsys: Captured):
    path = tmp_path / "made" / "fleet.toml"
    model = tmp_path / "net.onnx"
    x, y = (make_tensor_value_info(name, 1, ["n", 3]) for name in "xy")
    onnx.save(make_model(make_graph([make_node("Relu", ["x"], ["y"])], "net", [x], [y])), model)
    arguments = ["init", "zoo:mlp", str(model), "--config", str(path), "--device", "board"]
    assert run_command([*arguments, "--timezone", "Mars/X"]) == 2
    assert "time zone database" in capsys.readouterr().err
    assert not path.exists()
    assert run_command(arguments) == 0
    assert f"retune nightly run --config {path} --now" in capsys.readouterr().out
    config = load_config(path)
    assert [each.name for each in config.model] == ["mlp", "net"]
    assert [each.device for each in config.device] == ["board"]
    assert Path(config.model[1].model).resolve() == model
    assert config.model[1].shapes == {"x": (1, 3)}
    assert run_command(arguments) == 2
    assert "got one that exists" in capsys.readouterr().err


def test_inputs_come_from_npy_and_npz_files(tmp_path: Path):
    ones = np.ones((2, 3), np.float32)
    np.save(tmp_path / "a.npy", ones)
    np.savez(tmp_path / "b.npz", y=2 * ones)
    single, several = str(tmp_path / "a.npy"), str(tmp_path / "b.npz")
    assert read_inputs([single], ["x"])["x"].shape == (2, 3)
    both = read_inputs([f"x={single}", several], ["x", "y"])
    assert {name: array.max() for name, array in both.items()} == {"x": 1, "y": 2}
    with pytest.raises(InputError, match=r"the name of its input \(x, y\); write --input x="):
        read_inputs([single], ["x", "y"])
    with pytest.raises(InputError, match=r"expected an .npy file with one array"):
        read_inputs([f"x={several}"], ["x"])


def summary(name: str, array: np.ndarray) -> dict[str, str]:
    return summary_row(output_summary(name, array))


def test_a_summary_says_where_an_output_is_largest():
    row = summary("prob", np.array([[0.25, 0.5, 0.125, 0.125]], np.float32))
    assert row["type"] == "float32[1, 4]"
    assert row["largest at"] == "1 (0.5), 0 (0.25), 3 (0.125)"
    rows = summary("prob", np.array([[[0.25, 0.5]], [[1.0, 0.0]]], np.float32))
    assert rows["largest at"] == "[1, 0, 0] (1), [0, 0, 1] (0.5), [0, 0, 0] (0.25)"
    assert summary("one", np.array(2.0))["largest at"] == "0 (2)"
    assert summary("none", np.zeros((0, 4)))["type"] == "float64[0, 4]"


@pytest.mark.device
def test_devices_by_the_names_of_other_programs_are_explained():
    with pytest.raises(InputError, match=r"'cpu' is not known; .* Did you mean pocl"):
        find_bare("cpu")
    with pytest.raises(InputError, match="Did you mean pocl"):
        find_bare("pocll")
    if find_bare("pocl")[0].device_class == "cpu":
        with pytest.raises(InputError, match=r"has a GPU|Did you mean"):
            find_bare("cuda:0")


def test_two_bundles_are_compared_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    seen: list[list[str]] = []

    class Examiner(contextlib.nullcontext[object]):
        where = ""

        def __enter__(self) -> Self:
            return self

        def compare(self, entrants: dict[str, Path], **_: object) -> Benchmark:
            seen.append(list(entrants))
            return known_times({name: 1e-3 * n for n, name in enumerate(entrants, 1)})

    monkeypatch.setattr(farm_examiner, "open_examiner", lambda _: Examiner(None))
    path, other = (str(write_bundle(make_plan(), tmp_path / name)) for name in ("one", "two"))
    assert run_command(["bench", path, other]) == 0
    assert seen == [[path, other]]
    assert f"{other} takes 2.00 x the time of {path}" in capsys.readouterr().out
    assert run_command(["bench", path, other, "--against", "onnxruntime"]) == 2
    assert "expected one to compare with" in capsys.readouterr().err
