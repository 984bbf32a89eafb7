"""Pictures of the VTA accelerator: its three queues over time, and layers under its roofline.

Read `queue_chart` and `roofline_chart`. As in `svg`, colours come from the page's style sheet by
class name; `as_file` makes a file that has them by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from retune.vta.config import VtaConfig
from retune.vta.isa import ALU, GEMM, QUEUES
from retune.vta.timing import Timing

WIDTH, LEFT, RIGHT = 860.0, 64.0, 12.0
_LANE, _GAP = 26.0, 10.0
_HEIGHT, _TOP, _BOTTOM = 420.0, 16.0, 40.0
_KINDS = (("memory", "plain"), ("GEMM", "ours"), ("ALU", "peer"))
"""What works, and the class of its colour."""


def queue_chart(timing: Timing) -> str:
    """A lane for each queue, from the first cycle to the last, filled where it works.

    What is less than half a pixel apart is drawn as one.
    """
    scale = (WIDTH - LEFT - RIGHT) / max(1, timing.cycles)
    height = len(QUEUES) * (_LANE + _GAP) + 34
    opcode = timing.module.instructions["opcode"]
    kind = np.where(opcode == GEMM, 1, np.where(opcode == ALU, 2, 0))
    parts: list[str] = []
    for lane, name in enumerate(QUEUES):
        y = lane * (_LANE + _GAP) + 4
        share = timing.busy[name] / max(1, timing.cycles)
        parts.append(_text(LEFT - 8, y + 12, name, "label", "end"))
        parts.append(_text(LEFT - 8, y + 24, f"{share:.0%}", "axis", "end"))
        for number, (_, style) in enumerate(_KINDS):
            mine = (timing.course.queue == lane) & (kind == number)
            path = _path(timing.course.start[mine], timing.course.end[mine], scale, y)
            parts += [f'<path class="bar {style}" d="{path}"/>'] if path else []
    floor = len(QUEUES) * (_LANE + _GAP) + 12
    parts.append(_text(LEFT, floor, "0", "axis", "start"))
    parts.append(_text(WIDTH - RIGHT, floor, f"{timing.cycles:,} cycles", "axis", "end"))
    for number, (name, style) in enumerate(_KINDS):
        x = LEFT + 90 * number
        parts.append(f'<rect class="bar {style}" x="{x}" y="{floor + 7}" width="10" height="10"/>')
        parts.append(_text(x + 15, floor + 16, name, "axis", "start"))
    return _frame("bars", f"queues of {timing.module.name} over time", height, parts)


def _path(start: np.ndarray, end: np.ndarray, scale: float, y: float) -> str:
    """Rectangles from each start to its end; close ones are one."""
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
    def of(timing: Timing) -> "Layer":
        """A module as it was simulated."""
        moved = timing.costs.read_bytes + timing.costs.written_bytes
        intensity = 2 * timing.module.macs / max(1, moved)
        return Layer(name=timing.module.name, ops_per_byte=intensity, gops=timing.gops)

    def bound(self, config: VtaConfig) -> str:
        """What limits it at best: `memory` or `compute`."""
        reached = self.ops_per_byte * config.gbytes_per_s
        return "memory" if reached < config.peak_gops else "compute"


def roofline_chart(layers: Sequence[Layer], config: VtaConfig) -> str:
    """The layers by operations a byte and operations a second, both logarithmic, and the roof.

    Their numbers in the picture are explained below it.
    """
    ridge = config.peak_gops / config.gbytes_per_s
    x_low = min([ridge / 16, *(p.ops_per_byte / 1.3 for p in layers)])
    x_high = max([ridge * 16, *(p.ops_per_byte * 1.3 for p in layers)])
    y_low = min([config.peak_gops / 32, *(max(p.gops, 1e-3) / 1.3 for p in layers)])
    y_high = config.peak_gops * 1.4

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * _share(value, x_low, x_high)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * _share(value, y_low, y_high)

    begin = max(x_low, y_low / config.gbytes_per_s)
    roof = f"M{x(begin):.1f} {y(begin * config.gbytes_per_s):.1f}"
    roof += f"L{x(ridge):.1f} {y(config.peak_gops):.1f}H{x(x_high):.1f}"
    parts = [
        *(_grid(y(tick), f"{tick:g}") for tick in _powers(y_low, y_high)),
        *(_text(x(t), _HEIGHT - 22, f"{t:g}", "axis", "middle") for t in _powers(x_low, x_high)),
        _text(WIDTH - RIGHT, _HEIGHT - 6, "operations for each byte of DRAM", "axis", "end"),
        _text(LEFT, _TOP - 4, "GOPS", "axis", "start"),
        f'<path class="best" d="{roof}"/>',
        _text(x(ridge) + 4, y(config.peak_gops) - 5, f"{config.peak_gops:g} GOPS", "axis", "start"),
    ]
    floor = _HEIGHT + 8
    for number, layer in enumerate(layers, 1):
        bound = layer.bound(config)
        style = "ours" if bound == "compute" else "bad"
        at, up = x(layer.ops_per_byte), y(max(layer.gops, y_low))
        words = f"{layer.name}: {layer.gops:.1f} GOPS, {layer.ops_per_byte:.0f} a byte"
        title = f"<title>{escape(words)}</title>"
        parts.append(
            f'<circle class="bar {style}" cx="{at:.1f}" cy="{up:.1f}" r="5">{title}</circle>'
        )
        parts.append(_text(at + 7, up + 4 + 9 * (number % 2), str(number), "axis", "start"))
        parts.append(
            _text(LEFT, floor + 15 * number, f"{number}  {words}, {bound}-bound", "label", "start")
        )
    return _frame("bars", f"roofline of {config.name}", floor + 15 * len(layers) + 12, parts)


def as_file(svg: str) -> str:
    """The picture as the text of a file, with the page's styles inside."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    head, rest = svg.split(">", 1)
    inside = f"<style>{escape(style, quote=False)}</style>{rest}"
    return f'{head} xmlns="http://www.w3.org/2000/svg">{inside}\n'


def _frame(style: str, title: str, height: float, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<svg class="{style}" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {WIDTH:.0f} {height:.0f}">\n{body}\n</svg>'
    )


def _text(x: float, y: float, text: str, style: str, anchor: str) -> str:
    return (
        f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" y="{y:.1f}">'
        f"{escape(text)}</text>"
    )


def _grid(y: float, text: str) -> str:
    line = f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
    return line + _text(LEFT - 6, y + 3.5, text, "axis", "end")


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def _powers(low: float, high: float) -> list[float]:
    """Powers of two in the range."""
    return [2.0**e for e in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
