"""Every sketch for CPU devices keeps the meaning, whatever the shape."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.rules.cpu.rows import Rows, row_structure
from retune.rules.cpu.space import cpu_space
from retune.rules.fusion import accesses
from retune.schedule.schedule import Schedule
from tests.dags import (
    conv2d,
    dense,
    depthwise,
    integers,
    interwoven,
    neighbours,
    padded_squares,
    pool,
    random_dag,
    reduction,
    softmax,
    standardised,
)
from tests.oracle import assert_items_agree
from tests.properties import chooser, quick

NARROW = replace(GENERIC_CPU, name="narrow", vector_bits=128, vector_registers=16)

SHAPES: dict[str, Dag] = {
    "one channel": conv2d(1, 7, 7, 1, 16),
    "colours": conv2d(2, 9, 8, 3, 17, 3, stride=2, residual=True),
    "prime channels": conv2d(1, 5, 7, 17, 67, 1, pad=0),
    "batch of three": conv2d(3, 5, 5, 4, 8, groups=2),
    "dilated": conv2d(1, 9, 9, 2, 16, dilation=2),
    "depthwise": depthwise(2, 7, 11, 67, stride=2),
    "dense row": dense(1, 67, 131),
    "dense batch": dense(3, 17, 10),
    "largest of a window": pool(3, 7, 11, 17, 3, 2, average=False),
    "mean of a window": pool(2, 6, 6, 3, 2, 2, average=True),
    "softmax": softmax(3, 67),
    "standardised rows": standardised(3, 64),
    "softmax by lanes": softmax(3, 96),
    "few outputs": dense(1, 96, 10),
    "rows": reduction(5, 160, "max", first=False),
    "channel shuffle": interwoven(3, 4, 34),
    "colours last": interwoven(1, 3, 53),
    "padded rows": padded_squares(33, 67, 2, 2),
    "sums over neighbours": neighbours(21, 48, 2, 2),
    "sums over neighbours on one side": neighbours(2, 32, 0, 3),
    "sums over neighbours, uneven rows": neighbours(3, 37, 1, 2),
    "rows padded by more than a vector": padded_squares(33, 40, 20, 1),
}


def assert_space_is_right(dag: Dag, spec: DeviceSpec, candidates: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = cpu_space(from_dag(dag), spec)
    for sketch in space.sketches:
        verify(sketch.program)
        for row in sketch.sample(candidates, rng):
            program = sketch.instantiate(row)
            verify(program)
            assert_items_agree(dag, program)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("spec", [GENERIC_CPU, NARROW], ids=lambda s: s.name)
def test_every_sketch_of_awkward_shapes(name: str, spec: DeviceSpec):
    assert_space_is_right(SHAPES[name], spec, candidates=3, seed=len(name))


@quick(25)
@given(data=st.data(), merged=st.booleans())
def test_every_sketch_of_random_expressions(data: st.DataObject, merged: bool):
    dag = random_dag(chooser(data))
    assert_space_is_right(merge_axes(dag) if merged else dag, GENERIC_CPU, candidates=1, seed=0)


def test_every_sketch_has_a_candidate():
    for dag in SHAPES.values():
        for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches:
            assert len(sketch.sample(1, np.random.default_rng(0))), sketch.name


BY_ROWS = {
    "softmax": (softmax(3, 96), "total"),
    "mean of pixels side by side": (reduction(64, 49 * 16, "sum", first=False), "y"),
    "few outputs": (dense(1, 96, 10), "y"),
}
NOT_BY_ROWS = {
    "many outputs: their constants are packed": (dense(1, 96, 64), "y"),
    "a product: operands serve several results": (dense(8, 96, 10), "y"),
    "lanes over channels": (pool(1, 8, 8, 64, 8, 8, average=True), "pool"),
    "a convolution": (conv2d(1, 8, 8, 32, 32), "conv"),
    "an axis that no vector divides": (softmax(3, 67), "total"),
    "rows of one vector": (softmax(3, 4), "total"),
    "types without vectors": (integers(5, 64), "y"),
}


def rows_of(dag: Dag, stage: str) -> Rows | None:
    return row_structure(accesses(Schedule(from_dag(dag)), stage), GENERIC_CPU)


@pytest.mark.parametrize("name", BY_ROWS)
def test_row_reductions_take_lanes_along_the_row(name: str):
    dag, stage = BY_ROWS[name]
    axis = rows_of(dag, stage)
    assert axis is not None and axis.lanes >= 4
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    (sketch,) = (s for s in space.sketches if not s.name.endswith("fused"))
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    text = lower(program, CPU).text
    assert ".lo + lanes" in text or ".lo, lanes" in text


@pytest.mark.parametrize("name", NOT_BY_ROWS)
def test_other_reductions_keep_lanes_over_results(name: str):
    dag, stage = NOT_BY_ROWS[name]
    assert rows_of(dag, stage) is None
