"""LocalRunner on PoCL: right, wrong, broken, hanging and crashing candidates."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.codegen.opencl.kernels import single_item_kernel
from retune.core.errors import InputError
from retune.device.measure.local import LocalRunner, MeasureOptions
from retune.device.measure.workload import measuring_conditions
from retune.device.opencl.catalogue import device_spec
from retune.records.schema import Measurement
from tests.support.local_runner import (
    ASLEEP,
    CRASH,
    HANG,
    IMPATIENT,
    RIGHT,
    WORKLOAD,
    WRONG,
    N,
    X,
    plain,
    program,
)

pytestmark = pytest.mark.device

DEADLINE_S = 240.0
QUICK = MeasureOptions(repeat=2, min_repeat_ms=0.5)

HALF = "if (i < 128) y[i] = 2 * x[i] + w[i];"
UNBUILDABLE = "y[i] = nothing;"
LATE_HANG = f"if (i == 99) {{ {ASLEEP} }} y[i] = 2 * x[i] + w[i];"
LATE_CRASH = "y[i] = 2 * x[i] + w[i]; if (i == 99) y[1L << 40] = 1;"


def single_item(body: str) -> str:
    """A kernel that persistent workers can run, so candidates may share a program."""
    types = ("__global const float *", "__global const float *", "__global float *")
    arguments = [f"{kind}{name}" for kind, name in zip(types, "xwy", strict=True)]
    lines = ["int i = group.x;", body]
    return "\n".join(single_item_kernel("axpy", arguments, list("xwy"), lines)) + "\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner("pocl", builders=1) as local:
        local.prepare(WORKLOAD)
        yield local


def statuses(rows: Sequence[Measurement]) -> list[str]:
    return [row.status for row in rows]


def reason(row: Measurement) -> str:
    """The error, without the driver's file names and its messages about earlier candidates."""
    return re.sub(r"tempfile_\w+|[:\s]+1 error generated\.", "", row.error)


def test_outcomes_of_candidates_that_leave_the_child_in_order(runner: LocalRunner):
    bodies = [program(RIGHT), program(WRONG), program(HALF), program(UNBUILDABLE)]
    rows = runner.measure("axpy", [*bodies, program(RIGHT, local=3)], QUICK)
    assert statuses(rows) == ["ok", "wrong_result", "wrong_result", "compile_error", "launch_error"]
    right, wrong, half, unbuildable, unlaunchable = rows
    assert len(right.run_times_us) == 2
    assert right.median_us is not None
    assert right.median_us > 0
    assert right.reference_us is not None
    assert right.max_abs_err is not None
    assert right.max_abs_err < 1e-6
    assert wrong.max_abs_err == pytest.approx(X.max(), rel=1e-4)
    assert "output 'y' at [" in wrong.error
    assert "128 of 256 elements are off" in half.error
    assert "undeclared identifier 'nothing'" in unbuildable.error
    assert "INVALID_WORK_GROUP_SIZE" in unlaunchable.error


BEYOND = {
    "one element behind the output": ("if (i == 255) y[256] = 0;", "'y'", "nearest 1 behind its l"),
    "an element before the output": ("if (i == 0) y[-2] = 0;", "'y'", "nearest 5 before its first"),
    "one element behind the input": ("if (i == 3) ((__global float *)x)[256] = 1;", "'x'", "1 beh"),
}


@pytest.mark.parametrize("printed", [plain, single_item], ids=["queued", "resident"])
def test_a_write_beyond_a_buffer_is_found_though_the_outputs_are_right(
    runner: LocalRunner, printed: Callable[[str], str]
):
    sources = [program(f"{RIGHT} {fault}", printed=printed) for fault, _, _ in BEYOND.values()]
    rows = runner.measure("axpy", [*sources, program(RIGHT, printed=printed)], QUICK)
    assert statuses(rows) == ["wrong_result"] * len(BEYOND) + ["ok"]
    for row, (_, name, where) in zip(rows, BEYOND.values(), strict=False):
        assert f"buffer {name} of 1024 bytes: expected no write beyond it" in row.error
        assert where in row.error


AGAIN = {
    "another output": ("y[i] = y[i] == r ? 0 : r;", "output 'y' at"),
    "a write beyond": ("if (i == 255 && y[i] == r) y[256] = 0; y[i] = r;", "no write beyond it"),
}
"""Right wherever the output holds anything else before."""


@pytest.mark.parametrize("printed", [plain, single_item], ids=["queued", "resident"])
def test_a_candidate_that_is_right_at_first_only_is_found(
    runner: LocalRunner, printed: Callable[[str], str]
):
    texts = [f"float r = 2 * x[i] + w[i]; {fault}" for fault, _ in AGAIN.values()]
    rows = runner.measure(
        "axpy", [program(text, printed=printed) for text in (*texts, RIGHT)], QUICK
    )
    assert statuses(rows) == ["wrong_result"] * len(AGAIN) + ["ok"]
    for row, (_, said) in zip(rows, AGAIN.values(), strict=False):
        assert row.error.startswith("after it was timed: ") and said in row.error


def test_packed_constants_reach_the_kernel(runner: LocalRunner):
    reversed_read = "y[i] = 2 * x[i] + w[255 - i];"
    rows = runner.measure("axpy", [program(reversed_read, reverse=True)], QUICK)
    assert statuses(rows) == ["ok"]


