"""Counts of groups that depend on sizes: calculated once where local memory has room for them."""

from retune.codegen.network.extents import Counts, SizesAt
from retune.core.dims import Size, dim_of

ROWS = dim_of(Size("rows", 1, 64))
OPEN = {"one": ROWS, "twice": ROWS * 2, "again": ROWS}
"""Of three kernels, two of which have as many groups."""
SIZES = SizesAt(offsets={"rows": 0})


def test_counts_are_held_where_they_fit():
    counts = Counts(OPEN, SIZES, local_bytes=8)
    assert counts.hold("me", 32)[0] == "__local int counted[2];"
    assert counts.held("at") == "counted[at]"


def test_counts_are_calculated_at_each_step_where_they_do_not():
    counts = Counts(OPEN, SIZES, local_bytes=7)
    assert counts.hold("me", 32) == []
    assert counts.held("at") == counts.of("at") == "retune_count(at, sizes)"


def test_fixed_counts_are_stated():
    counts = Counts({"one": 3}, None, local_bytes=100)
    assert counts.hold("me", 32) == []
    assert counts.held("at") == "at"
