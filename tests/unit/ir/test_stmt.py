"""Rewriting of loop programs."""

from dataclasses import replace

import numpy as np

from retune.ir.expr import Buffer, const
from retune.ir.interp import run_program
from retune.ir.stmt import (
    Element,
    Indices,
    Seq,
    blocks,
    from_dag,
    is_compile_time,
    map_accesses,
    replaced,
    with_body,
)
from retune.ir.te import Dag, compute, placeholder


def _running():
    """y[i] = x[i] + 1, then z[i] = 2 y[i]: y is written and read."""
    x = placeholder("x", (4,))
    y = compute("y", (4,), lambda i: x[i] + 1.0, [x])
    return from_dag(Dag((compute("z", (4,), lambda i: y[i] * 2.0, [y]),)))


def test_every_read_and_write_of_a_buffer_moves_and_others_stay():
    program = _running()
    y = blocks(program.body)[0].buffer
    wide = replace(y, shape=(const(7),))

    def behind(buffer: Buffer, indices: Indices) -> Element | None:
        return (wide, (indices[0] + 3,)) if buffer == y else None

    moved = replace(with_body(program, map_accesses(program.body, behind)), scratch=(wide,))
    assert "y[y.i + 3] = " in str(moved) and "= y[z.i + 3]*2.0" in str(moved), str(moved)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(run_program(moved, {"x": x})["z"], 2 * (x + 1))


def test_a_part_is_replaced_wherever_it_is_and_others_stay_the_same_objects():
    body = _running().body
    first, second = body.stmts
    (block,) = blocks(first)
    other = replace(block, name="other")
    twice = Seq((first, second, first))
    made = replaced(twice, block, other)
    assert [b.name for b in blocks(made)] == ["other", blocks(second)[0].name, "other"]
    assert isinstance(made, Seq) and made.stmts[1] is second
    assert replaced(twice, block, Seq(())) is second  # a loop without a body is gone
    assert replaced(body, other, block) is body


def test_a_nest_that_writes_a_constant_is_compile_time():
    program = _running()
    first, second = program.body.stmts
    y = blocks(first)[0].buffer
    constant = replace(y, scope="constant")
    made = map_accesses(first, lambda buffer, at: (constant, at) if buffer == y else None)
    assert is_compile_time(made)
    assert not is_compile_time(first) and not is_compile_time(second)
