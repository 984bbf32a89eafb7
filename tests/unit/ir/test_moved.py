"""What only moves bfloat16 stays bfloat16; nothing that is computed changes."""

import numpy as np

from retune.core.dtypes import BFLOAT16, FLOAT32
from retune.ir.expr import all_of, const, select
from retune.ir.interp import run_dag
from retune.ir.moved import moved_as_stored
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from tests.support.dags import conv2d
from tests.support.oracle import inputs_for


def bordered(x: Tensor, border: float) -> Tensor:
    """One element more at each end."""
    size = x.shape[0]
    inside = lambda i: all_of(i >= 1, i < size + 1)  # noqa: E731
    return compute(
        "pad", (size + 2,), lambda i: select(inside(i), x[i - 1], const(border, FLOAT32)), [x]
    )


def sums(x: Tensor) -> Dag:
    """Of three neighbours."""
    k = reduce_axis("k", 3)
    return Dag((compute("y", (x.shape[0] - 2,), lambda i: x[i + k.var], [x], reduce=[k]),))


def types(dag: Dag) -> dict[str, str]:
    return {tensor.name: str(tensor.dtype) for tensor in dag.stages}


def test_a_border_has_the_type_of_what_it_surrounds():
    before = sums(bordered(placeholder("x", (6,), BFLOAT16), 0.0))
    after = moved_as_stored(before)
    assert types(before) == {"pad": "float32", "y": "float32"}
    assert types(after) == {"pad": "bfloat16", "y": "float32"}
    arrays = inputs_for(before)
    np.testing.assert_array_equal(run_dag(after, arrays)["y"], run_dag(before, arrays)["y"])


def test_numbers_that_the_type_lacks_and_arithmetic_stay_in_float32():
    x = placeholder("x", (6,), BFLOAT16)
    assert types(moved_as_stored(sums(bordered(x, 1.001))))["pad"] == "float32"
    twice = compute("twice", (6,), lambda i: x[i] + x[i], [x])
    assert types(moved_as_stored(sums(twice)))["twice"] == "float32"


def test_results_keep_their_type():
    x = placeholder("x", (6,), BFLOAT16)
    assert types(moved_as_stored(Dag((bordered(x, 0.0),)))) == {"pad": "float32"}


def test_a_network_of_float32_stays_itself():
    dag = conv2d(1, 6, 6, 3, 4, 3)
    assert moved_as_stored(dag) is dag
