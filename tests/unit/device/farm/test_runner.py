"""FarmRunner's decisions: what is tried again, where, and what is a candidate's own fault."""

from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier, Event, Lock
from types import SimpleNamespace

import pytest

pytest.importorskip("distributed")

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError, InputError
from retune.core.schema import to_json
from retune.core.stopwatch import Stopwatch
from retune.core.target import GENERIC_CPU
from retune.device.measure.vitals import Vitals
from retune.device.measure.workload import MeasureOptions
from retune.device.remote import link as links
from retune.device.remote.batches import Limits, pack_rows, unpack_batch
from retune.device.remote.link import AwayError, Boards, LostError, RemoteBoard, about_board
from retune.device.remote.names import FarmName
from retune.device.remote.runner import FarmRunner
from retune.device.remote.wire import Envelope, Reply, pack, unpack
from retune.farm.scheduler import FarmScheduler
from tests.support.measure import WORKLOAD, program
from tests.support.search_fakes import measured

NAME = FarmName("k", "tls://farm:1")
OPTIONS = MeasureOptions()
DEADLINE_S = 60.0

Deed = Callable[["FakeLink", tuple[ProgramSource, ...]], Reply | None]
"""What happens instead of an answer; None: the answer."""


def board(name: str, **fields: object) -> RemoteBoard:
    about = about_board(GENERIC_CPU)
    given = {"address": f"tls://{name}", "resource": "k/1", "jobs": 0, "about": about, **fields}
    return RemoteBoard(name=name, **given)  # type: ignore[arg-type]


class FakeLink:
    """Boards that answer at once; the `script` says what happens to the jobs, in their order."""

    patience_s = 0.0
    most_bytes = 1 << 30

    def __init__(self, *boards: RemoteBoard, script: tuple[Deed, ...] = ()) -> None:
        self.there = list(boards or (board("a"), board("b")))
        self.script = list(script)
        self.asked: list[tuple[str, ...]] = []
        """Programs of each job."""
        self.avoided: list[tuple[str, ...]] = []
        self.blobs = 0
        self.known: set[str] = set()
        self.during: Callable[[], object] = lambda: None
        self._lock = Lock()

    def boards(self) -> Boards:
        return Boards(found=tuple(self.there), waiting={})

    def most_bytes_to(self, resource: str) -> int:
        return self.most_bytes

    def ask(self, job: bytes, resource: str, avoid: Collection[str] = ()) -> bytes:
        assert len(job) <= self.most_bytes
        head, parts = unpack(Envelope, job)
        assert (head.board, resource) == ("k/1", "k/1")
        sources = unpack_batch(head.body, parts, Limits()).sources
        name = next((b.name for b in self.there if b.name not in avoid), self.there[0].name)
        with self._lock:
            self.blobs += len(parts.blobs)
            self.known |= parts.blobs.keys()
            if not set(head.needs) <= self.known:
                return pack(Reply(state="missing", board=name, needs=head.needs))
            self.asked.append(tuple(source.kernels[0].name for source in sources))
            self.avoided.append(tuple(avoid))
            deed = self.script.pop(0) if self.script else None
        self.during()
        reply = deed(self, sources) if deed else None
        if reply is not None:
            return pack(replace(reply, board=name))
        body = pack_rows([measured(source) for source in sources], Vitals())
        return pack(Reply(state="done", board=name, body=body))


def runner_of(link: FakeLink) -> FarmRunner:
    runner = FarmRunner(NAME, link=link)  # type: ignore[arg-type]
    runner.prepare(WORKLOAD)
    return runner


def lost(*_: object) -> Reply:
    raise LostError("lost")


def away(*_: object) -> Reply:
    raise AwayError("away")


def unable(*_: object) -> Reply:
    return Reply(state="lost", why="no such device")


def poison(_: FakeLink, sources: tuple[ProgramSource, ...]) -> None:
    if any(source.kernels[0].name == "poison" for source in sources):
        raise LostError("lost")


def test_a_row_says_which_board_took_it():
    (row,) = runner_of(FakeLink()).measure("task", [program("x")], OPTIONS)
    assert (row.ok, row.instance) == (True, "a")


def test_arrays_travel_when_a_board_asks_for_them_and_then_no_more():
    link = FakeLink()
    runner = runner_of(link)
    for name in ("x", "y"):
        runner.measure("task", [program(name)], OPTIONS)
    assert link.blobs == 1


