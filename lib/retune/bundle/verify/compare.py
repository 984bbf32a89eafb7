"""Does a module compute what it should? Seeded samples, compared with a reference.

Read `verify`. The measure is the largest deviation of an output as a part of the range of the
reference's values, so that it means the same for logits and for probabilities. Integers and truth
values have to be equal. A network with host steps may be compared part by part, see `by_parts`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from retune.core.dtypes import as_dtype, dtype_of
from retune.core.errors import InputError

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.bundle.verify.by_parts import Parts
    from retune.bundle.verify.peers import Predict

Feeds = Callable[[int], Mapping[str, np.ndarray]]
"""Inputs by name for a seed, such as `Module.random_inputs`."""

TOLERANCE = 1e-4
"""Largest deviation of a float32 module that may be published, as a part of the reference's
range."""
_ROUNDINGS = 5
"""A module that rounds values from one kernel to the next, such as to float16, may deviate by so
many times the tolerance of their type."""
DIRECT_PART = 0.2
"""Part of the tolerance up to which a module is as exact as one of direct convolutions. Beyond it,
strategies that are less exact are to be given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDeviation:
    """How far one output is from the reference, over all samples."""

    name: str
    max_abs: float
    max_rel_range: float
    """Largest deviation / (largest - smallest value of the reference in the same sample)."""
    reference_range: float
    """Of the sample with the largest deviation."""
    problem: str = ""
    """Why the output cannot be compared, such as another shape; the deviation is infinite then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The outcome of `verify`."""

    samples: int
    max_abs: float
    max_rel_range: float
    outputs: tuple[OutputDeviation, ...]
    """In the order of the reference."""
    tolerance: float
    passed: bool
    """Every output of every sample deviates by at most `tolerance` of its range."""
    by_parts: bool = False
    """Some sample's outputs agree only up to jumps of host steps: `outputs` are its parts' then."""


def tolerance_of(plan: "NetworkPlan") -> float:
    """The largest deviation of that network that may be published."""
    inside = (b for b in plan.buffers if b.role not in ("input", "output"))
    types = {as_dtype(b.dtype) for b in inside}
    rounded = (dtype.tolerance for dtype in types if dtype.is_small_float)
    return max([TOLERANCE, *(_ROUNDINGS * allowed for allowed in rounded)])


def verify(
    module: "Predict",
    reference: "Predict",
    feeds: Feeds,
    *,
    samples: int = 3,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    parts: "Parts | None" = None,
) -> Verification:
    """Compares `module` with `reference` on that many seeded samples of `feeds`.

    Where the outputs of a sample do not agree, and the network has `parts`, these are compared in
    their place. Raises: InputError if `samples` is not positive.
    """
    if samples < 1:
        raise InputError(f"verify: expected at least one sample; got {samples}")
    found: dict[str, OutputDeviation] = {}
    by_parts = False
    for sample in range(samples):
        inputs = feeds(seed + sample)
        expected, got = reference(inputs), module(inputs)
        rows = [compare(name, got.get(name), np.asarray(a)) for name, a in expected.items()]
        if parts and max((row.max_rel_range for row in rows), default=0.0) > tolerance:
            rows = [compare(part.name, part.got, part.expected) for part in parts(inputs)]
            by_parts = True
        for row in rows:
            if row.name not in found or row.max_rel_range > found[row.name].max_rel_range:
                found[row.name] = row
    worst = max((entry.max_rel_range for entry in found.values()), default=inf)
    return Verification(
        samples=samples,
        max_abs=max((entry.max_abs for entry in found.values()), default=inf),
        max_rel_range=worst,
        outputs=tuple(found.values()),
        tolerance=tolerance,
        passed=worst <= tolerance,
        by_parts=by_parts,
    )


def compare(name: str, got: np.ndarray | None, expected: np.ndarray) -> OutputDeviation:
    """The deviation of one output in one sample.

    Values that are not finite have to be equal, and so have integers and truth values. A constant
    reference has no range: its magnitude (or 1, if that is 0) takes its place. Neighbours of
    a small float count as equal: which of them is nearer to a value, rounding decides.
    """
    if got is None:
        return _incomparable(name, "missing")
    if got.shape != expected.shape:
        return _incomparable(name, f"expected shape {expected.shape}; got {got.shape}")
    if got.dtype != expected.dtype:
        return _incomparable(name, f"expected {expected.dtype}; got {got.dtype}")
    if not dtype_of(expected).is_float:
        return _compare_exactly(name, got, expected)
    ours, theirs = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return _incomparable(name, "infinite or NaN values differ")
    ours, theirs = ours[finite], theirs[finite]
    if not np.isfinite(ours).all():
        return _incomparable(name, "infinite or NaN where the reference is finite")
    if not theirs.size:
        return OutputDeviation(name=name, max_abs=0.0, max_rel_range=0.0, reference_range=0.0)
    apart = np.abs(ours - theirs)
    if dtype_of(expected).is_small_float:
        steps = np.spacing(np.abs(expected[finite])).astype(np.float64)
        apart = np.where(apart <= steps, 0.0, apart)
    largest = float(apart.max())
    extent = float(np.ptp(theirs)) or float(np.abs(theirs).max()) or 1.0
    return OutputDeviation(
        name=name, max_abs=largest, max_rel_range=largest / extent, reference_range=extent
    )


def _compare_exactly(name: str, got: np.ndarray, expected: np.ndarray) -> OutputDeviation:
    """No deviation, or an infinite part of the range."""
    differ = int(np.count_nonzero(got != expected))
    if not differ:
        return OutputDeviation(name=name, max_abs=0.0, max_rel_range=0.0, reference_range=0.0)
    apart = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return OutputDeviation(
        name=name,
        max_abs=float(apart.max()),
        max_rel_range=inf,
        reference_range=float(np.ptp(expected.astype(np.float64))),
        problem=f"{differ} of {expected.size} values differ, which have to be equal",
    )


def _incomparable(name: str, problem: str) -> OutputDeviation:
    return OutputDeviation(
        name=name, max_abs=inf, max_rel_range=inf, reference_range=0.0, problem=problem
    )
