"""Tiles on matrix registers: which loops become operations on them, and their text."""

import re
from dataclasses import replace

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT7, INT8, UINT8
from retune.core.errors import CodegenError, ScheduleError
from retune.ir.stmt import from_dag
from retune.schedule.schedule import Schedule
from tests.support.dags import byte_product
from tests.support.oracle import assert_same_meaning
from tests.support.tiles import tiled

AMX = replace(CPU, offers=("tile8.amx",))


def test_a_block_of_tiles(golden):
    s = tiled(byte_product(64, 128, 64), 2, 2)
    assert f"{s.program}\n\n{lower(s.program, AMX).text}" == golden


@pytest.mark.parametrize(
    ("rows", "columns", "words", "high"),
    [(2, 2, 16, 16), (1, 4, 16, 16), (3, 1, 8, 16), (2, 1, 16, 7), (1, 1, 2, 2)],
)
@pytest.mark.parametrize(("first", "second"), [(UINT8, INT8), (INT8, INT7)])
def test_tiles_keep_the_meaning(
    rows: int, columns: int, words: int, high: int, first: str, second: str
):
    dag = byte_product(2 * rows * high, 64, 64 * columns, first=first, second=second)
    s = tiled(dag, rows, columns, words=words, high=high)
    assert_same_meaning(dag, s.program)
    text = lower(s.program, AMX).text
    assert ("tdpbusd" if first == UINT8 else "tdpbssd") in text
    assert text.count("_DOT(") == 1 + rows * columns
    assert text.count("_LOAD(") == 1 + rows + columns, "neighbours share what they read"


def test_a_sum_of_one_step_is_set_and_stored_too():
    dag = byte_product(16, 64, 16)
    s = tiled(dag, 1, 1)
    assert_same_meaning(dag, s.program)
    text = lower(s.program, AMX).text
    steps = re.findall(r"  TILE8_US_1_(ZERO|DOT|STORE|RELEASE)\(", text)
    assert steps == ["ZERO", "DOT", "STORE", "RELEASE"]


def test_a_device_without_them_gets_loops():
    text = lower(tiled(byte_product(32, 64, 32), 1, 1).program, CPU).text
    assert "// tile8.plain" in text
    assert "__asm__" not in text


def test_more_tiles_than_registers_are_refused():
    with pytest.raises(CodegenError, match="more than 8 matrix registers"):
        lower(tiled(byte_product(48, 64, 48), 3, 3).program, AMX)


def test_rows_apart_by_no_one_distance_are_refused():
    with pytest.raises(CodegenError, match=r"no tile8 over y\.i\.1 any more: expected w"):
        lower(tiled(byte_product(32, 64, 32), 1, 1, pack=False).program, AMX)


def test_other_loops_are_refused():
    s = Schedule(from_dag(byte_product(16, 64, 16)))
    with pytest.raises(
        ScheduleError, match=r"up to 16 x up to 16 x 16 x 4 steps.*got 16 x 16 x 64"
    ):
        s.tensorize("y.i", "tile8")
    words = s.split("y.k", [4])
    s.reorder("y.i", "y.j", *words)
    with pytest.raises(ScheduleError, match="expected its loops to reduce where the pattern's do"):
        s.tensorize("y.i", "tile8")
