"""Charts as inline SVG text: best-so-far curves, lines over nights, horizontal bars, points.

Read `curve_chart`, `line_chart`, `sparkline`, `bar_chart` and `scatter_chart`. Colours come from
the page's style sheet by class name, so the charts follow its light and dark appearance. Pure
functions of numbers. They are SVG and not a chart library's, since a report is kept with each
version: a library adds a megabyte to each, and shows nothing in print or without its script.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from retune.core.quantities import counted

WIDTH = 300.0
HEIGHT = 130.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 8.0, 8.0, 22.0

SPARK_WIDTH, SPARK_HEIGHT = 140.0, 26.0
_LEAST_FACTOR = 1.15
"""What the axis of a line spans at least: noise of a per cent is to look like noise."""
_LINES = "times over the nights, as factors"

SCATTER_WIDTH, SCATTER_HEIGHT = 360.0, 260.0
MOST_POINTS = 240
"""Points of a curve that are drawn; of more, those that are not the best so far are thinned out."""

BAR_LINE, BAR_HEIGHT, BAR_GAP = 16, 9, 9
"""Pixels of a line of text, of a bar, and below it."""
BAR_LETTERS = 50
"""That fit in a line of a phone."""

_TICK_DIGITS: tuple[tuple[float, ...], ...] = (
    (1.0,),
    (1.0, 3.0),
    (1.0, 2.0, 5.0),
    (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
    (1.0, 1.2, 1.5, 1.7, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0),
)
"""Leading digits of round numbers, ever finer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar; `low` and `high` draw a whisker if they are given."""

    label: str
    value: float
    text: str
    """What stands behind the label."""
    low: float | None = None
    high: float | None = None
    style: str = "plain"
    """Class of the bar: plain, ours, peer, good, bad."""


def best_so_far(times: Sequence[float | None]) -> list[float | None]:
    """The least time up to each measurement; None until one succeeded."""
    best: float | None = None
    result: list[float | None] = []
    for time in times:
        if time is not None and (best is None or time < best):
            best = time
        result.append(best)
    return result


def curve_chart(
    times: Sequence[float | None], unit: str = "measurement", notes: Sequence[str] = ()
) -> str:
    """Each measurement as a point, the best so far as a line to the right edge; time logarithmic.

    Failed measurements are ticks on the lower edge. `unit` is what the axis counts; `notes` say
    what each measurement is.
    """
    right = [time for time in times if time is not None]
    if not right:
        return _frame('<text class="axis" x="60" y="60">no candidate succeeded</text>')
    low, high = _decade_range(min(right), max(right))

    x, y = _across(len(times)), log_axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_grid(y(tick), _number(tick)) for tick in _ticks(low, high)]
    floor = HEIGHT - BOTTOM
    for index in _drawn(times):
        time, title = times[index], ""
        if notes:
            taken = "failed" if time is None else _number(time)
            title = f"<title>{index + 1}: {taken}, {escape(notes[index])}</title>"
        if time is None:
            shape = f'path class="failed" d="M{x(index):.1f} {floor + 2:.1f}v5"'
        else:
            shape = f'circle class="point" cx="{x(index):.1f}" cy="{y(time):.1f}" r="2"'
        parts.append(f"<{shape}>{title}</{shape.split()[0]}>" if title else f"<{shape}/>")
    steps = _steps(best_so_far(times), x, y)
    parts.append(f'<path class="best" d="{steps}H{WIDTH - RIGHT}"/>')
    return _frame("\n".join([*parts, _axis(len(times), unit)]))


def _across(
    count: int, start: float = LEFT, end: float = WIDTH - RIGHT
) -> Callable[[float], float]:
    """Where the members of a series of that length lie."""
    return lambda index: start + (end - start) * index / max(1, count - 1)


def _axis(count: int, unit: str) -> str:
    return (
        f'<text class="axis" x="{LEFT}" y="{HEIGHT - 6}">1</text>\n'
        f'<text class="axis" text-anchor="end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">'
        f"{counted(count, unit)}</text>"
    )


def log_axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Where values lie on a logarithmic axis on which `low` is at `start` and `high` at `end`."""
    scale = (end - start) / math.log(high / low)
    return lambda value: start + scale * math.log(value / low)


