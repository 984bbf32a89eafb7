"""A change is called real only if it is beyond noise, and nothing else explains it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from retune.nightly.verdicts import change_of, compare, judge, spread_of
from retune.records.nights import NightRow
from tests.support.nights import judged, night, quiet, slowed

SEEDS = range(8)
NIGHTS = 24


def history(seed: int = 0) -> list[NightRow]:
    return judged(quiet(NIGHTS, seed))


def tonight(seed: int = 0, **changes: float) -> NightRow:
    return slowed(quiet(NIGHTS + 1, seed)[-1], **changes)


def test_nights_in_which_nothing_happens_are_noise():
    for seed in SEEDS:
        assert {row.verdict for row in judged(quiet(40, seed))} == {"noise"}


@pytest.mark.parametrize("factor", [1.08, 0.92])
def test_a_network_that_moves_alone_is_real(factor: float):
    for seed in SEEDS:
        row = judge(history(seed), tonight(seed, time=factor))
        assert row.verdict == "real" and row.new_level
        assert row.change_low is not None and row.change_high is not None
        assert row.change == pytest.approx(factor, rel=0.03)
        assert row.change_low < row.change < row.change_high
    assert "the same bundle took" in row.why and "the control network took" in row.why


@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_a_machine_that_changed_is_hardware(factor: float):
    for seed in SEEDS:
        moved = tonight(seed, time=factor, control=factor, kernel=factor)
        row = judge(history(seed), moved)
        assert row.verdict == "hardware"
        assert row.change == pytest.approx(factor, rel=0.05)
    assert "the controls moved along" in row.why


def test_networks_that_do_not_slow_down_alike_are_hardware_all_the_same():
    """A kernel that computes slows down more than a network that waits for memory."""
    for seed in SEEDS:
        moved = tonight(seed, time=1.26, control=1.36, kernel=1.66)
        assert judge(history(seed), moved).verdict == "hardware"


def test_a_slower_network_on_a_slower_machine_is_real():
    row = judge(history(), tonight(time=1.5, control=1.1, kernel=1.1))
    assert row.verdict == "real" and row.change == pytest.approx(1.5 / 1.1, rel=0.03)


def test_a_control_network_that_moves_alone_is_noise():
    for seed in SEEDS:
        assert judge(history(seed), tonight(seed, control=1.15)).verdict == "noise"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"driver": "2"}, "another compiler (driver): 1 -> 2"),
        ({"host": "another board"}, "another processor: none -> another board"),
        ({"retune": "0.2.0"}, "another version of retune: 0.1.0 -> 0.2.0"),
        ({"commit": "abc"}, "another commit of retune: none -> abc"),
        ({"budget": "90 minutes a night"}, "another budget: 60 minutes a night -> 90"),
        ({"control_program": "d"}, "another control program: c -> d"),
    ],
)
def test_what_moves_with_another_method_is_method(changes: dict[str, str], why: str):
    row = judge(history(), replace(tonight(time=1.2), **changes))
    assert row.verdict == "method" and why in row.why
    assert row.change == pytest.approx(1.2, rel=0.05)


def test_only_what_moves_the_controls_too_explains_a_slower_machine():
    """Neither another commit nor another budget makes a fixed program slower."""
    moved = tonight(time=1.2, control=1.2, kernel=1.2)
    assert judge(history(), replace(moved, driver="2", commit="b")).verdict == "method"
    assert judge(history(), replace(moved, host="other")).verdict == "method"
    for changes in ({"commit": "b"}, {"retune": "0.2.0"}, {"budget": "90 minutes a night"}):
        assert judge(history(), replace(moved, **changes)).verdict == "hardware"


def test_another_method_that_makes_no_difference_is_noise():
    for seed in SEEDS:
        row = judge(history(seed), replace(tonight(seed), driver="2", retune="0.2.0"))
        assert row.verdict == "noise" and not row.new_level


def test_another_control_program_is_no_measure_for_the_old_one():
    """It takes another time: ratios to it begin anew, and absolute times go on."""
    own = history()
    after = [replace(slowed(row, control=3.0), control_program="d")
             for row in quiet(4, seed=9, start=NIGHTS)]  # fmt: skip
    for row in after:
        own.append(judge(own, row))
        assert own[-1].verdict == "noise"
    late = replace(slowed(quiet(1, 10, start=30)[0], time=1.5, control=3.0), control_program="d")
    assert judge(own, late).verdict == "real"


def test_a_change_is_reported_once_and_is_the_level_from_then_on():
    rows = quiet(40)
    found = judged([*rows[:20], *(slowed(row, time=1.1) for row in rows[20:])])
    assert [row.verdict for row in found].count("real") == 1
    assert found[20].verdict == "real" and found[20].new_level
    back = judge(found, quiet(41)[-1])
    assert back.verdict == "real" and back.change == pytest.approx(1 / 1.1, rel=0.03)


def test_what_a_night_published_is_real_and_expected_in_the_next_one():
    own = history()
    published = replace(tonight(), promoted=True, gain=0.8, gain_low=0.79, gain_high=0.81)
    row = judge(own, published)
    assert (row.verdict, row.change, row.new_level) == ("real", pytest.approx(0.8), False)
    assert row.why == "the night published a bundle that is faster"
    rows = quiet(NIGHTS + 3, 0)[-2:]
    for late in rows:
        next_one = judge([*own, row], replace(slowed(late, time=0.8), program="q", version=2))
        assert next_one.verdict == "noise"
    slow = replace(slowed(rows[-1], time=0.9), program="q", version=2)
    found = judge([*own, row], slow)
    assert found.verdict == "real" and found.change == pytest.approx(0.9 / 0.8, rel=0.03)
    assert "the bundle that was published then took" in found.why


def test_a_bundle_that_is_faster_by_noise_alone_is_noise():
    """Comparisons promote at 95 %: of forty equal ones, one."""
    lucky = replace(tonight(), promoted=True, gain=0.995, gain_low=0.991, gain_high=0.999)
    assert judge(history(), lucky).verdict == "noise"


def test_a_bundle_that_a_person_published_is_judged_by_its_time():
    other = replace(tonight(time=1.3), program="q", version=7)
    row = judge(history(), other)
    assert row.verdict == "real"
    assert "another bundle, published without a comparison, took" in row.why


def test_without_a_time_there_is_no_verdict():
    lost = replace(tonight(), time_us=None, ratio=None, problem="version 1: it does not run")
    row = judge(history(), lost)
    assert (row.verdict, row.change, row.why) == ("", None, "version 1: it does not run")
    nights = [*history(), row]
    assert judge(nights, night(NIGHTS + 1)).verdict == "noise"


def test_the_first_night_has_nothing_to_be_compared_with():
    row = judge([], night(0))
    assert (row.verdict, row.change) == ("noise", None)
    assert "the first night" in row.why


def test_a_second_night_needs_a_large_change_to_be_real():
    assert judge(judged([night(0)]), slowed(night(1), time=1.08)).verdict == "noise"
    assert judge(judged([night(0)]), slowed(night(1), time=1.4)).verdict == "real"


def test_a_device_without_a_calibration_kernel_has_verdicts_as_well():
    own = judged([night(i, kernel=None) for i in range(10)])
    assert judge(own, night(10, 1.2, kernel=None)).verdict == "real"
    assert judge(own, night(10, 1.2, 1.2, kernel=None)).verdict == "hardware"
    assert judge(own, night(10, 1.0, 1.2, kernel=None)).verdict == "noise"


def test_nights_that_agree_wholly_are_not_believed_to_the_last_digit():
    own = judged([night(i) for i in range(30)])
    assert judge(own, night(30, 1.005)).verdict == "noise"
    assert judge(own, night(30, 1.05)).verdict == "real"


def test_two_nights_are_compared_with_each_other_alone():
    rows = quiet(30)
    own = judged([*rows[:20], *(slowed(row, time=1.1) for row in rows[20:])])
    assert compare(own, own[10], own[12]).verdict == "noise"
    found = compare(own, own[10], own[25])
    assert found.verdict == "real" and found.change == pytest.approx(1.1, rel=0.03)
    back = compare(own, own[25], own[10])
    assert back.verdict == "real" and back.change == pytest.approx(1 / 1.1, rel=0.03)


def test_the_spread_is_of_the_nights_and_not_of_what_changed_between_them():
    rng = np.random.default_rng(3)
    plain = rng.normal(0, 0.01, 400)
    assert spread_of(plain)[0] == pytest.approx(0.01, rel=0.1)
    jumping = plain + np.repeat([0.0, 0.3, -0.2, 0.1], 100)
    assert spread_of(jumping)[0] == pytest.approx(spread_of(plain)[0], rel=0.05)


def test_the_interval_holds_what_happened_in_95_of_100_nights():
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(400):
        values = rng.normal(0, 0.02, 30)
        values[-1] += math.log(1.1)
        change = change_of(values, np.ones(30, bool))
        _, low, high = change.interval
        inside += low <= 1.1 <= high
    assert 0.92 <= inside / 400 <= 0.98
