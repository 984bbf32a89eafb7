"""Scattered lanes that are runs of memory: which vectors are read, and how they are shuffled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.addresses import Address
from retune.codegen.kernel import Name, Value
from retune.codegen.opencl.renderer import OPENCL
from retune.codegen.passes.gathers import Lane, shuffled, vectors_of
from retune.codegen.printing import Printer
from retune.core.dtypes import FLOAT16, FLOAT32, INT16, INT32, UINT8
from retune.ir.expr import Buffer, const
from tests.support.properties import quick

X, Y = (Buffer(name, (const(256),)) for name in "xy")
PLACES = st.builds(
    lambda buffer, base, offset: Address(buffer, base, offset, 1),
    st.sampled_from([X, Y]),
    st.sampled_from([None, Name("at", INT32)]),
    st.integers(0, 40),
)


def text(value: Value | None) -> str:
    assert value is not None
    return Printer(OPENCL).text(value)


@quick(200)
@given(st.lists(PLACES, max_size=60))
def test_vectors_hold_what_was_asked_for_and_nothing_else(scattered: list[Address]):
    asked = {(p.buffer, p.base, p.offset) for p in scattered}
    found = vectors_of(scattered)
    for place, (vector, lane) in found.items():
        assert vector.lanes >= 4
        assert (vector.buffer, vector.base) == (place.buffer, place.base)
        assert vector.offset + lane == place.offset
        for i in range(vector.lanes):
            assert (vector.buffer, vector.base, vector.offset + i) in asked
    for place in set(scattered) - set(found):
        around = range(place.offset - 3, place.offset + 1)
        for start in around:
            run = [(place.buffer, place.base, start + i) for i in range(4)]
            assert not asked.issuperset(run), "a run of four was not read by a vector"


def test_short_sources_are_joined_and_shuffled_once():
    lanes = [Lane(Name(name, FLOAT32, 4), i) for i in range(4) for name in "abcd"]
    assert text(shuffled(lanes, FLOAT32)) == "((float16)(a, b, c, d)).s048c159d26ae37bf"


def test_one_source_is_only_shuffled():
    assert text(shuffled([Lane(Name("a", INT32, 4), i) for i in (3, 2, 1, 0)], INT32)) == "a.s3210"


@pytest.mark.parametrize(
    ("dtype", "mask"), [(FLOAT32, INT16), (UINT8, "char16"), (FLOAT16, "short16")]
)
def test_wide_sources_are_shuffled_and_chosen_from(dtype: str, mask: str):
    lanes = [Lane(Name("ab"[i % 2], dtype, 16), i // 2) for i in range(16)]
    bits = ", ".join(["0", "-1"] * 8)
    expected = f"(({mask})({bits}) ? b.s0021426384a5c6e7 : a.s01132537495b6d7f)"
    assert text(shuffled(lanes, dtype)) == expected


@pytest.mark.parametrize("widths", [(4, 8), (4, 4, 4)])
def test_other_sources_are_taken_lane_by_lane(widths: tuple[int, ...]):
    lanes = [
        Lane(Name(f"v{n}", FLOAT32, width), i) for n, width in enumerate(widths) for i in range(4)
    ]
    assert shuffled(lanes, FLOAT32) is None
