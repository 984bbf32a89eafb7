"""Contenders take turns; what follows from their times is checked against a clock of our own."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.bundle.verify import bench
from retune.bundle.verify.bench import (
    BenchOptions,
    compare_times,
    known_times,
    longest_s,
    median_interval,
    rounds_of,
    rounds_within,
)
from retune.core.errors import InputError
from retune.device.measure.contention import Waiting
from tests.support.properties import quick


class Stage:
    """A clock that only contenders move, and the order in which they were called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def clock(self) -> float:
        return self.now

    def contender(self, name: str, *seconds: float) -> Callable[[], None]:
        """Takes these times in turn, over and over."""
        takes = itertools.cycle(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(takes)

        return call


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_many_rounds_are_drawn_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Ten thousand rounds of eight bundles would take a board's memory; the intervals are those."""
    rng = np.random.default_rng(0)
    samples = rng.random((60, 3)) + 1.0
    whole = bench._intervals(samples, 0, seed=7)
    monkeypatch.setattr(bench, "_DRAWN", 1000)
    parts = bench._intervals(samples, 0, seed=7)
    for one, other in zip(whole, parts, strict=True):
        assert one.tolist() == other.tolist()


FIXED = BenchOptions(settle_s=0, min_rounds=4, max_rounds=4, warmup=0, min_sample_s=0)


@pytest.mark.parametrize(("call_s", "rounds"), [(0.2, 50), (2.5, 11)])
def test_rounds_end_with_their_number_or_their_time(stage: Stage, call_s: float, rounds: int):
    """Calls of a decoder's long prompts were made fifty times, whatever they took."""
    calls = {
        "one": stage.contender("one", call_s / 2),
        "other": stage.contender("other", *(part * call_s for part in (0.4, 0.5, 0.6))),
    }
    options = replace(rounds_within(50, 30.0), settle_s=0)
    assert compare_times(calls, options=options, clock=stage.clock).rounds == rounds
    assert stage.now < 30.0 + call_s


def test_medians_quartiles_and_ratio(stage: Stage) -> None:
    # Of each pair of calls only the second one is timed.
    slow = stage.contender("slow", *(9, 4.0), *(9, 4.0), *(9, 6.0), *(9, 8.0), *(9, 2.0))
    quick = stage.contender("quick", 1.0)
    found = compare_times({"slow": slow, "quick": quick}, options=FIXED, clock=stage.clock)
    timing = found.timing("slow")
    assert timing.times_s == (4.0, 6.0, 8.0, 2.0)
    assert (timing.first_quartile_s, timing.median_s, timing.third_quartile_s) == (3.5, 5.0, 6.5)
    ratio = found.ratio("quick")
    assert (ratio.baseline, ratio.ratio) == ("slow", 5.0)
    assert 2.0 <= ratio.low <= 5.0 <= ratio.high <= 8.0


def test_what_a_thread_waited_for_cores_is_a_part_of_the_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HalfASecond(Waiting):
        def share(self, seconds: float) -> float:
            return 0.5 / seconds

    monkeypatch.setattr(bench, "Waiting", HalfASecond)
    found = compare_times({"a": stage.contender("a", 2.0)}, options=FIXED, clock=stage.clock)
    assert found.waited == 0.25


def test_the_order_rotates_and_each_sample_is_warmed_up(stage: Stage) -> None:
    contenders = {name: stage.contender(name, 1.0) for name in "abc"}
    compare_times(contenders, options=FIXED, clock=stage.clock)
    rounds = "".join(stage.calls)[6:]
    assert rounds == "aabbcc" + "bbccaa" + "ccaabb" + "aabbcc"


def test_a_baseline_may_be_chosen(stage: Stage) -> None:
    contenders = {"a": stage.contender("a", 1.0), "b": stage.contender("b", 4.0)}
    found = compare_times(contenders, baseline="b", options=FIXED, clock=stage.clock)
    (ratio,) = found.ratios
    assert (ratio.name, ratio.baseline, ratio.ratio) == ("a", "b", 4.0)
    assert (ratio.low, ratio.high) == (4.0, 4.0)


def test_quick_contenders_are_called_several_times_a_sample(stage: Stage) -> None:
    options = BenchOptions(settle_s=0, min_rounds=2, max_rounds=2, warmup=0, min_sample_s=2.0)
    contenders = {"quick": stage.contender("quick", 0.25), "slow": stage.contender("slow", 3.0)}
    found = compare_times(contenders, options=options, clock=stage.clock)
    assert [timing.calls_per_sample for timing in found.timings] == [8, 1]
    assert found.timing("quick").times_s == (0.25, 0.25)


def test_long_calls_are_warmed_up_by_one(stage: Stage) -> None:
    options = BenchOptions(settle_s=0, min_rounds=2, max_rounds=2, warmup=2)
    found = compare_times(
        {"a": stage.contender("a", 30, 20, 21)}, options=options, clock=stage.clock
    )
    assert found.timing("a").times_s == (20, 21)
    assert stage.calls == ["a"] * 3


def test_the_budget_ends_the_rounds(stage: Stage) -> None:
    noisy = stage.contender("noisy", *(1, 1), *(1, 5), *(1, 2))
    options = BenchOptions(settle_s=0, budget_s=100.0, min_sample_s=0, warmup=0)
    contenders = {"steady": stage.contender("steady", 1.0), "noisy": noisy}
    found = compare_times(contenders, options=options, clock=stage.clock)
    assert options.min_rounds < found.rounds < options.max_rounds
    assert stage.now < 110.0


def test_the_least_number_of_rounds_is_kept(stage: Stage) -> None:
    options = BenchOptions(settle_s=0, budget_s=0.0, min_sample_s=0)
    found = compare_times({"a": stage.contender("a", 1.0)}, options=options, clock=stage.clock)
    assert (found.rounds, found.ratios) == (5, ())


def test_settled_ratios_end_the_rounds(stage: Stage) -> None:
    contenders = {"a": stage.contender("a", 1.0), "b": stage.contender("b", 2.0)}
    options = BenchOptions(settle_s=0, budget_s=1e9, min_sample_s=0)
    assert compare_times(contenders, options=options, clock=stage.clock).rounds == 8


def test_rounds_share_their_drift(stage: Stage) -> None:
    # The machine gets slower in the middle, for both alike: the ratio does not care.
    drift = (1.0, 1.0, *[1.0] * 4, *[3.0] * 4)
    contenders = {
        "a": stage.contender("a", *drift),
        "b": stage.contender("b", *(2 * t for t in drift)),
    }
    (ratio,) = compare_times(contenders, options=FIXED, clock=stage.clock).ratios
    assert (ratio.low, ratio.ratio, ratio.high) == (0.5, 0.5, 0.5)


def test_the_same_times_give_the_same_interval() -> None:
    def bounds() -> tuple[float, float]:
        stage = Stage()
        noisy = stage.contender("b", 1.0, 1.5, 0.5, 2.0, 1.25)
        contenders = {"a": stage.contender("a", 1.0), "b": noisy}
        (ratio,) = compare_times(contenders, options=FIXED, clock=stage.clock).ratios
        return ratio.low, ratio.high

    assert bounds() == bounds()


def test_a_failing_contender_is_not_hidden(stage: Stage) -> None:
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        compare_times({"a": broken}, options=FIXED, clock=stage.clock)


def test_contenders_and_baseline_are_checked(stage: Stage) -> None:
    with pytest.raises(InputError, match="at least one contender; got none"):
        compare_times({})
    with pytest.raises(InputError, match="a baseline among a; got b"):
        compare_times({"a": stage.contender("a", 1.0)}, baseline="b")


class Spinning:
    """The module `time`, where threads of the process spin until some moment."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 2 * min(self.now, self.until)


@pytest.mark.parametrize(("until", "begins"), [(0.0, 0.125), (0.3, 0.5), (99.0, 1.0)])
def test_a_sample_waits_for_threads_that_spin(
    until: float, begins: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Spinning(until)
    monkeypatch.setattr("retune.bundle.verify.bench.time", clock)
    begun: list[float] = []
    options = BenchOptions(settle_s=0.125, min_rounds=1, max_rounds=1, warmup=0, min_sample_s=0)

    def call() -> None:
        begun.append(clock.now)
        clock.now += 1.0

    compare_times({"only": call}, options=options, clock=clock.perf_counter)
    assert begun[0] == begins


def test_known_times_are_compared_without_doubt() -> None:
    found = known_times({"slow": 4.0, "quick": 2.0}, baseline="slow")
    ratio = found.ratio("quick")
    assert (ratio.low, ratio.ratio, ratio.high) == (2.0, 2.0, 2.0)
    assert (found.rounds, found.timing("quick").times_s) == (1, (2.0,))
    assert found.timing("slow").first_quartile_s == found.timing("slow").third_quartile_s == 4.0
    assert known_times({"slow": 4.0, "quick": 2.0}).ratio("quick").baseline == "slow"
    with pytest.raises(InputError, match="at least one contender"):
        known_times({})
    with pytest.raises(InputError, match="expected a baseline among a; got b"):
        known_times({"a": 1.0}, baseline="b")


@quick(60)
@given(data=st.data())
def test_it_never_lasts_longer_than_it_is_said_to(data: st.DataObject) -> None:
    stage, slower = Stage(), data.draw(st.floats(1, 20))
    calls_s = data.draw(st.lists(st.floats(1e-4, 3.0), min_size=1, max_size=3))
    options = BenchOptions(
        settle_s=0,
        budget_s=data.draw(st.sampled_from([0.1, 2.0, 10.0])),
        min_rounds=data.draw(st.integers(0, 6)),
        max_rounds=30,
        min_sample_s=data.draw(st.sampled_from([0.0, 0.02, 0.5])),
        warmup=data.draw(st.integers(0, 3)),
    )
    factors = st.lists(st.floats(1, slower), min_size=1, max_size=5)
    contenders = {
        str(place): stage.contender(str(place), *(call * f for f in data.draw(factors)))
        for place, call in enumerate(calls_s)
    }
    compare_times(contenders, options=options, clock=stage.clock)
    assert stage.now <= 1.000001 * longest_s(calls_s, options, slower)


def test_pauses_count_as_long_as_they_may_last() -> None:
    still = BenchOptions(settle_s=0, min_rounds=3, budget_s=1)
    paused = BenchOptions(settle_s=0.1, min_rounds=3, budget_s=1)
    apart = longest_s([0.01, 0.01], paused) - longest_s([0.01, 0.01], still)
    assert apart >= 2 * (1 + 3 + 1) * 1.1 - 1


def test_rounds_that_were_timed_elsewhere_have_the_same_outcome():
    found = rounds_of({"slow": [4.0, 4.2, 3.8], "quick": [2.0, 2.1, 1.9]}, baseline="slow")
    assert found.rounds == 3 and found.timing("slow").times_s == (4.0, 4.2, 3.8)
    assert found.ratio("quick").ratio == pytest.approx(2.0)


def test_the_interval_of_a_median_holds_it_in_95_of_100_cases():
    rng = np.random.default_rng(0)
    bounds = [median_interval(rng.normal(1.0, 0.1, 32).tolist()) for _ in range(500)]
    assert 0.93 <= sum(low <= 1.0 <= high for low, high in bounds) / 500 <= 0.99
    assert median_interval([3.0]) == (3.0, 3.0)
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
