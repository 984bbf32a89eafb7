"""The schema of a measurement and of a record. Plain data: no arrow, no pandas.

A record is an identity (what was measured, where, by whom) and a Measurement (what came out).
Failed candidates are records too: search and cost model learn from them.
"""

import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from retune.core.target import DeviceSpec
from retune.records.conditions import Conditions

SCHEMA_VERSION = 1
"""Of the record files. Columns are only ever added; a file of a newer version is refused."""

Phase = Literal["search", "final", "layout"]
"""Why a candidate was measured: to find better ones, once more to be certain of the winner, or with
activations in other layouts."""

BESIDE_SEARCH: tuple[Phase, ...] = ("final", "layout")
"""Phases whose records are no trials of a search."""

Status = Literal[
    "ok", "compile_error", "launch_error", "wrong_result", "timeout", "crash", "skipped"
]
"""How far a candidate came; only `ok` has a time that counts."""

MAX_ERROR_CHARS = 2000


def _now() -> datetime:
    return datetime.now(UTC)


def _new_id() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The outcome of one candidate. Times are of one call of the whole program."""

    status: Status
    error: str = ""
    """Why the status is not `ok`; empty if it is."""
    run_times_us: tuple[float, ...] = ()
    """Mean time of a call, for each repeat."""
    median_us: float | None = None
    """Median of `run_times_us`; None unless ok."""
    max_abs_err: float | None = None
    """Largest deviation from the reference, over all outputs; None if no output was compared."""
    reference_us: float | None = None
    """Time of the calibration kernel, run just before and after: the machine's drift."""
    calm_us: float | None = None
    """Its time on the quiet machine, as far as was known at that moment: see `records.cost`."""
    build_s: float = 0.0
    """Compilation and first launch; of candidates that shared a program, an equal share each."""
    run_s: float = 0.0
    """Upload, comparison and timing."""
    instance: str = ""
    """Which of several equal devices took it: stored as the conditions' instance. Empty: theirs."""
    clock_mhz: float | None = None
    """Clock of the board's fastest core after the batch, where the system shows it."""
    temperature_c: float | None = None
    """Of its hottest zone then."""
    governor: str = ""
    """Who chooses its clocks: `performance`, `schedutil`, ..."""
    timestamp: datetime = field(default_factory=_now)

    @property
    def ok(self) -> bool:
        """True if the candidate ran, was right, and has a time."""
        return self.status == "ok"


def succeeded(
    run_times_us: Sequence[float],
    *,
    max_abs_err: float | None,
    reference_us: float | None,
    calm_us: float | None = None,
    build_s: float,
    run_s: float,
) -> Measurement:
    """The measurement of a candidate that was right, with the median of its repeats.

    Times in microseconds: at least one repeat's, the calibration kernel's beside them (None: not
    taken), and its quiet time (None: this moment is all that is known of the machine). In seconds:
    what building and running it took in all.
    """
    return Measurement(
        status="ok",
        run_times_us=tuple(run_times_us),
        median_us=statistics.median(run_times_us),
        max_abs_err=max_abs_err,
        reference_us=reference_us,
        calm_us=reference_us if calm_us is None else calm_us,
        build_s=build_s,
        run_s=run_s,
    )


def failed(
    status: Status,
    error: str,
    *,
    max_abs_err: float | None = None,
    build_s: float = 0.0,
    run_s: float = 0.0,
) -> Measurement:
    """The measurement of a candidate that stopped at some stage, without a time.

    A long message is cut in its middle. `build_s` and `run_s`: the seconds that it took.
    """
    if len(error) > MAX_ERROR_CHARS:
        half = MAX_ERROR_CHARS // 2 - 3
        error = f"{error[:half]} ... {error[-half:]}"
    return Measurement(
        status=status, error=error, max_abs_err=max_abs_err, build_s=build_s, run_s=run_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Software that a time depends on."""

    driver: str = ""
    opencl: str = ""
    retune: str = ""

    @classmethod
    def of(cls, spec: DeviceSpec, retune: str) -> "Environment":
        """The environment of a device, under this version of retune."""
        return cls(driver=spec.driver, opencl=spec.opencl, retune=retune)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningRecord:
    """One candidate of one task, measured once."""

    record_id: str = field(default_factory=_new_id)
    """Unique; a record that is delivered twice is read once."""
    run_id: str
    """Its run: one of a network on a device, in a night or beside it."""
    night: str = ""
    """The night or campaign that the run belongs to; empty outside."""
    attempt: int = 0
    """Which of several measurements of a finalist it is; 0 in the search."""
    trial: int = 0
    """How many candidates the search of this run had measured before."""
    phase: Phase = "search"
    model: str
    """Network that the task was met in first."""
    target: str
    """Device model; with `model` and the date it says in which folder the record lies."""
    task_key: str
    task_name: str
    op: str = ""
    """The operator, or the heaviest stage of an expression."""
    flops: int | None = None
    """Arithmetic operations of one call."""
    bytes: int | None = None
    """The least traffic of one call: every input, constant and output once."""
    input_shapes: tuple[tuple[int, ...], ...] = ()
    """Of inputs and constants, before axes were merged."""
    output_shape: tuple[int, ...] = ()
    """Of the first output."""
    dtypes: tuple[str, ...] = ()
    """Element types: of the inputs and constants, then of the outputs."""
    tuner: str = ""
    """Who proposed it."""
    seed: int | None = None
    """Of the run: with it, tuner and task propose the same again."""
    sketch: str
    decisions: tuple[int, ...]
    """The values decided, one after the other: what `sketch` asks for."""
    knobs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The same by name."""
    trace: str
    """JSON of the schedule's trace: replaying it gives the kernel."""
    config_hash: str
    """Identity of (sketch, decisions) within the task: what is not to be measured again."""
    strategy: str = ""
    """How the kernel works, as its sketch says: `cpu.winograd4`, `gpu.local4.halo`, `template x`.
    Comparable over tasks; in records without `op` it is what `op` is now."""
    layout: str = ""
    device: str
    """DeviceSpec.fingerprint."""
    conditions: Conditions | None = None
    """Times are comparable only where their key is equal; None: taken before they were kept."""
    env: Environment = Environment()
    spec: str = ""
    """Key of the DeviceSpec, see `records.origins`; empty in records of early versions."""
    features: tuple[float, ...] = ()
    feature_set: str = ""
    """Name and version of the features' meaning; empty if none are stored."""
    measurement: Measurement

    @property
    def line(self) -> str:
        """The measurement for people: what was measured, and its time or why there is none."""
        measured = self.measurement
        told = f"{measured.median_us:,.1f} us" if measured.median_us else measured.status
        reason = f": {' '.join(measured.error.split())}" if measured.error else ""
        which = f"trial {self.trial}" if self.phase == "search" else self.phase
        return f"{self.task_name} {self.strategy or self.sketch}, {which}: {told}{reason}"