def test_a_batch_that_is_too_large_is_taken_apart():
    link = FakeLink()
    runner = runner_of(link)
    runner.measure("task", [program("x")], OPTIONS)
    link.most_bytes = 3000
    rows = runner.measure("task", [program(name) for name in "abc"], OPTIONS)
    assert [row.ok for row in rows] == [True] * 3
    assert link.asked[1:] == [("a",), ("b", "c")] or link.asked[1:] == [("a",), ("b",), ("c",)]
    link.most_bytes = 100
    with pytest.raises(InputError, match="expected at most 100 bytes, got"):
        runner.measure("task", [program("x")], OPTIONS)


def test_a_job_is_no_larger_than_scheduler_and_boards_take():
    small = board("a", about=about_board(GENERIC_CPU, 5 << 20))
    other = board("b", resource="k/2", about=about_board(GENERIC_CPU, 1 << 20))
    there = Boards(found=(small, other), waiting={}, most_bytes=3 << 20)
    assert 2 << 20 < there.most_bytes_to("k/1") < 3 << 20
    assert there.most_bytes_to("k/2") < 1 << 20


def test_what_a_board_cannot_do_another_one_does():
    link = FakeLink(script=(unable,))
    (row,) = runner_of(link).measure("task", [program("x")], OPTIONS)
    assert (row.ok, row.instance) == (True, "b")
    assert link.avoided == [(), ("a",)]


def test_what_no_board_can_do_is_an_error_and_no_row():
    link = FakeLink(script=(unable,) * 9)
    with pytest.raises(DeviceError, match=r"boards could not do a job; .*: no such device"):
        runner_of(link).measure("task", [program("x")], OPTIONS)
    assert len(link.asked) == 4


def test_a_lost_scheduler_is_asked_again_and_convicts_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "_GLANCE_S", 0.0)
    link = FakeLink(script=(away, away))
    link.patience_s = DEADLINE_S
    rows = runner_of(link).measure("task", [program("x"), program("y")], OPTIONS)
    assert [row.ok for row in rows] == [True, True]
    assert link.asked == [("x", "y")] * 3


def test_a_scheduler_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "_GLANCE_S", 0.0)
    with pytest.raises(AwayError):
        runner_of(FakeLink(script=(away,) * 99)).measure("task", [program("x")], OPTIONS)


def test_a_runner_that_is_closed_waits_for_nobody():
    link = FakeLink(script=(away,) * 99)
    link.patience_s = DEADLINE_S
    runner = runner_of(link)
    future = runner.submit("task", [program("x")], OPTIONS)
    runner.close()
    with pytest.raises((AwayError, CancelledError)):  # it may not have begun
        future.result(DEADLINE_S)


def test_a_lost_batch_is_taken_apart_and_innocent_candidates_have_their_rows():
    rows = runner_of(FakeLink(script=(lost,))).measure(
        "task", [program("x"), program("y")], OPTIONS
    )
    assert [row.status for row in rows] == ["ok", "ok"]


def test_only_a_candidate_that_is_lost_alone_and_again_has_crashed_its_boards():
    link = FakeLink(script=(poison,) * 9)
    sources = [program("x"), program("poison"), program("y")]
    rows = runner_of(link).measure("task", sources, OPTIONS)
    assert [row.status for row in rows] == ["ok", "crash", "ok"]
    assert "while it was measured there alone" in rows[1].error
    assert link.asked.count(("poison",)) == 2


def test_two_batches_are_in_flight_for_each_board():
    link = FakeLink(board("a"))
    both, release, flying, most = Barrier(3), Event(), [0], [0]
    lock = Lock()

    def during() -> None:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        if not release.is_set():
            both.wait(DEADLINE_S)
            release.wait(DEADLINE_S)
        with lock:
            flying[0] -= 1

    link.during = during
    runner = runner_of(link)
    assert (runner.capacity, runner.slots) == (1, 2)
    first = [runner.submit("task", [program(name)], OPTIONS) for name in "xy"]
    both.wait(DEADLINE_S)
    with ThreadPoolExecutor(3) as pool:
        rest = [pool.submit(runner.measure, "task", [program(name)], OPTIONS) for name in "uvw"]
        release.set()
        assert all(row.ok for future in [*first, *rest] for row in future.result(DEADLINE_S))
    assert most[0] == 2


def test_an_answer_without_rows_is_the_board_s_fault():
    link = FakeLink(script=(lambda *_: Reply(state="done", body="{}"),))
    with pytest.raises(
        DeviceError, match=r"board a does not answer with rows: _Rows\.rows: expected"
    ):
        runner_of(link).measure("task", [program("x")], OPTIONS)


