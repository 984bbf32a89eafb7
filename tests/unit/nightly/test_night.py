"""A night is on disk as it stands: whoever dies, the next one goes on, and two at once do not."""

import errno
import logging
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time
from pathlib import Path

import pytest

from retune.core.errors import InputError, RecordError
from retune.nightly.night import (
    Attempt,
    Night,
    attempt_of,
    night_name,
    nights_since,
    read_night,
    read_nights,
    run_night,
)
from retune.nightly.window import TimeWindow
from tests.support.fakes import Clock, Machine, result

MLP, KWS = ("mlp", "pocl"), ("kws", "pocl")
PLAN = {MLP: 10.0, KWS: 5.0}
NAME = "2026-03-01"
NIGHT = TimeWindow(start=time(22), end=time(6), timezone="UTC")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def statuses(night: Night) -> list[tuple[str, str]]:
    return [(member.model, member.status) for member in night.state.members]


def test_the_date_of_the_opening_names_the_night_also_after_midnight():
    for moment in (datetime(2026, 3, 1, 22, tzinfo=UTC), datetime(2026, 3, 2, 5, 59, tzinfo=UTC)):
        assert night_name(NIGHT, moment) == NAME
    assert night_name(NIGHT, datetime(2026, 3, 2, 12, tzinfo=UTC)) == "2026-03-02-1200"
    assert night_name(None, datetime(2026, 3, 2, 5, tzinfo=UTC)) == "2026-03-02"
    assert night_name(NIGHT, datetime(2026, 3, 2, 5, tzinfo=UTC), "try-1") == "try-1"


@pytest.mark.parametrize("campaign", ["../x", "a b", ".hidden", "x/y", "x."])
def test_a_campaign_is_the_name_of_a_folder(campaign: str):
    with pytest.raises(InputError, match="campaign: expected letters, digits"):
        night_name(None, datetime(2026, 3, 1, tzinfo=UTC), campaign)


