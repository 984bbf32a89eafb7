"""The interpreter runs programs as written, and notices what a device would do wrong."""

import numpy as np
import pytest

from retune.core.dtypes import FLOAT32
from retune.core.errors import VerifyError
from retune.ir.expr import Buffer, Load, Var, const
from retune.ir.interp import run_program
from retune.ir.reduction import decompose_all, reduce_loops
from retune.ir.stmt import Block, For, Program, Seq, Stmt, blocks, from_dag, rewrite
from retune.ir.verify import verify
from tests.support.dags import dense, integers, reduction, softmax, total
from tests.support.oracle import assert_same_meaning

VI, VK = Var("i"), Var("k")
X, Y = Buffer("x", (const(4),)), Buffer("y", (const(4),))


def program(*stmts: Stmt, scratch: tuple[Buffer, ...] = ()) -> Program:
    return Program(name="p", inputs=(X,), outputs=(Y,), scratch=scratch, body=Seq(stmts))


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("first", [False, True])
def test_reductions(reducer: str, first: bool):
    dag = reduction(3, 5, reducer, first=first)
    assert_same_meaning(dag, from_dag(dag))


@pytest.mark.parametrize("dag", [dense(2, 3, 4), softmax(2, 5), total(3, 4), integers(3, 5)])
def test_unscheduled_programs_mean_their_expression(dag):
    assert_same_meaning(dag, from_dag(dag))


def test_what_is_not_written_is_nan():
    only_half = For(VI, const(2), Block("y", Y, (VI,), Load(X, (VI,))))
    found = run_program(program(only_half), {"x": np.ones(4, np.float32)})["y"]
    assert np.isnan(found[2:]).all() and (found[:2] == 1).all()


def test_scratch_read_before_it_is_written_is_nan():
    scratch = Buffer("t", (const(4),))
    copy = For(VI, const(4), Block("y", Y, (VI,), Load(scratch, (VI,))))
    found = run_program(program(copy, scratch=(scratch,)), {"x": np.ones(4, np.float32)})
    assert np.isnan(found["y"]).all()


def test_stores_outside_a_buffer_are_errors():
    past = For(VI, const(5), Block("y", Y, (VI,), const(0.0, FLOAT32)))
    with pytest.raises(VerifyError, match=r"y: stores outside y\(4,\)"):
        run_program(program(past), {"x": np.ones(4, np.float32)})


def test_decomposed_programs_have_loops_of_their_own():
    for dag in (dense(2, 3, 4), softmax(2, 5), total(3, 4)):
        plain = decompose_all(from_dag(dag))
        verify(plain)
        assert all(b.decomposed for b in blocks(plain.body) if b.reducer)
        assert_same_meaning(dag, plain)


def test_a_reduction_inside_another_one_starts_afresh():
    """`p` is computed in each iteration of the loop that `y` reduces over."""
    p, q = Buffer("p", (const(1),), FLOAT32, "register"), Var("q")
    inner = For(q, const(3), Block("p", p, (const(0),), Load(X, (VI,)), "sum"), reduce=True)
    outer = Block("y", Y, (VI,), Load(p, (const(0),)), "sum")
    nest = For(VI, const(4), For(VK, const(2), Seq((inner, outer)), reduce=True))
    made = program(nest, scratch=(p,))
    path = [nest, nest.body, inner]
    assert reduce_loops(path, inner.body) == [inner]  # type: ignore[arg-type]
    x = np.arange(4, dtype=np.float32)
    assert run_program(made, {"x": x})["y"].tolist() == (x * 6).tolist()


def test_rewriting_nothing_gives_the_same_objects():
    body = decompose_all(from_dag(softmax(2, 5))).body
    assert rewrite(body, lambda _: None) is body
