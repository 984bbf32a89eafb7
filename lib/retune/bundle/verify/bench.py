"""Timing several ways to do the same thing, interleaved in one run, so that drift hits them alike.

Read `compare_times`. Each round times every contender once, in an order that rotates. Before its
timed calls there is a pause until the worker threads of the one before it have gone to sleep, and
some calls without the clock, after which its caches are warm; those of calls that take longer than
a second are so by themselves. onnxruntime's threads spin on after a run: 30 ms later a network of
5.2 ms still took 6.7 on two cores.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from statistics import median

import numpy as np

from retune.core.errors import InputError
from retune.device.measure.contention import Waiting

Contender = Callable[[], object]
Clock = Callable[[], float]
"""Seconds, from any start."""

_RESAMPLES = 2000
"""Of the bootstrap; more change the interval by less than its own noise."""
_DRAWN = 1 << 22
"""Samples that are drawn at once."""
_CONFIDENCE = 0.95
_NORMAL_95 = 1.96
"""The normal distribution's quantile for that."""
_ASLEEP = 0.2
"""Processors that a process whose threads are asleep keeps busy, at most."""
LONG_S = 1.0
"""A call that takes longer needs none before it: what is cold is a small part of it."""
_LONGEST_SETTLE_S = 1.0
"""Threads that spin for longer than this spin for ever."""


class CountingClock:
    """The time that passes, and what was counted beside it: seconds on a simulated device."""

    def __init__(self) -> None:
        self._counted_s = 0.0

    def count(self, seconds: float) -> None:
        """As if so many seconds had passed."""
        self._counted_s += seconds

    def __call__(self) -> float:
        return time.perf_counter() + self._counted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """When to stop, and how long one sample takes."""

    budget_s: float = 10.0
    """No round starts after this time, once `min_rounds` are done."""
    min_rounds: int = 5
    max_rounds: int = 200
    precision: float = 0.01
    """Enough rounds: every ratio's interval is within this part of its ratio, either way."""
    settle_s: float = 0.03
    """Pause before each sample, repeated while the process computes."""
    min_sample_s: float = 0.02
    """A sample of a quick contender is the mean of as many calls as take this long."""
    warmup: int = 2
    """Calls of each contender before the first round."""
    seed: int = 0
    """Of the bootstrap."""


