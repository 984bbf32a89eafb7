"""A board's service: every job has an answer, whatever it is, and the board goes on."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from retune.core.errors import DeviceError, InputError
from retune.device.measure.workload import MeasureOptions
from retune.device.remote.batches import pack_batch, pack_workload, unpack_rows
from retune.device.remote.wire import (
    WIRE,
    Envelope,
    MessageParts,
    RefusedError,
    Reply,
    digest_of,
    pack,
    unpack,
)
from retune.farm import service as services
from retune.farm.measuring import Measuring
from retune.farm.service import Service
from tests.support.measure import WORKLOAD, program
from tests.support.search_fakes import FakeRunner


class Handler:
    """Does as it is told."""

    def __init__(self, outcome: Callable[[], str] = lambda: "done") -> None:
        self.outcome = outcome
        self.closed = False

    def carry_out(
        self, body: str, parts: MessageParts, blob: Callable[[str], bytes]
    ) -> tuple[str, MessageParts]:
        return self.outcome() if body == "do" else blob(body).decode(), MessageParts()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    opened, handler = (
        Service("board-1", "k/1", "pocl", tmp_path, most_bytes=10_000, kept_bytes=100),
        Handler(),
    )
    monkeypatch.setattr(opened, "_handler", lambda kind: handler)
    return opened


def said(service: Service, job: object) -> Reply:
    return unpack(Reply, service.carry_out(job))[0]


def job(blobs: dict[str, bytes] | None = None, **fields: object) -> bytes:
    given = {"wire": WIRE, "kind": "measure", "board": "k/1", "body": "do", **fields}
    return pack(Envelope(**given), MessageParts(blobs=blobs or {}))  # type: ignore[arg-type]


def raising(error: Exception) -> Callable[[], str]:
    def outcome() -> str:
        raise error

    return outcome


def test_a_job_is_answered(service: Service):
    assert said(service, job()) == Reply(state="done", board="board-1", body="done")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (b"rm -rf /", "expected arrays in safetensors"),
        ("text", "expected a message of bytes, got str"),
        (None, "expected a message of bytes, got NoneType"),
        (b"x" * 20_000, "expected at most 10000 bytes, got 20000"),
        (job(kind="shell"), "got 'shell'"),
        (job(board="other/1"), "expected a job for k/1, got one for 'other/1'"),
        (job(wire=99), "expected version 3 of what travels, got 99"),
        (job(body="abc"), "expected a job that says which blobs it needs, got 'abc'"),
    ],
)
def test_what_is_no_job_is_refused_in_one_line(
    service: Service, caplog: pytest.LogCaptureFixture, what: object, why: str
):
    with caplog.at_level(logging.WARNING):
        reply = said(service, what)
    assert reply.state == "refused"
    assert why in reply.why
    (line,) = caplog.messages
    assert line == f"refused a job: {reply.why}"
    assert said(service, job()).state == "done"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (RefusedError("no kernel"), "refused"),
        (InputError("does not fit"), "refused"),
        (DeviceError("the driver is gone"), "lost"),
        (OSError(28, "No space left on device"), "lost"),
        (MemoryError(), "lost"),
        (KeyError("bug"), "lost"),
    ],
)
def test_whose_fault_it_was_is_part_of_the_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch, error: Exception, state: str
):
    monkeypatch.setattr(service, "_handler", lambda kind: Handler(raising(error)))
    assert said(service, job()).state == state


def test_blobs_are_asked_for_and_kept(service: Service):
    digest = digest_of(b"large")
    wanted = job(needs=(digest,), body=digest)
    assert said(service, wanted) == Reply(state="missing", board="board-1", needs=(digest,))
    assert said(service, job({digest: b"large"}, needs=(digest,), body=digest)).body == "large"
    assert said(service, wanted).body == "large"


def test_the_oldest_blobs_make_room(service: Service):
    texts = [bytes([65 + number]) * 60 for number in range(2)]
    digests = [digest_of(text) for text in texts]
    for text, digest in zip(texts, digests, strict=True):
        said(service, job({digest: text}, needs=(digest,), body=digest))
    states = [said(service, job(needs=(digest,), body=digest)).state for digest in digests]
    assert states == ["missing", "done"]


def test_a_job_that_never_brings_what_it_needs_is_refused(service: Service):
    other = digest_of(b"other")
    reply = said(service, job({other: b"other"}, needs=("0" * 32,)))
    assert (reply.state, "expected the blobs" in reply.why) == ("refused", True)


def test_batches_are_measured_by_the_boards_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runner = FakeRunner()
    service = Service("board-1", "k/1", "pocl", tmp_path)
    monkeypatch.setattr(service, "_handler", lambda kind: measuring)
    measuring = Measuring(runner)
    blob = pack_workload(WORKLOAD)
    digest = digest_of(blob)
    sources = [program("a"), program("b")]
    body, arrays = pack_batch(WORKLOAD, digest, sources, MeasureOptions())
    head = Envelope(wire=WIRE, kind="measure", board="k/1", needs=(digest,), body=body)
    parts = MessageParts(arrays=arrays, blobs={digest: blob})
    for _ in range(2):
        reply = said(service, pack(head, parts))
        rows = unpack_rows(reply.body, reply.board, 2)
        assert [row.median_us for row in rows] == [runner.outcome(s).median_us for s in sources]
        assert {row.instance for row in rows} == {"board-1"}
    assert runner.workloads == ["task"]


def test_kinds_have_handlers():
    for kind, module in services.KINDS.items():
        assert hasattr(__import__(module, fromlist=["open_handler"]), "open_handler"), kind
