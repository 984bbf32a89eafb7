"""Programs whose inputs and outputs lie among others."""

import numpy as np
import pytest

from retune.codegen.names import identifier
from retune.core.dims import Size, assuming, dim_of
from retune.ir.expr import Buffer, Load, Var, const
from retune.ir.interp import run_program
from retune.ir.stmt import Block, For, Program, Seq
from retune.ir.views import stacked

VI = Var("i")
X, Y = Buffer("x", (const(3),)), Buffer("y", (const(3),))
COPY = For(VI, const(3), Block("y", Y, (VI,), Load(X, (VI,))))


@pytest.mark.parametrize(("number", "row"), [(0, 0), (2, 2), (3, 3), (4, 3), (90, 3), (-1, 0)])
def test_one_of_several_values_is_stored_among_them_whatever_its_number(number: int, row: int):
    program = Program(name="p", inputs=(X,), outputs=(Y,), scratch=(), body=Seq((COPY,)))
    given = {"x": np.arange(3, dtype=np.float32), "number": np.asarray(number, np.int32)}
    found = run_program(stacked(program, "y", 4, "number"), given)["y"]
    np.testing.assert_array_equal(found[row], given["x"])
    assert np.isnan(np.delete(found, row, axis=0)).all()


def test_what_lies_among_other_numbers_of_values_has_another_name():
    program = Program(name="p", inputs=(X,), outputs=(Y,), scratch=(), body=Seq((COPY,)))
    n = dim_of(Size("n", 1, 9))
    with assuming({"n": 7}):
        names = {stacked(program, "y", count, "number").name for count in (4, 8, n + 5, n - 5)}
    assert len(set(map(identifier, names))) == 4


@pytest.mark.parametrize(("number", "first"), [(0, 0), (3, 3), (4, 3), (-1, 0)])
def test_some_images_are_read_and_stored_among_all_of_them(number: int, first: int):
    """Two of five, of which each has three rows that are walked as one axis."""
    x, y = (Buffer(name, (const(2 * 3), const(4))) for name in "xy")
    rows, columns = Var("i"), Var("j")
    block = Block("y", y, (rows, columns), Load(x, (rows, columns)) * 2.0)
    loops = For(rows, const(6), For(columns, const(4), block))
    program = Program(name="p", inputs=(x,), outputs=(y,), scratch=(), body=Seq((loops,)))
    whole = stacked(stacked(program, "x", 5, "number", 2), "y", 5, "number", 2)
    assert [b.name for b in whole.inputs] == ["x", "number"]
    data = np.arange(5 * 3 * 4, dtype=np.float32).reshape(15, 4)
    found = run_program(whole, {"x": data, "number": np.asarray(number, np.int32)})["y"]
    own = slice(3 * first, 3 * (first + 2))
    np.testing.assert_array_equal(found[own], 2 * data[own])
    assert np.isnan(np.delete(found, own, axis=0)).all()
