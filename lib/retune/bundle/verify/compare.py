"""Comparison of a module's outputs with a reference, on seeded samples.

Read `verify`. There is one criterion, for each element of an output: it may deviate by a share of
the range of the reference's values, which means the same for logits and for probabilities, or by a
few times what rounding alone does to it, see `rounding`. The latter is held against the network's
numpy meaning as well, which finds errors that the oracle's own inexactness hides. Integers and
truth values have to be equal unless rounding decides them. A network with host steps may be
compared part by part, see `by_parts`, and one that rounds rows to int8 always is, see `row_parts`;
where rounding excuses a quantized network, its parts have to agree, see `quantized_parts`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np

from retune.bundle.runtime.module import sample_inputs, sample_of
from retune.bundle.verify.rounding import FACTOR, OutputRounding, Rounding
from retune.core.dims import SizeValues
from retune.core.dtypes import as_dtype, dtype_of
from retune.core.errors import InputError

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.bundle.verify.by_parts import Parts, PartValue
    from retune.bundle.verify.peers import Predict

Feeds = Callable[[int], Mapping[str, np.ndarray]]
"""Inputs by name for a seed, such as `Module.random_inputs`."""

TOLERANCE = 1e-4
"""Largest deviation of a float32 module that may be published, as a part of the reference's
range."""
_ROUNDINGS = 5
"""A module that rounds values from one kernel to the next, such as to float16, may deviate by so
many times the tolerance of their type."""
_RANDOM_SAMPLES = 3
_WIDER = (3.0, 10.0)
"""Factors of floats in samples that are to reach what others did not, such as detections."""
Criterion = Literal["range", "rounding"]
"""See `Verification.criterion`."""
DIRECT_PART = 0.2
"""Part of the allowed deviation up to which a module is as exact as one of direct convolutions.
Beyond it, strategies that are less exact are to be given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDeviation:
    """How far one output is from the reference, over all samples."""

    name: str
    max_abs: float
    max_rel_range: float
    """Largest deviation / (largest - smallest value of the reference in the same sample)."""
    reference_range: float
    """Of the sample with the largest deviation."""
    used: float
    """Deviation over the allowed one, at the element where that is largest; above 1: too far."""
    rounding: float | None = None
    """What rounding alone does to this output, as a part of its range; None: it was not asked
    for, as the share of the range decides."""
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
    """Share of an output's range by which it may deviate."""
    used: float
    """The largest of all outputs'."""
    rounding: float | None = None
    """The largest of all outputs': they may deviate by `rounding.FACTOR` times that, too."""
    by_parts: bool = False
    """Some sample's outputs agree only up to jumps of rounding, or such jumps may hide a part that
    does not agree: `outputs` are its parts' then."""
    top1: float | None = None
    """Of outputs that are scores in rows: the part of all samples' rows whose largest element is
    the reference's, the smallest of all outputs'; None where no output is such."""
    unseen: tuple[str, ...] = ()
    """Host steps of which no sample made any element: they were compared with nothing."""

    @property
    def passed(self) -> bool:
        """No element of any output of any sample deviates by more than is allowed."""
        return self.used <= 1

    @property
    def notes(self) -> tuple[str, ...]:
        """What the samples leave open, as sentences."""
        return tuple(
            f"host step {step} saw no rows in any sample: it was compared with nothing; give "
            "samples that reach it with --samples data.npz"
            for step in self.unseen
        )

    @property
    def criterion(self) -> Criterion:
        """What decided: the share of the range alone, or rounding beside it."""
        return "range" if self.rounding is None else "rounding"

    @property
    def decision(self) -> str:
        """The criterion and its figures, to follow a deviation in a sentence."""
        side = "within" if self.passed else "above"
        worst = max(self.outputs, key=_order, default=None)
        if self.rounding is None or (worst and worst.problem):
            why = f" ({worst.name}: {worst.problem})" if worst and worst.problem else ""
            return f"{side} the allowed {self.tolerance:.0e}{why}"
        joint = "but" if self.passed else "and"
        return (
            f"above {self.tolerance:.0e}, {joint} {side} {FACTOR:g} times what rounding alone does "
            f"to the network on the same inputs ({self.rounding:.1e})"
        )


