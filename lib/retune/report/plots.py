"""Answers about records as charts: `plot(retune.records.curve(rows))`.

The charts are those of the report, as SVG: nothing else has to be installed.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retune.core.errors import InputError
from retune.core.quantities import time_text
from retune.core.replacing import replacing
from retune.report.svg import Bar, bar_chart, curve_chart
from retune.report.vta import as_file

if TYPE_CHECKING:
    from retune.records import Table

MOST = 24
"""Bars or curves of a plot: the first ones of the table."""

_NAMED = 6
"""Columns of a table that an error lists."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Charts below each other. A notebook shows them where the plot is a cell's last value."""

    charts: tuple[tuple[str, str], ...]
    """Title and SVG of each."""

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{escape(title)}</h4>{_image(svg)}" for title, svg in self.charts)

    def save(self, path: Path | str) -> Path:
        """One HTML file with all charts. Returns its path. Raises: InputError for another type."""
        if Path(path).suffix not in (".html", ".htm"):
            raise InputError(
                f"{path}: expected the name of an .html file, which a plot is saved as"
            )
        page = f'<!doctype html><meta charset="utf-8">{self._repr_html_()}'
        with replacing(Path(path)) as stream:
            stream.write(page.encode())
        return Path(path)


def _image(svg: str) -> str:
    """An image: the styles of one picture are not those of the page around it."""
    text = base64.b64encode(as_file(svg).encode()).decode()
    return f'<img alt="" style="width:100%;max-width:760px" src="data:image/svg+xml;base64,{text}">'


def plot(table: "Table") -> Plot:
    """The answer as charts: of `best`, `curve`, `failures`, `compare`, `importance` or `tuners`.

    At most the first 24 rows, or searches of a curve. Raises: InputError for another table.
    """
    columns = getattr(table, "columns", ())
    for name, charts in _KINDS.items():
        if name in columns:
            return Plot(charts=charts(table))
    raise InputError(
        "plot: expected an answer of retune.records (best, curve, failures, compare, importance, "
        f"tuners), got {type(table).__name__} {', '.join(map(str, columns[:_NAMED]))}".rstrip()
    )


def _curves(table: "Table") -> tuple[tuple[str, str], ...]:
    times: dict[str, list[float | None]] = {}
    for row in table.to_dict("records"):
        name = f"{row['task_name']}, run {str(row['run_id'])[:8]}"
        us = row["median_us"]
        times.setdefault(name, []).append(float(us) if us == us else None)
    return tuple((name, curve_chart(own, "trial")) for name, own in list(times.items())[:MOST])


def _bars(
    title: str, value: str, text: Callable[[Any], str], also: str = ""
) -> Callable[["Table"], tuple[tuple[str, str], ...]]:
    """A bar for each row that has the value; its label is the task, and what `also` names."""

    def chart(table: "Table") -> tuple[tuple[str, str], ...]:
        rows = [row for row in table.to_dict("records") if row[value] == row[value]][:MOST]
        bars = [
            Bar(
                label=" ".join(filter(None, [str(row[also]) if also else "", row["task_name"]])),
                value=float(row[value]),
                text=text(row),
                style="ours",
            )
            for row in rows
        ]
        return ((title, bar_chart(bars, title)),)

    return chart


_KINDS: dict[str, Callable[["Table"], tuple[tuple[str, str], ...]]] = {
    "ratio_to_best": _bars(
        "best of each tuner over the best of all",
        "ratio_to_best",
        lambda row: f"{row['ratio_to_best']:.2f} ×, {row['trials']} trials",
        "tuner",
    ),
    "explained": _bars(
        "share of the spread that a knob explains",
        "explained",
        lambda row: f"{100 * row['explained']:.0f} %, best {row['best']}",
        "knob",
    ),
    "share": _bars(
        "failed candidates", "count", lambda row: f"{row['count']}: {row['reason']}"[:60], "status"
    ),
    "median_us_after": _bars(
        "time after over time before", "ratio", lambda row: f"{row['ratio']:.3f} ×"
    ),
    "best_us": _curves,
    "gflops": _bars(
        "best time of each task",
        "median_us",
        lambda row: f"{time_text(row['median_us'])}, {row['gflops']:.4g} GFLOP/s",
    ),
}
"""A column by which an answer is known -> its charts; the first one that the table has."""
