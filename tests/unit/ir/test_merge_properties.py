"""Merging axes keeps the meaning of any expression, and the order of the elements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.dtypes import FLOAT32
from retune.ir.interp import run_dag
from retune.ir.merge import merge_axes
from retune.ir.te import Dag, compute, placeholder
from tests.support.dags import conv2d, elementwise, pool, random_dag, transpose
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.properties import chooser, quick


def assert_merged_agrees(dag: Dag) -> Dag:
    merged = merge_axes(dag)
    inputs = inputs_for(dag)
    shapes = {t.name: t.shape for t in merged.placeholders}
    values = run_dag(merged, {n: a.reshape(shapes[n]) for n, a in inputs.items()})
    found = {t.name: values[t.name].reshape(t.shape) for t in dag.outputs}
    assert_close(found, reference(dag, inputs), f"{dag}\n-->\n{merged}")
    return merged


@quick(100)
@given(data=st.data())
def test_merging_keeps_the_meaning(data: st.DataObject):
    assert_merged_agrees(random_dag(chooser(data)))


@quick(40)
@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=2, max_size=4),
    used=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_merging_with_a_broadcast_operand_keeps_the_meaning(shape: list[int], used: list[bool]):
    x = placeholder("x", shape)
    axes = [d for d in range(len(shape)) if used[d]] or [0]
    s = placeholder("s", [shape[d] for d in axes], constant=True)
    y = compute("y", shape, lambda *i: x[i] * s[tuple(i[d] for d in axes)], [x, s])
    assert_merged_agrees(Dag((y,)))


@pytest.mark.parametrize(
    ("dag", "shape"),
    [
        (conv2d(2, 7, 7, 8, 16, 1, pad=0), (98, 16)),
        (conv2d(2, 7, 7, 8, 16, 3, pad=0), (2, 5, 5, 16)),
        (elementwise(8, 67), (8, 67)),
        (transpose(3, 4, 5), (5, 12)),
        (pool(1, 8, 8, 4, 2, 2, average=False), (1, 4, 4, 4)),
    ],
)
def test_merged_shapes(dag: Dag, shape: tuple[int, ...]):
    assert merge_axes(dag).outputs[0].shape == shape


def test_merging_does_not_touch_the_elements():
    x = placeholder("x", (2, 3, 4))
    dag = Dag((compute("y", (2, 3, 4), lambda i, j, k: x[i, j, k] + 1.0, [x]),))
    merged = assert_merged_agrees(dag)
    assert merged.placeholders[0].shape == (24,)
    ramp = np.arange(24, dtype=FLOAT32)
    assert np.array_equal(run_dag(merged, {"x": ramp})["y"], ramp + 1)
