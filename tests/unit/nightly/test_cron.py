"""Cron expressions: which are right, and when they fire."""

from datetime import time

import pytest

from retune.core.errors import InputError
from retune.nightly.window import daily, firing_times


@pytest.mark.parametrize(
    ("expression", "times"),
    [
        ("0 22 * * *", [time(22)]),
        ("30 1,3 * * mon-fri", [time(1, 30), time(3, 30)]),
        ("*/30 0-1 1 JAN 7", [time(0), time(0, 30), time(1), time(1, 30)]),
        ("50/5 4 * * *", [time(4, 50), time(4, 55)]),
        (daily(time(5, 7)), [time(5, 7)]),
    ],
)
def test_it_fires_at_these_times_of_day(expression: str, times: list[time]):
    assert firing_times(expression) == times


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("@daily", "expected five fields .* got 1 in '@daily'"),
        ("0 22 * * * *", "expected five fields .* got 6"),
        ("60 * * * *", "as minute values from 0 to 59 .* got '60'"),
        ("0 24 * * *", "as hour values from 0 to 23"),
        ("0 1 0 * *", "as day of the month values from 1 to 31"),
        ("0 1 * foo *", "as month values from 1 to 12 .* got 'foo'"),
        ("0 1 * * 8", "as day of the week values from 0 to 7"),
        ("5-2 * * * *", "as minute values"),
        ("*/0 * * * *", "as minute values"),
        ("1,,2 * * * *", "as minute values"),
        ("0 22 L * *", "as day of the month values"),
        ("0 22 * * 5L", "as day of the week values .* got '5L'"),
        ("0 22 * * MON#2", "as day of the week values"),
        ("0 22 30 2 *", "a day that one of the months has"),
    ],
)
def test_what_is_no_cron_expression_says_which_field(expression: str, words: str):
    with pytest.raises(InputError, match=words):
        firing_times(expression)
