"""The hours of a night by the clock on the wall, over midnight and over changes of that clock.

Read `opening_of` and `opened`. A window opens at the first moment at which the clock shows its
start or more, and closes at the first after that at which it shows its end or more. So a start that
a clock skips in spring is the moment of the change, and an hour that comes twice in autumn opens
and closes a window once. No window (None) is always open.

`firing_times` are those of a cron expression, by which nights are started.

All moments are aware; what is returned is in UTC, since Python compares and subtracts moments of
one zone by what the clock shows.
"""

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from retune.core.errors import InputError
from retune.core.schema import did_you_mean

_DAY = timedelta(days=1)
_EARLIER = (-2, -1, 0, 1, 2)
"""Days around a moment on which a window may have opened that is open or opens next: a clock may
skip a whole day."""


_CRON_FIELDS = (
    ("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12),
    ("day of the week", 0, 7),
)  # fmt: skip
"""Name, least and greatest value."""
_ANY_MOMENT = datetime(2026, 1, 1)  # noqa: DTZ001 - only the expression is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """From `start` to `end` by the clock of a time zone; to the next day's, if that is earlier."""

    start: time
    end: time
    timezone: str
    """A name of the time zone database, such as Europe/Berlin."""

    @property
    def zone(self) -> ZoneInfo:
        """The time zone."""
        return ZoneInfo(self.timezone)

    @property
    def minutes(self) -> float:
        """Its length where the clock does not change meanwhile."""
        start, end = _minute(self.start), _minute(self.end)
        return end - start if end > start else end - start + 24 * 60

    def shows(self, clock: time) -> bool:
        """True if the window is open when the clock shows that."""
        if self.start < self.end:
            return self.start <= clock < self.end
        return clock >= self.start or clock < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """One night of a window."""

    day: date
    """The date by the clock on which the window was to open."""
    start: datetime
    """UTC, as `end` is."""
    end: datetime


def parse_window(start: object, end: object, timezone: str) -> TimeWindow:
    """The window of two times (`22:00`, or as TOML writes them) and a time zone's name.

    Raises: InputError that says which of them is wrong, and what was expected.
    """
    first, last = _parse_time("start", start), _parse_time("end", end)
    if first == last:
        raise InputError(f"end: expected another time than start, got {end} for both")
    _check_timezone(timezone)
    return TimeWindow(start=first, end=last, timezone=timezone)


def opening_of(window: TimeWindow, now: datetime) -> Opening | None:
    """The night that is on at that moment; None while the window is closed."""
    moment = now.astimezone(UTC)
    return next((o for o in _openings(window, moment) if o.start <= moment < o.end), None)


def is_open(window: TimeWindow | None, now: datetime) -> bool:
    """True if something may be begun."""
    return window is None or opening_of(window, now) is not None


def check_open(window: TimeWindow | None, now: datetime, what: str) -> None:
    """Raises: InputError while it is closed, which says when `what` may begin."""
    if window is None or is_open(window, now):
        return
    opens = next_opening(window, now).astimezone(window.zone)
    hours, minutes = divmod(math.ceil((opens - now).total_seconds() / 60), 60)
    ahead = f"{hours} h {minutes} min" if hours else f"{minutes} min"
    raise InputError(
        f"{what}: expected a time within its window, which opens at {opens:%Y-%m-%d %H:%M} "
        f"{window.timezone}, in {ahead}; start it then, or at once with --now"
    )


def minutes_left(window: TimeWindow | None, now: datetime) -> float:
    """Until it closes; 0 while it is closed. Infinite without a window."""
    if window is None:
        return math.inf
    on = opening_of(window, now)
    return (on.end - now.astimezone(UTC)).total_seconds() / 60 if on else 0.0


def next_opening(window: TimeWindow | None, now: datetime) -> datetime:
    """The first moment, from now on, at which it is open: now, if it is."""
    if window is None or opening_of(window, now) is not None:
        return now.astimezone(UTC)
    return _coming(window, now).start


def night_of(window: TimeWindow | None, now: datetime) -> date:
    """The date that names the night: that on which its window opened, also after midnight.

    While it is closed that of the next opening; without a window the date in UTC.
    """
    if window is None:
        return now.astimezone(UTC).date()
    return (opening_of(window, now) or _coming(window, now)).day


def daily(clock: time) -> str:
    """The cron expression that fires every day at that time."""
    return f"{clock.minute} {clock.hour} * * *"


def firing_times(expression: str) -> list[time]:
    """The times of the clock at which a cron expression fires, on whatever days. In order.

    Raises: InputError naming the field that is wrong.
    """
    fields = expression.split()
    if len(fields) != len(_CRON_FIELDS):
        raise InputError(
            f"cron: expected five fields (minute, hour, day of the month, month, day of the week) "
            f'such as "0 22 * * *", got {len(fields)} in {expression!r}'
        )
    for number, (name, least, most) in enumerate(_CRON_FIELDS):
        alone = " ".join(field if at == number else "*" for at, field in enumerate(fields))
        if not _is_plain(_parsed(alone)):
            raise InputError(
                f"cron: expected as {name} values from {least} to {most} (5, 1-5, */2, 1,15), "
                f"got {fields[number]!r}"
            )
    if (parsed := _parsed(expression)) is None:
        raise InputError(f"cron: expected a day that one of the months has, got {expression!r}")
    return [
        time(hour, minute) for hour in sorted(parsed.hours) for minute in sorted(parsed.minutes)
    ]


def _parsed(expression: str) -> CronSim | None:
    try:
        return CronSim(expression, _ANY_MOMENT)
    except CronSimError:
        return None


def _is_plain(parsed: CronSim | None) -> bool:
    """False for days counted from a month's end or by weeks, which Prefect does not all know."""
    return parsed is not None and all(
        isinstance(day, int) and day >= 0 for day in (*parsed.days, *parsed.weekdays)
    )


def _coming(window: TimeWindow, now: datetime) -> Opening:
    moment = now.astimezone(UTC)
    return next(each for each in _openings(window, moment) if each.start >= moment)


def _openings(window: TimeWindow, now: datetime) -> list[Opening]:
    """The openings around a moment, in order; a day on which the clock skips all of it has none."""
    today = now.astimezone(window.zone).date()
    found: list[Opening] = []
    for days in _EARLIER:
        day = today + days * _DAY
        last = day if window.start < window.end else day + _DAY
        start = _first_moment(datetime.combine(day, window.start), window.zone)
        end = _first_moment(datetime.combine(last, window.end), window.zone)
        if start < end:
            found.append(Opening(day=day, start=start, end=end))
    return found


def _first_moment(clock: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which the zone's clock shows `clock` (without a zone) or more.

    Where the clock skips it, that is the moment of the change: it lies between the moments that the
    offsets after and before the change give, and is looked for in seconds.
    """
    early = clock.replace(tzinfo=zone, fold=1).astimezone(UTC)
    late = clock.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if late <= early:  # shown once, or twice: then `fold=0` is the first
        return late
    low, high = 0, int((late - early).total_seconds())
    while high - low > 1:
        middle = (low + high) // 2
        shown = (early + timedelta(seconds=middle)).astimezone(zone).replace(tzinfo=None)
        low, high = (low, middle) if shown >= clock else (middle, high)
    return early + timedelta(seconds=high)


def _check_timezone(name: str) -> None:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # an unknown name, no name of a file, a folder
        near = did_you_mean(name, sorted(available_timezones()))
        raise InputError(
            f"timezone: expected a name of the time zone database, such as Europe/Berlin or UTC, "
            f"got {name!r}{near}"
        ) from None


def _parse_time(what: str, given: object) -> time:
    try:
        value = time.fromisoformat(str(given)) if isinstance(given, str | time) else None
    except ValueError:
        value = None
    if value is None or value.tzinfo is not None or value.second or value.microsecond:
        raise InputError(f'{what}: expected a time of the clock such as "22:00", got {given!r}')
    return value


def _minute(clock: time) -> int:
    return 60 * clock.hour + clock.minute
