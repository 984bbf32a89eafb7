"""Results of a run, as plain data: for manifests, tables and the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log, log10
from statistics import fmean
from typing import Literal


@dataclass(frozen=True, slots=True)
class Regret:
    """Time of a program over that of the best schedules for each size that it serves."""

    mean: float = 1.0
    """The geometric mean."""
    worst: float = 1.0
    sizes: int = 1
    """How many were looked at."""
    measured: bool = False
    """Whether calls were timed, in turns with those of bundles for one size; else it is estimated.
    """

    @staticmethod
    def of(ratios: Sequence[float], *, measured: bool = False) -> "Regret":
        """That of these times over the best ones, one for each size."""
        if not ratios:
            return Regret(sizes=0, measured=measured)
        mean = exp(fmean(map(log, ratios)))
        return Regret(mean=mean, worst=max(ratios), sizes=len(ratios), measured=measured)

    def __str__(self) -> str:
        how = "measured" if self.measured else "estimated"
        return f"{how} regret {self.mean:.2f}, at most {self.worst:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One tuning task: a fused group, and how often the network runs it."""

    key: str
    name: str
    op: str
    weight: int
    flops: int
    """Arithmetic operations of one run."""
    input_shapes: tuple[tuple[int, ...], ...]
    output_shape: tuple[int, ...]
    epilogue: tuple[str, ...] = ()
    tunable: bool = True
    """False: data movement or a chain with one sensible schedule."""
    constant_bytes: int = 0
    """Of the constants that one run reads."""

    @property
    def operators(self) -> str:
        """Operator and epilogue, such as `conv2d + bias + relu`."""
        return " + ".join((self.op, *(stage.removeprefix("T_") for stage in self.epilogue)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMatch:
    """Whether there were records of a task when its search began."""

    kind: Literal["hit", "near hit", "miss"]
    """Of the same task under the same conditions; of others that were tried first; of none."""
    level: str = ""
    """Whose they were: `user`, `team` or `package`."""
    why: str = ""
    """What differs, or what is missing."""

    @property
    def text(self) -> str:
        """As people read it: `near hit (team): another driver`."""
        whose = f" ({self.level})" if self.level else ""
        return f"{self.kind}{whose}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """A task with its latency and its trials, during a run or at its end."""

    entry: TaskEntry
    trials: int = 0
    failed: int = 0
    best_us: float | None = None
    """Of the fastest candidate; at the end, of the one that was compiled, as its record says."""
    default_us: float | None = None
    alone: bool = False
    """Whether these are times of the kernel alone, where others are of the network's comparison."""
    expected: float | None = None
    """Part of its time that the search was expected to save when it began; None: not known."""
    further: float | None = None
    """Part of its time that as many trials again are expected to save; None: not known."""

    match: RecordMatch | None = None
    """None: it was not searched, or an earlier version did not say."""

    @property
    def gained(self) -> float | None:
        """Part of the default schedule's time that is saved."""
        if not self.best_us or not self.default_us:
            return None
        return 1.0 - self.best_us / self.default_us

    @property
    def gflops(self) -> float | None:
        """Rate of the best candidate, in 1e9 operations for each second."""
        return self.entry.flops / self.best_us / 1e3 if self.best_us else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Times of one contender, measured in turns with the others."""

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
    in_16_bits: float | None = None
    """Part of its time that the ceilings allow with values of 16 bits; None: not known."""
    in_8_bits: float | None = None
    """The same with int8."""
    times: int = 1
    """How often a call runs it, such as once for each micro-batch; all are counted above."""
    host: bool = False
    """True for a host step."""
    simulated: bool = False
    """True for a step of a simulated accelerator, whose time is counted."""


MOST_DECIBELS = 300.0
"""What stands for a layer without any error: JSON has no infinity."""


def decibels(signal: float, noise: float) -> float:
    """The signal-to-noise ratio of two powers, in decibels; at most MOST_DECIBELS either way."""
    ratio = signal / noise if noise else inf
    return max(-MOST_DECIBELS, min(10 * log10(ratio), MOST_DECIBELS)) if ratio else -MOST_DECIBELS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerQuality:
    """What rounding its operands does to one layer, while all others are exact."""

    layer: str
    """Name of its output: `QuantizeSettings.skip` knows it by that."""
    op: str
    decibels: float
    """Signal-to-noise ratio of its sums."""
    saturation: float = 0.0
    """Part of the activations that it reads that lies outside their quantized range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputQuality:
    """How near an output of one network is to that of another, over samples."""

    output: str
    cosine: float
    """Of the angle between both as vectors, all samples together; 1 is the same direction."""
    top1: float | None
    """Part of the rows whose largest element is the same; None: it has no rows."""
    deviation: float
    """Largest difference, as a part of the first one's range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrecision:
    """The type that one layer of a network in mixed precision reads and is stored as."""

    layer: str
    op: str
    dtype: str
    decibels: float
    """Signal to noise of what it makes where 16 bits hold its operands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLatency:
    """Latencies at some sizes of a bundle for ranges."""

    sizes: str
    rows: tuple[Latency, ...]


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """How far a bundle's outputs are from the oracle's."""

    oracle: str
    samples: int
    max_abs: float
    max_rel: float
    """Largest deviation divided by the range of that output."""
    tolerance: float
    """What `max_rel` was compared with."""
    passed: bool
    by_parts: bool = False
    """True: the outputs of some sample agree only up to jumps of rounding, and all parts do."""
    criterion: str = "range"
    """What decided: `range`, the allowed share of the range alone; `rounding`, also what rounding
    alone does to the network on the same inputs."""
    rounding: float | None = None
    """The latter, as a part of the range; None: it was not needed."""
    used: float | None = None
    """Deviation over the allowed one where that is largest: at most 1 where it passed."""
    decision: str = ""
    """The criterion with its figures, as people read it."""
    notes: tuple[str, ...] = ()
    """What the comparison leaves open, as sentences: the oracle is not another program, or parts
    were compared with nothing."""
    top1: float | None = None
    """Part of the rows of scores whose largest element is the oracle's; None without such rows."""
    sizes: tuple[str, ...] = ()
    """Of a bundle for ranges: the sizes at which it was compared. The rest is of those at which it
    uses most of what is allowed."""

    @property
    def share(self) -> float:
        """Part of the allowed deviation that is used; at most 1 where it passed."""
        return self.max_rel / self.tolerance if self.used is None else self.used
