"""Formatting of amounts for people: three significant digits and a unit; counts with a noun.

Read `time_text`. Programs get plain numbers instead, with the unit in the name.
"""

from collections import Counter
from collections.abc import Sequence

_TIMES = ((1.0, "µs"), (1e3, "ms"), (1e6, "s"))
_OPERATIONS = ((1.0, "FLOP"), (1e3, "kFLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"))


def time_text(us: float) -> str:
    """Microseconds, such as `4.31 ms`."""
    return _text(us, _TIMES)


def minutes_text(minutes: float) -> str:
    """Such as `3 min`, `20 s`."""
    return f"{minutes:g} min" if minutes >= 1 else f"{60 * minutes:g} s"


def flop_text(flop: float) -> str:
    """Operations of floats, such as `3.6 GFLOP`."""
    return _text(flop, _OPERATIONS)


def counted(count: int, noun: str) -> str:
    """Such as `1 task`, `1,200 tasks`; nouns with another plural are not for this."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def numbered(names: Sequence[str]) -> list[str]:
    """The names; of equal ones each with its number among them, such as `softmax (2 of 4)`."""
    totals, seen = Counter(names), Counter[str]()
    found: list[str] = []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]} of {totals[name]})" if totals[name] > 1 else name)
    return found


def _text(value: float, units: Sequence[tuple[float, str]]) -> str:
    """In the largest unit of which it is at least one, when it is rounded."""
    rounded = float(f"{value:.3g}")
    size, unit = next(((s, u) for s, u in reversed(units) if abs(rounded) >= s), units[0])
    return f"{_three(rounded / size)} {unit}"


def _three(number: float) -> str:
    """Three significant digits, never as a power of ten before the point."""
    return f"{number:.0f}" if abs(number) >= 1000 else f"{number:.3g}"
