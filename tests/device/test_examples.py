"""The examples do what they say, with few trials."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from retune.device.opening import open_device
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, Tensor
from retune.schedule.schedule import Schedule
from retune.schedule.space import Rule
from tests.support.oracle import assert_device_agrees

pytestmark = pytest.mark.device

EXAMPLES = Path(__file__).parents[2] / "examples"


LADDERS = {"07_schedule_ladder": 64, "13_gpu_schedule_ladder": 64}
"""Examples of schedule functions -> the size of their product."""


def steps() -> Iterator[ParameterSet]:
    """Each step of the ladders, with the expression that it schedules."""
    for name, size in LADDERS.items():
        spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        ladder = module_from_spec(spec)
        spec.loader.exec_module(ladder)
        for step in ladder.LADDER:
            yield pytest.param(ladder.matmul(size), step, id=f"{name}-{step.__name__}")


@pytest.mark.parametrize(("product", "step"), [*steps()])
def test_a_step_of_a_ladder_is_right(product: Tensor, step: Rule):
    dag = Dag((product,))
    schedule = Schedule(from_dag(dag))
    step(schedule)
    assert_device_agrees(open_device("pocl"), dag, schedule.program)


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_stochastic_matmul(store: Path):
    text = run("03_write_a_schedule.py", 3, store)
    attempts = re.search(r"five random attempts: (.*) us", text)
    assert attempts is not None and len(attempts[1].split(", ")) == 5
    assert "s.sample_perfect_tile(loop='C.i', parts=4" in text
    assert "tuned, my schedule:   C: " in text and "tuned, built in:      C: " in text
    difference = re.search(r"difference from numpy's product: (\S+)", text)
    assert difference is not None and float(difference[1]) < 1e-3
    assert "__kernel" in text


@pytest.mark.slow
def test_mlp_replace_one(store: Path):
    text = run("02_replace_one_layer.py", 2, store)
    assert re.search(r"before +[\d.]+ us a run\nafter +[\d.]+ us a run", text)
    before, after = re.findall(r"class (\d+)", text)
    assert before == after
    change = re.search(r"largest change of a probability: (\S+)", text)
    assert change is not None and float(change[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("08_serve.py", "without_copies"),
        ("09_ranges_of_sizes.py", "batch 33: "),
        ("10_run_from_c.py", "equal bit by bit"),
        ("11_lock_and_compare.py", "the same bytes"),
        ("14_quantize.py", "int8 "),
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


@pytest.mark.slow
def test_the_ladder_prints_every_step(store: Path):
    text = run("07_schedule_ladder.py", 64, store)
    assert [line.split("_")[0] for line in text.splitlines()] == [f"v{n}" for n in range(7)]


@pytest.mark.slow
def test_the_ladder_for_a_gpu_prints_every_step(store: Path):
    text = run("13_gpu_schedule_ladder.py", 64, store)
    assert [line.split("_")[0] for line in text.splitlines()] == [f"v{n}" for n in range(6)]
