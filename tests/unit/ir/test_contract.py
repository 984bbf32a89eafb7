"""A contraction gives what the loops give, and refuses what it does not cover."""

import numpy as np
import pytest

from retune.core.dtypes import INT8, INT32, UINT8
from retune.ir import contract as module
from retune.ir.contract import contraction
from retune.ir.expr import Expr, Var, cast, select
from retune.ir.interp import run_dag, run_program
from retune.ir.stmt import from_dag
from retune.ir.te import Compute, Dag, compute, placeholder, reduce_axis
from tests.support.dags import conv2d, dense, depthwise
from tests.support.oracle import inputs_for

DAGS: dict[str, Dag] = {
    "dense": dense(3, 7, 11),
    "window": conv2d(2, 6, 7, 5, 8),
    "strided, dilated": conv2d(1, 11, 9, 3, 4, stride=2, dilation=2),
    "point-wise": conv2d(1, 5, 4, 6, 3, 1, pad=0),
    "depthwise": depthwise(1, 6, 6, 5),
}


def contracted(dag: Dag) -> list[np.ndarray]:
    """The stages that a contraction covers."""
    values = run_dag(dag, inputs_for(dag))
    found = []
    for stage in dag.stages:
        if isinstance(stage.op, Compute) and stage.op.reducer == "sum":
            out = {a.var: a.extent for a in stage.op.axes}
            reduce = {a.var: a.extent for a in stage.op.reduce_axes}
            shapes = {name: array.shape for name, array in values.items()}
            made = contraction(stage.op.body, out, reduce, shapes)
            result = None if made is None else made(values)
            if result is not None:
                found.append(result)
    return found


@pytest.mark.parametrize("name", DAGS)
@pytest.mark.parametrize("limit", [1 << 24, 40])
def test_it_gives_what_the_loops_give(name: str, limit: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LIMIT", limit)
    dag = DAGS[name]
    assert len(contracted(dag)) == 1
    inputs = inputs_for(dag)
    expected = run_program(from_dag(dag), inputs)
    values = run_dag(dag, inputs)
    for output, array in expected.items():
        np.testing.assert_allclose(values[output], array, rtol=1e-4, atol=1e-5)


def test_what_it_does_not_cover():
    x, n = placeholder("x", (8,)), placeholder("n", (8,), INT32)
    k = reduce_axis("k", 4)
    bodies = {
        "a mask": lambda i: select(k.var < 2, x[i + k.var], x[i]),
        "backwards": lambda i: x[i - k.var],
        "outside": lambda i: x[i * 2 + k.var],
        "integers": lambda i: n[i + k.var],
        "an axis left out": lambda i: x[i] * 2.0,
        "divided": lambda i: x[(i + k.var) // 2],
    }
    for name, body in bodies.items():
        stage = compute("y", (5,), body, [x, n], reduce=[k])
        assert contracted(Dag((stage,))) == [], name


def test_constants_scale():
    x, k = placeholder("x", (6,)), reduce_axis("k", 3)
    stage = compute("y", (4,), lambda i: x[i + k.var] * 0.5 * 3.0, [x], reduce=[k])
    (found,) = contracted(Dag((stage,)))
    values = inputs_for(Dag((stage,)))["x"]
    np.testing.assert_allclose(found, [1.5 * values[i : i + 3].sum() for i in range(4)], rtol=1e-6)


def test_an_operand_may_be_read_backwards():
    x, w, k = placeholder("x", (6,)), placeholder("w", (3,)), reduce_axis("k", 3)
    stage = compute("y", (4,), lambda i: x[i + k.var] * w[2 - k.var], [x, w], reduce=[k])
    (found,) = contracted(Dag((stage,)))
    values = inputs_for(Dag((stage,)))
    np.testing.assert_allclose(found, np.convolve(values["x"], values["w"], "valid"), rtol=1e-5)


def test_groups_and_bytes_are_covered():
    """Channels that an index divides are two axes; products of bytes are added up exactly."""
    x, w = placeholder("x", (2, 6), INT8), placeholder("w", (4, 3), UINT8)
    k = reduce_axis("k", 3)

    def body(b: Var, c: Var) -> Expr:
        return cast(x[b, c // 2 * 3 + k.var], INT32) * cast(w[c, k.var], INT32)

    dag = Dag((compute("y", (2, 4), body, [x, w], reduce=[k]),))
    assert len(contracted(dag)) == 1
    inputs = inputs_for(dag)
    expected = run_program(from_dag(dag), inputs)["y"]
    np.testing.assert_array_equal(run_dag(dag, inputs)["y"], expected)
