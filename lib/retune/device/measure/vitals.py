"""Vital signs of a board: clocks, temperature and governor, from Linux's /sys.

Boards without a fan slow down when they are warm; a record says whether this one was.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")
_KHZ = 1e-3
_HZ = 1e-6
_MILLI = 1e-3
_COLDEST_C, _HOTTEST_C = -100.0, 300.0
"""Values outside are not temperatures: sensors that are off show such numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What the system shows; nothing of what it does not show."""

    clock_mhz: float | None = None
    """Of the fastest core, or where no core shows one of the fastest other device (a GPU)."""
    temperature_c: float | None = None
    """Of the hottest zone."""
    governor: str = ""
    """Those of all cores, each once, with commas between them."""

    def __str__(self) -> str:
        shown = (
            f"{self.clock_mhz:.0f} MHz" if self.clock_mhz is not None else "",
            f"{self.temperature_c:.1f} C" if self.temperature_c is not None else "",
            self.governor,
        )
        return ", ".join(text for text in shown if text)


def read_vitals(system: Path = SYSTEM) -> Vitals:
    """The board's vitals now; whatever cannot be read is left out."""
    cores = system / "devices" / "system" / "cpu"
    clocks = [_KHZ * khz for khz in _numbers(cores, "cpu[0-9]*/cpufreq/scaling_cur_freq")]
    if not clocks:
        clocks = [_HZ * hz for hz in _numbers(system / "class" / "devfreq", "*/cur_freq")]
    zones = _numbers(system / "class" / "thermal", "thermal_zone*/temp")
    degrees = [value for zone in zones if _COLDEST_C < (value := _MILLI * zone) < _HOTTEST_C]
    governors = _texts(cores, "cpu[0-9]*/cpufreq/scaling_governor")
    return Vitals(
        clock_mhz=max(clocks, default=None),
        temperature_c=max(degrees, default=None),
        governor=",".join(sorted(set(governors))),
    )


def _texts(folder: Path, pattern: str) -> Iterator[str]:
    for path in sorted(folder.glob(pattern)):
        try:
            if text := path.read_text(encoding="utf-8", errors="replace").strip():
                yield text
        except OSError:
            continue  # a core that is off, or a sensor that does not answer


def _numbers(folder: Path, pattern: str) -> Iterator[float]:
    for text in _texts(folder, pattern):
        try:
            yield float(text)
        except ValueError:
            continue
