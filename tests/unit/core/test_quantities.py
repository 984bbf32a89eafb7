"""Amounts as people read them."""

import pytest

from retune.core.quantities import counted, flop_text, numbered, time_text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.0, "0 µs"),
        (0.123456, "0.123 µs"),
        (4.31, "4.31 µs"),
        (999.6, "1 ms"),
        (1234.0, "1.23 ms"),
        (999_499.0, "999 ms"),
        (2.5e6, "2.5 s"),
        (12_345e6, "12300 s"),
    ],
)
def test_a_time_has_three_digits_and_the_largest_unit_that_fits(us: float, text: str):
    assert time_text(us) == text


@pytest.mark.parametrize(
    ("flop", "text"), [(0, "0 FLOP"), (203_000, "203 kFLOP"), (3.6e9, "3.6 GFLOP")]
)
def test_operations_of_a_small_network_are_not_rounded_to_none(flop: float, text: str):
    assert flop_text(flop) == text


def test_one_thing_is_no_plural():
    assert [counted(n, "task") for n in (0, 1, 1200)] == ["0 tasks", "1 task", "1,200 tasks"]


def test_equal_names_have_their_place_among_them():
    names = ["softmax", "dense", "softmax"]
    assert numbered(names) == ["softmax (1 of 2)", "dense", "softmax (2 of 2)"]
    assert numbered([]) == []
