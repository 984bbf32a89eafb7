"""Tables of tile sizes hold every useful option once."""

from itertools import product
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retune.schedule.decisions import any_tiles, perfect_tiles
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
