"""Since when a network is slower, and two nights side by side."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import LookupFailed
from retune.nightly.history import by_key, first_slower, side_by_side
from retune.records.nights import NightRow
from tests.support.nights import judged, night, quiet, slowed


def stepped(rows: list[NightRow], at: int, **factors: float) -> list[NightRow]:
    """The nights, slower from that number on."""
    return [*rows[:at], *(slowed(row, **factors) for row in rows[at:])]


def test_the_first_night_of_a_slower_network_is_found_with_its_interval():
    for seed in range(6):
        found = first_slower(stepped(quiet(40, seed), 23, time=1.1))
        assert found is not None
        assert (found.night, found.verdict, found.cause) == ("2026-03-24", "real", "")
        assert found.low < 1.1 < found.high and found.ratio == pytest.approx(1.1, rel=0.02)


def test_small_losses_show_after_some_nights():
    """None of these nights is beyond noise by itself."""
    rows = stepped(quiet(40, 2), 25, time=1.016)
    assert {row.verdict for row in judged(rows)} == {"noise"}
    found = first_slower(rows)
    assert found is not None and abs(int(found.night[-2:]) - 26) <= 1


def test_the_driver_or_the_commit_that_came_with_it_is_named():
    rows = stepped(quiet(30, 1), 12, time=1.2, control=1.1)
    rows = [replace(row, driver="2" if i >= 12 else "1") for i, row in enumerate(rows)]
    found = first_slower(rows)
    assert found is not None and found.verdict == "method"
    assert found.cause == "compiler (driver) 1 -> 2"
    rows = [replace(row, driver="1", commit="b" if i >= 12 else "a") for i, row in enumerate(rows)]
    found = first_slower(rows)
    assert found is not None and found.cause == "commit of retune a -> b"


def test_a_slower_machine_is_hardware():
    found = first_slower(stepped(quiet(40, 3), 20, time=1.3, control=1.3, kernel=1.3))
    assert found is not None
    assert (found.night, found.verdict) == ("2026-03-21", "hardware")


def test_a_network_that_is_as_fast_as_ever_has_no_such_night():
    rng = np.random.default_rng(0)
    for seed in range(20):
        assert first_slower(quiet(int(rng.integers(2, 60)), seed)) is None
    back = stepped(stepped(quiet(40), 10, time=1.2), 20, time=1 / 1.2)
    assert first_slower(back) is None
    assert first_slower(stepped(quiet(40), 10, time=0.8)) is None
    assert first_slower([night(0)]) is None
    assert first_slower([]) is None


def test_a_bundle_that_was_published_hides_no_loss():
    rows = stepped(quiet(40, 4), 10, time=0.7)
    rows[9] = replace(rows[9], promoted=True, gain=0.7)
    assert first_slower(rows) is None
    found = first_slower(stepped(rows, 25, time=1.1))
    assert found is not None and found.night == "2026-03-26"


def test_nights_without_a_time_are_left_out():
    rows = stepped(quiet(40, 5), 20, time=1.1)
    rows[20] = replace(rows[20], time_us=None, ratio=None)
    found = first_slower(rows)
    assert found is not None and found.night == "2026-03-22"


def test_two_nights_stand_side_by_side():
    rows = judged(stepped(quiet(30, 6), 20, time=1.1))
    other = judged([replace(row, network="kws") for row in quiet(30, 7)])
    late = judged([night(29, network="new")])
    every = sorted([*rows, *other, *late], key=lambda row: row.measured)
    pairs = side_by_side(every, "2026-03-10", "2026-03-25")
    assert [pair.first.network for pair in pairs] == ["mlp", "kws"]
    assert [pair.second.verdict for pair in pairs] == ["real", "noise"]
    assert pairs[0].slower_since is not None and pairs[0].slower_since.night == "2026-03-21"
    assert pairs[1].slower_since is None
    same = side_by_side(every, "2026-03-22", "2026-03-25")
    assert [pair.second.verdict for pair in same] == ["noise", "noise"]
    assert list(by_key(every)) == [("mlp", "board"), ("kws", "board"), ("new", "board")]


def test_a_night_that_is_not_in_the_table_is_an_error():
    with pytest.raises(LookupFailed, match=r"night 2026-03-3: .*did you mean 2026-03-03\?"):
        side_by_side(quiet(3), "2026-03-01", "2026-03-3")
