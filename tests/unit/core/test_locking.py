"""One holder at a time, between processes and threads; who waits learns for whom."""

import errno
import os
import threading
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import BusyError, InputError, RunStopped
from retune.core.locking import exclusive, exclusive_once, machine_lock, own_file
from retune.core.processes import Holder, this_process
from retune.core.waiting import interruptible
from tests.support.processes import heard, talk

HOLDER = """
import logging, sys
from pathlib import Path
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from retune.core.locking import exclusive
with exclusive(Path(sys.argv[1]), "the house is being painted"):
    print("held")
    sys.stdin.read()
"""
COUNTER = """
import sys
from pathlib import Path
from retune.core.locking import exclusive
lock, count = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with exclusive(lock, "the count is being raised"):
        count.write_text(str(int(count.read_text()) + 1))
"""
PAINTED = "the house is being painted"


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "house.lock"


def is_free(lock: Path) -> bool:
    try:
        with exclusive(lock, PAINTED, wait=False):
            return True
    except BusyError:
        return False


def test_the_lock_file_names_its_holder_and_goes_with_it(lock: Path):
    with exclusive(lock, PAINTED):
        holder = Holder.from_line(lock.read_text())
        assert holder is not None
        assert replace(holder, since="") == replace(this_process(), since="")
    assert not list(lock.parent.iterdir())


def test_a_second_process_waits_and_says_for_whom(lock: Path):
    with talk(HOLDER, str(lock)) as first:
        assert heard(first) == "held"
        with pytest.raises(BusyError, match=rf"painted by process {first.pid} on .* since .*try"):
            exclusive(lock, PAINTED, wait=False).__enter__()
        with talk(HOLDER, str(lock)) as second:
            waiting = heard(second)
            first.communicate("")
            assert waiting.startswith(f"{PAINTED} by process {first.pid} on ")
            assert waiting.endswith("; waiting until it ends")
            assert heard(second).endswith(f" s: {PAINTED} by this process")
            assert heard(second) == "held"
    assert is_free(lock)


def test_a_holder_in_the_same_process_is_called_so(lock: Path):
    with (
        exclusive(lock, PAINTED),
        pytest.raises(BusyError, match="painted by this process, in another thread; try again"),
    ):
        exclusive(lock, PAINTED, wait=False).__enter__()


def test_a_killed_holder_locks_nothing(lock: Path):
    with talk(HOLDER, str(lock)) as first:
        assert heard(first) == "held"
        first.kill()
    assert lock.exists()
    assert is_free(lock)
    assert not lock.exists()


def test_a_name_that_a_dead_holder_left_is_not_told(lock: Path):
    """As where the present holder may read another user's lock file but not write to it."""
    with exclusive(lock, PAINTED):
        lock.write_text(replace(this_process(), started="long ago").to_line())
        with pytest.raises(BusyError, match="painted by another process; try again"):
            exclusive(lock, PAINTED, wait=False).__enter__()


def test_processes_that_take_turns_are_never_two_at_once(lock: Path, tmp_path: Path):
    """Each turn takes the lock file away, while others wait for it."""
    count, turns = tmp_path / "count", 100
    count.write_text("0")
    crowd = [talk(COUNTER, str(lock), str(count), str(turns)) for _ in range(3)]
    assert [process.wait() for process in crowd] == [0, 0, 0]
    for process in crowd:
        process.communicate()
    assert count.read_text() == str(3 * turns)


def test_a_lock_file_that_was_deleted_is_not_taken_from_who_made_it_anew(lock: Path):
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(exclusive(lock, PAINTED))
        lock.unlink()
        second.enter_context(exclusive(lock, wait=False))
        with pytest.raises(BusyError, match=r"house\.lock is held by this process"):
            exclusive(lock, wait=False).__enter__()
        first.close()
        assert lock.exists()
        assert not is_free(lock)


def test_threads_exclude_each_other(lock: Path):
    free: list[bool] = []
    with exclusive(lock):
        other = threading.Thread(target=lambda: free.append(is_free(lock)))
        other.start()
        other.join()
    assert free == [False]


def test_what_the_context_holds_already_is_not_waited_for(lock: Path):
    def again() -> bool:
        try:
            with exclusive_once(lock, PAINTED, wait=False):
                return True
        except BusyError:
            return False

    def elsewhere() -> list[bool]:
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(again()))
        thread.start()
        thread.join()
        return found

    with exclusive_once(lock, PAINTED):
        assert again()
        assert not is_free(lock), "the inner context has let go of what the outer one holds"
        assert elsewhere() == [False]
        inner = copy_context()
        assert inner.run(again), "a thread that works for the holder is a part of it"
    assert is_free(lock)
    with exclusive(lock, PAINTED):
        assert not inner.run(again), "the holder has let go since"


def test_a_place_for_no_file_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file: expected a folder that can be written to, for a"):
        exclusive(tmp_path / "file" / "a.lock", PAINTED).__enter__()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, InputError), (errno.EROFS, InputError), (errno.ENOSPC, OSError)],
)
def test_a_place_that_refuses_is_told_from_one_that_is_full(
    number: int, kind: type[Exception], lock: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(kind, match=os.strerror(number)):
        exclusive(lock, PAINTED).__enter__()


def test_locks_of_the_machine_differ_by_what_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path))
    paths = {machine_lock("out", "a"), machine_lock("out", "b"), machine_lock("device", "a")}
    assert len(paths) == 3
    assert {path.parent for path in paths} == {tmp_path}


@pytest.mark.parametrize("kind", ["link", "dangling", "second name", "pipe", "folder"])
def test_what_somebody_put_in_its_place_is_left_alone(lock: Path, kind: str):
    """Whoever can write there cannot have a file of somebody else's emptied."""
    lock.parent.mkdir(parents=True)
    victim = lock.with_name("victim")
    if kind != "dangling":
        victim.write_text("precious")
    match kind:
        case "link" | "dangling":
            lock.symlink_to(victim)
        case "second name":
            lock.hardlink_to(victim)
        case "pipe":
            os.mkfifo(lock)
        case _:
            lock.mkdir()
    with pytest.raises(InputError) as caught, exclusive(lock, PAINTED):
        pass
    assert str(lock.parent) in str(caught.value)
    assert victim.exists() == (kind != "dangling")
    assert kind == "dangling" or victim.read_text() == "precious"


def test_what_is_believed_lies_in_a_folder_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RETUNE_LOCKS", "")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = own_file("instructions", ".json", "a")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert own_file("instructions", ".json", "a") == path
    path.parent.chmod(0o777)
    with pytest.raises(InputError, match="expected a folder that only you can write to"):
        own_file("instructions", ".json", "a")
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(InputError, match="expected a folder that only you can write to"):
        own_file("instructions", ".json", "a")


def test_a_run_that_is_cancelled_waits_no_longer(lock: Path):
    def cancelled() -> None:
        raise RunStopped("the run was cancelled")

    with (
        exclusive(lock, PAINTED),
        interruptible(cancelled),
        pytest.raises(RunStopped),
        exclusive(lock, PAINTED),
    ):
        pass
    assert is_free(lock)
