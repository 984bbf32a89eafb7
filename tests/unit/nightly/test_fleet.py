"""The minutes of a night go where they save most, within all limits."""

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.nightly.curves import NetworkOutlook, gain
from retune.nightly.fleet import Key, Member, allocate, floors, saving
from tests.support.properties import quick

FRESH = NetworkOutlook(left=0.5, trials=1.0, trials_per_minute=10.0)
PLATEAU = NetworkOutlook(left=0.001, trials=300.0, trials_per_minute=10.0)


def member(
    name: str, outlook: NetworkOutlook = FRESH, device: str = "pocl", **changes: float
) -> Member:
    values: dict[str, float] = {"latency_us": 1000.0, "runs_per_day": 1e6, **changes}
    return Member(key=(name, device), outlook=outlook, **values)  # type: ignore[arg-type]


def total(members: Sequence[Member], granted: Mapping[Key, float]) -> float:
    return sum(saving(each, granted[each.key]) for each in members)


def test_equal_members_get_equal_minutes():
    granted = allocate([member("a"), member("b"), member("c")], 60)
    assert sum(granted.values()) == pytest.approx(60)
    assert all(minutes == pytest.approx(20, abs=0.2) for minutes in granted.values())


def test_a_network_at_its_plateau_gets_what_is_needed_to_notice_a_change():
    granted = allocate([member("new"), member("done", PLATEAU)], 60)
    assert granted["done", "pocl"] == pytest.approx(0.05 * 60)
    assert granted["new", "pocl"] == pytest.approx(0.95 * 60)


def test_what_runs_more_often_or_longer_gets_more():
    often = allocate([member("a", runs_per_day=1e6), member("b", runs_per_day=1e5)], 60)
    longer = allocate([member("a", latency_us=1e4), member("b", latency_us=1e3)], 60)
    assert often["a", "pocl"] > 1.5 * often["b", "pocl"]
    assert longer == pytest.approx(often)


def test_least_and_most_minutes_hold():
    members = [
        member("a", most_minutes=5),
        member("b", PLATEAU, least_minutes=12),
        member("c", least_minutes=3, most_minutes=3),
        member("d"),
    ]
    granted = {key[0]: minutes for key, minutes in allocate(members, 60).items()}
    assert granted == pytest.approx({"a": 5, "b": 12, "c": 3, "d": 40})


def test_minutes_that_nobody_may_have_are_left():
    granted = allocate([member("a", most_minutes=5), member("b", most_minutes=6)], 60)
    assert granted == pytest.approx({("a", "pocl"): 5, ("b", "pocl"): 6})


def test_where_the_least_do_not_fit_everyone_gets_the_same_part_of_it():
    granted = allocate([member("a", least_minutes=20), member("b", least_minutes=10)], 6)
    assert granted == pytest.approx({("a", "pocl"): 4, ("b", "pocl"): 2})


def test_with_many_members_half_of_the_night_still_goes_where_it_pays():
    members = [member("new"), *(member(f"n{i:02}", PLATEAU) for i in range(50))]
    granted = allocate(members, 60)
    assert granted["new", "pocl"] > 29
    assert min(granted.values()) == pytest.approx(30 / 51)


def test_a_network_without_anything_to_tune_gets_nothing_while_others_gain():
    nothing = NetworkOutlook(left=0.0, trials=1.0, trials_per_minute=0.0)
    assert allocate([member("a"), member("b", nothing)], 60)["b", "pocl"] == 0


def test_an_empty_fleet_gets_nothing():
    assert allocate([], 60) == {}


outlooks = st.builds(
    NetworkOutlook,
    left=st.floats(0, 2),
    trials=st.floats(1, 500),
    trials_per_minute=st.floats(0.1, 50),
)


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> list[Member]:
    limit = st.integers(0, 8)
    found: list[Member] = []
    for number in range(draw(st.integers(1, most))):
        least = draw(limit)
        bounded = draw(st.booleans())
        found.append(
            Member(
                key=(f"n{number}", "pocl"),
                latency_us=draw(st.floats(1, 1e5)),
                runs_per_day=draw(st.floats(1, 1e7)),
                outlook=draw(outlooks),
                least_minutes=float(least),
                most_minutes=float(least + 1 + draw(limit)) if bounded else None,
            )
        )
    return found


budgets = st.floats(1, 40)


@quick(150)
@given(outlooks, st.floats(0, 1000), st.floats(0.01, 1000))
def test_gains_grow_ever_more_slowly(outlook: NetworkOutlook, minutes: float, more: float):
    at = [gain(outlook, minutes + step * more) for step in range(3)]
    assert gain(outlook, 0) == 0
    assert 0 <= at[0] <= at[1] <= at[2] < 1
    assert at[2] - at[1] <= at[1] - at[0] + 1e-12


@quick(150)
@given(fleets(6), budgets)
def test_limits_hold(members: list[Member], minutes: float):
    granted = allocate(members, minutes)
    assert set(granted) == {each.key for each in members}
    assert sum(granted.values()) <= minutes + 1e-6
    for each in members:
        assert 0 <= granted[each.key] <= (each.most_minutes or math.inf) + 1e-6
    if sum(each.least_minutes for each in members) <= minutes:
        assert all(granted[each.key] >= each.least_minutes - 1e-6 for each in members)


@quick(100)
@given(fleets(6), budgets, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(
    members: list[Member], minutes: float, random: object
):
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert allocate(shuffled, minutes) == allocate(members, minutes)


SLICES = 6


@quick(100)
@given(fleets(), budgets)
def test_no_other_division_saves_more(members: list[Member], minutes: float):
    """Against every division of the night's slices, from what each gets in any case."""
    least = floors(sorted(members, key=lambda each: each.key), minutes)
    granted = allocate(members, minutes, slices=SLICES)
    step = minutes / SLICES
    best = 0.0
    for slices in itertools.product(range(SLICES + 1), repeat=len(members)):
        tried = {
            each.key: least[each.key] + count * step
            for each, count in zip(members, slices, strict=True)
        }
        if _allowed(members, tried, minutes):
            best = max(best, total(members, tried))
    assert total(members, granted) >= best * (1 - 1e-9)


def _allowed(members: Sequence[Member], granted: Mapping[Key, float], minutes: float) -> bool:
    if sum(granted.values()) > minutes:
        return False
    return all(granted[each.key] <= (each.most_minutes or math.inf) for each in members)
