"""Lanes: one device's members after another, all devices at once, and no minute is wasted."""

import os
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from retune.core.errors import DeviceError, RunStopped
from retune.nightly.curves import NetworkOutlook
from retune.nightly.fleet import Key, Member
from retune.nightly.lanes import DeviceLane, MemberTurn, run_lanes
from retune.nightly.night import MemberResult, Night, run_night
from retune.nightly.window import TimeWindow
from retune.pipeline.watch import stopping, watching
from tests.support.fakes import Clock, Machine, result

FRESH = NetworkOutlook(left=0.5, trials=1.0, trials_per_minute=10.0)
A, B, C = ("a", "one"), ("b", "one"), ("c", "one")
D = ("d", "two")
NIGHT = TimeWindow(start=time(22), end=time(6), timezone="UTC")
DEADLINE_S = 30.0


def member(key: Key, **changes: float) -> Member:
    values: dict[str, float] = {"latency_us": 1000.0, "runs_per_day": 1e6, **changes}
    return Member(key=key, outlook=FRESH, **values)  # type: ignore[arg-type]


def lane(*members: Member, minutes: float = 30.0, overlaps: bool = False) -> DeviceLane:
    device = members[0].key[1]
    return DeviceLane(device=device, minutes=minutes, members=members, overlaps=overlaps)


