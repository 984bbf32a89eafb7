"""The results of a run: the manifests of its stages, and the summary for the user."""

from dataclasses import dataclass, field

from retune.core.errors import RetuneError
from retune.core.ranges import usual_sizes
from retune.core.results import Latency, SizeLatency, TaskResult
from retune.pipeline.layout_manifest import LayoutManifest
from retune.pipeline.manifest import (
    BenchManifest,
    CompileManifest,
    Constraints,
    ImportManifest,
    PrecisionManifest,
    PublishedManifest,
    QuantizeManifest,
    Selection,
    TaskManifest,
    TunedTasks,
    VerifyManifest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """The manifests of a run's stages, before it is published."""

    network: ImportManifest
    tasks: TaskManifest
    searched: TunedTasks
    chosen: tuple[Selection, ...]
    """What the tuned bundle was compiled from, at each of the sizes; a fixed network has one."""
    constraints: Constraints
    """Those that it complies with."""
    tuned: CompileManifest
    verified: VerifyManifest
    bench: BenchManifest
    quantized: QuantizeManifest | None = None
    precision: PrecisionManifest | None = None
    """Of mixed precision."""
    layouts: LayoutManifest = field(default_factory=LayoutManifest)

    @property
    def selection(self) -> Selection:
        """The selection for the sizes that occur most."""
        usual = usual_sizes([each.sizes for each in self.chosen])
        return next(each for each in self.chosen if each.sizes == usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneEvent:
    """Something that a person who watches may want to know."""

    stage: str
    text: str
    """One line for a log."""
    done: int = 0
    total: int = 0
    """Measurements; 0: not known beforehand, as the budget is time."""
    spent: float = 0.0
    """While measuring: share of the budget that is gone, from 0 to 1."""
    tasks: tuple[TaskResult, ...] = ()
    """While measuring: every tuned task as it stands, in the network's order."""
    next_key: str | None = None
    """Key of the task that is measured next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The end of a run: what the command line prints and the library returns."""

    model: str
    name: str
    module: str
    report: str
    records: str
    target: str
    """Fingerprint of the device."""
    tasks: tuple[TaskResult, ...]
    trials: int
    seconds: float
    """Time spent measuring."""
    reason: str
    verified: VerifyManifest
    latency: tuple[Latency, ...]
    """Of a bundle for ranges at the sizes that occur most."""
    sizes: tuple[SizeLatency, ...] = ()
    """Of a bundle for ranges: at each of the sizes that it is tuned for."""
    statuses: tuple[tuple[str, int], ...] = field(default=())
    """Status -> measurements of the whole run."""
    max_error: float = 0.0
    """What each layer was allowed, as a part of its output's range."""
    largest_error: str = ""
    """What was used of it."""
    precision: str = ""
    """What its values are stored as, and what that costs; empty for a network of float32."""
    gain: str = ""
    """What smaller values would gain a network of float32, as the device's ceilings say; empty
    where that is little or not known."""
    settled: str = ""
    """What validating the selection came to."""
    published: PublishedManifest | None = None
    """Which bundle is published, and why that one."""
    failed: tuple[tuple[str, str], ...] = ()
    """Task -> why its search failed; it has its default schedule."""
    effort: str = ""
    """See `TuneRequest.effort`."""
    further: float | None = None
    """Part of the tuned tasks' time that as many trials again are expected to save; None: nothing
    was searched."""
    complete: bool = False
    """Whether nothing that is worth its time is expected of searching on."""
    conclusion: tuple[str, ...] = ()
    """What was found, what it is worth and what would gain more, as sentences for newcomers."""
    slow: str = ""
    """Than which peer the bundle is slower, or that it is mostly on the host, with the first cause,
    as a sentence; empty if neither."""


class SlowerThanPeer(RetuneError):
    """A bundle was published that is slower than the peer that `fail_if_slower_than` names."""

    def __init__(self, reason: str, result: TuneResult) -> None:
        super().__init__(f"{result.module}: {reason}; the bundle is published, see its report")
        self.result = result
        """The end of the run."""
