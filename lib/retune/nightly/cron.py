"""Cron expressions of five fields: whether one is right, and at which times of day it fires."""

import re
from collections.abc import Sequence
from datetime import time

from retune.core.errors import InputError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
"""Name, least and greatest value, and the words for the values from the least one on."""
_ITEM = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)


def daily(clock: time) -> str:
    """The expression that fires every day at that time."""
    return f"{clock.minute} {clock.hour} * * *"


def firing_times(expression: str) -> list[time]:
    """The times of the clock at which it fires, on whatever days. In order.

    Raises: InputError naming the field that is wrong.
    """
    fields = expression.split()
    if len(fields) != len(_FIELDS):
        raise InputError(
            f"cron: expected five fields (minute, hour, day of the month, month, day of the week) "
            f'such as "0 22 * * *", got {len(fields)} in {expression!r}'
        )
    values = [_values(field, *about) for field, about in zip(fields, _FIELDS, strict=True)]
    minutes, hours = values[0], values[1]
    return [time(hour, minute) for hour in hours for minute in minutes]


def _values(text: str, name: str, least: int, most: int, words: Sequence[str]) -> list[int]:
    """The values of a field, ascending."""
    found: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        bounds = match and _bounds(match, least, most, words)
        if bounds is None or not least <= bounds[0] <= bounds[1] <= most or bounds[2] < 1:
            raise InputError(
                f"cron: expected as {name} values from {least} to {most} (5, 1-5, */2, 1,15), "
                f"got {text!r}"
            )
        found.update(range(bounds[0], bounds[1] + 1, bounds[2]))
    return sorted(found)


def _bounds(
    match: re.Match[str], least: int, most: int, words: Sequence[str]
) -> tuple[int, int, int] | None:
    """First value, last value, and step; None if one of them is no value."""
    star, low, high, step = match.groups()
    first = least if star else _value(low, least, words)
    last = most if star or (step and not high) else _value(high or low, least, words)
    if first is None or last is None:
        return None
    return first, last, int(step or 1)


def _value(text: str, least: int, words: Sequence[str]) -> int | None:
    if text.lower() in words:
        return words.index(text.lower()) + least
    return int(text) if text.isdecimal() else None
