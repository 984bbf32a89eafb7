"""A plan gives the same for the same arrays, however they lie, and leaves them as they are."""

import numpy as np
import pytest

from retune.ir.expr import all_of, maximum, select
from retune.ir.plan import Plan
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from tests.support.dags import conv2d, dense, softmax
from tests.support.oracle import inputs_for


def padded() -> Dag:
    x = placeholder("x", (3, 4))
    body = lambda i, j: select(all_of(i >= 1, i < 4, j >= 2), x[i - 1, j - 2], 7.0)  # noqa: E731
    return Dag((compute("y", (5, 6), body, [x]),))


def pooled() -> Dag:
    x, k = placeholder("x", (2, 9)), reduce_axis("k", 3)
    body = lambda i, j: maximum(x[i, j * 2 + k.var], 0.0)  # noqa: E731
    return Dag((compute("y", (2, 4), body, [x], reduce=[k], reducer="max"),))


@pytest.mark.parametrize("dag", [dense(3, 4, 5), conv2d(1, 6, 6, 3, 4), softmax(2, 5), padded()])
def test_arrays_may_lie_in_any_order_and_are_not_written(dag: Dag):
    plan, inputs = Plan(dag), inputs_for(dag)
    kept = {name: array.copy() for name, array in inputs.items()}
    expected = plan(inputs)
    found = plan({name: np.asfortranarray(array) for name, array in inputs.items()})
    again = plan(inputs)
    for stage in dag.stages:
        np.testing.assert_allclose(found[stage.name], expected[stage.name], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(again[stage.name], expected[stage.name])
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, kept[name])


def test_a_selection_by_position_reads_nothing_outside():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = np.pad(x, ((1, 1), (2, 0)), constant_values=7)
    np.testing.assert_array_equal(Plan(padded())({"x": x})["y"], expected)


def test_windows_are_views():
    x = np.arange(18, dtype=np.float32).reshape(2, 9) - 5
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)[:, ::2]
    expected = np.maximum(windows.max(-1), 0)
    np.testing.assert_array_equal(Plan(pooled())({"x": x})["y"], expected)


def test_an_identity_is_a_copy():
    x = placeholder("x", (2, 3))
    dag = Dag((compute("y", (2, 3), lambda i, j: x[i, j], [x]),))
    array = np.ones((2, 3), np.float32)
    made = Plan(dag)({"x": array})["y"]
    assert not np.shares_memory(made, array)
