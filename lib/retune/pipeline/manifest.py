"""Manifests: the results that stages of a run pass on, one class for each stage.

All of it is plain data (text, numbers, tuples), small, and goes to JSON and back. Arrays, graphs
and records travel as files named in a manifest. Paths in a manifest are relative to its `folder`.
A manifest states contents, as its key does: where the model is now, and by what name, the request
says.

The way: TuneRequest -> ImportManifest (-> QuantizeManifest, PrecisionManifest) -> TaskManifest
-> TuneManifest (one for each task) -> TunedTasks -> Constraints -> Selection
-> CompileManifest (untuned, tuned) -> VerifyManifest (-> Constraints -> Selection ...)
-> BenchManifest -> PublishedManifest.
"""

from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal, Self

from retune.core.layouts import ALL_NHWC, LayoutAssignment
from retune.core.ranges import FIXED, TunedSizes
from retune.core.results import (
    KernelTime,
    Latency,
    LayerPrecision,
    LayerQuality,
    OutputQuality,
    Regret,
    SizeLatency,
    TaskEntry,
    TaskResult,
    VerifyResult,
)
from retune.search.defaults import LEAST_GAIN

Variant = Literal["untuned", "tuned"]

ONE_SIZE = "one size"
"""Name of bundles that are for one size each, in comparisons with one for ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file of a stage's output, as it was when the stage finished."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Base of all manifests. A stage's body leaves all of these but `stopped` to `run_once`."""

    stage: str = ""
    key: str = ""
    """Content key of the stage's inputs and code."""
    folder: str = ""
    """The path of the output; known when the manifest is loaded, not stored."""
    seconds: float = 0.0
    """What the stage took when it ran."""
    outputs: tuple[OutputFile, ...] = ()
    stopped: bool = False
    """True: the body was asked to stop and did less than all; such an output is never stored."""

    def file(self, relative: str) -> Path:
        """The path of one of the stage's files."""
        return Path(self.folder) / relative

    @property
    def content(self) -> Self:
        """The manifest without its times: equal for equal results, whenever the stage ran."""
        return replace(self, stage="", key="", folder="", seconds=0.0, outputs=(), stopped=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueInfo:
    """An input or output of the network."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLabels:
    """The strings that the numbers of an output are, or that its columns are for."""

    output: str
    labels: tuple[str, ...]
    columns: bool
    """Whether the model makes dictionaries: the bundle makes a tensor with these columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportManifest(Manifest):
    """The facts of the network. Its ONNX file is the request's: `request.model_file`."""

    model_key: str
    """Content key of the graph, weights included."""
    layout: str
    inputs: tuple[ValueInfo, ...]
    output_values: tuple[ValueInfo, ...]
    nodes: int
    """Nodes after the passes."""
    parameters: int
    """Elements of all weights."""
    flops: int
    passes: tuple[str, ...] = ()
    """The passes that ran, in order, such as `fold-batch-norm: 53`."""
    recipe: str = ""
    """File of what makes integers of it; empty: the network is as its file has it."""
    labels: tuple[OutputLabels, ...] = ()
    """Of outputs that are strings or maps in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesManifest(Manifest):
    """On which inputs bundles of the network are run."""

    oracle: str
    """Name of the program that outputs are compared with."""
    ranges: tuple[tuple[str, int, int], ...] = ()
    """Inputs with the least and the greatest value of retune's samples, see `legal_ranges`."""
    given: int = 0
    """Number of samples that the user gave; 0: they are random."""
    arrays: str = ""
    """File with the given ones, see `quantize.samples.stacked_samples`."""
    notes: tuple[str, ...] = ()
    """Branches that no sample takes, as sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeManifest(Manifest):
    """The recipe of a quantized network, with its accuracy loss."""

    model_key: str
    """Of the float network."""
    recipe: str
    """File: settings and ranges."""
    scheme: str
    weight_bits: int = 8
    samples: int
    random: bool
    left: tuple[str, ...]
    """Layers that were left in floats for the accuracy's sake, the noisiest first."""
    layers: tuple[LayerQuality, ...]
    """On samples that were held out, in the network's order."""
    calibration: tuple[OutputQuality, ...]
    held_out: tuple[OutputQuality, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionManifest(Manifest):
    """The type of each layer of a network in mixed precision, and the loss of accuracy."""

    model_key: str
    """Of the network in float32."""
    stored: str
    """The type of what is not kept in float32."""
    max_deviation: float
    """What was asked for."""
    samples: int
    random: bool
    kept: tuple[str, ...]
    """Layers in float32, the noisiest first."""
    layers: tuple[LayerPrecision, ...]
    """In the network's order."""
    quality: tuple[OutputQuality, ...]
    """Of each output against that of the network in float32, by numpy."""

    @property
    def deviation(self) -> float:
        """The largest of an output."""
        return max((entry.deviation for entry in self.quality), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManifest(Manifest):
    """The tasks of the network."""

    model_key: str
    tasks: tuple[TaskEntry, ...]
    micro_batches: tuple[tuple[int, int], ...] = ()
    """Images of a micro-batch -> layers that run for so many at a time; none of whole batches."""

    def entry(self, key: str) -> TaskEntry:
        """The task of that key, which is one of them."""
        return next(entry for entry in self.tasks if entry.key == key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneManifest(Manifest):
    """The search of one task in a run. Its records are in the store."""

    run_id: str
    target: str
    """Fingerprint of the device."""
    result: TaskResult
    """Counts are of this run so far, times the best known to the store."""
    statuses: tuple[tuple[str, int], ...]
    """Status -> measurements of the task in this run."""
    trials_done: int
    """Measurements of the run, all tasks together, when this search ended."""
    seconds_done: float
    """What the run had spent on searching by then."""
    reason: str
    """Why the task gets no further trials."""

    @property
    def task_key(self) -> str:
        """The task that was searched."""
        return self.result.entry.key


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTasks:
    """The results of searching all tasks."""

    run_id: str
    target: str
    """Fingerprint of the device."""
    results: tuple[TaskResult, ...]
    """Every tuned task whose search did not fail, in the network's order."""
    statuses: tuple[tuple[str, int], ...]
    """Status -> measurements of the run, the most frequent first."""
    trials_done: int
    seconds_done: float
    """Time that the run has spent on searching."""
    reason: str
    """Why there are no further trials."""
    stopped: bool = False
    """True: the user stopped it, and the same request goes on."""
    failed: tuple[tuple[str, str], ...] = ()
    """Task key -> why its search failed for good. Such a task gets its default schedule."""
    further: float | None = None
    """Part of the tuned tasks' time that as many trials again are expected to save; None: not
    known, as nothing was searched."""

    @property
    def complete(self) -> bool:
        """Whether nothing that is worth its time is expected of searching on."""
        return self.further is not None and self.further < LEAST_GAIN and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRecord:
    """The record that a task is compiled from."""

    task_key: str
    record_id: str
    time_us: float
    """In its network if it was compared there, otherwise alone."""
    elsewhere: bool = False
    """Whether it is a record of others: its time is of another device or other conditions."""
    default_us: float | None = None
    """Of the default schedule in the network, if it was timed there."""
    default: bool = False
    """Whether its schedule is the default one: nothing is gained by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints(Manifest):
    """Constraints on a selection, from all that was compared and verified so far.

    The in-network comparison of finalists makes the first ones. Bundles of a selection add to them.
    """

    winners: tuple[BestRecord, ...] = ()
    """Fastest in the network, by an in-network comparison of the finalists."""
    defaults: tuple[str, ...] = ()
    """Tasks that keep their default schedule: it was the fastest, or their search failed."""
    layouts: LayoutAssignment = ALL_NHWC
    denied: tuple[tuple[str, str], ...] = ()
    """Task key, and a record of it that makes the network wrong. It is in quarantine."""
    limits: tuple[tuple[str, float], ...] = ()
    """Task key -> largest error, for tasks that may not have what the request allows: the network
    as a whole deviated too far."""
    given_back: tuple[str, ...] = ()
    """Tasks that got their default schedule back, as the bundle was not faster without it."""
    ratio: float | None = None
    """Time of the bundle over that of default schedules, interleaved; None: both are the same."""
    nhwc_ratio: float | None = None
    """The same of the planned layouts over NHWC alone; None: they were not compared."""
    iterations: int = 0
    """Of the network, in the comparison of the finalists."""
    saved: tuple[float, float] = (0.0, 1.0)
    """Part of the network's time that the winners save, by that comparison: the ends of the 95 %
    interval, from 0 to 1 where it is not known."""
    uncompared: str = ""
    """Why finalists were not compared, so that records alone decide; empty where they were."""

    @property
    def too_little(self) -> bool:
        """Whether finalists saved too little for them to be compiled, so that all tasks keep their
        default schedules."""
        known = self.iterations and self.saved[1] < 1.0
        return bool(known) and all(best.task_key in self.defaults for best in self.winners)

    @property
    def binding(self) -> tuple[object, ...]:
        """The constraints that determine a selection; the others tell how they were found."""
        kept = (self.winners, self.defaults, self.given_back)
        return (*kept, self.layouts, self.denied, self.limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The record that each task is compiled from; the default schedule where none is named."""

    sizes: TunedSizes = FIXED
    """Of a bundle for ranges: those at which it was found, and how often they occur."""
    model_key: str = ""
    """Of the network, with these sizes fixed; empty for default schedules of any network."""
    target: str
    best: tuple[BestRecord, ...] = ()
    limits: tuple[tuple[str, float], ...] = ()
    """See `Constraints.limits`."""
    layouts: LayoutAssignment = ALL_NHWC

    @property
    def tuned(self) -> tuple[str, ...]:
        """Keys of the tasks with another schedule than the default one."""
        return tuple(best.task_key for best in self.best if not best.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileManifest(Manifest):
    """A bundle."""

    variant: Variant
    module: str
    """Folder of the bundle."""
    target: str
    kernels: int
    launches: int
    weight_bytes: int
    arena_bytes: int
    """Memory for values between kernels."""
    least_bytes: int
    """No plan can need less than this."""
    from_records: int
    """Tasks compiled from a record."""
    from_defaults: int
    """Tasks compiled with the default schedule."""
    form: str = ""
    """How the bundle runs: see `bundle.plan.Form`."""
    steps_key: str = ""
    """See `bundle.format.steps_key`; empty: an earlier version did not say."""
    largest_error: str = ""
    """Of the strategies used, as they state it: a part of a layer's output range, and how often."""
    host_steps: tuple[str, ...] = ()
    """The ops of each part that runs in numpy, on the host."""
    offloaded: int = 0
    """Steps that an accelerator runs."""
    simulated_us: float = 0.0
    """What these take there in all: counted, not measured."""
    programs: tuple[str, ...] = ()
    """Of a bundle for ranges: the sizes that each of its programs is for, in the order in which
    they are asked."""
    traced: tuple[tuple[tuple[str, int], ...], ...] = ()
    """Some sizes that each of these programs runs for."""
    regrets: tuple[Regret, ...] = ()
    """Of each of these programs over all of its sizes."""

    def has_steps_of(self, other: "CompileManifest") -> bool:
        """Whether both run the same kernels on the same weights: only their forms may differ, which
        were found by measuring each, and times of both tell nothing of schedules."""
        return self.key == other.key or (bool(self.steps_key) and self.steps_key == other.steps_key)

    @property
    def served(self) -> str:
        """The sizes that each program is for, with its regret."""
        rows = zip_longest(self.programs, self.regrets)
        return "; ".join(f"{sizes} ({regret})" if regret else sizes for sizes, regret in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyManifest(Manifest, VerifyResult):
    """The deviation of the bundle's outputs from the oracle's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchManifest(Manifest):
    """Bundles and peers, measured interleaved in one run."""

    rows: tuple[Latency, ...]
    profile: tuple[KernelTime, ...] = ()
    board: str = ""
    """Of a farm: its name, and its clock, temperature and governor after the comparison."""
    sizes: tuple[SizeLatency, ...] = ()
    """Of a bundle for ranges, at the sizes that it is tuned for; `rows` are those that occur most.
    """
    waited: float = 0.0
    """Part of the measured time that threads waited for cores, at most over the sizes. 0 to 1"""

    @property
    def regret(self) -> Regret | None:
        """Of a bundle for ranges, over bundles of the same schedules for one size each; None where
        these were not timed."""
        times = [{row.name: row.median_us for row in each.rows} for each in self.sizes]
        ratios = [own["tuned"] / own[ONE_SIZE] for own in times if ONE_SIZE in own]
        return Regret.of(ratios, measured=True) if ratios else None

    def median_us(self, name: str) -> float | None:
        """The median of that contender, if it took part."""
        return next((row.median_us for row in self.rows if row.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest(Manifest):
    """The bundle that is published in the user's folder, and the reason."""

    module: str
    """The published bundle, `<out>/module`."""
    report: str
    """Its report, `<out>/report.html`."""
    promoted: bool
    """True: the bundle of this run is the published one from now on."""
    why: str
    """The decision as a sentence."""
    number: int | None = None
    """Version of this run's bundle; None: it was not kept."""
    current: int | None = None
    """Version that is published; None: none is."""
    champion: Latency | None = None
    """Of the bundle that was published before, in turns with `challenger`; None: not compared."""
    challenger: Latency | None = None
    """Of this run's bundle."""
    ratio: tuple[float, float, float] | None = None
    """Time of the challenger over the champion's, and the bounds of the 95 % interval."""
