"""`retune vta`: the stream, the cycles and the roofline of modules, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from retune.cli.main import run_command
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.template import KNOBS
from tests.support.layers import PLAIN
from tests.support.vta_assembly import assemble


@pytest.fixture
def path(tmp_path: Path) -> Path:
    work = replace(PLAIN, name="a layer")
    values = dict.fromkeys(KNOBS, (1,)) | {"tile_h": (3,), "tile_w": (6,), "tile_co": (4,)}
    return lower(work, values, VtaConfig()).save(tmp_path / "layer.npz")


def test_disasm_prints_what_assembles_to_the_module(path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_command(["vta", "disasm", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# a layer for 1x16_i8w8a32_15_15_18_17\n    0: load.uop ")
    assert np.array_equal(assemble(text), VtaModule.load(path).instructions)
    assert run_command(["vta", "disasm", str(path), "--uops"]) == 0
    assert "dst=0 src=0 wgt=0" in capsys.readouterr().out


def test_simulate_says_cycles_by_queue(path: Path, capsys: pytest.CaptureFixture[str]):
    picture = path.with_name("queues.svg")
    assert run_command(["vta", "simulate", str(path), "--picture", str(picture), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["busy_cycles"]) == {"load", "compute", "store"}
    assert max(facts["busy_cycles"].values()) <= facts["cycles"]
    assert facts["gops"] == pytest.approx(51.2 * facts["gemm_utilization"])
    assert ET.parse(picture).getroot().tag.endswith("svg")
    assert run_command(["vta", "simulate", str(path)]) == 0
    assert "cycles" in capsys.readouterr().out


def test_roofline_says_what_bounds_each_layer(path: Path, capsys: pytest.CaptureFixture[str]):
    picture = path.with_name("roofline.svg")
    assert run_command(["vta", "roofline", str(path.parent), "--picture", str(picture)]) == 0
    assert "a layer" in capsys.readouterr().out
    assert "a layer: " in picture.read_text(encoding="utf-8")
    assert ET.parse(picture).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["disasm", "none.npz"], "none.npz: expected the file of a VTA module (.npz), got no file"),
        (["simulate", "text.npz"], "text.npz: expected a VTA module (.npz), got"),
        (
            ["simulate", "layer.npz", "--picture", "a.png"],
            "a.png: expected a name that ends with .svg",
        ),
        (["simulate", "empty"], "empty: expected the file of a VTA module (.npz), got a folder"),
        (
            ["roofline", "layer.npz", "board.npz"],
            "of one variant and board, got 1x16_i8w8a32_15_15_18_17 (sim) and "
            "1x16_i8w8a32_15_15_18_17 (ultra96)",
        ),
        (["roofline", "empty"], "empty: expected a folder with modules (*.npz), got none in it"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(
    arguments: list[str],
    message: str,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(path.parent)
    Path("text.npz").write_text("text")
    Path("empty").mkdir()
    replace(VtaModule.load(path), config=VtaConfig(target="ultra96")).save(Path("board.npz"))
    assert run_command(["vta", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1