def tolerance_of(plan: "NetworkPlan") -> float:
    """The largest deviation of that network that may be published."""
    inside = (b for b in plan.buffers if b.role not in ("input", "output"))
    types = {as_dtype(b.dtype) for b in inside}
    rounded = (dtype.tolerance for dtype in types if dtype.is_small_float)
    return max([TOLERANCE, *(_ROUNDINGS * allowed for allowed in rounded)])


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """On which inputs a bundle is compared."""

    feeds: Feeds
    count: int
    arrays: Mapping[str, np.ndarray]
    """Samples that the user gave, along a first axis; none: they are random."""
    sizes: SizeValues | None = None
    """Of random ones; None: the largest ones."""

    @property
    def given(self) -> bool:
        """Whether they are the user's."""
        return bool(self.arrays)


def sampling(
    plan: "NetworkPlan",
    samples: int | None,
    given: Mapping[str, np.ndarray],
    sizes: SizeValues | None = None,
) -> SampleSet:
    """So many of the `given` samples, else of those that the plan has, else random ones.

    Without a number all of them, or a few random ones. Where `sizes` are stated, they are random
    ones for these unless some are given.
    """
    own = given or ({} if sizes else plan.samples)
    if not own:
        feeds = partial(sample_inputs, replace(plan, samples={}), sizes=sizes)
        return SampleSet(feeds=feeds, count=samples or _RANDOM_SAMPLES, arrays={}, sizes=sizes)
    there = len(next(iter(own.values())))
    feeds = partial(sample_of, own)
    return SampleSet(feeds=feeds, count=min(samples or there, there), arrays=own)


def verify(
    module: "Predict",
    reference: "Predict",
    feeds: Feeds,
    *,
    samples: int = 3,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    parts: "Parts | None" = None,
    rounding: Rounding | None = None,
    unseen: Callable[[], Sequence[str]] | None = None,
) -> Verification:
    """Compares `module` with `reference` on that many seeded samples of `feeds`.

    Where outputs of a sample deviate by more than `tolerance` of their range, `rounding` is asked
    what they may deviate by. Where they do not agree by that either, and the network has `parts`,
    these are compared instead; confirming ones wherever `tolerance` is exceeded, and they
    replace the outputs if they do not agree. Where parts decide, the `reference` is not asked.
    While `unseen` names parts that no sample has reached, more samples follow whose floats are
    larger. Raises: InputError if `samples` < 1.
    """
    found: dict[str, OutputDeviation] = {}
    agreeing: dict[str, list[bool]] = {}
    by_parts, taken = False, 0
    for inputs in _samples(feeds, samples, seed, unseen):
        taken += 1
        sample = _SampleRun(inputs, module(inputs), tolerance)
        if parts and parts.role == "deciding":
            rows, inside = sample.inside(parts), True
        else:
            expected = reference(inputs)
            _note_top1(agreeing, expected, sample.got)
            rows, inside = sample.judged(expected, rounding, parts)
        by_parts |= inside
        _keep_worst(found, rows)
    outputs = tuple(found.values())
    return Verification(
        samples=taken,
        max_abs=_largest(entry.max_abs for entry in outputs),
        max_rel_range=_largest(entry.max_rel_range for entry in outputs),
        outputs=outputs,
        tolerance=tolerance,
        used=_used(outputs),
        rounding=max((e.rounding for e in outputs if e.rounding is not None), default=None),
        by_parts=by_parts,
        top1=min((sum(same) / len(same) for same in agreeing.values() if same), default=None),
        unseen=tuple(unseen()) if unseen else (),
    )


