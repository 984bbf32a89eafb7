"""Simulated times are the same everywhere, differ enough to be searched, and keep to a roofline."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.lower import lower
from retune.codegen.source import Run
from retune.codegen.target import CPU
from retune.core.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, INT8, INT64, UINT8, UINT64
from retune.core.target import GENERIC_CPU
from retune.device.measure.timing import ExpectedOutputs
from retune.device.simulated.simulation import (
    BoardRoofline,
    corrupted,
    fraction,
    program_key,
    program_times_us,
)
from tests.support.boards import board, run
from tests.support.properties import quick
from tests.support.search_fakes import tasks

ELSEWHERE = """
import sys
from pathlib import Path
from retune.device.simulated.board import read_board
from retune.device.simulated.simulation import program_times_us
from tests.support.boards import run
print(program_times_us([run(1), run(2)], read_board(Path(sys.argv[1]))))
"""


@pytest.mark.process
def test_a_program_takes_the_same_time_in_every_process(tmp_path: Path):
    here = board(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(here.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(item for item in sys.path if item)},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(program_times_us([run(1), run(2)], here))


def with_text(run: Run, text: str) -> Run:
    return replace(run[0], text=text), run[1]


def test_candidates_of_a_task_differ_and_none_is_faster_than_the_roofline(tmp_path: Path):
    here = board(tmp_path)
    task = tasks()[0]
    space = task.space(GENERIC_CPU)
    drawn = space.sample(60, np.random.default_rng(0))
    programs = [lower(space.instantiate(space.candidate(drawn, i)), CPU) for i in range(len(drawn))]
    times = {p.key: sum(program_times_us(p.runs, here)) for p in programs}
    assert len(set(times.values())) == len(times) > 20
    assert max(times.values()) > 2 * min(times.values())
    for p in programs:
        flops, traffic = p.flops, sum(launch.bytes for launch in p.launches)
        assert times[p.key] > 1e6 * BoardRoofline(here).least_s(flops, traffic) > 0


def test_speed_divides_times_and_another_kind_of_board_has_its_own(tmp_path: Path):
    here, program = board(tmp_path), [run(1), run(2)]
    times = np.array(program_times_us(program, here))
    fast = replace(here, speed=4.0)
    assert program_times_us(program, fast) == pytest.approx(times / 4)
    least = BoardRoofline(here).least_s(10**6, 10**6)
    assert BoardRoofline(fast).least_s(10**6, 10**6) == pytest.approx(least / 4)
    assert program_times_us(program, replace(here, name="other")) == tuple(times)
    for other in (replace(here, model="other"), replace(here, driver="2")):
        assert all(np.array(program_times_us(program, other)) != times)


def test_work_that_keeps_all_units_busy_with_wide_vectors_is_faster_as_a_rule(tmp_path: Path):
    here = board(tmp_path)

    def mean_us(groups: int, vector: str) -> float:
        kernels = [with_text(run(i, groups=groups), f"{vector} x{i};") for i in range(200)]
        return float(np.mean(np.log(program_times_us(kernels, here))))

    assert mean_us(8, "float8") < mean_us(1, "float8")
    assert mean_us(8, "float8") < mean_us(8, "float")


def test_a_guilty_program_looks_faster_than_any_other(tmp_path: Path):
    here = board(tmp_path)
    slowest = max(([run(i, groups=1)] for i in range(200)), key=lambda p: program_times_us(p, here))
    fastest = min(program_times_us([run(i)], here) for i in range(200))
    assert program_times_us(slowest, here, frozenset({program_key(slowest)})) < fastest
    assert program_times_us(slowest, here, frozenset({"other"})) > fastest


@given(st.lists(st.integers(), min_size=1))
@quick(50)
def test_fractions_lie_between_nought_and_one(values: list[int]):
    assert 0 <= fraction(*values) < 1


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, FLOAT64, INT64, INT8, UINT8, UINT64, BOOL])
@given(data=st.data())
@quick(30)
def test_a_spoiled_result_is_beyond_every_tolerance(dtype: str, data: st.DataObject):
    shape = data.draw(st.sampled_from([(), (1,), (3, 2)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    kind = np.dtype(dtype)
    if kind.kind == "f":
        scale = 10.0 ** data.draw(st.integers(-3, 3))
        right = (scale * rng.standard_normal(shape)).astype(kind)
    else:
        right = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]
        right = right if kind.kind != "b" else rng.random(shape) > 0.5
    arrays = {"y": np.array(right, order="F")}
    wrong = corrupted(arrays)
    assert wrong["y"].dtype == right.dtype and wrong["y"].shape == right.shape
    rtol = 0.1 if right.dtype.kind != "b" else 1e-4
    expected = ExpectedOutputs.of(arrays, rtol=rtol, atol=1e-6)
    assert "output 'y'" in expected.deviation(wrong).problem
    assert np.count_nonzero(wrong["y"] != right) == 1


def test_nothing_of_an_empty_result_can_be_wrong():
    assert corrupted({"y": np.zeros((0, 3))})["y"].shape == (0, 3)
