"""Copies that run ahead of what reads them, and rows of local memory that lie apart."""

from dataclasses import replace

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.errors import ScheduleError
from retune.core.target import COPY_AHEAD
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from tests.support.oracle import assert_items_agree, assert_same_meaning

NVIDIA = replace(GPU, offers=(COPY_AHEAD,))


def product(steps: int = 24) -> Dag:
    """Eight rows by eight columns."""
    x, w = placeholder("x", (8, steps)), placeholder("w", (steps, 8))
    k = reduce_axis("k", steps)
    return Dag((compute("y", (8, 8), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,)),))


def copying(dag: Dag, depth: int = 4) -> Schedule:
    """An item for each result; its group copies both operands, `depth` steps at once."""
    s = Schedule(from_dag(dag))
    i, j = s.loops("y")[:2]
    s.bind(i, "local.1")
    s.bind(j, "local.0")
    outer, _ = s.split("y.k", [depth])
    for name in "xw":
        *_, row, column = s.loops(s.cache_read(name, outer, "local"))
        flat = s.fuse(row, column)
        vector = 4 if name == "x" else 1
        flat, lane = s.split(flat, [vector])
        if vector > 1:
            s.vectorize(lane)
        _, first, second = s.split(flat, [8, 8], "guard")
        s.bind(first, "local.1")
        s.bind(second, "local.0")
    return s


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [4, 8, 24])
def test_copies_run_ahead_without_races(stages: int, steps: int):
    """Of fewer steps than stages, too."""
    dag = product(steps)
    s = copying(dag)
    s.run_ahead("y.k.0", stages)
    verify(s.program)
    assert_same_meaning(dag, s.program)
    assert_items_agree(dag, s.program)


def test_an_iteration_has_one_barrier(golden: object):
    s = copying(product())
    s.run_ahead("y.k.0", 3)
    text = lower(s.program, NVIDIA).text
    assert f"{s.program}\n\n{text}" == golden
    assert text.count("barrier(") == 1 and text.count("COPIES_ARRIVED(2)") == 1
    assert "COPY_AHEAD_16(x_local" in text and "COPY_AHEAD(4, w_local" in text


def test_devices_without_such_copies_wait_for_plain_ones():
    s = copying(product())
    s.run_ahead("y.k.0", 3)
    text = lower(s.program, GPU).text
    assert "asm" not in text and text.count("barrier(") == 1


def test_rows_lie_apart():
    dag = product()
    s = copying(dag)
    s.align_rows("x.local", 4)
    s.run_ahead("y.k.0", 2)
    assert_items_agree(dag, s.program)
    assert "x.local: float32[2, 8, 8] local" in str(s.program)


@pytest.mark.parametrize(("line", "unit", "every"), [(8, 1, 1), (4, 2, 2), (2, 2, 1), (2, 1, 3)])
def test_rows_are_rotated(line: int, unit: int, every: int):
    """Each element has a place of its own: the meaning is kept, also where copies run ahead."""
    dag = product()
    s = copying(dag, 8)
    s.rotate_rows("x.local", line, unit, every)
    s.run_ahead("y.k.0", 2)
    verify(s.program)
    assert_items_agree(dag, s.program)


def test_rows_of_broken_lines_are_not_rotated():
    with pytest.raises(ScheduleError, match="whole lines of 8 x 4 elements"):
        copying(product()).rotate_rows("x.local", 8, 4)


@pytest.mark.parametrize(
    ("loop", "stages", "why"),
    [("y.k.0", 1, "two stages"), ("y.k.1", 2, "starts with local copies")],
)
def test_what_cannot_run_ahead_is_refused(loop: str, stages: int, why: str):
    with pytest.raises(ScheduleError, match=why):
        copying(product()).run_ahead(loop, stages)


def test_rows_of_other_memory_stay():
    with pytest.raises(ScheduleError, match="expected a stage in local memory"):
        copying(product()).align_rows("y", 4)
