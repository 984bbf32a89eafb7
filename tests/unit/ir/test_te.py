"""Tensor expressions: construction, text, workload keys, work."""

import subprocess
import sys

import pytest

from retune.core.dtypes import FLOAT32, FLOAT64
from retune.ir.expr import Var
from retune.ir.interp import run_dag
from retune.ir.te import Dag, compute, concat, placeholder, reduce_axis, show
from tests.support.dags import conv2d, dense, softmax, total
from tests.support.oracle import inputs_for


def _dense(names: str, rows: int = 4, inner: int = 8, dtype: str = FLOAT32) -> Dag:
    """A product whose tensors and axes are named by the letters of `names`."""
    a, b, c, i, j, k = names
    x, w = placeholder(a, (rows, inner), dtype), placeholder(b, (3, inner), dtype, constant=True)
    axis = reduce_axis(k, inner)
    body = lambda p, q: x[p, axis] * w[q, axis]  # noqa: E731
    return Dag((compute(c, (rows, 3), body, [x, w], reduce=(axis,), axes=(i, j)),))


def test_keys_do_not_depend_on_names():
    assert _dense("xwyijk").key == _dense("abcpqr").key


@pytest.mark.parametrize(
    "other", [_dense("xwyijk", 5), _dense("xwyijk", 4, 9), _dense("xwyijk", dtype=FLOAT64)]
)
def test_keys_depend_on_shapes_and_types(other: Dag):
    assert _dense("xwyijk").key != other.key


def test_keys_depend_on_what_is_constant_and_on_the_reducer():
    def reduced(reducer: str, constant: bool) -> str:
        x, k = placeholder("x", (2, 3), constant=constant), reduce_axis("k", 3)
        y = compute("y", (2,), lambda i: x[i, k], [x], reduce=(k,), reducer=reducer)  # type: ignore[arg-type]
        return Dag((y,)).key

    keys = {reduced(r, c) for r in ("sum", "prod", "max", "min") for c in (False, True)}
    assert len(keys) == 8


@pytest.mark.process
def test_keys_do_not_depend_on_the_process():
    code = "from tests.support.dags import conv2d; print(conv2d(1, 7, 7, 3, 8).key)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {conv2d(1, 7, 7, 3, 8).key}


def test_text(golden):
    dags = (dense(2, 3, 4), softmax(2, 5), conv2d(1, 5, 5, 2, 4, groups=2), total(2, 3))
    assert "\n\n".join(str(dag) for dag in dags) + "\n" == golden


def test_canonical_text(golden):
    assert show(conv2d(1, 5, 5, 2, 4), canonical=True) + "\n" == golden


def test_work_counts_operators_and_combines():
    assert dense(2, 3, 4, epilogue=False).flops == 2 * 4 * 3 * 2
    assert dense(2, 3, 4).flops == 2 * 4 * 3 * 2 + 2 * 4 * 2


def test_stages_come_after_what_they_read():
    dag = softmax(2, 5)
    assert [s.name for s in dag.stages] == ["top", "e", "total", "y"]
    assert [p.name for p in dag.placeholders] == ["x"]


def test_meaning_of_concat_and_reduction():
    x, y = placeholder("x", (2, 1)), placeholder("y", (2, 2))
    dag = Dag((concat("z", [x, y], 1),))
    inputs = inputs_for(dag)
    assert run_dag(dag, inputs)["z"].shape == (2, 3)
    assert run_dag(dag, inputs)["z"][1, 2] == inputs["y"][1, 1]


def test_inputs_of_another_shape_are_refused():
    dag = dense(2, 3, 4)
    inputs = inputs_for(dag)
    inputs["x"] = inputs["x"].T
    with pytest.raises(ValueError, match=r"x: expected shape \(2, 3\), got \(3, 2\)"):
        run_dag(dag, inputs)


def test_a_body_reads_only_listed_tensors():
    x = placeholder("x", (2,))
    with pytest.raises(ValueError, match="y: reads x, not listed in inputs"):
        compute("y", (2,), lambda i: x[i] * 2.0, [])


def test_as_many_axes_as_dimensions():
    x = placeholder("x", (2, 2))
    with pytest.raises(ValueError, match="y: 1 axis names for 2 dimensions"):
        compute("y", (2, 2), lambda i: x[i, i], [x])
    with pytest.raises(ValueError, match="x: expected 2 indices, got 1"):
        x[Var("i")]


def test_names_are_unique():
    x = placeholder("x", (2,))
    with pytest.raises(ValueError, match="tensor names are not unique: x"):
        Dag((compute("x", (2,), lambda i: x[i] * 2.0, [x]),))


def test_any_number_of_stages_may_follow_each_other():
    last = placeholder("x", (4,))
    for number in range(2000):
        last = compute(f"t{number}", (4,), lambda i, x=last: x[i] + 1.0, [last], axes=("i",))
    assert [t.name for t in Dag((last,)).stages] == [f"t{number}" for number in range(2000)]
