"""The arithmetic of a measurement: repeats, comparison, disturbance. No device, no clock here."""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np

from retune.codegen.source import ProgramSource
from retune.device.measure.contention import MOST_REPEATS, Took, undisturbed_times
from retune.device.measure.messages import Timed
from retune.device.measure.workload import MeasureOptions
from retune.device.opencl.host import available_cores
from retune.records.cost import drift

_GROWTH = 1.5
"""Least growth of the number of calls from one attempt to the next."""
_MARGIN = 1.2
"""More calls than the last attempt promises to be enough: a single call holds a thread's waking."""
_MAX_CALLS = 1_000_000
_CHECKED_RUNS = 2
"""A wrong result is run once more on fresh inputs."""
_ELEMENTS_PER_S = 1e7
"""Slow for uploads, random data and comparison together."""
_PART = 1 << 17
"""Elements that are compared at once."""
_FEW_PARTS = 4
"""That one thread compares as soon as several are started."""
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far outputs lie from their reference."""

    largest: float
    problem: str
    """Names the worst element if it lies further than allowed; empty otherwise."""


def time_repeats(
    run: Callable[[int], Took],
    options: MeasureOptions,
    best_us: float | None,
    before_repeat: Callable[[], None],
) -> tuple[float, ...]:
    """Mean microseconds of a call, for each repeat; `run(n)` gives the time of n calls.

    The first repeat's calls are doubled or more until it lasts min_repeat_ms; the count stays. A
    candidate far slower than `best_us` is let go after one repeat. Repeats that others disturb are
    made again, see `undisturbed_times`.
    """
    number = 1 if options.cache_flush else options.number
    least_s = 0.0 if options.cache_flush else options.min_repeat_ms * 1e-3

    def repeat() -> Took:
        before_repeat()
        return run(number)

    first = repeat()
    while first.seconds < least_s and number < _MAX_CALLS:
        wanted = number * least_s / max(first.seconds, 1e-9)
        number = min(_MAX_CALLS, max(math.ceil(wanted * _MARGIN), math.ceil(number * _GROWTH)))
        first = run(number)
    first_us = 1e6 * first.seconds / number
    if best_us and options.give_up_factor and first_us > options.give_up_factor * best_us:
        return (first_us,)
    return tuple(1e6 * s / number for s in undisturbed_times(repeat, options.repeat, [first]))


def present_us(cost: float | None, reference_us: float, calm_us: float | None) -> float | None:
    """The time that a candidate of this cost (`records.cost`) takes with the present drift."""
    if cost is None:
        return None
    quiet = np.nan if calm_us is None else calm_us
    return cost * float(drift(np.array(reference_us), np.array(quiet)))


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedOutputs:
    """Reference outputs, and how far a candidate's may lie from them."""

    outputs: Mapping[str, np.ndarray]
    """By name."""
    allowed: Mapping[str, float]
    """The largest absolute deviation of each."""

    @classmethod
    def of(cls, outputs: Mapping[str, np.ndarray], rtol: float, atol: float) -> Self:
        """Allowed is atol + rtol times the largest finite value of that output."""
        return cls(outputs, {n: atol + rtol * _largest_finite(a) for n, a in outputs.items()})

    def deviation(self, found: Mapping[str, np.ndarray]) -> Deviation:
        """The largest absolute deviation over all outputs, and where one breaks its tolerance most.

        NaN counts as infinitely far, unless the reference has it at the same index.
        """
        largest, problem, excess = 0.0, "", 0.0
        for name, reference in self.outputs.items():
            values, allowed = np.asarray(found[name]).ravel(), self.allowed[name]
            distance = _largest_distance(values, reference.ravel())
            if not distance <= allowed:  # or it is NaN
                far = _deviation(name, values, reference, allowed)
                distance = far.largest
                if far.problem and distance / max(allowed, 1e-300) > excess:
                    problem, excess = far.problem, distance / max(allowed, 1e-300)
            largest = max(largest, distance)
        return Deviation(largest=largest, problem=problem)


def _largest_finite(array: np.ndarray) -> float:
    """The largest absolute value that is finite; 0 if there is none."""
    wide = np.abs(np.asarray(array, np.float64).ravel())
    finite = wide[np.isfinite(wide)]
    return float(finite.max()) if finite.size else 0.0


def _largest_distance(values: np.ndarray, wanted: np.ndarray) -> float:
    """The largest absolute difference; NaN if some difference is none.

    By several threads, in parts that stay in a cache: an output may have millions of elements, and
    each candidate is compared.
    """
    wide = np.float32 if _fits_float32(values) and _fits_float32(wanted) else np.float64

    def most(start: int) -> float:
        part = slice(start, start + _PART)
        with np.errstate(invalid="ignore"):
            distance = values[part].astype(wide) - wanted[part].astype(wide)
        return float(np.abs(distance, out=distance).max())

    starts = range(0, len(wanted), _PART)
    if len(starts) <= _FEW_PARTS:
        return float(np.max([*map(most, starts)], initial=0.0))
    with ThreadPoolExecutor(min(_THREADS, available_cores())) as pool:
        return float(np.max([*pool.map(most, starts)]))


def _fits_float32(array: np.ndarray) -> bool:
    """Whether float32 has all values of the array's type."""
    return array.dtype.itemsize <= 2 or array.dtype == np.float32


def _deviation(name: str, values: np.ndarray, reference: np.ndarray, allowed: float) -> Deviation:
    """How far one output lies from its reference, and where it lies further than allowed."""
    wanted = np.asarray(reference, np.float64).ravel()
    values = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(values - wanted)
    same = (values == wanted) | (np.isnan(values) & np.isnan(wanted))
    distance = np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
    worst, wrong = int(distance.argmax()), int(np.count_nonzero(distance > allowed))
    if not wrong:
        return Deviation(largest=float(distance[worst]), problem="")
    index = [int(i) for i in np.unravel_index(worst, np.shape(reference))]
    problem = (
        f"output {name!r} at {index}: expected {wanted[worst]:.9g}, got {values[worst]:.9g}; "
        f"deviation {distance[worst]:.3g}, allowed {allowed:.3g}; {wrong} of {wanted.size} "
        "elements are off"
    )
    return Deviation(largest=float(distance[worst]), problem=problem)


def disturbance(timed: Timed) -> float:
    """Ratio, at least 1, of the reference times on either side."""
    low, high = sorted((timed.before_us, timed.after_us))
    return high / low if low > 0 else math.inf


def check_deadline_s(source: ProgramSource, options: MeasureOptions) -> float:
    """Seconds after which a first run, with its transfers, is taken for a hang."""
    held = sum(buffer.elements for buffer in source.buffers)
    return (
        options.run_deadline_s
        + _CHECKED_RUNS * source.flops / (1e9 * options.worst_gflops)
        + (held / _ELEMENTS_PER_S)
    )


def time_deadline_s(first_s: float, options: MeasureOptions) -> float:
    """Seconds after which timing is taken for a hang, given the first run's time."""
    call_s = max(first_s * options.number, options.min_repeat_ms * 1e-3)
    planned = (MOST_REPEATS * options.repeat + 3) * (call_s + options.cooldown_s)
    return options.run_deadline_s + options.deadline_factor * planned
