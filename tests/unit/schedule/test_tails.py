"""Tails of open extents: register tiles overlap, those past the end are skipped, all are right."""

import numpy as np
import pytest

from retune.core.dims import Size, SizeValues, assuming, dim_of
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr, as_expr, conjuncts, const, variables
from retune.ir.interp import run_program
from retune.ir.simplify import follows
from retune.ir.stmt import Program, blocks, from_dag, loops
from retune.ir.te import Dag, at_sizes
from retune.schedule.schedule import Schedule
from retune.schedule.space import sketch_of
from retune.targets.cost.nests import kernels
from tests.support.dags import dense
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.sizes import program_at, tokens
from tests.support.tests_fixtures import Golden

ROWS = dim_of(Size("rows", 1, 40))
LONG = dim_of(Size("rows", 4, 40))


def tiled(s: Schedule, tail: str, block: int = 3, tile: int = 4, units: int = 1) -> None:
    """A dense layer and its epilogue in register tiles of rows, some of them a block."""
    *_, rows, columns = s.loops("z")
    far, some, near = s.split(rows, [block, tile], tail, units)
    s.reorder(far, some, columns, near)
    s.compute_at("y", columns)
    *axes, step = s.loops("y")[-3:]
    s.reorder(step, *axes)
    s.unroll(near)


def of(rows: int, tail: str, **sizes: int) -> tuple[Dag, Program]:
    """The layer over so many rows, tiled."""
    dag = tokens(1, rows, 5, 3)
    s = Schedule(from_dag(dag, "net"))
    tiled(s, tail, **sizes)
    return dag, s.program


def assert_right(dag: Dag, program: Program, values: SizeValues) -> None:
    """The program is right at these sizes."""
    fixed = at_sizes(dag, values)
    inputs = inputs_for(fixed)
    found = run_program(program_at(program, values), inputs)
    assert_close(found, reference(fixed, inputs), f"{values}\n{program}")


def test_register_tiles_that_overlap(golden: Golden) -> None:
    with assuming({"rows": 20}) as assumed:
        _, program = of(LONG, "clamp")
        assert str(program) == golden
    assert assumed.conditions == ()


@pytest.mark.parametrize(
    ("tail", "units"), [("clamp", 1), ("clamp", 2), ("clamp", 4), ("shift", 1), ("guard", 1)]
)
@pytest.mark.parametrize(("block", "tile"), [(3, 4), (1, 4), (5, 2), (2, 8)])
def test_open_extents_are_covered(tail: str, units: int, block: int, tile: int) -> None:
    """Whether they fill a tile, end inside one, or are shorter."""
    with assuming({"rows": 20}):
        dag, program = of(ROWS, tail, block=block, tile=tile, units=units)
    for rows in (1, 3, 4, 5, 12, 13, 24, 31, 40):
        assert_right(dag, program, {"rows": rows})


@pytest.mark.parametrize(
    ("rows", "units", "groups", "tiles"),
    [
        *((4, 1, 1, 1), (12, 1, 1, 3), (13, 1, 2, 2), (16, 1, 2, 2), (36, 1, 3, 3), (40, 1, 4, 3)),
        *((4, 2, 2, 1), (12, 2, 2, 2), (28, 2, 4, 2), (36, 2, 4, 3), (40, 4, 4, 3)),
    ],
)
def test_work_groups_have_equally_many_tiles(
    rows: int, units: int, groups: int, tiles: int
) -> None:
    """Of at most three: four are two and two, not three and one."""
    with assuming({"rows": 20}):
        _, program = of(LONG, "clamp", units=units)
    extents = {n.var.name: n.extent for n in loops(program_at(program, {"rows": rows}).body)}
    assert [extents["z.t.0"], extents["z.t.1"]] == [const(groups), const(tiles)]


def test_of_a_fixed_extent_it_is_the_tail_that_is_moved_back() -> None:
    programs = [of(23, tail)[1] for tail in ("clamp", "shift")]
    assert str(programs[0]) == str(programs[1])


def test_what_skipped_tiles_read_is_not_made() -> None:
    with assuming({"rows": 20}):
        _, program = of(LONG, "clamp")
    made, read = (b for b in blocks(program.body) if b.name in ("y", "z"))
    (skipped,) = (t for t in conjuncts(read.guard) if "z.t.2" not in map(str, variables(t)))
    assert {"z.t.0", "z.t.1"} <= set(map(str, variables(skipped)))
    assert skipped in conjuncts(made.guard)


@pytest.mark.parametrize("rows", [1, 4, 5, 12, 13, 40])
def test_estimates_count_the_tiles_that_run(rows: int) -> None:
    dag = tokens(1, ROWS, 5, 3)
    with assuming({"rows": rows}):
        sketch = sketch_of(from_dag(dag), lambda s: tiled(s, "clamp"))
        (kernel,) = kernels(sketch, np.zeros((1, 0), np.int64))
        work = {nest.accesses.block.name: nest.work[0] for nest in kernel}
    assert work["z"] == -(-rows // 4) * 4 * 3
    assert work["y"] == work["z"] * 5


N, PLACE = as_expr(dim_of(Size("n", 1, 9))), as_expr(dim_of(Size("i", 0, 9)))


@pytest.mark.parametrize(
    ("term", "known", "does"),
    [
        (PLACE * 4 < N * 4, PLACE < N, True),
        (PLACE * 4 + 3 < N * 4, PLACE < N, True),
        (PLACE * 4 + 4 < N * 4, PLACE < N, False),
        (PLACE * 4 + 4 < N * 4 + 1, PLACE < N, True),
        (PLACE * 4 < N * 3, PLACE < N, False),
        (N < PLACE, PLACE < N, False),
        (PLACE < N, PLACE + 2 < N, True),
        (PLACE + 3 < N, PLACE + 2 < N, False),
        (PLACE <= N, PLACE < N, False),
    ],
)
def test_what_follows_from_a_guard(term: Expr, known: Expr, does: bool) -> None:
    assert follows(term, known) == does
    for i in range(10):
        for n in range(1, 10):
            at = {"i": i, "n": n}
            if does and evaluate_int_at(known, at):
                assert evaluate_int_at(term, at)


def evaluate_int_at(expr: Expr, values: SizeValues) -> bool:
    """Whether it holds for these sizes."""
    given = {v: values[v.name] for v in variables(expr)}
    return bool(evaluate_int(expr, given))


def test_dense_layers_may_be_tiled_twice() -> None:
    """A tail inside a tail: the second split is of a tile, whose extent is fixed."""
    with assuming({"rows": 20}):
        dag = dense(ROWS, 4, 6)
        s = Schedule(from_dag(dag, "net"))
        rows = s.loops("z")[0]
        _, _, near = s.split(rows, [2, 6], "clamp")
        s.split(near, [2, 2], "clamp")
    for count in (1, 5, 6, 13, 40):
        assert_right(dag, s.program, {"rows": count})
