"""Tables of a byte for each byte are read by whole vectors, all others lane by lane."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT8, INT32, UINT8
from tests.support.lookups import by_lanes, looked_up
from tests.support.oracle import assert_items_agree


def test_text(golden: object):
    assert lower(by_lanes(looked_up(), 16).program, CPU).text == golden


@pytest.mark.parametrize("codes", [UINT8, INT8])
@pytest.mark.parametrize("table", [UINT8, INT8])
def test_tables_of_bytes(codes: str, table: str):
    dag = looked_up(codes, table)
    s = by_lanes(dag, 16)
    text = lower(s.program, CPU).text
    assert text.count("static uchar16 lookup_16(") == 1
    assert ("as_char16(lookup_16((__global const uchar*)t, " in text) == (table == INT8)
    assert_items_agree(dag, s.program)


def test_other_tables_are_read_lane_by_lane():
    """Of another type, in fewer lanes, or that a kernel wrote, whose bytes may lie anywhere."""
    others = [(looked_up(table=INT32), 16), (looked_up(), 8), (looked_up(constant=False), 16)]
    for dag, lanes in others:
        s = by_lanes(dag, lanes)
        assert "lookup_16" not in lower(s.program, CPU).text
        assert_items_agree(dag, s.program)
