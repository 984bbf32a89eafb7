"""Inputs of float16 are read as float32 by whoever computes with them, and copied by nobody."""

import numpy as np

from retune.core.dtypes import FLOAT16, FLOAT32, INT32
from retune.ir.expr import cast
from retune.ir.halves import widened_as_read
from retune.ir.interp import run_dag
from retune.ir.te import Concat, Dag, Tensor, compute, placeholder, reduce_axis
from tests.oracle import inputs_for


def widened(source: Tensor, name: str) -> Tensor:
    return compute(
        name, source.shape, lambda *i: cast(source[i], FLOAT32), [source], axes=["i", "k"]
    )


def product(x: Tensor, w: Tensor) -> Tensor:
    k = reduce_axis("k", x.shape[1])
    rows, columns = x.shape[0], w.shape[0]
    return compute("y", (rows, columns), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))


def assert_same(before: Dag, after: Dag) -> None:
    arrays = inputs_for(before)
    expected, found = run_dag(before, arrays), run_dag(after, arrays)
    for tensor in before.outputs:
        np.testing.assert_array_equal(found[tensor.name], expected[tensor.name])


def test_readers_cast_what_they_read():
    x = placeholder("x", (3, 5), FLOAT16)
    w = placeholder("w", (4, 5), FLOAT16, constant=True)
    y = product(widened(x, "v"), widened(w, "u"))
    made = compute("z", (3, 4), lambda i, j: cast(y[i, j] * 2.0, FLOAT16), [y])
    dag = Dag((made,))
    found = widened_as_read(dag)
    assert [stage.name for stage in found.stages] == ["y", "z"]
    assert {t.name for t in found.placeholders} == {"x", "w"}
    assert_same(dag, found)


def test_one_input_may_be_read_by_several_and_twice():
    x = placeholder("x", (3, 5), FLOAT16)
    v = widened(x, "v")
    y = product(v, v)
    z = compute("z", (3, 3), lambda i, j: y[i, j] + v[i, j], [y, v])
    found = widened_as_read(Dag((z,)))
    assert [stage.name for stage in found.stages] == ["y", "z"]
    assert_same(Dag((z,)), found)


def test_outputs_joined_values_and_other_casts_stay():
    x, n = placeholder("x", (3, 5), FLOAT16), placeholder("n", (3, 5), INT32)
    v, u = widened(x, "v"), widened(n, "u")
    whole = Tensor(placeholder("c", (6, 5)).buffer, Concat(0, (v, u)))
    y = compute("y", (6, 5), lambda i, k: whole[i, k] * 2.0, [whole])
    for dag in (Dag((v,)), Dag((y,)), Dag((compute("t", (3, 5), lambda i, k: -u[i, k], [u]),))):
        assert widened_as_read(dag) is dag
