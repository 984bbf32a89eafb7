"""The picture of a plan of layouts: kernels in the order of the data, coloured by what they make.

Read `layout_chart`. A pure function of data, as the charts of `svg` are.
"""

from collections.abc import Mapping, Sequence
from html import escape

from retune.core.layouts import NHWC
from retune.core.quantities import time_text
from retune.report.data import LayoutStep
from retune.report.svg import framed

_COLUMN = 30.0
_ROW = 34.0
_SIDE = 16.0
_COLUMNS = 24
"""Steps side by side before the picture goes on below."""
_MARGIN = 18.0
_LEGEND = 26.0
_COLOURS = (
    *("#7a8ba6", "#d9822b", "#3d8b5f", "#8a5fb0"),
    *("#b5474c", "#2f8fb5", "#b59a1f", "#7a4b2a"),
)
"""Of layouts in the order in which they appear; NHWC first. They are told apart by shades too."""


def layout_chart(steps: Sequence[LayoutStep]) -> str:
    """SVG: a square for each kernel, a diamond with its time for each copy, lines for the data.

    Steps at the same distance from the inputs stand below each other.
    """
    if not steps:
        return ""
    positions = _positions(steps)
    layouts = list(dict.fromkeys([str(NHWC), *(step.io.output for step in steps)]))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(layouts)}
    width = _MARGIN * 2 + _COLUMNS * _COLUMN
    height = _LEGEND + max(y for _, y in positions.values()) + _ROW
    parts = [_legend(colours)]
    for step in steps:
        x, y = positions[step.label]
        for source in step.reads:
            if source in positions:
                parts.append(_line(positions[source], (x, y)))
    for step in steps:
        parts.append(_mark(step, positions[step.label], colours[step.io.output]))
    label = "layouts of the network's activations"
    return framed("layouts", label, (width, height), "".join(parts))


def _positions(steps: Sequence[LayoutStep]) -> dict[str, tuple[float, float]]:
    """The middle of each step: by its longest way from the inputs, and its number among those."""
    depth: dict[str, int] = {}
    rows: dict[int, int] = {}
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        here = 1 + max((depth[s] for s in step.reads if s in depth), default=-1)
        depth[step.label] = here
        found[step.label] = here, rows.setdefault(here, 0)
        rows[here] += 1
    bands = 1 + max(depth.values()) // _COLUMNS
    tall = [
        max((n for d, n in rows.items() if d // _COLUMNS == band), default=1)
        for band in range(bands)
    ]
    tops = [sum(tall[:band]) * _ROW + band * _ROW / 2 for band in range(bands)]
    return {
        label: (
            _MARGIN + (d % _COLUMNS + 0.5) * _COLUMN,
            _LEGEND + tops[d // _COLUMNS] + (row + 0.5) * _ROW,
        )
        for label, (d, row) in found.items()
    }


def _legend(colours: Mapping[str, str]) -> str:
    parts: list[str] = []
    x = _MARGIN
    for name, colour in colours.items():
        parts.append(f'<rect x="{x:.0f}" y="6" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17:.0f}" y="16">{escape(name)}</text>')
        x += 40 + 8 * len(name)
    return "".join(parts)


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Faint where it leads back to the left, to the next band, and crosses what is between."""
    faint = ' stroke-opacity="0.5" stroke-dasharray="2 4"' if end[0] <= start[0] else ""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="#9a9a9a" stroke-width="1"{faint}/>'
    )


def _mark(step: LayoutStep, position: tuple[float, float], colour: str) -> str:
    x, y = position
    half = _SIDE / 2
    title = escape(f"{step.label}: {step.io}, {time_text(step.us)} expected")
    if step.copy:
        points = f"{x},{y - half} {x + half},{y} {x},{y + half} {x - half},{y}"
        shape = f'<polygon points="{points}" fill="{colour}"><title>{title}</title></polygon>'
        return shape + (
            f'<text class="axis" text-anchor="middle" x="{x:.1f}" y="{y + half + 9:.1f}">'
            f"{time_text(step.us)}</text>"
        )
    return (
        f'<rect x="{x - half:.1f}" y="{y - half:.1f}" width="{_SIDE}" height="{_SIDE}" rx="3" '
        f'fill="{colour}"><title>{title}</title></rect>'
    )
