"""The data of the report. Nothing here knows where it came from."""

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
    notes: tuple[str, ...] = ()
    """What each candidate was, or why it failed; empty in reports of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedStrategy:
    """What the search measured of one strategy for one task."""

    strategy: str
    measured: int
    failed: int
    best_us: float | None
    """Alone, as the search measures; None: every candidate failed."""
    reason: str = ""
    """The most frequent reason of failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Nodes of the network that run together."""

    name: str
    nodes: tuple[str, ...]
    """Operator and name of each, as in the ONNX file where the import kept it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKernel:
    """A kernel of the bundle."""

    name: str
    launch: str
    """Its range, and how often the network launches it."""
    text: str
    """OpenCL C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDetail:
    """What became of one task: its nodes, schedule and kernels, and what was tried."""

    task_key: str
    groups: tuple[LayerGroup, ...]
    chosen: tuple[tuple[str, str], ...]
    """Name -> value: the record that it was compiled from, and its conditions."""
    schedule: str
    """Steps of the schedule's trace; empty for a default schedule that was not measured."""
    kernels: tuple[LayerKernel, ...]
    tried: tuple[TriedStrategy, ...]
    """The fastest first."""
    measured_us: float | None = None
    """One run of it in the bundle, each launch timed by the device; None: not timed."""


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
    """How far the quantized network is from the float one; empty for a network of floats."""
    layers: tuple[LayerQuality, ...] = ()
    """Those of integers, in the network's order."""
    precision: str = ""
    """How far the network of mixed precision is from float32; empty for any other."""
    types: tuple[LayerPrecision, ...] = ()
    """Of its layers, in the network's order."""
    layouts: ReportLayouts | None = None
    """The plan of layouts; None where none was made."""
    details: tuple[LayerDetail, ...] = ()
    """Of the tasks; empty in tests and where nothing was compiled."""
    network_times: bool = False
    """Whether best times are of an in-network comparison, and not of kernels alone."""
