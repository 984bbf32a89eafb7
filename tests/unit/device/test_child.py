"""A child's handle: whatever happens between two requests, the next one meets its own answer."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.device.measure import child as children
from retune.device.measure.child import Child, ChildLostError
from tests.support.echoing import MUTE, PICKLED, Echo

DEADLINE_S = 60.0


@pytest.fixture
def child() -> Iterator[Child]:
    opened = Child("any", entry="tests.support.echoing", replies=(Echo,))
    yield opened
    opened.close()


def echo(child: Child, request: str) -> Echo:
    assert child.pid is not None
    return Echo(child.pid, request)


def test_a_pickle_is_not_a_reply(child: Child):
    """The process ran foreign kernels: what it sends may be anything."""
    with pytest.raises(ChildLostError, match="sent what is not a reply") as lost:
        child.request(PICKLED, DEADLINE_S)
    assert lost.value.status == "crash"
    assert child.request("again", DEADLINE_S) == echo(child, "again")


def test_a_request_that_was_sent_by_half_is_not_the_next_one_s_begin(child: Child):
    """An interrupt may come while a large array travels."""
    pid = child.pid
    assert child.request("first", DEADLINE_S) == echo(child, "first") and pid is None
    connection = child._connection
    assert connection is not None

    def half(_: object) -> None:
        os.write(connection.fileno(), b"\0\0\1\0 and no more")
        raise KeyboardInterrupt

    connection.send = half  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        child.request("second", DEADLINE_S)
    assert child.request("third", DEADLINE_S) == echo(child, "third")


@pytest.mark.process
def test_a_process_that_cannot_be_started_leaves_nothing_open(
    child: Child, monkeypatch: pytest.MonkeyPatch
):
    def none_left(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    before = len(list(Path("/proc/self/fd").iterdir()))
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", none_left)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                child.ensure()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert child.request("again", DEADLINE_S) == echo(child, "again")


def test_a_process_that_stays_without_its_connection_is_ended(
    child: Child, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(children, "_END_DEADLINE_S", 0.1)
    with pytest.raises(ChildLostError, match="the process died of SIGKILL") as lost:
        child.request(MUTE, DEADLINE_S)
    assert lost.value.status == "crash"
    assert child.request("again", DEADLINE_S) == echo(child, "again")