def test_what_a_night_says_is_on_disk(
    tmp_path: Path, machine: Machine, clock: Clock, caplog: pytest.LogCaptureFixture
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        night.begin(MLP, 10.0)
        night.finish(MLP, result(None, 900.0))
        night.begin(KWS, 5.0)
        night.fail(KWS, "the device was lost", spent=2.5)
        assert caplog.messages[-1].endswith(" failed: the device was lost")
        night.note("retrain", "120 records, the model in use stays")
        assert read_night(tmp_path, NAME) == night.state
        clock.turn()
        night.end()
    state = read_night(tmp_path, NAME)
    assert state is not None and state.finished
    (attempt,) = state.attempts
    assert attempt.begun == "2026-03-01T22:00:00+00:00"
    assert attempt.ended == "2026-03-01T23:00:00+00:00"
    assert [member.status for member in state.members] == ["done", "failed"]
    assert state.members[0].result == result(None, 900.0)
    assert [member.used for member in state.members] == [4.5, 2.5]


def test_whose_turn_it_is_is_told(
    tmp_path: Path, machine: Machine, clock: Clock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "retune.nightly")
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        night.begin(KWS, 5.0)
    assert f"kws on pocl, 5.0 minutes of night {NAME}" in caplog.messages


def test_the_same_night_goes_on_where_it_was_stopped(
    tmp_path: Path, machine: Machine, clock: Clock
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        night.finish(MLP, result(None, 900.0))
        night.begin(KWS, 5.0)
    stopped = read_night(tmp_path, NAME)
    assert stopped is not None and not stopped.finished
    assert stopped.attempts[-1].end == "stopped"
    with run_night(tmp_path, NAME, machine.start("b"), clock) as night:
        night.plan({MLP: 1.0, KWS: 1.0})
        assert [(member.key, member.minutes) for member in night.to_do("pocl")] == [(KWS, 5.0)]


def test_what_failed_or_was_left_out_is_tried_again_when_the_night_is_continued(
    tmp_path: Path, machine: Machine, clock: Clock
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        night.fail(MLP, "the device was lost")
        night.skip(KWS, "the window has closed")
        assert night.to_do("pocl") == ()
        night.end()
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        assert [(m.key, m.reason) for m in night.to_do("pocl")] == [(MLP, ""), (KWS, "")]
        assert night.state.members[1].minutes == 0.0  # to be planned anew


def test_a_changed_configuration_keeps_the_plan_of_what_it_still_has(
    tmp_path: Path, machine: Machine, clock: Clock
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan({**PLAN, ("old", "pocl"): 2.0, ("gone", "pocl"): 3.0})
        night.finish(("old", "pocl"), result(None, 1.0))
        night.begin(KWS, 5.0)
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        new = ("new", "pocl")
        night.plan({new: 7.0, KWS: 99.0, MLP: 99.0})
        waiting = [(member.key, member.minutes) for member in night.to_do("pocl")]
        assert waiting == [(KWS, 5.0), (new, 7.0), (MLP, 99.0)]  # who has begun keeps its minutes
        assert statuses(night)[3:] == [("old", "done"), ("gone", "skipped")]


def test_a_killed_night_is_seen_as_such_and_continued(
    tmp_path: Path, machine: Machine, clock: Clock
):
    first = run_night(tmp_path, NAME, machine.start("a"), clock)
    night = first.__enter__()
    night.plan(PLAN)
    night.finish(MLP, result(None, 900.0))
    night.begin(KWS, 5.0)
    machine.kill("a")  # nothing of the context's end happens
    before = read_night(tmp_path, NAME)
    assert before is not None and before.attempts[-1].end == "running"
    seen = attempt_of(before, machine.start("b"))
    assert seen is not None and seen.end == "died"
    clock.turn()
    with run_night(tmp_path, NAME, machine.start("b"), clock) as night:
        assert [member.key for member in night.to_do("pocl")] == [KWS]
        assert [attempt.end for attempt in night.state.attempts] == ["died", "running"]
        night.end()
    after = read_night(tmp_path, NAME)
    assert after is not None and [attempt.end for attempt in after.attempts] == ["died", "finished"]


def test_two_at_once_are_refused_with_who_runs_it(tmp_path: Path, machine: Machine, clock: Clock):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        with (
            pytest.raises(InputError, match="is run by process a"),
            run_night(tmp_path, NAME, machine.start("b"), clock),
        ):
            pass
        assert read_night(tmp_path, NAME) == night.state
        with run_night(tmp_path, "another", machine.start("b"), clock):
            pass


def test_a_runner_of_another_host_is_not_taken_for_dead(
    tmp_path: Path, machine: Machine, clock: Clock
):
    """Its lock may not be seen here."""
    first = run_night(tmp_path, NAME, machine.start("far"), clock)
    first.__enter__()
    machine.held.clear()
    with (
        pytest.raises(InputError, match=f"night {NAME} is being run by process far; wait until"),
        run_night(tmp_path, NAME, machine.start("b"), clock),
    ):
        pass


def test_an_error_leaves_a_night_that_is_stopped(tmp_path: Path, machine: Machine, clock: Clock):
    def fail() -> None:
        with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
            night.plan(PLAN)
            night.begin(MLP, 10.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    state = read_night(tmp_path, NAME)
    assert state is not None
    last = state.attempts[-1]
    assert (last.end, last.reason, state.members[0].status) == (
        "stopped",
        "ZeroDivisionError: ",
        "planned",
    )
    assert not machine.held


def test_threads_share_a_night(tmp_path: Path, machine: Machine, clock: Clock):
    keys = [(f"n{i}", "pocl") for i in range(12)]
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(dict.fromkeys(keys, 1.0))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda key: night.finish(key, result(None, 5.0)), keys))
        assert night.to_do("pocl") == ()
        assert read_night(tmp_path, NAME) == night.state


def test_notes_tell_which_steps_of_the_fleet_are_done(
    tmp_path: Path, machine: Machine, clock: Clock
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.note("retrain", "no space left", failed=True)
        assert not night.noted("retrain")
        night.note("retrain", "a better model is in use")
        assert night.noted("retrain") and not night.noted("compact")
        assert [note.text for note in night.state.notes] == ["a better model is in use"]


def test_nights_are_listed_in_the_order_in_which_they_were_begun(
    tmp_path: Path, machine: Machine, clock: Clock, caplog: pytest.LogCaptureFixture
):
    for number, name in enumerate(("2026-03-01", "campaign", "2026-03-02")):
        with run_night(tmp_path, name, machine.start("a"), clock) as night:
            if number == 0:
                night.note("retrain", "done")
        clock.turn()
    nights = read_nights(tmp_path)
    assert [state.name for state in nights] == ["2026-03-01", "campaign", "2026-03-02"]
    assert (nights_since(nights, "retrain"), nights_since(nights, "compact")) == (2, 3)
    (tmp_path / "nights/campaign/night.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert len(read_nights(tmp_path)) == 2
    assert "campaign" in caplog.text
    assert read_nights(tmp_path / "nothing") == ()


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[]", b'{"name": 3}'])
def test_a_damaged_night_is_named(tmp_path: Path, machine: Machine, clock: Clock, content: bytes):
    path = tmp_path / "nights" / NAME / "night.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with (
        pytest.raises(RecordError, match=r"night.json: .*expected"),
        run_night(tmp_path, NAME, machine.start("a"), clock),
    ):
        pass
    assert path.read_bytes() == content


def test_a_night_that_was_never_begun_is_not_known(tmp_path: Path):
    assert read_night(tmp_path, NAME) is None


CHILD = """
import contextlib, os, sys
from datetime import UTC, datetime
from pathlib import Path
from retune.nightly.night import Processes, run_night

me = Processes(
    me=str(os.getpid()), alive=lambda line: True, describe=str,
    hold=lambda path: contextlib.nullcontext(),
)
with run_night(Path(sys.argv[1]), "2026-03-01", me, lambda: datetime.now(UTC)) as night:
    night.plan({("mlp", "pocl"): 10.0, ("kws", "pocl"): 5.0})
    night.begin(("kws", "pocl"), 5.0)
    print("begun", flush=True)
    while True:
        night.note("count", "again and again")
"""


@pytest.mark.process
def test_a_process_that_is_killed_while_it_writes_leaves_a_whole_night(
    tmp_path: Path, machine: Machine, clock: Clock
):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"begun\n"
        child.send_signal(signal.SIGKILL)
    state = read_night(tmp_path, NAME)
    assert state is not None
    assert state.attempts == (
        Attempt(process=str(child.pid), begun=state.attempts[0].begun, end="running"),
    )
    with run_night(tmp_path, NAME, machine.start("b"), clock) as night:
        assert [member.key for member in night.to_do("pocl")] == [KWS, MLP]
        assert night.state.attempts[0].end == "died"


def test_a_full_disk_ends_no_night(
    tmp_path: Path,
    machine: Machine,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    with run_night(tmp_path, NAME, machine.start("a"), clock) as night:
        night.plan(PLAN)
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr("retune.nightly.night.replacing", lambda _: (_ for _ in ()).throw(full))
            night.begin(MLP, 10.0)
        assert "cannot be written (No space left on device)" in caplog.text
        night.finish(MLP, result(None, 900.0))
        assert read_night(tmp_path, NAME) == night.state
