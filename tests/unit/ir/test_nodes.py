"""Nodes of trees: content decides equality and hash, and nothing else of a process does."""

import pickle
import subprocess
import sys

import pytest

from retune.core.dtypes import FLOAT32
from retune.ir.expr import Buffer, Load, Substitution, Var, cast, const, loads, redirect, variables
from retune.ir.nodes import IRNode, node
from retune.ir.stmt import Block, For, Seq, blocks, inside, loops

VI, VJ = Var("i"), Var("j")
X, Y = Buffer("x", (const(8),)), Buffer("y", (const(8),))


@node
class Pair(IRNode):
    """A number and a word."""

    first: int
    note: str = "none"


def test_equal_content_is_equal_and_hashes_alike():
    assert Pair(1, "a") != Pair(1, "b") and len({VI + 1, VI + 1, VI + 2}) == 2
    assert hash(VI * 4 + VJ) == hash(Var("i") * 4 + Var("j"))


@pytest.mark.process
def test_a_node_of_another_process_hashes_as_here():
    source = "from retune.ir.expr import Var; import pickle, sys; e = Var('i') * 4 + 1; hash(e);"
    source += "sys.stdout.buffer.write(pickle.dumps(e))"
    made = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True).stdout
    assert pickle.loads(made) in {VI * 4 + 1}  # noqa: S301 - made a line above


def test_an_expression_knows_its_reads_and_variables():
    inner = Load(X, (VI,))
    outer = Load(Y, (inner,)) * cast(VJ + 1, FLOAT32)
    for _ in range(2):  # the second time from memory
        assert loads(outer) == (Load(Y, (inner,)), inner)
        assert variables(outer) == {VI, VJ}


def test_what_expressions_share_is_rewritten_once_and_stays_shared():
    shared = (VI + 1) * 4
    both = Substitution({VI: VJ})
    first, second = both(shared + 2), both(shared - 3)
    assert str(first) == "(j + 1)*4 + 2" and str(second) == "(j + 1)*4 - 3"
    assert first.children[0] is second.children[0]


def test_what_reads_nothing_stays_where_loads_are_redirected():
    index = VI * 4
    value = Load(X, (index,)) + Load(Y, (index,))
    moved = redirect(value, lambda load: Load(Y, load.indices) if load.buffer == X else None)
    assert str(moved) == "y[i*4] + y[i*4]" and moved.children[0].children[0] is index


def test_a_statement_knows_what_is_inside():
    first = Block("a", X, (VI,), const(0.0, FLOAT32))
    second = Block("b", Y, (VJ,), Load(X, (VJ,)))
    inner = For(VJ, const(8), second)
    body = Seq((For(VI, const(8), first), inner))
    assert blocks(body) == (first, second) and loops(body)[-1] is inner
    assert inside(body) is inside(body) and not inside(body).waits
