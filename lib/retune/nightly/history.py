"""History over nights: the night since which a network is slower, and two nights compared.

Read `first_slower` and `side_by_side`. Both use the noise of `retune.nightly.verdicts`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, sqrt

import numpy as np

from retune.core.errors import LookupFailed
from retune.core.quantities import time_text
from retune.core.schema import did_you_mean
from retune.nightly.fleet import Key
from retune.nightly.verdicts import (
    FLOOR,
    LEAST,
    MACHINE,
    METHOD,
    Z_95,
    Z_CHANCE,
    Nights,
    changed_method,
    compare,
    quantile_of,
    spread_of,
)
from retune.pipeline.rows import Row
from retune.records.nights import NightRow, NightVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """The night from which on a network is slower than before."""

    night: str
    ratio: float
    """Time since then over the time before."""
    low: float
    """Bounds of the 95 % interval."""
    high: float
    verdict: NightVerdict
    """`method` if something of the method changed that night; else `real` if it is slower beside
    the control network, and `hardware` if both are."""
    cause: str
    """What changed that night: driver, commit and so on, old and new value. Empty: nothing that is
    known of."""

    @property
    def text(self) -> str:
        """How much, and why."""
        change = f"{self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"
        return f"{change}, {self.verdict}{f': {self.cause}' if self.cause else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """A network on a device in two nights."""

    first: NightRow
    second: NightRow
    """With the verdict on it beside the first."""
    slower_since: Onset | None


def first_slower(rows: Sequence[NightRow]) -> Onset | None:
    """Since when the network is slower than it was; `rows` are all of its nights on a device.

    The series of nights (time over the control network's, then absolute time; gains of published
    bundles carried over) is cut in two where its means differ most for their standard errors, and
    each part again, as long as they differ beyond noise. The present level is that of the last
    part. The onset is the first night after the last part that was faster beyond noise. None: no
    part was.
    """
    timed = [row for row in rows if row.time_us is not None]
    if len(timed) < 2:
        return None
    nights = Nights(timed)
    ratio = np.where(nights.same_control, nights.ratio + nights.carried, np.nan)
    return _onset(timed, ratio, "real") or _onset(timed, nights.time + nights.carried, "hardware")


def is_slower(row: NightRow, verdict: NightVerdict) -> bool:
    """Whether that is the verdict, on a longer time."""
    return row.verdict == verdict and row.change is not None and row.change > 1


def by_key(rows: Sequence[NightRow]) -> dict[Key, list[NightRow]]:
    """The rows of each network and device, in their order."""
    found: dict[Key, list[NightRow]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row)
    return found


def side_by_side(rows: Sequence[NightRow], first: str, second: str) -> list[SideBySide]:
    """Every network and device that both nights have, of a fleet's rows, the oldest first.

    Raises: LookupFailed for a night that the table does not have.
    """
    for name in (first, second):
        _check_night(rows, name)
    found: list[SideBySide] = []
    for own in by_key(rows).values():
        nights = {row.night: row for row in own}
        if first in nights and second in nights:
            until = own[: own.index(nights[second]) + 1]
            judged = compare(own, nights[first], nights[second])
            found.append(
                SideBySide(first=nights[first], second=judged, slower_since=first_slower(until))
            )
    return found


def compared_rows(pairs: Sequence[SideBySide]) -> list[Row]:
    """The same as rows of a table."""
    return [
        {
            "network": pair.second.network,
            "device": pair.second.device,
            f"time, {pair.first.night}": _time(pair.first),
            f"time, {pair.second.night}": _time(pair.second),
            "change": change_text(pair.second),
            "verdict": pair.second.verdict or "none",
            "slower since": pair.slower_since.night if pair.slower_since else None,
        }
        for pair in pairs
    ]


def change_text(row: NightRow) -> str:
    """The change of a row with its interval."""
    if row.change is None or row.change_low is None or row.change_high is None:
        return "–"
    return f"{row.change:.3f}x ({row.change_low:.3f} to {row.change_high:.3f})"


def _time(row: NightRow) -> str:
    return "–" if row.time_us is None else time_text(row.time_us)


def _check_night(rows: Sequence[NightRow], name: str) -> None:
    names = list(dict.fromkeys(row.night for row in rows))
    if name not in names:
        known = ", ".join(names) or "none"
        raise LookupFailed(
            f"night {name}: no such night in the table; there are: {known}"
            f"{did_you_mean(name, names)}"
        )


def _onset(
    rows: Sequence[NightRow], values: np.ndarray, else_verdict: NightVerdict
) -> Onset | None:
    known = np.flatnonzero(np.isfinite(values))
    series = values[known]
    if len(series) < 2:
        return None
    spread, freedom = spread_of(series)
    spread, quantile = max(spread, FLOOR), quantile_of(Z_CHANCE, freedom)
    interval = quantile_of(Z_95, freedom)
    starts = [0, *_cuts(series, spread, quantile), len(series)]
    parts = [series[a:b] for a, b in pairwise(starts)]
    last = parts[-1]
    for number in reversed(range(len(parts) - 1)):
        size = float(last.mean() - parts[number].mean())
        error = spread * sqrt(1 / len(last) + 1 / len(parts[number]))
        if size > max(quantile * error, LEAST):
            at = int(known[starts[number + 1]])
            columns = MACHINE if else_verdict == "hardware" else METHOD
            causes = _causes(rows[at - 1], rows[at], columns)
            return Onset(
                night=rows[at].night,
                ratio=exp(size),
                low=exp(size - interval * error),
                high=exp(size + interval * error),
                verdict="method" if causes else else_verdict,
                cause="; ".join(f"{METHOD[n]} {old} -> {new}" for n, (old, new) in causes.items()),
            )
    return None


def _cuts(series: np.ndarray, spread: float, quantile: float, start: int = 0) -> list[int]:
    """Where a new level begins, in order."""
    count = len(series)
    if count < 2:
        return []
    before = np.arange(1, count)
    sums = series.cumsum()
    means, rest = sums[:-1] / before, (sums[-1] - sums[:-1]) / (count - before)
    steps = np.abs(rest - means)
    errors = spread * np.sqrt(1 / before + 1 / (count - before))
    at = int(np.argmax(steps / errors))
    if steps[at] <= max(quantile * errors[at], LEAST):
        return []
    left = _cuts(series[: at + 1], spread, quantile, start)
    right = _cuts(series[at + 1 :], spread, quantile, start + at + 1)
    return [*left, start + at + 1, *right]


def _causes(
    before: NightRow, after: NightRow, columns: Iterable[str]
) -> Mapping[str, tuple[str, str]]:
    """Those of these columns of the method that changed -> old and new value."""
    return {
        name: (getattr(before, name) or "none", getattr(after, name) or "none")
        for name in changed_method(before, after, columns)
    }
