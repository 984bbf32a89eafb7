"""Guards at the end of open extents: what stays in registers is calculated for whole tiles."""

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.passes.tails import whole_register_tiles
from retune.codegen.target import CPU
from retune.core.dims import Size, assuming, dim_of
from retune.core.target import GENERIC_CPU
from retune.ir.expr import conjuncts, size_variables, variables
from retune.ir.interp import run_program
from retune.ir.stmt import Program, blocks, from_dag, paths
from retune.ir.te import Dag, at_sizes
from retune.schedule.schedule import Schedule
from retune.schedule.space import Space
from retune.targets.cpu.winograd import cpu_winograd_families
from tests.support.dags import conv2d
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.sizes import program_at, tokens

ROWS = dim_of(Size("rows", 1, 40))


def guard_of(program: Program, name: str) -> list[str]:
    """The parts of a block's guard."""
    (block,) = (b for b in blocks(program.body) if b.name == name)
    return [str(term) for term in conjuncts(block.guard)]


def staged(dag: Dag, tail: str = "guard") -> Program:
    """A dense layer whose products are kept for some rows, made by register tiles of four."""
    s = Schedule(from_dag(dag, "net"))
    stored = s.cache_write("y")
    *_, rows, _ = s.loops("z")
    group, _ = s.split(rows, [12], tail)
    s.compute_at(stored, group, "private")
    *_, inner, columns = s.loops(stored)
    tiles, near = s.split(inner, [4])
    s.reorder(tiles, columns, near)
    s.compute_at("y", columns)
    *axes, step = s.loops("y")[-3:]
    s.reorder(step, *axes)
    s.unroll(near)
    s.unroll("y.t")
    return s.program


def test_guards_of_register_tiles_are_of_the_tile() -> None:
    with assuming({"rows": 20}):
        program = staged(tokens(1, ROWS, 5, 3))
        whole = whole_register_tiles(program)
    assert "y.out.t.0*4 + y.out.t.1 + z.t.0*12 < rows" in guard_of(program, "y.out")
    assert "y.out.t.0*4 + z.t.0*12 < rows" in guard_of(whole, "y.out")
    assert not any("y.out.t.1 " in f"{term} " for term in guard_of(whole, "y.out")[-1:])
    assert guard_of(whole, "z") == guard_of(program, "z") != []
    assert guard_of(whole, "y") == guard_of(program, "y"), "it reads rows of an input, which ends"


@pytest.mark.parametrize("tail", ["guard", "shift"])
def test_whole_tiles_are_right(tail: str) -> None:
    dag = tokens(1, ROWS, 5, 3)
    with assuming({"rows": 20}):
        program = whole_register_tiles(staged(dag, tail))
    for rows in (1, 4, 11, 12, 13, 29, 40):
        fixed = at_sizes(dag, {"rows": rows})
        inputs = inputs_for(fixed)
        found = run_program(program_at(program, {"rows": rows}), inputs)
        assert_close(found, reference(fixed, inputs), f"{rows}\n{program}")


def test_fixed_extents_stay_as_they_are() -> None:
    program = staged(tokens(1, 21, 5, 3))
    assert any(b.guard is not None for b in blocks(program.body))
    assert whole_register_tiles(program) is program


def test_products_of_an_open_map_have_one_guard_for_a_tile() -> None:
    """In Winograd's form no guard is of a single one of the products in registers."""
    side = dim_of(Size("side", 8, 64))
    with assuming({"side": 32}):
        program = from_dag(conv2d(1, side, side, 16, 16, 3))
        sketch = Space(cpu_winograd_families(program, GENERIC_CPU)).sketches[0]
        row = sketch.sample(1, np.random.default_rng(0))[0]
        text = lower(sketch.instantiate(row), CPU).text
        before = sketch.instantiate(row)
    (block, path), *_ = (
        pair for pair in paths(whole_register_tiles(before).body) if pair[0].name == "conv.product"
    )
    written_out = {loop.var for loop in path if loop.kind in ("unroll", "vectorize")}
    sized = [term for term in conjuncts(block.guard) if size_variables(term)]
    assert sized and not any(variables(term) & written_out for term in sized)
    assert "else" not in text, "a register tile has one form"
