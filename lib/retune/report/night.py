"""The page of a night: what every network of the fleet got and gained on every device.

Read `render_night`. It is a pure function of NightPage; the page's text lies in `night.html.j2`.
"""

from dataclasses import dataclass

from retune.report.page import page
from retune.report.svg import curve_chart


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """A network on a device. Times are in microseconds."""

    model: str
    device: str
    good: bool
    """False: something about it failed tonight."""
    outcome: str
    """One or two words."""
    reason: str
    """Why, as a sentence."""
    failures: tuple[str, ...]
    minutes_planned: float
    minutes: float | None
    trials: int | None
    statuses: str
    """Such as `40 ok, 2 timeout`."""
    champion: str
    """Time and interval of the bundle that was current when the night began."""
    challenger: str
    """The same of the bundle that the night made."""
    ratio: str
    """Time of the challenger over the champion's, with its interval."""
    gain: float | None
    """How many times as fast as on its first night it is now."""
    nights_us: tuple[float | None, ...]
    """Time of each night's bundle, first night first, as ratios taken in turns make it comparable.
    None: it made none."""
    report: str = ""
    """Address of the run's own report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPage:
    """One night."""

    name: str
    when: str
    """From when to when, as text for people."""
    headline: tuple[tuple[str, str], ...]
    """Name -> number."""
    rows: tuple[FleetRow, ...]
    notes: tuple[tuple[str, str, bool], ...]
    """Step of the whole fleet, what came of it, and whether that is good."""


def render_night(data: NightPage) -> str:
    """The whole page as HTML text."""
    curves = [
        {"row": row, "svg": curve_chart(row.nights_us, "night")}
        for row in data.rows
        if any(row.nights_us)
    ]
    return page("night.html.j2", data=data, curves=curves)
