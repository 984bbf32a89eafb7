"""Boards and schedulers that are lost in mid-run: real processes, over TLS, on loopback."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retune.device.measure.workload import MeasureOptions
from retune.device.remote import link as links
from retune.device.remote.link import AwayError, persevere
from retune.device.remote.runner import FarmRunner
from retune.records.arrow import to_records
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.search.session import Session, search_all
from tests.farm.processes import DEADLINE_S, KEY, Farm, Process
from tests.support.measure import WORKLOAD, program
from tests.support.search_fakes import settings, tasks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.device,
    # distributed leaves the socket of a connection that was refused to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]

BATCH = 2
BATCHES = 20
BEGINS = "job of measure begins"
ENDED = "job ended"


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    with Farm(tmp_path) as opened:
        yield opened


class Run:
    """A search of twenty batches, in a thread of its own."""

    def __init__(self, runner: FarmRunner, store: Path) -> None:
        self.store = store
        self.errors: list[BaseException] = []
        given = settings(trials=BATCH * BATCHES, batch=BATCH)
        self.session = Session(tasks(), runner, RecordStore(store), given)
        self._thread = threading.Thread(target=self._search, daemon=True)
        self._thread.start()

    def _search(self) -> None:
        try:
            search_all(self.session)
        except BaseException as error:  # noqa: BLE001  the test raises it
            self.errors.append(error)

    def finished(self) -> list[TuningRecord]:
        """What the store holds after the run."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if self.errors:
            raise self.errors[0]
        return to_records(RecordStore(self.store).table())


def check_whole(records: list[TuningRecord]) -> None:
    """Each of the twenty batches is there once."""
    assert len(records) == BATCH * BATCHES
    assert sorted(record.trial for record in records) == list(range(BATCH * BATCHES))
    assert len({(record.task_key, record.config_hash) for record in records}) == len(records)
    assert all(record.measurement.ok for record in records)


def check_one_at_a_time(board: Process) -> None:
    """Of what the board's process did, nothing began before the last thing had ended."""
    events = [line for line in board.lines if BEGINS in line or ENDED in line]
    assert all(BEGINS in line for line in events[::2])
    assert all(ENDED in line for line in events[1::2])


def test_a_board_is_killed_and_one_is_stopped(farm: Farm, store: Path):
    first, second = farm.start_board("a"), farm.start_board("b")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        run = Run(runner, store)
        first.wait_for(BEGINS)
        first.kill()
        farm.scheduler.wait_for("board 'a' of key 'sim' is gone")
        again = farm.start_board("a")  # as systemd does it
        again.wait_for(BEGINS)
        second.wait_for(BEGINS, 2)
        second.signal(signal.SIGSTOP)
        records = run.finished()
    check_whole(records)
    for board in (first, again, second):
        check_one_at_a_time(board)
    instances = {record.conditions.instance for record in records if record.conditions}
    assert instances == {"a", "b"}
    assert len(farm.scheduler.matching("board 'a' of key 'sim' is there, at tls://")) == 2
    second.signal(signal.SIGCONT)
    second.wait_for("board b serves", 2)


def test_a_scheduler_that_is_stopped_counts_as_away(farm: Farm, monkeypatch: pytest.MonkeyPatch):
    """Its connections stay open; nobody waits for its answer for ever."""
    monkeypatch.setattr(links, "_ANSWER_S", 1.0)
    farm.start_board("a")
    with closing(farm.link()) as link:
        assert link.boards().found
        farm.scheduler.signal(signal.SIGSTOP)
        with pytest.raises(AwayError, match="the farm's scheduler does not answer"):
            link.boards()
        farm.scheduler.signal(signal.SIGCONT)
        assert persevere(link, link.boards, threading.Event()).found


def test_the_scheduler_is_killed_and_starts_again(farm: Farm, store: Path):
    board = farm.start_board("a")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        run = Run(runner, store)
        board.wait_for(BEGINS, 3)
        farm.scheduler.kill()
        farm.start_scheduler()
        records = run.finished()
    check_whole(records)
    check_one_at_a_time(board)
    board.wait_for("board a serves", 2)


def test_a_run_that_gave_up_goes_on_from_what_is_recorded(farm: Farm, store: Path):
    board = farm.start_board("a")
    link = farm.link()
    link.patience_s = 1.0
    with closing(link), closing(farm.runner(link)) as runner:
        run = Run(runner, store)
        board.wait_for(BEGINS, 3)
        farm.scheduler.kill()
        with pytest.raises(Exception, match=r"the farm's scheduler|expected a farm's scheduler"):
            run.finished()
    before = {record.record_id for record in to_records(RecordStore(store).table())}
    assert 0 < len(before) < BATCH * BATCHES
    farm.start_scheduler()
    board.wait_for("board a serves", 2)
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        records = Run(runner, store).finished()
    check_whole(records)
    assert before < {record.record_id for record in records}


def test_a_board_that_comes_in_mid_run_takes_part(farm: Farm):
    board = farm.start_board("a")
    with closing(farm.link()) as link, closing(farm.runner(link)) as runner:
        runner.prepare(WORKLOAD)

        def measured(name: str) -> str:
            (row,) = runner.submit("task", [program(name)], MeasureOptions()).result()
            return row.instance

        assert measured("first") == "a"
        assert runner.capacity == 1
        farm.start_board("b")
        futures = [
            runner.submit("task", [program(f"k{number}")], MeasureOptions()) for number in range(40)
        ]
        rows = [row for future in futures for row in future.result(DEADLINE_S)]
    assert {row.instance for row in rows} == {"a", "b"}
    assert board.alive


def test_keys_are_counted(farm: Farm):
    farm.start_board("a")
    farm.start_board("b")
    farm.start_board("other", key="lab")
    with closing(farm.link()) as link:
        table = link.boards().table()
        assert [(row.key, row.total, row.free, row.pending) for row in table] == [
            ("lab", 1, 1, 0),
            (KEY, 2, 2, 0),
        ]


def test_two_boards_do_not_share_a_name(farm: Farm):
    first = farm.start_board("a")
    second = farm.begin_board("a", f"sim:{farm.folder / 'a.toml'}")
    second.wait_for(r"board a is not in the farm \(a board of that name is there; give this one")
    first.kill()
    second.wait_for("board a serves")  # a board that restarts before it is missed comes back so