def test_a_cache_flush_measures_single_calls():
    options = MeasureOptions(repeat=3, cache_flush=True, disturbed_retries=0)
    with LocalRunner("pocl", builders=1) as runner:  # it knows of no faster candidate
        runner.prepare(WORKLOAD)
        rows = runner.measure("axpy", [program(RIGHT)], options)
    assert statuses(rows) == ["ok"]
    assert len(rows[0].run_times_us) == 3


def test_hangs_and_crashes_cost_their_own_row_only(runner: LocalRunner):
    bodies = [RIGHT, HANG, CRASH, LATE_HANG, LATE_CRASH, RIGHT]
    rows = runner.measure("axpy", [program(body) for body in bodies], IMPATIENT)
    assert statuses(rows) == ["ok", "timeout", "crash", "timeout", "crash", "ok"]
    assert "the first launch of one work-group: no answer within 4 s" in rows[1].error
    assert "died of SIG" in rows[2].error
    assert "the first run: no answer within 3" in rows[3].error
    assert rows[4].error.startswith("the first run: the process died of SIG")


def test_several_builders_give_the_same_outcomes():
    with LocalRunner("pocl", builders=2) as local:
        local.prepare(WORKLOAD)
        bodies = [RIGHT, UNBUILDABLE, WRONG, CRASH, RIGHT + "/* another */"]
        rows = local.measure("axpy", [program(body) for body in bodies], QUICK)
    assert statuses(rows) == ["ok", "compile_error", "wrong_result", "crash", "ok"]


@pytest.mark.parametrize("builders", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_candidates_of_one_program_end_as_they_would_alone(builders: int):
    bodies = [RIGHT, WRONG, UNBUILDABLE, RIGHT + " // another", HALF, LATE_CRASH]
    sources = [program(body, printed=single_item) for body in bodies]
    with LocalRunner("pocl", builders=builders) as local:
        local.prepare(WORKLOAD)
        alone = [row for source in sources for row in local.measure("axpy", [source], QUICK)]
    with LocalRunner("pocl", builders=builders) as local:
        local.prepare(WORKLOAD)
        together = local.measure("axpy", sources, QUICK)
        buildable = [source for source in sources if UNBUILDABLE not in source.text]
        again = local.measure("axpy", buildable, QUICK)
    wrong = "wrong_result"
    assert statuses(alone) == ["ok", wrong, "compile_error", "ok", wrong, "crash"]
    assert statuses(together) == statuses(alone)
    assert [reason(row) for row in together] == [reason(row) for row in alone]
    assert [row.max_abs_err for row in together] == [row.max_abs_err for row in alone]
    assert "undeclared identifier 'nothing'" in together[2].error
    assert statuses(again) == [s for s in statuses(alone) if s != "compile_error"]


def test_a_candidate_that_spoils_an_input_is_wrong_and_the_next_one_is_not(runner: LocalRunner):
    spoil = "((__global float *)x)[(i + 1) % 256] = 9; y[i] = 5;"
    rows = runner.measure("axpy", [program(spoil), program(RIGHT)], QUICK)
    assert statuses(rows) == ["wrong_result", "ok"]


def test_a_missing_device_is_an_error_of_the_user():
    with LocalRunner("toaster") as local, pytest.raises(InputError, match="'toaster'"):
        _ = local.spec


SESSION = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from tests.device.test_local_runner import HANG, RIGHT, WORKLOAD, program
from retune.device.measure.local import LocalRunner, MeasureOptions
runner = LocalRunner("pocl", builders=1)
runner.prepare(WORKLOAD)
runner.measure("axpy", [program(RIGHT)], MeasureOptions(repeat=1, min_repeat_ms=0.1))
print(runner._main.pid, flush=True)
runner.measure("axpy", [program(HANG)], MeasureOptions(build_deadline_s=600))
"""


def hanging_session() -> tuple[subprocess.Popen[str], int]:
    """A process that measures a kernel that hangs, and the id of its child."""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "lib"), str(root)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for a foreign process (Linux)")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_child_outlives_its_parent(number: signal.Signals):
    process, child = hanging_session()
    with process:
        ended = os.pidfd_open(child)
        try:
            process.send_signal(number)
            process.wait(timeout=DEADLINE_S)
            assert select.select([ended], [], [], DEADLINE_S)[0], "the measuring child lives on"
        finally:
            os.close(ended)


def test_the_measuring_process_has_the_conditions_that_records_are_looked_up_by(
    runner: LocalRunner,
):
    here = measuring_conditions(device_spec(runner.spec.name), MeasureOptions())
    assert measuring_conditions(runner.spec, MeasureOptions()) == here
    assert here.host and here.affinity


def test_an_output_that_lies_elsewhere_is_compared_where_it_lies():
    laid = replace(WORKLOAD, key="laid", positions={"y": np.arange(2 * N)[::-2][:N]})
    there = program("y[511 - 2 * i] = 2 * x[i] + w[i];")
    wide = replace(there, buffers=tuple(
        replace(b, elements=2 * N) if b.name == "y" else b for b in there.buffers
    ))  # fmt: skip
    beside = replace(wide, kernels=program("y[i] = 2 * x[i] + w[i];").kernels)
    with_runner = LocalRunner("pocl")
    try:
        with_runner.prepare(laid)
        found = with_runner.measure(laid.key, [wide, beside], QUICK)
    finally:
        with_runner.close()
    assert [m.status for m in found] == ["ok", "wrong_result"]