@dataclass(frozen=True, slots=True)
class _SampleRun:
    """What a module made of inputs, and how far it may deviate."""

    inputs: Mapping[str, np.ndarray]
    got: Mapping[str, np.ndarray]
    tolerance: float

    def judged(
        self,
        expected: Mapping[str, np.ndarray],
        rounding: Rounding | None,
        parts: "Parts | None",
    ) -> tuple[list[OutputDeviation], bool]:
        """The deviations of the outputs, or of the parts; whether of the parts."""
        rows = self._compared(expected, {})
        asked = _used(rows) > 1
        if rounding and asked:
            rows = self._compared(expected, rounding(self.inputs))
        confirming = parts is not None and parts.role == "confirming"
        if parts and (asked if confirming else _used(rows) > 1):
            inside = self.inside(parts)
            if not confirming or _used(inside) > 1:
                return inside, True
        return rows, False

    def inside(self, parts: "Parts") -> list[OutputDeviation]:
        """The deviations of the parts."""
        return [_compare_part(each, self.tolerance) for each in parts(self.inputs, self.got)]

    def _compared(
        self, expected: Mapping[str, np.ndarray], rounding: Mapping[str, OutputRounding]
    ) -> list[OutputDeviation]:
        return [
            compare(name, self.got.get(name), np.asarray(array), self.tolerance, rounding.get(name))
            for name, array in expected.items()
        ]


def both(some: Verification, others: Verification) -> Verification:
    """What holds of the samples of both, by the worse deviation of each output."""
    found = {row.name: row for row in some.outputs}
    _keep_worst(found, others.outputs)
    outputs = tuple(found.values())
    return replace(
        some,
        samples=some.samples + others.samples,
        max_abs=_largest(entry.max_abs for entry in outputs),
        max_rel_range=_largest(entry.max_rel_range for entry in outputs),
        outputs=outputs,
        used=_used(outputs),
    )


def _keep_worst(found: dict[str, OutputDeviation], rows: Iterable[OutputDeviation]) -> None:
    """Of each output the row that deviates most is kept."""
    for row in rows:
        if row.name not in found or _order(row) > _order(found[row.name]):
            found[row.name] = row


def _largest(numbers: Iterable[float]) -> float:
    return max(numbers, default=inf)


def _note_top1(
    agreeing: dict[str, list[bool]],
    expected: Mapping[str, np.ndarray],
    got: Mapping[str, np.ndarray],
) -> None:
    """Adds the rows of a sample to those of each output."""
    for name, array in expected.items():
        agreeing.setdefault(name, []).extend(_same_top1(np.asarray(array), got.get(name)))


def _same_top1(expected: np.ndarray, got: np.ndarray | None) -> list[bool]:
    """Of each row of scores, whether the largest element is the same; none for other outputs."""
    scores = expected.ndim == 2 and expected.shape[1] > 1 and dtype_of(expected).is_float
    if not scores or got is None or got.shape != expected.shape:
        return []
    return (expected.argmax(1) == got.argmax(1)).tolist()


def _samples(
    feeds: Feeds, samples: int, seed: int, unseen: Callable[[], Sequence[str]] | None
) -> Iterator[Mapping[str, np.ndarray]]:
    if samples < 1:
        raise InputError(f"verify: expected at least one sample; got {samples}")
    for number in range(samples):
        yield feeds(seed + number)
    for number, scale in enumerate(_WIDER, start=samples):
        if unseen is None or not unseen():
            return
        inputs = feeds(seed + number)
        yield {
            name: (scale * array).astype(array.dtype) if dtype_of(array).is_float else array
            for name, array in inputs.items()
        }


def _compare_part(part: "PartValue", tolerance: float) -> OutputDeviation:
    """The deviation of a value that a part made. A truth value is right either way where what the
    reference compares is no farther apart than such floats may deviate."""
    expected, margin = part.expected, part.margin
    if margin is not None and margin.shape == expected.shape == part.got.shape and margin.size:
        finite = margin[np.isfinite(margin)].astype(np.float64)
        share = tolerance * float(np.ptp(finite)) if finite.size else 0.0
        expected = np.where(np.abs(margin) <= share, part.got, expected)
    return compare(part.name, part.got, expected, tolerance)


def _used(rows: Sequence[OutputDeviation]) -> float:
    return _largest(row.used for row in rows)


def _order(row: OutputDeviation) -> tuple[float, float]:
    return row.used, row.max_rel_range


