"""Tables of tile sizes hold every useful option once."""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retune.core.dims import Dim, Size, assuming, condition_of, dim_of
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder
from retune.schedule.decisions import any_tiles, perfect_tiles
from retune.schedule.schedule import Schedule
from tests.support.properties import quick

EXTENTS = st.integers(1, 60)
PARTS = st.integers(1, 3)
INNERMOST = st.sampled_from([1, 4, 16])


@quick(60)
@given(extent=EXTENTS, parts=PARTS, innermost=INNERMOST)
def test_perfect_tiles_are_all_factor_lists(extent: int, parts: int, innermost: int):
    table = perfect_tiles(extent, parts, innermost)
    divisors = [d for d in range(1, extent + 1) if extent % d == 0]
    expected = {
        row
        for row in product(divisors, repeat=parts)
        if extent % prod(row) == 0 and row[-1] <= innermost
    }
    assert {tuple(row) for row in table.tolist()} == expected
    assert len(table) == len(expected)


@quick(60)
@given(extent=EXTENTS, parts=PARTS, innermost=INNERMOST)
def test_any_tiles_fit_and_are_distinct(extent: int, parts: int, innermost: int):
    table = any_tiles(extent, parts, innermost)
    assert (table >= 1).all() and (table.prod(axis=1) <= extent).all()
    assert (table[:, -1] <= innermost).all()
    assert len(np.unique(table, axis=0)) == len(table)


@quick(40)
@given(extent=EXTENTS, innermost=INNERMOST)
def test_any_tiles_reach_every_number_of_tiles(extent: int, innermost: int):
    """For a given innermost tile, each attainable count of outer tiles occurs exactly once."""
    table = any_tiles(extent, 2, innermost)
    for size in range(1, min(extent, innermost) + 1):
        tiles = -(-extent // size)
        counts = [-(-tiles // outer) for outer, inner in table.tolist() if inner == size]
        attainable = {-(-tiles // f) for f in range(1, tiles + 1) if size * f <= extent}
        assert sorted(counts) == sorted(attainable)


def test_tiles_of_an_open_extent_are_those_of_the_greatest_sizes_too() -> None:
    """A program is traced at one size, and its tiles are to suit all that it serves."""
    size = Size("n", 1, 256)
    rows = dim_of(size)
    beyond = rows - 65
    assert isinstance(rows, Dim) and isinstance(beyond, Dim)
    with assuming({"n": 16}, [condition_of("lt", beyond, holds=True)]):
        x = placeholder("x", (rows,))
        s = Schedule(from_dag(Dag((compute("y", (rows,), lambda i: x[i] + 1.0, [x]),))))
        s.sample_tile("y.i", 3, 8)
    table = {tuple(row) for row in s.decisions[0].table.tolist()}
    assert table == {tuple(r) for n in (16, 64) for r in any_tiles(n, 2, 8).tolist()}
    assert len(table) == len(s.decisions[0].table)
