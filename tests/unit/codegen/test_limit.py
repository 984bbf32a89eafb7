"""No schedule makes a kernel of tens of thousands of statements."""

import numpy as np
import pytest

from retune.codegen.lower import finished, lower
from retune.codegen.passes.limit import MOST_OF_LANES, MOST_STATEMENTS, limit_statements
from retune.codegen.target import CPU
from retune.core.dims import Size, assuming, dim_of
from retune.ir.interp import run_program
from retune.ir.stmt import Program, from_dag, loops
from retune.ir.te import Dag, at_sizes, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.sizes import program_at

STEPS, ROWS, LANES = 16, 8, 16


def doubled(rows: int, columns: int) -> Program:
    """All elements of a table, each a statement of its own."""
    x = placeholder("x", (rows, columns))
    s = Schedule(from_dag(Dag((compute("y", x.shape, lambda i, j: x[i, j] * 2.0, [x]),)), "net"))
    for loop in s.loops("y"):
        s.unroll(loop)
    return s.program


def test_loops_around_as_many_statements_as_there_may_be_run_in_time() -> None:
    program = doubled(130, MOST_STATEMENTS // 64)
    limited = limit_statements(program)
    assert [loop.kind for loop in loops(limited.body)] == ["serial", "unroll"]
    assert lower(program, CPU).text.count(" * 2.0f") == MOST_STATEMENTS // 64
    (y,), x = program.outputs, np.ones((130, 64), np.float32)
    assert_close(run_program(limited, {"x": x}), {y.name: 2 * x}, str(limited))


def test_what_is_not_too_long_stays_as_it_is() -> None:
    program = doubled(64, MOST_STATEMENTS // 64)
    limited = limit_statements(program)
    assert [loop.kind for loop in loops(limited.body)] == ["unroll", "unroll"]


def product(columns: int) -> Dag:
    """A product of which a row of results is as long as a size says."""
    a, b = placeholder("a", (ROWS, STEPS)), placeholder("b", (STEPS, columns))
    k = reduce_axis("k", STEPS)
    y = compute("y", (ROWS, columns), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])
    return Dag((y,))


def tiled(dag: Dag) -> Program:
    """A register tile of all rows and a vector of columns, with all steps written out."""
    s = Schedule(from_dag(dag, "net"))
    stored = s.cache_write("y")
    rows, columns = s.loops(stored)
    vectors, lane = s.split(columns, [LANES], "shift")
    s.reorder(vectors, rows, lane)
    s.compute_at("y", vectors)
    *_, i, j, k = s.loops("y")
    s.reorder(k, i, j)
    for loop in (rows, i, k):
        s.unroll(loop)
    for loop in (lane, j):
        s.vectorize(loop)
    s.bind(vectors, "group.0")
    return s.program


@pytest.mark.parametrize("columns", [1, 5, LANES, 40])
def test_copies_for_few_elements_do_not_write_each_lane_out(columns: int) -> None:
    dag = product(dim_of(Size("columns", 1, 64)))
    with assuming({"columns": 40}) as assumed:
        program = tiled(dag)
        text, made = lower(program, CPU).text, finished(program)
    assert assumed.conditions == ()
    assert text.count("fma(") >= STEPS * ROWS, "the usual vectors are written out"
    assert text.count("if (") <= 2 * MOST_OF_LANES < STEPS * ROWS * LANES, text
    fixed = at_sizes(dag, {"columns": columns})
    inputs = inputs_for(fixed)
    found = run_program(program_at(made, {"columns": columns}), inputs)
    assert_close(found, reference(fixed, inputs), str(made))
