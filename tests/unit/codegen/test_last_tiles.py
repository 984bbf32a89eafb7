"""Short tiles at the end of open extents."""

import numpy as np
import pytest

from retune.codegen.lower import finished
from retune.core.dims import Size, assuming, dim_of
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import Program, from_dag, loops
from retune.targets.cpu.space import cpu_space
from tests.support.dags import dense
from tests.support.items import run_items
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.sizes import program_at


def _lowered(size: str, tile: int) -> Program:
    """A product of so many rows, in tiles of these, two to a work-group."""
    with assuming({size: 40}):
        program = from_dag(dense(dim_of(Size(size, 1, 40)), 2, 16), "net")
        sketch = cpu_space(program, GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")
        sizes = {"tile.z.i": (2, tile), "tile.z.j": (1, 1), "unroll.y": (1,)}
        return finished(sketch.instantiate(sketch.row(sizes)))


@pytest.mark.parametrize("size", ["n", "few"])
def test_rows_that_are_left_over_take_a_part_of_a_tile(size: str) -> None:
    """Whatever the size is called."""
    program = _lowered(size, 9)
    assert {"copy.short3", "copy.short6"} <= {n.var.name for n in loops(program.body)}
    for rows in (1, 3, 4, 8, 9, 10, 15, 16, 30):
        dag = dense(rows, 2, 16)
        inputs = inputs_for(dag, 0)
        found = run_items(program_at(program, {size: rows}), inputs)
        assert_close(found, reference(dag, inputs), f"{rows} rows")


def test_fixed_extents_have_no_copies() -> None:
    open_, fixed = _lowered("n", 7), from_dag(dense(40, 2, 16), "net")
    sketch = cpu_space(fixed, GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")
    row = sketch.sample(1, np.random.default_rng(0))[0]
    assert [n for n in loops(open_.body) if n.var.name.startswith("copy.")]
    whole = finished(sketch.instantiate(row))
    assert not [n for n in loops(whole.body) if n.var.name.startswith("copy.")]
