"""What the report shows, as plain data. Nothing here knows where it came from."""

from dataclasses import dataclass

from retune.core.layouts import IOLayouts
from retune.core.results import (
    KernelTime,
    Latency,
    LayerPrecision,
    LayerQuality,
    TaskResult,
    VerifyResult,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCurve:
    """Measurements of one task in the order in which they were taken."""

    task: str
    times_us: tuple[float | None, ...]
    """None: the candidate failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStep:
    """A kernel, or a copy of an activation, with the layouts of what it reads and makes."""

    label: str
    reads: tuple[str, ...]
    """Labels of the steps that make what it reads."""
    io: IOLayouts = IOLayouts()
    us: float = 0.0
    """Expected by its measurements; 0: not known."""
    measured_us: float | None = None
    """In the bundle."""
    copy: bool = False

    @property
    def off(self) -> float | None:
        """Measured over expected time."""
        return self.measured_us / self.us if self.measured_us and self.us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLayouts:
    """A plan of layouts."""

    summary: str
    totals: tuple[tuple[str, float, int], ...]
    """Name, microseconds, and activations that are copied; the plan's first."""
    kept: str
    """What became of the plan in the bundle."""
    steps: tuple[LayoutStep, ...]
    """In the network's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """One tuning run."""

    network: str
    target: str
    """The device's name for people."""
    created: str
    """When, as text for people."""
    tasks: tuple[TaskResult, ...]
    """The costliest first."""
    curves: tuple[ReportCurve, ...]
    failures: tuple[tuple[str, int], ...]
    """Status or reason -> measurements, `ok` included; the most frequent first."""
    latency: tuple[Latency, ...]
    """`tuned` and `untuned` are this program's; other names are peers'."""
    simulated: bool = False
    """Whether the device is one whose times are counted, and not measured."""
    profile: tuple[KernelTime, ...]
    """In order of execution."""
    verification: VerifyResult
    facts: tuple[tuple[str, str], ...]
    """Name -> value: the run's settings and the bundle's sizes."""
    queues: tuple[str, str] | None = None
    """The longest step of a simulated accelerator, and a picture of its queues over time (SVG)."""
    integers: str = ""
    """How far the network of integers is from the float one; empty for a network of floats."""
    layers: tuple[LayerQuality, ...] = ()
    """Those of integers, in the network's order."""
    precision: str = ""
    """How far the network of mixed precision is from float32; empty for any other."""
    types: tuple[LayerPrecision, ...] = ()
    """Of its layers, in the network's order."""
    layouts: ReportLayouts | None = None
    """The plan of layouts; None where none was made."""