def _drawn(times: Sequence[float | None]) -> list[int]:
    """Numbers of the measurements that are drawn: all that were the best so far, and some."""
    best = best_so_far(times)
    every = max(1, math.ceil(len(times) / MOST_POINTS))
    return [
        index
        for index, time in enumerate(times)
        if index % every == 0 or (time is not None and time == best[index] != best[index - 1])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over time; None is a gap."""

    label: str
    values: Sequence[float | None]
    style: str
    """Class of the line: ours, plain, peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point of a line that is to be seen."""

    at: int
    title: str
    style: str
    """Class of the point: good, bad, plain."""


def line_chart(lines: Sequence[Line], marks: Sequence[Mark] = ()) -> str:
    """Factors over nights, on a logarithmic axis; marks lie on the first line."""
    known = [value for line in lines for value in line.values if value is not None]
    if not known:
        return _frame('<text class="axis" x="60" y="60">no time is known</text>', _LINES)
    low, high = _decade_range(min(known), max(known), _LEAST_FACTOR)
    count = max(len(line.values) for line in lines)
    x, y = _across(count), log_axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_grid(y(tick), f"{tick:.3g} ×") for tick in _ticks(low, high)]
    parts += [_polyline(line, x, y) for line in reversed(lines)]
    parts += [_mark(mark, lines[0].values, x, y) for mark in marks]
    return _frame("\n".join([*parts, _axis(count, "night")]), _LINES)


def sparkline(line: Line, marks: Sequence[Mark] = ()) -> str:
    """The same for a cell of a table: one line without axes, and its marks."""
    known = [value for value in line.values if value is not None]
    if not known:
        return ""
    low, high = _decade_range(min(known), max(known), _LEAST_FACTOR)
    x, y = _across(len(line.values), 3, SPARK_WIDTH - 3), log_axis(low, high, SPARK_HEIGHT - 3, 3)
    parts = [_polyline(line, x, y), *(_mark(mark, line.values, x, y) for mark in marks)]
    return framed("spark", line.label, (SPARK_WIDTH, SPARK_HEIGHT), "".join(parts))


def _polyline(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """Points that follow each other are joined; one between gaps is a dot."""
    path, before = "", False
    for index, value in enumerate(line.values):
        if value is not None:
            path += f"{'L' if before else 'M'}{x(index):.1f} {y(value):.1f}"
            path += "" if before else "h0.01"
        before = value is not None
    return f'<path class="line {line.style}" d="{path}"><title>{escape(line.label)}</title></path>'


def _mark(
    mark: Mark,
    values: Sequence[float | None],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    value = values[mark.at]
    if value is None:
        return ""
    return (
        f'<circle class="mark {mark.style}" cx="{x(mark.at):.1f}" cy="{y(value):.1f}" r="3">'
        f"<title>{escape(mark.title)}</title></circle>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a scatter chart; both coordinates are above 0."""

    x: float
    y: float
    title: str
    link: str
    """Where a click leads, such as `#layer-3`."""
    limit: float | None = None
    """What `y` could be at most: a dash above the point, with a line to it."""
    style: str = "ours"


def scatter_chart(
    points: Sequence[Point], label: str, axes: tuple[str, str], *, diagonal: bool = False
) -> str:
    """Points on logarithmic axes, whose names are `axes`; `diagonal` marks where both are equal."""
    if not points:
        return ""
    tops = [point.limit or point.y for point in points]
    x_low, x_high = _decade_range(min(p.x for p in points), max(p.x for p in points))
    y_low, y_high = _decade_range(min(p.y for p in points), max([*tops, *(p.y for p in points)]))
    if diagonal:
        x_low = y_low = min(x_low, y_low)
        x_high = y_high = max(x_high, y_high)
    width, floor = SCATTER_WIDTH, SCATTER_HEIGHT - 34
    x, y = log_axis(x_low, x_high, LEFT, width - RIGHT), log_axis(y_low, y_high, floor, 22)
    parts = [_grid(y(tick), _plain(tick), width) for tick in _ticks(y_low, y_high)]
    parts += [
        f'<text class="axis" text-anchor="middle" x="{x(tick):.1f}" y="{floor + 14:.1f}">'
        f"{_plain(tick)}</text>"
        for tick in _ticks(x_low, x_high)
    ]
    if diagonal:
        ends = f"M{x(x_low):.1f} {y(y_low):.1f}L{x(x_high):.1f} {y(y_high):.1f}"
        parts.append(f'<path class="grid" d="{ends}"/>')
    parts += [_scattered(point, x(point.x), y, point.limit) for point in points]
    parts.append(f'<text class="axis" x="4" y="11">{escape(axes[1])}</text>')
    parts.append(
        f'<text class="axis" text-anchor="end" x="{width - RIGHT}" y="{floor + 29:.1f}">'
        f"{escape(axes[0])}</text>"
    )
    return framed("scatter", label, (width, SCATTER_HEIGHT), "".join(parts))


def _plain(value: float) -> str:
    """Three digits, without an exponent for thousands."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _scattered(point: Point, x: float, y: Callable[[float], float], limit: float | None) -> str:
    roof = ""
    if limit is not None:
        roof = (
            f'<path class="limit" d="M{x:.1f} {y(point.y):.1f}V{y(limit):.1f}'
            f'M{x - 4:.1f} {y(limit):.1f}h8"/>'
        )
    return (
        f'<a href="{escape(point.link)}">{roof}<circle class="mark {point.style}" cx="{x:.1f}" '
        f'cy="{y(point.y):.1f}" r="4.5"><title>{escape(point.title)}</title></circle></a>\n'
    )


def bar_chart(bars: Sequence[Bar], title: str) -> str:
    """Horizontal bars from zero, each below its label and text.

    Bars fill the page's width and letters keep their size, so that a phone shows all of a chart.
    """
    if not bars:
        return '<svg class="bars" width="100%" height="20"><text y="13">none</text></svg>'
    top = max(bar.high or bar.value for bar in bars) or 1.0
    lines = 1
    if any(len(bar.label) + len(bar.text) >= BAR_LETTERS for bar in bars):
        lines += max(len(wrap(bar.text, BAR_LETTERS)) for bar in bars)
    height = BAR_LINE * lines + BAR_HEIGHT + BAR_GAP
    body = "\n".join(_bar(bar, height * index, lines, top) for index, bar in enumerate(bars))
    return (
        f'<svg class="bars" role="img" aria-label="{escape(title)}" '
        f'width="100%" height="{height * len(bars)}">\n{body}\n</svg>'
    )


def _bar(bar: Bar, y: int, lines: int, top: float) -> str:
    """The text stands behind the label in one line, otherwise below it."""
    step = 'dx="8"' if lines == 1 else f'x="0" dy="{BAR_LINE}"'
    texts = [bar.text] if lines == 1 else wrap(bar.text, BAR_LETTERS)
    behind = "".join(f'<tspan class="value" {step}>{escape(text)}</tspan>' for text in texts)
    label = f"{escape(_shorten(bar.label, BAR_LETTERS))}<title>{escape(bar.label)}</title>"
    below = y + BAR_LINE * lines + 2
    parts = [
        f'<text class="label" y="{y + BAR_LINE - 3}">{label}{behind}</text>',
        f'<rect class="bar {bar.style}" y="{below}" rx="2" '
        f'width="{max(0.2, 100 * bar.value / top):.1f}%" height="{BAR_HEIGHT}"/>',
    ]
    if bar.low is not None and bar.high is not None:
        low, high = (f"{100 * each / top:.1f}%" for each in (bar.low, bar.high))
        start, stop, middle = below - 2, below + BAR_HEIGHT + 2, below + BAR_HEIGHT / 2
        parts += [
            f'<line class="whisker" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'
            for x1, x2, y1, y2 in (
                (low, high, middle, middle),
                (low, low, start, stop),
                (high, high, start, stop),
            )
        ]
    return "\n".join(parts)


def _frame(body: str, label: str = "measured times and the best so far") -> str:
    return framed("curve", label, (WIDTH, HEIGHT), body)


def framed(style: str, label: str, size: tuple[float, float], body: str) -> str:
    """A picture of that width and height, which fills the width that its page has."""
    return (
        f'<svg class="{style}" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {size[0]:.0f} {size[1]:.0f}">\n{body}\n</svg>'
    )


def _grid(y: float, text: str, width: float = WIDTH) -> str:
    return (
        f'<path class="grid" d="M{LEFT} {y:.1f}H{width - RIGHT}"/>'
        f'<text class="axis" text-anchor="end" x="{LEFT - 5}" y="{y + 3.5:.1f}">{text}</text>'
    )


def _steps(
    best: Sequence[float | None], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    path: list[str] = []
    for index, time in enumerate(best):
        if time is None:
            continue
        if not path:
            path.append(f"M{x(index):.1f} {y(time):.1f}")
        else:
            path.append(f"H{x(index):.1f}V{y(time):.1f}")
    return "".join(path)


def _decade_range(low: float, high: float, least: float = 1.5) -> tuple[float, float]:
    """A range with a little room, at least that factor wide."""
    room = 0.16 * (least - 1)
    low, high = low * (1 - room), high * (1 + room)
    if high / low < least:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(least), middle * math.sqrt(least)
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers inside the range."""
    for digits in _TICK_DIGITS:
        first = math.floor(math.log10(low))
        last = math.ceil(math.log10(high))
        ticks = [d * 10.0**e for e in range(first, last + 1) for d in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 2:
            return inside[:: max(1, math.ceil(len(inside) / 5))]
    return [low, high]


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    if value >= 1e3:
        return f"{value / 1e3:.3g} ms"
    return f"{value:.3g} µs"


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
