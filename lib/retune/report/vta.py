"""Pictures of the VTA accelerator: its three queues over time, and layers under its roofline.

Read `queue_chart` and `roofline_chart`. As in `svg`, colours come from the page's style sheet by
class name; `as_file` makes a file that has them by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path

import numpy as np

from retune.report.svg import framed, log_axis
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.isa import ALU, GEMM, QUEUES
from retune.targets.vta.timing import ModuleTiming

WIDTH, LEFT, RIGHT = 860.0, 64.0, 28.0
_LANE, _GAP = 26.0, 10.0
_HEAD = 20.0
"""Above the lanes, for a title."""
_HEIGHT, _TOP, _BOTTOM = 440.0, 18.0, 44.0
_ENTRY = 110.0
"""Width of an entry of a legend."""
_RADIUS = 5.0
"""Of a point."""
_KINDS = (("memory", "plain"), ("GEMM", "ours"), ("ALU", "peer"))
"""What works, and the class of its colour."""
_AWAY = (12.0, 20.0, 28.0, 36.0, 44.0)
"""How far its number is from a point: the first that leaves room."""
_BOUNDS = {"memory-bound": "bad", "compute-bound": "ours"}
"""The same of what limits a layer."""
_FILE_STYLE = "svg { background:var(--paper); font-family:system-ui, sans-serif; }"
"""What a picture has from its page, otherwise."""


def queue_chart(timing: ModuleTiming) -> str:
    """A lane for each queue, from the first cycle to the last, filled where it works.

    What is less than half a pixel apart is drawn as one.
    """
    scale = (WIDTH - LEFT - RIGHT) / max(1, timing.cycles)
    opcode = timing.module.instructions["opcode"]
    kind = np.where(opcode == GEMM, 1, np.where(opcode == ALU, 2, 0))
    took = f"{timing.module.name}: {timing.cycles:,} cycles, {timing.time_us / 1e3:.3g} ms"
    parts = [_text(LEFT, 12, took, "label", "start")]
    for lane, name in enumerate(QUEUES):
        y = _HEAD + lane * (_LANE + _GAP)
        share = timing.busy[name] / max(1, timing.cycles)
        parts.append(_text(LEFT - 8, y + 12, name, "label", "end"))
        parts.append(_text(LEFT - 8, y + 24, f"{share:.0%}", "axis", "end"))
        for number, (_, style) in enumerate(_KINDS):
            mine = (timing.course.queue == lane) & (kind == number)
            path = _path(timing.course.start[mine], timing.course.end[mine], scale, y)
            parts += [f'<path class="bar {style}" d="{path}"/>'] if path else []
    floor = _HEAD + len(QUEUES) * (_LANE + _GAP) - _GAP + 4
    for tick in _round_steps(timing.cycles):
        x = LEFT + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {floor - 4:.1f}v5"/>')
        parts.append(_text(x, floor + 12, f"{tick:,}", "axis", "middle"))
    parts.append(_text(WIDTH - RIGHT, floor + 28, "cycles", "axis", "end"))
    parts += _legend(_KINDS, floor + 28)
    shares = "per cent: cycles in which a queue works"
    parts.append(_text(LEFT + len(_KINDS) * _ENTRY, floor + 28, shares, "axis", "start"))
    title = f"queues of {timing.module.name} over time"
    return framed("queues", title, (WIDTH, floor + 36), "\n".join(parts))


def _round_steps(end: int) -> range:
    """From 0 to the end, some six steps of 1, 2 or 5 times a power of ten."""
    least = max(1, end / 7)
    power = 10 ** math.floor(math.log10(least))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
    return range(0, end + 1, step)


def _legend(kinds: Sequence[tuple[str, str]], y: float) -> list[str]:
    """What the colours stand for, in a row."""
    parts: list[str] = []
    for number, (name, style) in enumerate(kinds):
        x = LEFT + _ENTRY * number
        parts.append(f'<rect class="bar {style}" x="{x}" y="{y - 9}" width="10" height="10"/>')
        parts.append(_text(x + 15, y, name, "axis", "start"))
    return parts


def _path(start: np.ndarray, end: np.ndarray, scale: float, y: float) -> str:
    """SVG path: a rectangle from each start to its end; those half a pixel apart are joined."""
    if not len(start):
        return ""
    apart = np.flatnonzero((start[1:] - end[:-1]) * scale >= 0.5)
    begins = start[np.concatenate([[0], apart + 1])] * scale + LEFT
    ends = end[np.concatenate([apart, [len(end) - 1]])] * scale + LEFT
    return "".join(
        f"M{a:.1f} {y:.1f}h{max(0.3, b - a):.1f}v{_LANE:.0f}h{-max(0.3, b - a):.1f}z"
        for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A point under the roofline."""

    name: str
    ops_per_byte: float
    """Operations for each byte that is read from DRAM or written to it."""
    gops: float

    @staticmethod
    def of(timing: ModuleTiming) -> "Layer":
        """A module as it was simulated."""
        moved = timing.costs.read_bytes + timing.costs.written_bytes
        intensity = 2 * timing.module.macs / max(1, moved)
        return Layer(name=timing.module.name, ops_per_byte=intensity, gops=timing.gops)

    def bound(self, config: VtaConfig) -> str:
        """What limits it at best: `memory` or `compute`."""
        reached = self.ops_per_byte * config.gbytes_per_s
        return "memory" if reached < config.peak_gops else "compute"


