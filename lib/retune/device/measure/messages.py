"""Messages between parent and measuring child: frozen requests and replies."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.target import DeviceSpec
from retune.device.measure.workload import MeasureOptions
from retune.device.opencl.launch_cost import LaunchCost
from retune.records.schema import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadArrays:
    """Use these arrays as inputs and reference from now on."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    positions: Mapping[str, np.ndarray]
    """See `Workload.positions`."""
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Compile programs, as one where the device allows it, and keep each under its index."""

    jobs: Mapping[int, ProgramSource]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Launch at most one work-group of each kernel: drivers that compile late do so now."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Run a job once on the loaded arrays, and compare; its buffers stay for Time."""

    index: int
    constants: Mapping[str, np.ndarray]
    """Those that are packed, by name."""
    spread_bytes: int = 0
    """MeasureOptions.spread_bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Time the job that was checked last, with the calibration kernel before and after."""

    options: MeasureOptions
    best_cost: float | None
    """Least cost (`records.cost`) of the workload so far."""
    calm_us: float | None
    """The calibration kernel's time on the quiet machine, as far as it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Drop every job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """Measure what launching costs."""


REQUESTS: tuple[type, ...] = (LoadArrays, Build, Warm, Check, Time, Forget, Launching)
"""What a measuring process is asked."""
Request = LoadArrays | Build | Warm | Check | Time | Forget | Launching


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The child has opened its device."""

    spec: DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The candidate failed, in a way that leaves the child in order."""

    status: Status
    error: str
    max_abs_err: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The outputs are right."""

    max_abs_err: float
    first_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Mean time of a call for each repeat, and the calibration kernel's time on either side."""

    times_us: tuple[float, ...]
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The child itself failed: a missing device (`user_error`), or a bug."""

    error: str
    user_error: bool


REPLIES: tuple[type, ...] = (Done, Refused, Checked, Timed, LaunchCost)
"""What a measuring process answers, beside Ready and Broken."""
Reply = Ready | Done | Refused | Checked | Timed | LaunchCost | Broken