def rounds_within(count: int, seconds: float) -> BenchOptions:
    """So many rounds, or as many as begin in that time; fewer where no time varies."""
    return BenchOptions(min_rounds=1, max_rounds=count, budget_s=seconds, precision=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One contender's samples: seconds per call, in the order of the rounds."""

    name: str
    times_s: tuple[float, ...]
    calls_per_sample: int
    median_s: float
    first_quartile_s: float
    third_quartile_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """How many times as long as the contender the baseline takes: above 1, the contender wins."""

    name: str
    baseline: str
    ratio: float
    """Median of the baseline / median of the contender."""
    low: float
    """Bounds of the 95 % bootstrap interval; rounds are drawn whole, as they share their drift."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The outcome of `compare_times`."""

    rounds: int
    timings: tuple[Timing, ...]
    ratios: tuple[Speedup, ...]
    """One for each contender but the baseline."""
    waited: float = 0.0
    """Part of a sample's time that some thread was ready and had no core: of the samples in the
    middle. 0 to 1"""

    def timing(self, name: str) -> Timing:
        """That contender's samples. Raises: KeyError."""
        return {timing.name: timing for timing in self.timings}[name]

    def ratio(self, name: str) -> Speedup:
        """That contender's ratio to the baseline. Raises: KeyError."""
        return {ratio.name: ratio for ratio in self.ratios}[name]


def compare_times(
    contenders: Mapping[str, Contender],
    *,
    baseline: str | None = None,
    options: BenchOptions | None = None,
    clock: Clock = time.perf_counter,
) -> Benchmark:
    """Medians and quartiles of every contender, and ratios to `baseline` (default: the first).

    Raises: InputError if there is no contender, or the baseline is not one.
    """
    options = options or BenchOptions()
    names = list(contenders)
    base = _baseline(names, baseline)
    start = clock()
    paces = {name: _pace(contenders[name], options, clock) for name in names}
    rounds: list[list[float]] = []
    waited: list[float] = []
    while _needs_another_round(rounds, base, clock() - start, options):
        row = dict.fromkeys(names, 0.0)
        for name in _rotated(names, len(rounds)):
            sample = _sample(contenders[name], paces[name], clock, options.settle_s)
            row[name] = sample.call_s
            waited.append(sample.waited)
        rounds.append(list(row.values()))
    calls = {name: pace.calls for name, pace in paces.items()}
    outcome = _outcome(calls, np.array(rounds), base, options.seed)
    return replace(outcome, waited=median(waited))


def known_times(seconds: Mapping[str, float], *, baseline: str | None = None) -> Benchmark:
    """The outcome for contenders whose calls take exactly these seconds: one round, and no doubt.

    Raises: InputError as `compare_times`.
    """
    return rounds_of({name: [time] for name, time in seconds.items()}, baseline=baseline)


def rounds_of(samples: Mapping[str, Sequence[float]], *, baseline: str | None = None) -> Benchmark:
    """The outcome of rounds that somebody else has timed: each contender's seconds, in order.

    Raises: InputError as `compare_times`.
    """
    base = _baseline(list(samples), baseline)
    rounds = np.array(list(samples.values()), float).T
    return _outcome(dict.fromkeys(samples, 1), rounds, base, seed=0)


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """Bounds of the 95 % interval of the median, by the order of independent samples.

    Of a few samples the least and the greatest; of one there is no doubt.
    """
    ordered = sorted(times)
    reach = _NORMAL_95 * sqrt(len(ordered)) / 2
    first = max(0, floor(len(ordered) / 2 - reach))
    last = min(len(ordered) - 1, ceil(len(ordered) / 2 + reach))
    return ordered[first], ordered[last]


def _baseline(names: Sequence[str], wanted: str | None) -> int:
    """The index of the baseline among the contenders. Raises: InputError."""
    if not names:
        raise InputError("benchmark: expected at least one contender; got none")
    if wanted is not None and wanted not in names:
        raise InputError(f"benchmark: expected a baseline among {', '.join(names)}; got {wanted}")
    return names.index(wanted) if wanted is not None else 0


def _outcome(calls: Mapping[str, int], samples: np.ndarray, base: int, seed: int) -> Benchmark:
    """`samples`: float [rounds, contenders]; `calls` of each sample, by contender."""
    names = list(calls)
    return Benchmark(
        rounds=len(samples),
        timings=tuple(
            _timing(name, samples[:, column], calls[name]) for column, name in enumerate(names)
        ),
        ratios=_ratios(names, samples, base, seed),
    )


def longest_s(calls_s: Sequence[float], options: BenchOptions, slower: float = 1.0) -> float:
    """Seconds within which `compare_times` is done, by the time of a call of each contender.

    No call may be quicker than that, and none longer than `slower` times that. The last round may
    begin just before the budget is spent, and pauses may last as long as they ever do.
    """
    pause = _LONGEST_SETTLE_S + options.settle_s if options.settle_s > 0 else 0.0
    warming = sum(pause + slower * (options.warmup + 2) * call for call in calls_s)
    turn = sum(pause + slower * (1.5 * options.min_sample_s + 2 * call) for call in calls_s)
    least = warming + max(1, options.min_rounds) * turn
    return max(least, options.budget_s) + turn


@dataclass(frozen=True, slots=True)
class _Pace:
    """How a contender is sampled."""

    calls: int
    """Whose mean one sample is."""
    before: int
    """Calls before them that have no clock."""


def _pace(contender: Contender, options: BenchOptions, clock: Clock) -> _Pace:
    """Warms the contender up, and says how it is sampled."""
    for _ in range(options.warmup):
        start = clock()
        contender()
        if clock() - start > LONG_S:
            return _Pace(1, 0)
    seconds = _sample(contender, _Pace(1, 1), clock, options.settle_s).call_s
    calls = max(1, ceil(options.min_sample_s / seconds)) if seconds > 0 else 1
    return _Pace(calls, max(1, calls // 2))


@dataclass(frozen=True, slots=True)
class _Sample:
    """One measurement of a contender."""

    call_s: float
    waited: float
    """Part of the time; see `Benchmark.waited`."""


def _sample(contender: Contender, pace: _Pace, clock: Clock, settle_s: float) -> _Sample:
    """One call, as the mean of some, behind some without a clock."""
    if settle_s > 0:
        _wait_until_idle(settle_s)
    for _ in range(pace.before):
        contender()
    waiting, start = Waiting(), clock()
    for _ in range(pace.calls):
        contender()
    seconds = clock() - start
    return _Sample(seconds / pace.calls, waiting.share(seconds))


def _wait_until_idle(pause_s: float) -> None:
    """This process' threads are asleep when the call returns, or will not go to sleep."""
    began = time.perf_counter()
    while True:
        start, busy = time.perf_counter(), time.process_time()
        time.sleep(pause_s)
        now = time.perf_counter()
        busy = time.process_time() - busy
        if busy <= _ASLEEP * (now - start) or now - began >= _LONGEST_SETTLE_S:
            return


def _rotated(names: Sequence[str], round_number: int) -> list[str]:
    first = round_number % len(names)
    return [*names[first:], *names[:first]]


def _needs_another_round(
    rounds: list[list[float]], base: int, elapsed_s: float, options: BenchOptions
) -> bool:
    done = len(rounds)
    if done < max(1, options.min_rounds):
        return True
    if done >= options.max_rounds or elapsed_s >= options.budget_s:
        return False
    return not _is_settled(np.array(rounds), base, options)


def _is_settled(samples: np.ndarray, base: int, options: BenchOptions) -> bool:
    """True if more rounds would hardly change a ratio; asked at doubling numbers of rounds only.

    Asking after every round would stop at the first interval that is narrow by chance.
    """
    rounds, contenders = samples.shape
    if contenders < 2 or rounds < 8 or rounds & (rounds - 1):
        return False
    low, ratio, high = _intervals(samples, base, options.seed)
    return bool((high - low <= 2 * options.precision * ratio).all())


def _timing(name: str, samples: np.ndarray, calls: int) -> Timing:
    first, middle, third = np.quantile(samples, (0.25, 0.5, 0.75))
    return Timing(
        name=name,
        times_s=tuple(samples.tolist()),
        calls_per_sample=calls,
        median_s=float(middle),
        first_quartile_s=float(first),
        third_quartile_s=float(third),
    )


def _ratios(names: Sequence[str], samples: np.ndarray, base: int, seed: int) -> tuple[Speedup, ...]:
    low, ratio, high = _intervals(samples, base, seed)
    return tuple(
        Speedup(
            name=name,
            baseline=names[base],
            ratio=float(ratio[column]),
            low=float(low[column]),
            high=float(high[column]),
        )
        for column, name in enumerate(names)
        if column != base
    )


def _intervals(
    samples: np.ndarray, base: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lower bound, ratio of medians, upper bound: one of each for each contender."""
    medians = _resampled(samples, np.random.default_rng(seed))
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(medians[:, [base]] / medians, (tail, 1 - tail), axis=0)
    middle = np.median(samples, axis=0)
    return low, middle[base] / middle, high


def _resampled(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Medians of rounds that are drawn again, float [resamples, contenders]; a few at a time, so
    that many rounds take little memory."""
    each = max(1, _DRAWN // samples.size)
    found = [
        np.median(samples[rng.integers(0, len(samples), (count, len(samples)))], axis=1)
        for count in (min(each, _RESAMPLES - at) for at in range(0, _RESAMPLES, each))
    ]
    return np.concatenate(found)
