"""Draws the README's chart from `benchmarks/results/readme.json`, for light and for dark pages.

    .venv/bin/python -m benchmarks.chart       # writes docs/images/times_light.svg and _dark.svg

Each bar is the time of our bundle over that of a peer. A figure belongs into the file only with
its processor, the peer, and the day on which it entered the repository.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "benchmarks" / "results" / "readme.json"
IMAGES = ROOT / "docs" / "images"

COLOURS = {
    "light": {"text": "#1f2328", "faint": "#59636e", "ours": "#0969da", "worse": "#bc4c00"},
    "dark": {"text": "#f0f6fc", "faint": "#9198a1", "ours": "#4493f8", "worse": "#db6d28"},
}
"""Theme -> colours; a text beside each bar says what its colour does."""
WIDTH, LEFT, FULL, ROW, HEAD = 780, 206, 280, 20, 26
"""Pixels: of the picture, before bars, of a bar of ratio 1, and heights of lines."""


def read_rows() -> list[dict[str, Any]]:
    """The figures, in the order of the chart."""
    return json.loads(DATA.read_text(encoding="utf-8"))["rows"]


def chart(rows: list[dict[str, Any]], theme: str) -> str:
    """The picture as SVG, whose text reads in this theme."""
    colours = COLOURS[theme]
    parts: list[str] = []
    y = HEAD
    for title, group in groupby(rows, _title):
        parts.append(_text(0, y + 14, title, colours["faint"]))
        y += HEAD
        for row in group:
            parts += _bar(row, y, colours)
            y += ROW
        y += 6
    axis = LEFT + FULL
    title = "time, as a part of the peer's (below 1.0, ours is faster)"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 4}" '
            f'viewBox="0 0 {WIDTH} {y + 4}" role="img" '
            'font-family="system-ui, sans-serif" font-size="12">',
            f"<title>{escape(title)}</title>",
            _text(0, 14, title, colours["text"], bold=True),
            f'<path d="M{axis} {HEAD}V{y}" stroke="{colours["faint"]}" stroke-dasharray="3 3"/>',
            _text(axis - 8, HEAD - 8, "1.0", colours["faint"]),
            *parts,
            "</svg>\n",
        ]
    )


def _title(row: Mapping[str, Any]) -> str:
    return f"{row['precision']} on {row['processor']}"


def _bar(row: Mapping[str, Any], y: int, colours: Mapping[str, str]) -> Iterator[str]:
    ratio, width = row["ratio"], round(FULL * row["ratio"])
    yield _text(LEFT - 8, y + 14, row["label"], colours["text"], anchor="end")
    colour = colours["ours" if ratio <= 1 else "worse"]
    yield f'<rect x="{LEFT}" y="{y + 3}" width="{width}" height="14" rx="2" fill="{colour}"/>'
    after = max(width, FULL) + LEFT + 10
    times = f"{row['ours_ms']:#.3g} ms" if row["ours_ms"] else ""
    peer = f"{row['peer']} {row['peer_ms']:#.3g} ms" if row["peer_ms"] else row["peer"]
    told = f"{ratio:.2f}: {times + ', ' if times else ''}{peer}"
    yield _text(after, y + 14, told, colours["faint"])


def _text(
    x: int, y: int, text: str, colour: str, *, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}"{weight}>'
        f"{escape(text)}</text>"
    )


def main() -> None:
    """Writes both pictures."""
    IMAGES.mkdir(exist_ok=True)
    for theme in COLOURS:
        path = IMAGES / f"times_{theme}.svg"
        path.write_text(chart(read_rows(), theme), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
