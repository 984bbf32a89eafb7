"""What the report shows, as plain data. Nothing here knows where it came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTask:
    """One tuning task at the end of the run."""

    name: str
    op: str
    """Operator and epilogue, such as `conv2d + bias + relu`."""
    output_shape: tuple[int, ...]
    weight: int
    flops: int
    trials: int
    failed: int
    default_us: float | None
    """Time of the default schedule; None: not measured."""
    best_us: float | None
    """Time of the best right candidate; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCurve:
    """Measurements of one task in the order in which they were taken."""

    task: str
    times_us: tuple[float | None, ...]
    """None: the candidate failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Latency of one contestant; all were measured interleaved."""

    name: str
    """`untuned`, `tuned`, or the peer's name."""
    median_us: float
    p25_us: float
    p75_us: float
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """Time of one launch or host step of the tuned bundle."""

    label: str
    kernel: str = ""
    """Of a host step its ops."""
    us: float
    flops: int
    bytes: int = 0
    roofline: float | None = None
    """Share of what the machine's ceilings, measured in the same process, allow."""
    host: bool = False
    """True for a host step."""
    simulated: bool = False
    """True for a step of a simulated accelerator, whose time is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportVerification:
    """How far the bundle's outputs are from the oracle's."""

    oracle: str
    samples: int
    max_abs: float
    max_rel: float
    tolerance: float
    passed: bool
    by_parts: bool = False
    """True: the outputs of some sample agree only up to jumps of host steps, and all parts do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuality:
    """What eight bits do to one layer."""

    layer: str
    op: str
    decibels: float
    """Signal to noise of its sums."""
    saturation: float
    """Part of the activations that it reads that lies outside the quantized range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidStep:
    """A kernel or a copy of an image, by the layouts of what it reads and makes."""

    label: str
    reads: tuple[str, ...]
    """Labels of the steps whose images it reads."""
    read: str
    made: str
    us: float
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
    """Name, microseconds, and images that are copied; the plan's first."""
    kept: str
    """What became of the plan in the bundle."""
    steps: tuple[LaidStep, ...]
    """In the network's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """One tuning run."""

    network: str
    target: str
    """The device's name for people."""
    created: str
    """When, as text for people."""
    tasks: tuple[ReportTask, ...]
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
    verification: ReportVerification
    facts: tuple[tuple[str, str], ...]
    """Name -> value: the run's settings and the bundle's sizes."""
    queues: tuple[str, str] | None = None
    """The longest step of a simulated accelerator, and a picture of its queues over time (SVG)."""
    integers: str = ""
    """How far the network of integers is from the float one; empty for a network of floats."""
    layers: tuple[LayerQuality, ...] = ()
    """Those of integers, in the network's order."""
    layouts: ReportLayouts | None = None
    """The plan of layouts; None where none was made."""
