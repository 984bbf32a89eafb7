"""Sums over neighbours: which they are, and that their padded data stays within a work-group."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.neighbours import padded_neighbours
from retune.targets.cpu.space import cpu_space
from retune.targets.fusion import heaviest_reduction
from tests.support.dags import conv2d, neighbours, reduction

LANES = 16
NEIGHBOURS = {
    "on both sides": neighbours(9, 64, 2, 2),
    "on one side": neighbours(9, 64, 0, 4),
    "a single row": neighbours(1, 64, 2, 2),
}
OTHERS = {
    "rows that are no whole vectors": neighbours(9, 67, 2, 2),
    "too many to be written out": neighbours(9, 64, 10, 10),
    "rows beyond the nearest cache": neighbours(9, 1 << 12, 2, 2),
    "data without padding": reduction(64, 40, "sum", first=True),
    "a convolution": conv2d(1, 8, 8, 32, 32),
}


def _padded(dag: Dag) -> str | None:
    program = from_dag(dag)
    anchor = heaviest_reduction(program)
    assert anchor is not None
    found = padded_neighbours(program, anchor, LANES)
    return None if found is None else found.name


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_sums_over_neighbours_are_one_kernel(name: str):
    dag = NEIGHBOURS[name]
    assert _padded(dag) == "y"
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    (sketch,) = space.sketches
    assert sketch.name == "cpu.v16.neighbours"
    source = lower(space.instantiate(default_candidate(space, GENERIC_CPU)), CPU)
    assert len(source.kernels) == 1
    assert not [b for b in source.buffers if b.role == "scratch"]


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_are_not(name: str):
    assert _padded(OTHERS[name]) is None