def test_what_boards_refuse_is_an_error():
    link = FakeLink(script=(lambda *_: Reply(state="refused", why="no kernel"),))
    with pytest.raises(InputError, match="board a refuses a job: no kernel"):
        runner_of(link).measure("task", [program("x")], OPTIONS)


def test_unknown_workloads_and_strange_candidates_are_errors_before_anything_is_sent():
    link = FakeLink()
    runner = runner_of(link)
    with pytest.raises(InputError, match="'other' was not prepared; prepared are: task"):
        runner.submit("other", [program()], OPTIONS)
    with pytest.raises(InputError, match="expects 5 elements"):
        runner.submit("task", [program(elements=5)], OPTIONS)
    runner.forget("task")
    with pytest.raises(InputError, match="prepared are: none"):
        runner.submit("task", [program()], OPTIONS)
    assert not link.asked


def test_a_key_is_of_boards_of_one_kind_and_version():
    with pytest.raises(InputError, match="a key that a board has, got 'k'; boards there have: z"):
        FarmRunner(NAME, link=FakeLink(board("a", resource="z/1")))  # type: ignore[arg-type]
    other = about_board(replace(GENERIC_CPU, driver="2"))
    with pytest.raises(InputError, match="expected boards of one kind, got 2"):
        FarmRunner(NAME, link=FakeLink(board("a"), board("b", about=other)))  # type: ignore[arg-type]
    newer = replace(about_board(GENERIC_CPU), distributed="1.0")
    with pytest.raises(InputError, match=r"got retune .* with distributed 1.0; install the same"):
        FarmRunner(NAME, link=FakeLink(board("a", about=newer)))  # type: ignore[arg-type]


def test_the_table_counts_boards_and_waiting_jobs():
    boards = Boards(
        found=(board("a", jobs=3), board("b", jobs=1), board("c"), board("d", resource="z/2")),
        waiting={"z/2": 1, "gone/3": 2},
    )
    rows = [(row.key, row.total, row.free, row.pending) for row in boards.table()]
    assert rows == [("gone", 0, 0, 2), ("k", 3, 1, 2), ("z", 1, 1, 1)]


class FakeJob:
    """A job that is done when the boards were looked at so often."""

    key = "retune-1"
    status = "finished"

    def __init__(self) -> None:
        self.told: list[Callable[[object], None]] = []

    def add_done_callback(self, call: Callable[[object], None]) -> None:
        self.told.append(call)

    def cancelled(self) -> bool:
        return False

    def result(self) -> bytes:
        return b"rows"


@pytest.mark.parametrize("says", [True, False])
def test_time_in_which_boards_work_for_others_is_not_the_runs(
    says: bool, monkeypatch: pytest.MonkeyPatch
):
    """Ten seconds on each look: two while others have the board, one while ours is carried out."""
    link, job, now = links.Link("tcp://127.0.0.1:1"), FakeJob(), [0.0]
    looks = iter([("other",), ("other",), (job.key,)])

    def boards() -> Boards:
        running = next(looks)
        link._seen = Boards(found=(board("a", running=running if says else None),), waiting={})
        return link._seen

    def wait(_: object, timeout: float | None = None) -> bool:
        now[0] += 10.0
        return now[0] > 35.0

    monkeypatch.setattr(link, "boards", boards)
    monkeypatch.setattr(links.threading, "Event", lambda: SimpleNamespace(wait=partial(wait, None)))
    stopwatch = Stopwatch(lambda: now[0])
    with stopwatch.counting():
        assert link._result(job, "k/1") == b"rows"  # type: ignore[arg-type]
    assert stopwatch() == (20.0 if says else 40.0)


@pytest.mark.parametrize("running", [["x"], ("x",), None])
def test_a_client_reads_what_boards_carry_out(running: object):
    """distributed makes tuples of lists."""
    about = to_json(about_board(GENERIC_CPU))
    stated = {"name": "a", "address": "tcp://a", "resources": ("k/1",), "about": about, "jobs": 1}
    (found,) = links._boards({"boards": ({**stated, "running": running},)}).found
    assert found.running == (None if running is None else ("x",))


def test_a_scheduler_says_what_its_boards_carry_out():
    worker = SimpleNamespace(
        name="a", address="tcp://a", resources={"k/1": 1}, extra={}, processing={"x": 1, "y": 1},
        executing=[SimpleNamespace(key="x")],
    )  # fmt: skip
    scheduler = SimpleNamespace(workers={"tcp://a": worker}, tasks={}, most_bytes=1)
    (stated,) = FarmScheduler.boards(scheduler)["boards"]  # type: ignore[arg-type]
    assert (stated["jobs"], stated["running"]) == (2, ["x"])
