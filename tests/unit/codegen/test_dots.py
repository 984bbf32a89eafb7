"""Dot products of bytes: which loops become instructions, and their text."""

import pytest

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, placeholder
from retune.schedule.schedule import Schedule
from tests.dags import byte_product, dense, product_of_bytes
from tests.oracle import assert_same_meaning


def tiled(dag: Dag, lanes: int, *, pack: bool = True) -> Schedule:
    """A tile of three rows by one vector of columns, with dot products inside."""
    s = Schedule(from_dag(dag, "net"))
    out = s.cache_write("y")
    i, j = s.loops(out)
    outer, rows = s.split(i, [3])
    columns, lane = s.split(j, [lanes])
    s.reorder(outer, columns, rows, lane)
    s.compute_at("y", columns)
    s.bind(outer, "group.0")
    far, near = s.split("y.k", [4])
    s.reorder(far, "y.i", "y.j", near)
    s.tensorize(near, "dot4")
    for loop in ("y.j", lane):
        s.vectorize(loop)
    for loop in ("y.i", rows):
        s.unroll(loop)
    if pack:
        s.pack("w")
    return s


def test_lanes_of_dot_products(golden):
    s = tiled(byte_product(6, 32, 48), 16)
    assert f"{s.program}\n\n{lower(s.program).text}" == golden


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("first", ["int8", "uint8"])
def test_dot_products_keep_the_meaning(lanes: int, first: str):
    dag = byte_product(6, 12, 16, first=first)
    s = tiled(dag, lanes)
    assert_same_meaning(dag, s.program)
    kind = "us" if first == "uint8" else "ss"
    assert f" = dot4_{kind}_{lanes}(" in lower(s.program).text


def test_lanes_that_do_not_lie_side_by_side_are_written_out():
    dag = byte_product(6, 12, 16)
    s = tiled(dag, 4, pack=False)
    assert_same_meaning(dag, s.program)
    assert "dot4" in str(s.program)


def test_a_later_step_between_the_four_writes_them_out():
    dag = byte_product(4, 8, 4)
    s = Schedule(from_dag(dag, "net"))
    near = s.split("y.k", [4])[1]
    s.tensorize(near, "dot4")
    s.reorder(near, "y.j")
    assert_same_meaning(dag, s.program)
    assert "dot4" not in lower(s.program).text


def test_the_unsigned_operand_is_the_first_whichever_side_it_stands_on():
    x, w = placeholder("x", (3, 8), "int8"), placeholder("w", (5, 8), "uint8")
    dag = product_of_bytes(x, w)
    s = Schedule(from_dag(dag, "net"))
    s.tensorize(s.split("y.k", [4])[1], "dot4")
    assert_same_meaning(dag, s.program)
    text = lower(s.program).text
    assert "dot4_us_1(w[" in text and ", x[" in text


@pytest.mark.parametrize(
    ("dag", "factor", "intrinsic", "message"),
    [
        (byte_product(4, 8, 4), 4, "mma", r"expected dot4, got 'mma'"),
        (byte_product(4, 8, 4), 2, "dot4", r"a reduce loop of 4 steps around one block, got 2"),
        (dense(4, 8, 4, epilogue=False), 4, "dot4", r"int32 sums of products of two bytes"),
        (byte_product(4, 10, 4), 4, "dot4", r"int32 sums of products of two bytes"),
    ],
)
def test_what_is_no_dot_product_is_refused(dag: Dag, factor: int, intrinsic: str, message: str):
    s = Schedule(from_dag(dag, "net"))
    near = s.split("y.k", [factor], "guard")[1]
    with pytest.raises(ScheduleError, match=message):
        s.tensorize(near, intrinsic)


def test_rows_that_start_inside_a_word_are_refused():
    x, w = placeholder("x", (4, 6), "uint8"), placeholder("w", (5, 4), "int8", constant=True)
    s = Schedule(from_dag(product_of_bytes(x, w), "net"))
    with pytest.raises(ScheduleError, match=r"four bytes of x\[y.i, y.k\] must lie side by side"):
        s.tensorize("y.k", "dot4")