def compare(
    name: str,
    got: np.ndarray | None,
    expected: np.ndarray,
    tolerance: float = TOLERANCE,
    rounding: OutputRounding | None = None,
) -> OutputDeviation:
    """The deviation of one output in one sample.

    Values that are not finite have to be equal, and so have integers and truth values that rounding
    does not decide. A constant reference has no range: its magnitude (or 1, if that is 0) takes its
    place. Neighbours of a small float count as equal: which of them is nearer to a value, rounding
    decides.
    """
    if got is None:
        return _incomparable(name, "missing")
    if got.shape != expected.shape:
        return _incomparable(name, f"expected shape {expected.shape}; got {got.shape}")
    if got.dtype != expected.dtype:
        return _incomparable(name, f"expected {expected.dtype}; got {got.dtype}")
    if rounding is not None and rounding.numpy.shape[1:] != expected.shape:
        rounding = None
    if not dtype_of(expected).is_float:
        return _compare_exactly(name, got, expected, rounding)
    return _compare_floats(name, got, expected, tolerance, rounding)


def _compare_floats(
    name: str,
    got: np.ndarray,
    expected: np.ndarray,
    tolerance: float,
    rounding: OutputRounding | None,
) -> OutputDeviation:
    ours, theirs = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(theirs)
    if not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True):
        return _incomparable(name, "infinite or NaN values differ")
    ours, theirs = ours[finite], theirs[finite]
    if not np.isfinite(ours).all():
        return _incomparable(name, "infinite or NaN where the reference is finite")
    if not theirs.size:
        return _equal(name)
    apart = _apart(ours, theirs, expected[finite])
    largest = float(apart.max())
    extent = float(np.ptp(theirs)) or float(np.abs(theirs).max()) or 1.0
    share = tolerance * extent
    used, spread = _used_by(apart, np.full(apart.shape, share)), None
    if rounding is not None and used > 1:
        own, oracle = (rounding.spread(r)[finite] for r in (rounding.numpy, rounding.oracle))
        spread = np.maximum(own, oracle.max())  # what approximations are off by is no noise
        from_numpy = _apart(ours, rounding.numpy[0].astype(np.float64)[finite], expected[finite])
        used = max(
            _used_by(apart, np.maximum(share, FACTOR * spread)),
            _used_by(from_numpy, np.maximum(share, FACTOR * own)),
        )
    return OutputDeviation(
        name=name,
        max_abs=largest,
        max_rel_range=largest / extent,
        reference_range=extent,
        used=used,
        rounding=None if spread is None else float(spread.max()) / extent,
    )


def _apart(ours: np.ndarray, theirs: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """By how much elements differ; neighbours of a small float, as they are stored, do not."""
    apart = np.abs(ours - theirs)
    if not dtype_of(stored).is_small_float:
        return apart
    return np.where(apart <= np.spacing(np.abs(stored)).astype(np.float64), 0.0, apart)


def _used_by(apart: np.ndarray, allowed: np.ndarray) -> float:
    """The largest part of what elements may deviate by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(apart > 0, apart / allowed, 0.0).max())


def _compare_exactly(
    name: str, got: np.ndarray, expected: np.ndarray, rounding: OutputRounding | None
) -> OutputDeviation:
    """No deviation, or an infinite one but for values that rounding decides."""
    differ = got != expected
    if not differ.any():
        return _equal(name)
    apart = float(np.abs(got.astype(np.float64) - expected.astype(np.float64)).max())
    extent = float(np.ptp(expected.astype(np.float64)))
    if rounding is not None and rounding.interchangeable(got, expected)[differ].all():
        part = apart / (extent or 1.0)
        return OutputDeviation(
            name=name,
            max_abs=apart,
            max_rel_range=part,
            reference_range=extent,
            used=1.0,
            rounding=part,
        )
    return OutputDeviation(
        name=name,
        max_abs=apart,
        max_rel_range=inf,
        reference_range=extent,
        used=inf,
        problem=f"{np.count_nonzero(differ)} of {expected.size} values differ, which have to be "
        "equal",
    )


def _equal(name: str) -> OutputDeviation:
    return OutputDeviation(name=name, max_abs=0.0, max_rel_range=0.0, reference_range=0.0, used=0.0)


def _incomparable(name: str, problem: str) -> OutputDeviation:
    return OutputDeviation(
        name=name,
        max_abs=inf,
        max_rel_range=inf,
        reference_range=0.0,
        used=inf,
        problem=problem,
    )
