"""The examples do what they say, with few trials."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.device, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, trials: int, records: Path) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(trials)],
        env={**os.environ, "RETUNE_RECORDS": str(records)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tune_and_run(store: Path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "01_tune_and_run.py"), "2", str(store / "out")],
        env={**os.environ, "RETUNE_RECORDS": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    classes = re.search(r"class (\d+), the same as outputs\[0\]: (\d+)", done.stdout)
    assert classes is not None and classes[1] == classes[2]
    difference = re.search(r"largest difference from onnxruntime: (\S+)", done.stdout)
    assert difference is not None and float(difference[1]) < 1e-5


def test_stochastic_matmul(store: Path):
    text = run("03_write_a_schedule.py", 3, store)
    attempts = re.search(r"five random attempts: (.*) us", text)
    assert attempts is not None and len(attempts[1].split(", ")) == 5
    assert "s.sample_perfect_tile(loop='C.i', parts=4" in text
    assert "tuned, my schedule:   C: " in text and "tuned, built in:      C: " in text
    difference = re.search(r"difference from numpy's product: (\S+)", text)
    assert difference is not None and float(difference[1]) < 1e-3
    assert "__kernel" in text


def test_mlp_replace_one(store: Path):
    text = run("02_replace_one_layer.py", 2, store)
    assert re.search(r"before +[\d.]+ us a run\nafter +[\d.]+ us a run", text)
    before, after = re.findall(r"class (\d+)", text)
    assert before == after
    change = re.search(r"largest change of a probability: (\S+)", text)
    assert change is not None and float(change[1]) < 1e-5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("08_serve.py", "without_copies"),
        ("09_ranges_of_sizes.py", "batch 33: "),
        ("10_run_from_c.py", "equal bit by bit"),
        ("11_lock_and_compare.py", "the same bytes"),
    ],
)
def test_examples_of_bundles_say_what_they_show(name: str, said: str, store: Path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "2", str(store / "out")],
        env={**os.environ, "RETUNE_RECORDS": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "OTHER" not in done.stdout and "DIFFERENT" not in done.stdout


def test_the_ladder_prints_every_step(store: Path):
    text = run("07_schedule_ladder.py", 64, store)
    assert [line.split("_")[0] for line in text.splitlines()] == [f"v{n}" for n in range(7)]