class Rehearsal:
    """A night whose members are tuned by a function, on a clock that it turns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.machine = Machine()
        self.turns: list[tuple[Key, float]] = []
        self.use: dict[Key, float] = {}
        """Share of its minutes that a member uses; all, if it is not there."""

    def tune(self, turn: MemberTurn) -> MemberResult:
        self.turns.append((turn.key, turn.minutes))
        spent = turn.minutes * self.use.get(turn.key, 1.0)
        self.clock.now += timedelta(minutes=spent)
        return result(None, 900.0, minutes=spent)

    def run(
        self,
        *lanes: DeviceLane,
        tune: Callable[[MemberTurn], MemberResult] | None = None,
        hours: TimeWindow | None = None,
    ) -> Night:
        keys = [each.key for lane in lanes for each in lane.members]
        with run_night(self.folder, "n", self.machine.start("p"), self.clock) as night:
            night.plan(dict.fromkeys(keys, 0.0))
            run_lanes(lanes, night, tune or self.tune, hours, self.clock)
            night.end()
        return night


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path)


def statuses(night: Night) -> dict[Key, str]:
    return {each.key: each.status for each in night.state.members}


def test_all_members_have_their_turn_with_their_share(rehearsal: Rehearsal):
    night = rehearsal.run(lane(member(A), member(B), member(C)))
    assert [key for key, _ in rehearsal.turns] == [A, B, C]
    assert [minutes for _, minutes in rehearsal.turns] == pytest.approx([10.0] * 3, abs=0.2)
    assert set(statuses(night).values()) == {"done"}


def test_what_a_member_did_not_need_goes_to_those_after_it(rehearsal: Rehearsal):
    rehearsal.use[A] = 0.1
    rehearsal.run(lane(member(A), member(B), member(C)))
    (_, first), (_, second), (_, third) = rehearsal.turns
    assert first == pytest.approx(10, abs=0.2)
    assert [second, third] == pytest.approx([14.5] * 2, abs=0.3)


def test_members_are_begun_while_the_window_is_open_only(rehearsal: Rehearsal):
    rehearsal.clock.now = datetime(2026, 3, 2, 5, 50, tzinfo=UTC)
    night = rehearsal.run(lane(member(A), member(B), minutes=300.0), hours=NIGHT)
    assert sum(minutes for _, minutes in rehearsal.turns) == pytest.approx(10.0)
    assert statuses(night) == {A: "done", B: "done"}


def test_what_members_take_besides_measuring_is_kept_free_before_the_window_closes(
    rehearsal: Rehearsal,
):
    rehearsal.clock.now = datetime(2026, 3, 2, 5, tzinfo=UTC)

    def slow(turn: MemberTurn) -> MemberResult:
        found = rehearsal.tune(turn)
        rehearsal.clock.now += timedelta(minutes=5)
        return found

    rehearsal.run(
        lane(*[member((f"n{i}", "one")) for i in range(4)], minutes=300.0), tune=slow, hours=NIGHT
    )
    assert len(rehearsal.turns) == 4
    assert rehearsal.clock.now <= datetime(2026, 3, 2, 6, 6, tzinfo=UTC)


def test_who_had_no_turn_is_skipped_and_planned_anew(rehearsal: Rehearsal):
    rehearsal.clock.now = datetime(2026, 3, 2, 5, 59, tzinfo=UTC)

    def late(turn: MemberTurn) -> MemberResult:
        found = rehearsal.tune(turn)
        rehearsal.clock.turn()
        return found

    night = rehearsal.run(lane(member(A), member(B)), tune=late, hours=NIGHT)
    assert statuses(night) == {A: "done", B: "skipped"}
    (_, skipped) = night.state.members
    assert (skipped.minutes, skipped.reason) == (0.0, "the window closed before its turn")
    rehearsal.clock.now = datetime(2026, 3, 2, 22, tzinfo=UTC)
    again = rehearsal.run(lane(member(A), member(B)), hours=NIGHT)
    assert statuses(again) == {A: "done", B: "done"}
    assert rehearsal.turns[-1][0] == B and rehearsal.turns[-1][1] > 20


def test_a_member_is_never_begun_with_no_minutes(rehearsal: Rehearsal):
    greedy = member(A, least_minutes=30.0, most_minutes=30.0)
    night = rehearsal.run(lane(greedy, member(B), minutes=30.0))
    assert rehearsal.turns == [(A, 30.0)]
    assert statuses(night) == {A: "done", B: "skipped"}
    assert night.state.members[1].reason == "no minutes of its device were left for it"


def test_a_failure_ends_neither_the_lane_nor_the_others(rehearsal: Rehearsal):
    def tune(turn: MemberTurn) -> MemberResult:
        if turn.key == A:
            turn.spend(0.5)
            raise DeviceError("the board is lost")
        return rehearsal.tune(turn)

    night = rehearsal.run(lane(member(A), member(B)), lane(member(D)), tune=tune)
    assert statuses(night) == {A: "failed", B: "done", D: "done"}
    failed = night.state.members[0]
    assert (failed.reason, failed.spent) == ("the board is lost", pytest.approx(7.5))
    ((_, minutes),) = [turn for turn in rehearsal.turns if turn[0] == B]
    assert minutes == pytest.approx(22.5)  # what the first one did not use


def test_a_member_that_had_begun_keeps_its_minutes_and_comes_first(rehearsal: Rehearsal):
    def killed(turn: MemberTurn) -> MemberResult:
        raise RunStopped("cancelled")

    stopped = rehearsal.run(lane(member(B), member(A)), tune=killed)
    assert statuses(stopped) == {B: "planned", A: "planned"}
    rehearsal.run(lane(member(A), member(B), minutes=60.0))
    assert [key for key, _ in rehearsal.turns] == [B, A]
    assert rehearsal.turns[0][1] == pytest.approx(15, abs=0.2)
    assert rehearsal.turns[1][1] == pytest.approx(45, abs=0.2)


def test_devices_are_measured_at_the_same_time(rehearsal: Rehearsal):
    """Each waits for the other one: one after the other, neither would end."""
    both = threading.Barrier(2, timeout=DEADLINE_S)

    def tune(turn: MemberTurn) -> MemberResult:
        both.wait()
        return result(None, 900.0, minutes=turn.minutes)

    night = rehearsal.run(lane(member(A)), lane(member(D)), tune=tune)
    assert statuses(night) == {A: "done", D: "done"}


def test_one_member_is_delivered_while_the_next_is_measured(rehearsal: Rehearsal):
    begun = {key: threading.Event() for key in (A, B, C)}

    def tune(turn: MemberTurn) -> MemberResult:
        begun[turn.key].set()
        turn.searched()
        if turn.key != C:  # it ends only after the next one has begun
            following = begun[B if turn.key == A else C]
            assert following.wait(DEADLINE_S)
        return result(None, 900.0, minutes=turn.minutes)

    night = rehearsal.run(lane(member(A), member(B), member(C), overlaps=True), tune=tune)
    assert set(statuses(night).values()) == {"done"}


@pytest.mark.parametrize("overlaps", [False, True])
def test_two_members_of_a_device_are_never_searched_at_once(rehearsal: Rehearsal, overlaps: bool):
    searching = threading.Lock()

    def tune(turn: MemberTurn) -> MemberResult:
        assert searching.acquire(blocking=False), "another member is searched"
        rehearsal.tune(turn)
        searching.release()
        turn.searched()
        return result(None, 900.0, minutes=turn.minutes)

    night = rehearsal.run(lane(member(A), member(B), member(C), overlaps=overlaps), tune=tune)
    assert set(statuses(night).values()) == {"done"}


def test_ctrl_c_does_not_wait_for_the_member_that_is_tuned(rehearsal: Rehearsal):
    ended = threading.Event()
    told: list[bool] = []

    def tune(turn: MemberTurn) -> MemberResult:
        os.kill(os.getpid(), signal.SIGINT)
        assert ended.wait(DEADLINE_S)
        told.append(stopping())
        raise RunStopped("asked to")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threads = set(threading.enumerate())
    try:
        with pytest.raises(KeyboardInterrupt):
            rehearsal.run(lane(member(A), member(B)), tune=tune)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not told
    ended.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(DEADLINE_S)
    assert told == [True]


def test_nothing_more_is_begun_once_that_is_wished(rehearsal: Rehearsal):
    asked = threading.Event()

    def tune(turn: MemberTurn) -> MemberResult:
        asked.set()
        return rehearsal.tune(turn)

    with watching(stop=asked.is_set):
        night = rehearsal.run(lane(member(A), member(B)), tune=tune)
    assert statuses(night) == {A: "done", B: "planned"}
