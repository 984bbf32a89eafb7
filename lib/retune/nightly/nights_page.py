"""One page over all nights of a fleet. Its headline is the number of real regressions.

Read `nights_page`. Everything follows from the table of nights.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from retune.nightly.history import Onset, by_key, change_text, first_slower, is_slower
from retune.pipeline.rows import Row
from retune.records.nights import NightRow, NightVerdict
from retune.report.page import page, time_text
from retune.report.svg import Line, Mark, line_chart, sparkline

_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A network on a device, over all nights."""

    rows: Sequence[NightRow]
    onset: Onset | None

    @property
    def last(self) -> NightRow:
        return self.rows[-1]

    @property
    def regressed(self) -> bool:
        """Whether it is slower than it was, and that is nobody else's doing."""
        return self.slower_by("real")

    def slower_by(self, verdict: NightVerdict) -> bool:
        """Whether it is slower than it was with that verdict, since tonight or for longer."""
        if self.onset is not None:
            return self.onset.verdict == verdict
        return is_slower(self.last, verdict)


def nights_page(fleet: str, rows: Sequence[NightRow], pages: Collection[str] = ()) -> str:
    """The page of these rows of a fleet, the oldest first; `pages` are nights with their own page,
    which lie beside it."""
    pairs = [_Pair(rows=own, onset=first_slower(own)) for own in by_key(rows).values()]
    pairs.sort(key=lambda pair: (not pair.regressed, pair.onset is None, pair.last.key))
    nights: dict[str, list[NightRow]] = {}
    for row in rows:
        nights.setdefault(row.night, []).append(row)
    tonight = nights[rows[-1].night] if rows else []
    return page(
        "nights.html.j2",
        fleet=fleet,
        span=_span([*nights]),
        regressions=sum(pair.regressed for pair in pairs),
        headline=(
            ("slower with another method", str(sum(p.slower_by("method") for p in pairs))),
            ("slower with the machine", str(sum(p.slower_by("hardware") for p in pairs))),
            ("faster in the last night", str(sum(map(_is_faster, tonight)))),
            ("without a time in the last night", str(sum(r.time_us is None for r in tonight))),
        ),
        rows=[_row(pair, pages) for pair in pairs],
        nights=[_night(name, own, pages) for name, own in reversed(nights.items())],
    )


def _span(names: Sequence[str]) -> str:
    if not names:
        return "no night was run yet"
    return f"{len(names)} nights, {names[0]} to {names[-1]}" if len(names) > 1 else names[0]


def _is_faster(row: NightRow) -> bool:
    return row.verdict == "real" and row.change is not None and row.change < 1


def _row(pair: _Pair, pages: Collection[str]) -> Row:
    last, marks = pair.last, _marks(pair.rows)
    times = [row.time_us for row in pair.rows]
    absolute = Line(label="absolute time", values=_factors(times), style="ours")
    return {
        "network": last.network,
        "device": last.device,
        "time": _time(last),
        "verdict": last.verdict or _NONE,
        "style": _style(last),
        "change": change_text(last),
        "why": last.why,
        "spark": sparkline(absolute, marks),
        "chart": _chart(pair.rows, marks) if any(times) else "",
        "onset": pair.onset and _onset(pair.onset, pages),
    }


def _onset(onset: Onset, pages: Collection[str]) -> Row:
    return {
        "night": onset.night,
        "page": _page_of(onset.night, pages),
        "ratio": f"{onset.ratio:.3f}x ({onset.low:.3f} to {onset.high:.3f})",
        "verdict": onset.verdict,
        "cause": onset.cause,
    }


def _chart(rows: Sequence[NightRow], marks: Sequence[Mark]) -> str:
    series = (
        ("normalised", [row.ratio for row in rows], "ours"),
        ("absolute", [row.time_us for row in rows], "plain"),
        ("control network", [row.control_us for row in rows], "peer"),
    )
    return line_chart(
        [Line(label=n, values=_factors(v), style=style) for n, v, style in series], marks
    )


def _factors(values: Sequence[float | None]) -> list[float | None]:
    """The values over the first one."""
    first = next((value for value in values if value), None)
    return [value / first if value and first else None for value in values]


def _marks(rows: Sequence[NightRow]) -> list[Mark]:
    return [
        Mark(
            at=number, title=f"{row.night}: {row.verdict}, {row.why}", style=_style(row) or "plain"
        )
        for number, row in enumerate(rows)
        if row.verdict not in ("", "noise")
    ]


def _style(row: NightRow) -> str:
    """Red is for what is slower by itself, green for what is faster by itself."""
    if row.verdict != "real" or row.change is None:
        return ""
    return "bad" if row.change > 1 else "good"


def _night(name: str, own: Sequence[NightRow], pages: Collection[str]) -> Row:
    counts = {v or "none": sum(row.verdict == v for row in own)
              for v in ("real", "hardware", "method", "noise", "")}  # fmt: skip
    versions = [" ".join(filter(None, (row.retune, row.commit))) for row in own]
    return {
        "name": name,
        "page": _page_of(name, pages),
        "worse": any(_style(row) == "bad" for row in own),
        "driver": ", ".join(dict.fromkeys(row.driver for row in own if row.driver)),
        "retune": ", ".join(dict.fromkeys(filter(None, versions))),
        **counts,
    }


def _page_of(name: str, pages: Collection[str]) -> str:
    return f"{name}.html" if name in pages else ""


def _time(row: NightRow) -> str:
    if row.time_us is None:
        return _NONE
    low, high = time_text(row.time_low_us), time_text(row.time_high_us)
    return f"{time_text(row.time_us)} ({low} to {high})"
