"""A run that is killed at any append to the store proposes what it would have proposed."""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError
from retune.device.measure.device_pool import DevicePool
from retune.device.measure.workload import MeasureOptions
from retune.records.schema import Measurement, TuningRecord
from retune.records.store import RecordStore
from retune.search.batch import Batch
from retune.search.session import Session, search_all
from retune.search.task_run import TaskRun
from tests.support.search_fakes import FakeRunner, settings, tasks

DEADLINE_S = 60.0
TRIALS = 2 + 4 * 6
"""The default schedule of each task by itself, and batches of four."""
APPENDS = 2 + 6


class Killed(BaseException):
    """The process is gone."""


class Process:
    """One process of a run. It is killed at an append to the store, and where two things may happen
    in any order, `pace` says in which they do:

    `early`: a batch is proposed while the one before it is measured, and never later;
    `late`: a batch is proposed when the one before it is in the store, and never earlier.
    """

    def __init__(self, folder: Path, appends: int | None, pace: str) -> None:
        """It lives to make so many appends; None: it is not killed."""
        self.folder = folder
        self.appends = appends
        self.pace = pace
        self.dead = False
        self.proposed = 0
        self.candidates = 0
        self.entered = 0
        self.appended = 0
        self._changed = threading.Condition()

    def run(self, tuner: str) -> bool:
        """Whether it came to the end."""
        session = _Session(self, settings(tuner=tuner, trials=TRIALS))
        self.candidates = session.trials
        try:
            assert search_all(session) == "trials"
        except Killed:
            return False
        return True

    def count(self, **more: int) -> None:
        with self._changed:
            for name, number in more.items():
                setattr(self, name, getattr(self, name) + number)
            self._changed.notify_all()

    def die(self) -> None:
        with self._changed:
            self.dead = True
            self._changed.notify_all()
        raise Killed

    def wait(self, holds: Callable[[], bool]) -> None:
        """Until it does, or the process is dead."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.dead or holds(), DEADLINE_S)


class _Session(Session):
    def __init__(self, process: Process, given) -> None:
        self._process = process
        super().__init__(tasks(), _Runner(process), _Store(process), given)

    def _propose(self, run: TaskRun, most: int) -> Batch:
        process = self._process
        if process.pace == "late":
            process.wait(lambda: process.appended >= process.proposed)
        batch = super()._propose(run, most)
        process.count(proposed=1, candidates=len(batch))
        return batch


class _Runner(FakeRunner):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        process = self._process
        process.count(entered=1)
        if process.pace == "early":
            process.wait(lambda: process.proposed > process.entered or process.candidates == TRIALS)
        return super().measure(workload_key, candidates, options)


class _Store(RecordStore):
    def __init__(self, process: Process) -> None:
        super().__init__(process.folder)
        self._process = process

    def append(self, records: Sequence[TuningRecord]) -> Path:
        process = self._process
        if process.appended == process.appends:
            process.die()
        path = super().append(records)
        process.count(appended=1)
        return path


Proposals = list[tuple[str, str]]


def proposals(folder: Path) -> Proposals:
    """Task and candidate of each trial of the run, in order."""
    columns = ["task_key", "config_hash", "trial"]
    rows = RecordStore(folder).scan({"run_id": "run"}, columns).sort_values("trial")
    assert rows["trial"].tolist() == list(range(len(rows)))
    return list(zip(rows["task_key"], rows["config_hash"], strict=True))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Proposals]:
    """What a run by that tuner proposes that is not killed."""

    @cache
    def run(tuner: str) -> Proposals:
        folder = tmp_path_factory.mktemp(tuner)
        assert Process(folder, None, "").run(tuner)
        return proposals(folder)

    return run


@pytest.mark.parametrize("pace", ["early", "late"])
def test_proposals_do_not_follow_from_how_long_things_take(
    store: Path, uninterrupted: Callable[[str], Proposals], pace: str
):
    assert Process(store, None, pace).run("evolutionary")
    assert proposals(store) == uninterrupted("evolutionary")


@pytest.mark.parametrize(
    ("tuner", "appends", "pace"),
    [
        ("evolutionary", 1, "early"),
        ("evolutionary", 2, "late"),
        ("evolutionary", 3, ""),
        ("xgb", 2, "early"),
        ("ga", 3, "late"),
    ],
)
def test_a_run_that_is_killed_again_and_again_proposes_the_same(
    store: Path,
    uninterrupted: Callable[[str], Proposals],
    tuner: str,
    appends: int,
    pace: str,
):
    """Each process lives to make so many appends. One is killed at the next one, when a further
    batch is proposed already (`early`) or is not."""
    lives = 1
    while not Process(store, appends, pace).run(tuner):
        lives += 1
        assert len(proposals(store)) < TRIALS
    assert lives == -(-APPENDS // appends)
    assert proposals(store) == uninterrupted(tuner)


def test_records_are_in_the_store_in_the_order_of_their_trials(store: Path):
    order: list[int] = []

    class Noting(RecordStore):
        def append(self, records: Sequence[TuningRecord]) -> Path:
            order.extend(record.trial for record in records)
            return super().append(records)

    session = Session(tasks(), FakeRunner(), Noting(store), settings(trials=TRIALS))
    search_all(session)
    assert order == list(range(TRIALS))


def test_a_task_that_fails_is_left_out_until_the_run_is_started_again(store: Path):
    sound, broken = (task.key for task in tasks() if task.tunable)

    class Broken(FakeRunner):
        def measure(
            self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
        ) -> list[Measurement]:
            if broken[:8] in candidates[0].kernels[0].name:
                raise DeviceError("the measuring process failed")
            return super().measure(workload_key, candidates, options)

    session = Session(tasks(), Broken(), RecordStore(store), settings(trials=TRIALS))
    with pytest.raises(DeviceError, match="measuring process failed"):
        search_all(session)
    assert session.trials == TRIALS
    rows = RecordStore(store).scan({}, ["task_key", "trial"])
    assert set(rows["task_key"]) == {sound}
    assert rows["trial"].is_unique
    whole = Session(tasks(), FakeRunner(), RecordStore(store), settings(trials=TRIALS + 8))
    assert search_all(whole) == "trials"
    rows = RecordStore(store).scan({}, ["task_key", "trial"]).sort_values("trial")
    assert set(rows["task_key"].tail(8)) == {sound, broken}
    assert rows["trial"].is_unique


def test_two_devices_measure_two_tasks_at_once_and_each_candidate_once(store: Path):
    both = threading.Barrier(2)

    class Device(FakeRunner):
        def measure(
            self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
        ) -> list[Measurement]:
            both.wait(DEADLINE_S)  # ends only if the other device measures too
            return super().measure(workload_key, candidates, options)

    devices = Device(), Device()
    given = settings(trials=TRIALS)
    search_all(Session(tasks(), DevicePool(devices), RecordStore(store), given))
    assert len(set(proposals(store))) == TRIALS
    assert [len(device.measured) for device in devices] == [1 + 4 * 3] * 2
