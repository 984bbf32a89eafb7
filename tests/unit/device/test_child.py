"""A child's handle: whatever happens between two requests, the next one meets its own answer."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.bundle.build import Slot
from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.examination import (
    Compare,
    Comparison,
    Drop,
    Open,
    Original,
    Rival,
    Verify,
)
from retune.bundle.verify.in_network_child import OpenFinalists
from retune.core.schema import pack, unpack
from retune.device.measure import child as children
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.messages import (
    Build,
    Check,
    Forget,
    Launching,
    LoadArrays,
    Time,
    Warm,
)
from retune.device.measure.workload import MeasureOptions
from tests.support.echoing import MUTE, PICKLED, Echo
from tests.support.measure import program

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


def test_a_pickle_is_not_a_request(child: Child):
    """Nor is it undone: it would name a function that is to be called."""
    assert child.request("first", DEADLINE_S) == echo(child, "first")
    assert child._connection is not None
    child._connection.send("second")
    with pytest.raises(ChildLostError, match="expected one of str") as lost:
        child._receive(DEADLINE_S)
    assert lost.value.status == "crash"


SOURCE = program().unpacked
NETWORK = Original(onnx=Path("net.onnx"), shapes={"x": (1, 8)}, recipe="{}")
RIVAL = Rival(peer="onnxruntime", network=NETWORK)
FINALISTS = (range(2), range(2, 3))
SAID: tuple[object, ...] = (
    LoadArrays(inputs={}, outputs={}, positions={}, rtol=0.1, atol=0.0),
    Build(jobs={7: SOURCE}),
    Warm(indices=(7, 8)),
    Check(index=7, constants={}, spread_bytes=1),
    Time(options=MeasureOptions(), best_cost=None, calm_us=2.0),
    Forget(),
    Launching(),
    Open(bundle=Path("a"), rival=RIVAL, sizes={"n": 3}),
    Drop(),
    Compare(bundles={"a": Path("a")}, rivals={"b": RIVAL}, baseline=None, options=BenchOptions()),
    Verify(bundle=Path("a"), comparison=Comparison(network=NETWORK, tolerance=0.5)),
    OpenFinalists(
        manifest="{}",
        texts={"k": "// k"},
        models=(b"m",),
        slots=(Slot(task_key="t", label="g", finalists=FINALISTS),),
        weights=Path("weights"),
    ),
)


@pytest.mark.parametrize("request_", SAID, ids=lambda item: type(item).__name__)
def test_a_request_arrives_as_it_was_sent(request_: object):
    frame = pack(request_)
    assert unpack((type(request_),), frame, len(frame)) == request_


def test_a_request_that_was_sent_by_half_is_not_the_next_one_s_begin(child: Child):
    """An interrupt may come while a large array travels."""
    pid = child.pid
    assert child.request("first", DEADLINE_S) == echo(child, "first") and pid is None
    connection = child._connection
    assert connection is not None

    def half(_: object) -> None:
        os.write(connection.fileno(), b"\0\0\1\0 and no more")
        raise KeyboardInterrupt

    connection.send_bytes = half  # type: ignore[method-assign]
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
