"""A window follows the clock on the wall: over midnight, and where that clock is changed."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.errors import InputError
from retune.nightly.window import (
    TimeWindow,
    is_open,
    minutes_left,
    next_opening,
    night_of,
    opening_of,
    parse_window,
)
from tests.support.properties import quick

BERLIN = "Europe/Berlin"
NIGHT = TimeWindow(start=time(22), end=time(6), timezone=BERLIN)
NOON = TimeWindow(start=time(11), end=time(13, 30), timezone=BERLIN)


def at(text: str, zone: str = BERLIN, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)


def test_a_window_within_a_day():
    assert not is_open(NOON, at("2026-03-01 10:59:59"))
    assert is_open(NOON, at("2026-03-01 11:00"))
    assert is_open(NOON, at("2026-03-01 13:29:59"))
    assert not is_open(NOON, at("2026-03-01 13:30"))


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opened():
    assert night_of(NIGHT, at("2026-03-01 22:00")) == date(2026, 3, 1)
    assert night_of(NIGHT, at("2026-03-02 05:59")) == date(2026, 3, 1)
    assert night_of(NIGHT, at("2026-03-02 06:00")) == date(2026, 3, 2)  # the next one
    assert minutes_left(NIGHT, at("2026-03-02 05:00")) == 60
    assert minutes_left(NIGHT, at("2026-03-02 06:00")) == 0


def test_the_moment_may_be_of_any_time_zone():
    assert is_open(NIGHT, at("2026-03-01 21:30", "UTC"))
    assert not is_open(NIGHT, at("2026-03-01 22:30", "Asia/Tokyo"))


def test_it_opens_next_at_its_start_and_now_if_it_is_open():
    assert next_opening(NIGHT, at("2026-03-02 06:00")) == at("2026-03-02 22:00")
    open_now = at("2026-03-02 05:00")
    assert next_opening(NIGHT, open_now) == open_now


def test_without_a_window_it_is_always_open():
    now = at("2026-03-01 00:30")
    assert is_open(None, now) and next_opening(None, now) == now
    assert minutes_left(None, now) == float("inf")
    assert night_of(None, now) == date(2026, 2, 28)  # in UTC


@pytest.mark.parametrize(
    ("day", "hours"),
    [("2026-03-28", 7), ("2026-03-29", 8), ("2026-10-24", 9), ("2026-10-25", 8)],
)
def test_a_night_in_which_the_clock_is_changed_is_shorter_or_longer(day: str, hours: int):
    assert minutes_left(NIGHT, at(f"{day} 22:00")) == hours * 60


def test_a_start_that_the_clock_skips_is_the_moment_of_the_change():
    window = TimeWindow(start=time(2, 30), end=time(4), timezone=BERLIN)
    opening = opening_of(window, at("2026-03-29 03:00"))
    assert opening is not None
    assert opening.start == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert not is_open(window, at("2026-03-29 01:59:59"))


def test_an_end_that_the_clock_skips_is_the_moment_of_the_change():
    window = TimeWindow(start=time(1), end=time(2, 30), timezone=BERLIN)
    assert minutes_left(window, at("2026-03-29 01:00")) == 60


def test_a_window_that_the_clock_skips_whole_does_not_open_that_day():
    window = TimeWindow(start=time(2, 10), end=time(2, 50), timezone=BERLIN)
    assert next_opening(window, at("2026-03-29 01:00")) == at("2026-03-30 02:10")


def test_an_hour_that_comes_twice_opens_and_closes_once():
    window = TimeWindow(start=time(2, 15), end=time(2, 45), timezone=BERLIN)
    assert is_open(window, at("2026-10-25 02:20", fold=0))
    assert not is_open(window, at("2026-10-25 02:20", fold=1))
    late = TimeWindow(start=time(2, 30), end=time(3, 30), timezone=BERLIN)
    assert is_open(late, at("2026-10-25 02:10", fold=1))
    assert minutes_left(late, at("2026-10-25 02:30", fold=0)) == 2 * 60


@pytest.mark.parametrize(
    ("start", "end", "minutes"), [("22:00", "06:00", 480), ("11:00", "13:30", 150)]
)
def test_its_length_by_the_clock(start: str, end: str, minutes: int):
    assert parse_window(start, end, "UTC").minutes == minutes


@pytest.mark.parametrize("value", ["24:00", "22:00:30", "ten", "22:00+01:00", ""])
def test_a_time_that_is_none_is_an_error(value: str):
    with pytest.raises(InputError, match="start: expected a time of the clock"):
        parse_window(value, "06:00", "UTC")


@pytest.mark.parametrize("zone", ["Europe", "../etc/passwd", "", "Mars/Base"])
def test_a_time_zone_that_is_none_is_an_error(zone: str):
    with pytest.raises(InputError, match="timezone: expected a name of the time zone database"):
        parse_window("22:00", "06:00", zone)


ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
YEAR = datetime(2026, 1, 1, tzinfo=UTC)
CHANGES = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 4, 4, 15, tzinfo=UTC),
    datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
]
"""Moments at which the clock of one of these zones is changed."""

clocks = st.integers(0, 24 * 4 - 1).map(lambda q: time(q // 4, 15 * (q % 4)))
windows = (
    st.tuples(clocks, clocks, st.sampled_from(ZONES))
    .filter(lambda drawn: drawn[0] != drawn[1])
    .map(lambda drawn: TimeWindow(start=drawn[0], end=drawn[1], timezone=drawn[2]))
)
moments = st.one_of(
    st.integers(0, 365 * 24 * 60).map(lambda minute: YEAR + timedelta(minutes=minute)),
    st.tuples(st.sampled_from(CHANGES), st.integers(-36 * 60, 36 * 60)).map(
        lambda drawn: drawn[0] + timedelta(minutes=drawn[1])
    ),
)


def walked(window: TimeWindow, now: datetime) -> list[tuple[datetime, datetime]]:
    """Openings and closings found by watching the clock, quarter by quarter."""
    day = now.astimezone(window.zone).date()
    found: list[tuple[datetime, datetime]] = []
    for days in range(-2, 4):
        first = datetime.combine(day + timedelta(days=days), window.start)
        last = datetime.combine(first.date() + timedelta(window.start > window.end), window.end)
        start = _watch(first, window.zone)
        end = _watch(last, window.zone)
        if start < end:
            found.append((start, end))
    return found


def _watch(clock: datetime, zone: ZoneInfo) -> datetime:
    """The first quarter of an hour at which the clock shows that or more."""
    moment = (clock - timedelta(hours=16)).replace(tzinfo=UTC)
    while moment.astimezone(zone).replace(tzinfo=None) < clock:
        moment += timedelta(minutes=15)
    return moment


@quick(60)
@given(windows, moments)
def test_it_is_open_as_the_clock_on_the_wall_says(window: TimeWindow, now: datetime):
    nights = walked(window, now)
    on = [(start, end) for start, end in nights if start <= now < end]
    assert is_open(window, now) == bool(on)
    assert minutes_left(window, now) == ((on[0][1] - now).total_seconds() / 60 if on else 0.0)
    coming = min(start for start, _ in nights if start >= now)
    assert next_opening(window, now) == (now if on else coming)


@quick(100)
@given(windows, moments)
def test_openings_hang_together(window: TimeWindow, now: datetime):
    opens = next_opening(window, now)
    assert opens >= now and is_open(window, opens)
    assert is_open(window, now) == (opens == now) == (minutes_left(window, now) > 0)
    closes = opens + timedelta(minutes=minutes_left(window, opens))
    assert not is_open(window, closes) or opening_of(window, closes) != opening_of(window, opens)
    assert is_open(window, closes - timedelta(seconds=1))
    assert {night_of(window, opens), night_of(window, closes - timedelta(seconds=1))} == {
        night_of(window, now)
    }
    assert timedelta() < closes - opens <= timedelta(hours=26)


@quick(100)
@given(windows, moments)
def test_nights_have_names_of_their_own(window: TimeWindow, now: datetime):
    opens = next_opening(window, now)
    closes = opens + timedelta(minutes=minutes_left(window, opens))
    assert night_of(window, next_opening(window, closes)) > night_of(window, now)


@quick(100)
@given(windows, clocks)
def test_what_the_clock_shows_decides_where_it_is_not_changed(window: TimeWindow, clock: time):
    utc = TimeWindow(start=window.start, end=window.end, timezone="UTC")
    now = datetime.combine(date(2026, 6, 1), clock, UTC)
    assert is_open(utc, now) == window.shows(clock)