@dataclass(frozen=True, slots=True)
class _Axes:
    """Where operations a byte and GOPS are in the picture; both are logarithmic."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @staticmethod
    def around(layers: Sequence[Layer], config: VtaConfig) -> "_Axes":
        """Those that show the roof and all layers."""
        ridge = config.peak_gops / config.gbytes_per_s
        return _Axes(
            min([ridge / 8, *(layer.ops_per_byte / 1.3 for layer in layers)]),
            max([ridge * 8, *(layer.ops_per_byte * 1.3 for layer in layers)]),
            min([config.peak_gops / 16, *(max(layer.gops, 1e-3) / 1.3 for layer in layers)]),
            config.peak_gops * 1.4,
        )

    def x(self, value: float) -> float:
        return log_axis(self.x_low, self.x_high, LEFT, WIDTH - RIGHT)(value)

    def y(self, value: float) -> float:
        along = log_axis(self.y_low, self.y_high, _HEIGHT - _BOTTOM, _TOP)
        return along(max(value, self.y_low))


def roofline_chart(layers: Sequence[Layer], config: VtaConfig) -> str:
    """The layers by operations a byte and operations a second, both logarithmic, and the roof.

    Their numbers in the picture are explained below it.
    """
    axes = _Axes.around(layers, config)
    points = [(axes.x(layer.ops_per_byte), axes.y(layer.gops)) for layer in layers]
    circles: list[str] = []
    lines: list[str] = []
    for number, (layer, (x, y)) in enumerate(zip(layers, points, strict=True), 1):
        bound = f"{layer.bound(config)}-bound"
        facts = f"{layer.gops:.1f} GOPS, {layer.ops_per_byte:.0f} operations a byte, {bound}"
        text = f"{layer.name}: {facts}"
        circle = f'<circle class="bar {_BOUNDS[bound]}" cx="{x:.1f}" cy="{y:.1f}" r="{_RADIUS}">'
        circles.append(f"{circle}<title>{escape(text)}</title></circle>")
        lines.append(_text(LEFT, _HEIGHT + 8 + 15 * number, f"{number}  {text}", "label", "start"))
    parts = [*_roof(axes, config), *circles, *_numbered(points), *lines]
    height = _HEIGHT + 20 + 15 * len(layers)
    return framed("queues", f"roofline of {config.name}", (WIDTH, height), "\n".join(parts))


def _roof(axes: _Axes, config: VtaConfig) -> list[str]:
    """What memory and the GEMM core can do at most, with axes and what colours stand for."""
    peak, pace = config.peak_gops, config.gbytes_per_s
    ridge, begin = peak / pace, max(axes.x_low, axes.y_low / pace)
    middle = math.sqrt(begin * ridge)
    x, y = axes.x, axes.y
    roof = (
        f"M{x(begin):.1f} {y(begin * pace):.1f}L{x(ridge):.1f} {y(peak):.1f}H{x(axes.x_high):.1f}"
    )
    floor = _HEIGHT - 26
    return [
        *(_grid(y(tick), f"{tick:g}") for tick in _powers(axes.y_low, axes.y_high)),
        *(_text(x(t), floor, f"{t:g}", "axis", "middle") for t in _powers(axes.x_low, axes.x_high)),
        _text(WIDTH - RIGHT, floor + 14, "operations for each byte of DRAM", "axis", "end"),
        _text(LEFT, _TOP - 6, "GOPS (1e9 operations a second)", "axis", "start"),
        f'<path class="best" d="{roof}"/>',
        _text(WIDTH - RIGHT, y(peak) - 5, f"{peak:g} GOPS of the GEMM core", "axis", "end"),
        _text(x(middle) - 8, y(middle * pace) - 4, f"{pace:g} GB/s of memory", "axis", "end"),
        *_legend(tuple(_BOUNDS.items()), floor + 14),
    ]


def _numbered(points: Sequence[tuple[float, float]]) -> list[str]:
    """A number beside each point, as near to it as it can be without lying on another or a point.

    One that is not right beside it has a line to it.
    """
    taken = [_box(point, _RADIUS, _RADIUS) for point in points]
    parts: list[str] = []
    for number, (x, y) in enumerate(points, 1):
        half = 3.2 * len(str(number))
        positions = [
            (far, x + far * math.cos(turn * math.pi / 6), y + far * math.sin(turn * math.pi / 6))
            for far, turn in product(_AWAY, range(12))
        ]
        boxes = (_box((a, b), half, 4.5) for _, a, b in positions)
        free = (not any(_overlap(box, other) for other in taken) for box in boxes)
        far, a, b = next(
            (p for p, is_free in zip(positions, free, strict=True) if is_free), positions[0]
        )
        taken.append(_box((a, b), half, 4.5))
        if far > _AWAY[0]:
            near = 1 - 7 / far
            end = f"L{x + near * (a - x):.1f} {y + near * (b - y):.1f}"
            parts.append(f'<path class="grid" d="M{x:.1f} {y:.1f}{end}"/>')
        parts.append(_text(a, b + 3.5, str(number), "axis", "middle"))
    return parts


_Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def _box(middle: tuple[float, float], half_width: float, half_height: float) -> _Box:
    (x, y), w, h = middle, half_width, half_height
    return x - w, y - h, x + w, y + h


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def as_file(svg: str) -> str:
    """The picture as the text of a file, with the page's styles inside."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8") + _FILE_STYLE
    head, rest = svg.split(">", 1)
    inside = f"<style>{escape(style, quote=False)}</style>{rest}"
    return f'{head} xmlns="http://www.w3.org/2000/svg">{inside}\n'


def _text(x: float, y: float, text: str, style: str, anchor: str) -> str:
    return (
        f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">'
        f"{escape(text)}</text>"
    )


def _grid(y: float, text: str) -> str:
    line = f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    return line + _text(LEFT - 6, y + 3.5, text, "axis", "end")


def _powers(low: float, high: float) -> list[float]:
    """Powers of two in the range."""
    return [2.0**e for e in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
