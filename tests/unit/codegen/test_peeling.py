"""Border tiles apart from inner ones: same results, and no masks inside."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.copies import peel_borders
from retune.codegen.lower import lower
from retune.codegen.passes.pipeline import drop_unit_loops, masks_to_guards, simplify_indices
from retune.codegen.target import CPU
from retune.core.target import GENERIC_CPU
from retune.ir.expr import variables
from retune.ir.reduction import decompose_all
from retune.ir.stmt import PEEL, For, Program, blocks, from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cpu.space import cpu_space
from tests.support.dags import depthwise, padded_squares
from tests.support.oracle import assert_same_meaning
from tests.support.properties import quick
from tests.support.statements import walk


def tiled(dag: Dag, width: int) -> Program:
    """A padded depthwise convolution in tiles of `width` columns, ready to be peeled."""
    s = Schedule(from_dag(dag))
    s.compute_inline("padded")
    outer, inner = s.split("conv.xx", [width], "shift")
    s.annotate(outer, PEEL, "ends")
    s.unroll(inner)
    program = s.program
    for step in (drop_unit_loops, decompose_all, masks_to_guards, simplify_indices):
        program = step(program)
    return program


@quick(20)
@given(
    columns=st.integers(2, 17),
    width=st.integers(1, 7),
    stride=st.integers(1, 3),
)
def test_peeled_loops_keep_the_meaning(columns: int, width: int, stride: int):
    dag = depthwise(1, 3, columns, 5, stride=stride)
    width = min(width, (columns - 1) // stride + 1)
    peeled = peel_borders(tiled(dag, width))
    verify(peeled)
    assert_same_meaning(dag, peeled)


def test_inner_tiles_have_no_mask_on_columns():
    peeled = peel_borders(tiled(depthwise(1, 6, 32, 5), 4))
    loops = [n for n in walk(peeled.body) if isinstance(n, For)]
    (inside,) = [n for n in loops if n.var.name == "conv.xx.0.inside"]
    assert str(inside.extent) == "6"  # of 8 tiles
    for block in blocks(inside.body):
        names = {v.name for v in variables(block.guard)} if block.guard is not None else set()
        assert not any("xx" in name or "rx" in name for name in names)


def test_a_loop_without_masks_stays_as_it_is():
    s = Schedule(from_dag(depthwise(1, 6, 32, 5)))
    s.annotate("conv.xx", PEEL, "ends")  # padding is written out first
    peeled = peel_borders(s.program)
    assert len(blocks(peeled.body)) == len(blocks(s.program.body))


def test_short_loops_become_copies_with_settled_positions():
    peeled = peel_borders(tiled(depthwise(1, 6, 8, 5), 4))
    assert not any(isinstance(n, For) and "xx.0" in n.var.name for n in walk(peeled.body))
    assert sum(b.reducer is not None for b in blocks(peeled.body)) == 2


@pytest.mark.parametrize("extent", [7, 14, 30])
def test_depthwise_kernels_are_lowered_with_peeled_tiles(extent: int):
    dag = depthwise(1, extent, extent, 64)
    (sketch,) = cpu_space(from_dag(dag), GENERIC_CPU).sketches
    for row in sketch.sample(3, np.random.default_rng(extent)):
        text = lower(sketch.instantiate(row), CPU).text
        assert PEEL not in text


def test_padding_along_a_row_is_copied_by_vectors_inside():
    (sketch,) = cpu_space(from_dag(padded_squares(64, 80, 2, 2)), GENERIC_CPU).sketches
    lines = lower(sketch.program, CPU).text.splitlines()
    assert any("vstore16" in line and "?" not in line for line in lines)


@quick(20)
@given(
    columns=st.integers(16, 70), before=st.integers(0, 20), after=st.integers(0, 20),
)  # fmt: skip
def test_padding_along_a_row_keeps_its_meaning(columns: int, before: int, after: int):
    dag = padded_squares(17, columns, before, after)
    (sketch,) = cpu_space(from_dag(dag), GENERIC_CPU).sketches
    peeled = peel_borders(simplify_indices(drop_unit_loops(sketch.program)))
    verify(peeled)
    assert_same_meaning(dag, peeled)
