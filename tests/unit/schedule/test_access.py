"""What axes do to what is read: convolutions, products, windows, rows."""

import pytest

from retune.ir.merge import merge_axes
from retune.ir.stmt import blocks, from_dag
from retune.ir.te import Dag
from retune.schedule.access import Accesses
from tests.support.dags import (
    conv2d,
    dense,
    depthwise,
    neighbours,
    pool,
    reduction,
    softmax,
    transpose,
)


def accesses(dag: Dag, stage: str) -> Accesses:
    program = from_dag(dag)
    (block,) = (b for b in blocks(program.body) if b.name == stage)
    return Accesses.of(block, program.body)


def names(loops: object) -> list[str]:
    return [loop.var.name.split(".")[-1] for loop in loops]


def test_a_convolution_has_a_window_a_depth_and_an_operand_for_all_channels():
    stage = accesses(conv2d(1, 8, 8, 4, 6), "conv")
    assert names(stage.window) == ["ry", "rx"]
    assert names(stage.deep) == ["rc"]
    assert stage.contracts and not stage.by_channel
    data, weight = stage.operands
    assert stage.channel not in data.moving and stage.channel in weight.moving
    assert weight.constant and not data.constant
    assert stage.channels == 6 and stage.group is None


def test_a_product_has_no_window():
    dag = dense(3, 8, 5)
    stage = accesses(dag, next(b.name for b in blocks(from_dag(dag).body) if b.reducer))
    assert not stage.window and len(stage.deep) == 1 and stage.contracts


@pytest.mark.parametrize("dag", [depthwise(1, 8, 8, 6), pool(1, 8, 8, 6, 3, 1, average=False)])
def test_windows_of_each_channel_alone(dag: Dag):
    stage = accesses(dag, next(b.name for b in blocks(from_dag(dag).body) if b.reducer))
    assert stage.by_channel and not stage.contracts and not stage.deep


def test_sums_over_neighbours_slide_along_the_channels():
    dag = neighbours(4, 24, 2, 2)
    stage = accesses(dag, next(b.name for b in blocks(from_dag(dag).body) if b.reducer))
    (operand,) = stage.operands
    assert not stage.by_channel and stage.channel in operand.last and operand.adjacent
    assert names(stage.window) == names(stage.steps)


def test_memory_runs_along_the_steps_of_a_row():
    assert accesses(softmax(4, 9), "total").along_steps
    assert not accesses(reduction(9, 4, "sum", first=True), "y").along_steps


def test_how_far_an_index_moves():
    stage = accesses(merge_axes(pool(1, 9, 9, 4, 3, 2, average=False)), "pool")
    (operand,) = stage.operands
    steps = {loop.var: operand.step(loop.var) for loop in stage.loops}
    assert sorted(steps.values())[-2:] == [2.0, 2.0]


def test_channels_that_are_not_last_have_an_order():
    dag = transpose(3, 4, 5)
    stage = accesses(dag, blocks(from_dag(dag).body)[0].name)
    (operand,) = stage.operands
    assert operand.adjacent and operand.last != {stage.channel}
    assert (
        stage.orders()[operand.load.buffer.name][-1] == operand.dimensions(stage.results[-1].var)[0]
    )
