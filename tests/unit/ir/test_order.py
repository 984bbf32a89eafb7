"""Stages made in the order in which they are read compute the same, and cost no copy."""

import numpy as np

from retune.ir.interp import run_dag
from retune.ir.order import made_as_read
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from tests.support.oracle import inputs_for


def product() -> tuple[Tensor, Tensor]:
    """Two matrices by two matrices, and twice that."""
    a, b = placeholder("a", (2, 5, 4)), placeholder("b", (2, 4, 3))
    k = reduce_axis("k", 4)
    y = compute("y", (2, 5, 3), lambda h, i, j: a[h, i, k] * b[h, k, j], [a, b], reduce=(k,))
    return y, compute("z", (2, 5, 3), lambda h, i, j: y[h, i, j] * 2.0, [y])


def shapes(dag: Dag) -> dict[str, tuple[int, ...]]:
    return {stage.name: stage.shape for stage in dag.stages}


def assert_same(before: Dag, after: Dag) -> None:
    arrays = inputs_for(before)
    expected, found = run_dag(before, arrays), run_dag(after, arrays)
    for tensor in before.outputs:
        np.testing.assert_array_equal(found[tensor.name], expected[tensor.name])


def test_a_product_and_what_follows_it_are_made_as_a_transpose_reads_them():
    _, z = product()
    dag = Dag((compute("t", (5, 2, 3), lambda i, h, j: z[h, i, j], [z]),))
    made = made_as_read(dag)
    assert shapes(made) == {"y": (5, 2, 3), "z": (5, 2, 3), "t": (5, 2, 3)}
    assert_same(dag, made)


def test_what_several_read_and_what_is_given_out_stay():
    y, z = product()
    twice = compute("t", (5, 2, 3), lambda i, h, j: z[h, i, j] + y[h, i, j], [z, y])
    for dag in (Dag((z, compute("s", (5, 2, 3), lambda i, h, j: z[h, i, j], [z]))), Dag((twice,))):
        assert shapes(made_as_read(dag))["y"] == (2, 5, 3)
        assert_same(dag, made_as_read(dag))


def test_other_reads_than_in_a_new_order_change_nothing():
    _, z = product()
    rows = compute("t", (5, 2), lambda i, h: z[h, i, 1], [z])
    same = compute("t", (2, 5, 3), lambda h, i, j: z[h, i, j], [z])
    for tensor in (rows, same):
        dag = Dag((tensor,))
        assert made_as_read(dag) is dag


def test_arithmetic_without_a_reduction_goes_along_what_it_reads():
    x = placeholder("x", (2, 5, 3))
    y = compute("y", (2, 5, 3), lambda h, i, j: x[h, i, j] * 2.0, [x])
    dag = Dag((compute("t", (5, 3, 2), lambda i, j, h: y[h, i, j], [y]),))
    assert made_as_read(dag) is dag
