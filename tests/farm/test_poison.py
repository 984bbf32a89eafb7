"""Kernels that take processes with them, and batches that take boards with them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.measure.workload import MeasureOptions
from tests.farm.processes import DEADLINE_S, Farm
from tests.support.local_runner import CRASH, HANG, IMPATIENT, RIGHT, WRONG
from tests.support.local_runner import WORKLOAD as AXPY
from tests.support.local_runner import program as kernel
from tests.support.measure import WORKLOAD, program
from tests.unit.device import test_accelerator as accelerator

pytestmark = [pytest.mark.slow, pytest.mark.device]

BEGINS = "job of measure begins"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with Farm(tmp_path) as opened:
        yield opened


def test_a_kernel_that_crashes_or_hangs_is_a_row_and_the_board_lives(farm: Farm):
    board = farm.begin_board("real", "pocl")
    board.wait_for("board real serves")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(AXPY)
        sources = [kernel(body) for body in (RIGHT, CRASH, WRONG, HANG, RIGHT)]
        rows = runner.submit("axpy", sources, IMPATIENT).result(DEADLINE_S)
    assert [row.status for row in rows] == ["ok", "crash", "wrong_result", "timeout", "ok"]
    assert {row.instance for row in rows} == {"real"}
    assert board.alive
    assert not board.matching("WARNING|ERROR|Traceback")
    assert len(board.matching("board real serves")) == 1


def test_an_accelerator_is_a_board_as_any_other(farm: Farm):
    """Packed layers travel; what a board counts is what this machine counts."""
    farm.begin_board("vta", "vta-sim").wait_for("board vta serves")
    work = accelerator.workload("layer")
    with closing(accelerator.AcceleratorRunner(vta_spec(), processes=1)) as here:
        (expected,) = accelerator.measured(here, work, accelerator.GOOD)
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(work)
        uneven = accelerator.candidate(1, 3, 8, 2, 2, 1, 1)
        future = runner.submit(work.key, [accelerator.GOOD, uneven], MeasureOptions())
        right, skipped = future.result(DEADLINE_S)
    assert (right.run_times_us, right.instance) == (expected.run_times_us, "vta")
    assert skipped.status == "skipped"


def vta_spec() -> DeviceSpec:
    return accelerator.described("vta-sim", GENERIC_CPU)


def test_a_batch_that_loses_two_boards_is_tried_candidate_by_candidate(farm: Farm):
    """Whoever it was: the boards are killed, and no candidate is convicted of it."""
    board = farm.start_board("a", "measure_s = 0.5\n")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(WORKLOAD)
        future = runner.submit("task", [program("x"), program("y")], MeasureOptions())
        for _ in range(2):
            board.wait_for(BEGINS)
            board.kill()
            board = farm.start_board("a", "measure_s = 0.5\n")
        rows = future.result(DEADLINE_S)
    assert [row.status for row in rows] == ["ok", "ok"]
    assert len(board.matching(BEGINS)) == 2


def test_a_candidate_that_always_loses_its_board_is_a_crash(farm: Farm):
    board = farm.start_board("a", "measure_s = 0.5\n")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(WORKLOAD)
        future = runner.submit("task", [program("x")], MeasureOptions())
        for _ in range(4):
            board.wait_for(BEGINS)
            board.kill()
            board = farm.start_board("a", "measure_s = 0.5\n")
        (row,) = future.result(DEADLINE_S)
        (after,) = runner.submit("task", [program("y")], MeasureOptions()).result(DEADLINE_S)
    assert row.status == "crash"
    assert "while it was measured there alone" in row.error
    assert after.ok
