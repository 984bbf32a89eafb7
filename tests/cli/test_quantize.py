"""`retune quantize` and `retune tune --quantize`: from samples to an exact bundle of integers."""

import json
from pathlib import Path

import numpy as np
import pytest

from retune.cli.main import run_command
from retune.frontend.onnx.importer import load_file
from tests.support.quantize import DIGITS

MODEL = [str(DIGITS / "digits.onnx"), "--shape", "image=1,1,8,8"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with samples of the digits, as everything that retune writes is."""
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RETUNE_RECORDS", str(tmp_path / "records"))
    with np.load(DIGITS / "digits.npz") as stored:
        np.savez(tmp_path / "data.npz", image=stored["images"][:80].astype(np.float32) / 16)
    return tmp_path


def test_quantize_says_what_each_layer_loses(place: Path, capfd: pytest.CaptureFixture[str]):
    data = ["--calibration", str(place / "data.npz")]
    recipe = place / "recipe.json"
    assert run_command(["quantize", *MODEL, *data, "--out", str(recipe), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert [row["op"] for row in said["layers"]] == ["conv2d", "conv2d", "dense"]
    assert all(row["decibels"] > 30 for row in said["layers"])
    assert said["held_out"][0]["top1"] >= 0.95
    assert json.loads(recipe.read_text())["settings"]["scheme"] == "int8"
    written = place / "pairs.onnx"
    assert run_command(["quantize", *MODEL, *data, "--qdq", str(written)]) == 0
    capfd.readouterr()
    again = load_file(written)
    assert {again.types[n.outputs[0]].dtype for n in again.nodes if n.op == "conv2d"} == {"int32"}
    assert run_command(["quantize", str(written), "--calibration", "random"]) == 2
    assert "got one that is quantized already; leave quantization" in capfd.readouterr().err
    assert run_command(["quantize", *MODEL, *data, "--scheme", "power2", "--skip", "#0"]) == 0
    assert "layers of power2, 8 bits of weights, on samples held out" in capfd.readouterr().out


@pytest.mark.device
def test_a_bundle_of_integers_is_exact(
    place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retune.pipeline.delivery._BENCH_SECONDS", 0.0)  # its times say nothing
    asked = ["--quantize", "int8", "--calibration", str(place / "data.npz"), "--trials", "0"]
    out = place / "build"
    assert run_command(["tune", *MODEL, *asked, "--out", str(out), "--no-prefect", "--json"]) == 0
    verified = json.loads(capfd.readouterr().out)["verification"]
    assert verified["oracle"].startswith("numpy")
    assert verified["max_abs"] == 0
    assert "signal to noise" in (out / "report.html").read_text(encoding="utf-8")
    assert run_command(["verify", str(out / "module"), "--model", MODEL[0]]) == 0
    said = capfd.readouterr().out
    assert "agrees with numpy on the quantized network: at most 0.000e+00 away" in said
    assert "top-1: 100.0% of the rows as numpy on the quantized network" in said
    assert "the network as its file has it, by onnxruntime: at most" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected samples of the network's inputs, got none"),
        (["--calibration", "nowhere.npz"], "calibration nowhere.npz: expected an .npz file"),
        (["--calibration", "random", "--ranges", "guess"], "method 'guess' is not known"),
        (["--calibration", "random", "--skip", "#one"], "--skip #one: expected # and a number"),
        (
            ["--calibration", "random", "--accuracy-drop", "200"],
            "a number of at most 100, got 200",
        ),
        (["--scheme", "int4", "--calibration", "random"], "int4: expected none, int8, power2"),
    ],
)
def test_what_cannot_be_used_is_answered_at_once(
    place: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert run_command(["quantize", *MODEL, *arguments]) == 2
    assert message in capfd.readouterr().err


def test_options_of_integers_need_integers(place: Path, capfd: pytest.CaptureFixture[str]):
    plain = ["tune", *MODEL, "--out", str(place / "build"), "--trials", "0", "--no-prefect"]
    assert run_command([*plain, "--calibration", "random"]) == 2
    assert "calibration and accuracy_drop are for quantized networks" in capfd.readouterr().err
    assert run_command([*plain, "--ranges", "kl"]) == 2
    assert "--quantize none: expected no options of quantization, got method" in (
        capfd.readouterr().err
    )
