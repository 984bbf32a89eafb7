"""A recorded run can be run again without its device, trial by trial."""

from pathlib import Path

import pytest

from benchmarks.replay import replay_runner
from retune.codegen.source import ProgramSource
from retune.core.errors import LookupFailed
from retune.core.target import GENERIC_CPU
from retune.device.measure.workload import Runner
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.search.session import Session, search_all
from retune.search.tuners import TUNERS
from tests.support.search_fakes import FakeRunner, measured, settings, tasks, wrong

TRIALS = 24


def some_fail(source: ProgramSource) -> Measurement:
    return wrong(source) if int(source.key, 16) % 5 == 0 else measured(source)


def run(store: Path, runner: Runner, tuner: str, seed: int = 0) -> list[tuple[object, ...]]:
    """A run's trials: task, candidate and outcome of each, in order."""
    given = settings(tuner=tuner, seed=seed, trials=TRIALS)
    search_all(Session(tasks(), runner, RecordStore(store), given))
    found = [
        (record.trial, task.key, record.config_hash, record.measurement.run_times_us)
        for task in tasks()
        for record in RecordStore(store).trials("run", task.key, GENERIC_CPU.fingerprint)
    ]
    return sorted(found)


@pytest.mark.parametrize("tuner", TUNERS)
def test_the_same_seed_proposes_the_same_trials_from_records_alone(store: Path, tuner: str):
    measured_run = run(store / "device", FakeRunner(some_fail), tuner)
    records = RecordStore(store / "device")
    runner = replay_runner(records, "run", tasks(), GENERIC_CPU)
    assert run(store / "replay", runner, tuner) == measured_run
    assert len(measured_run) == TRIALS


def test_another_seed_asks_for_what_no_record_has(store: Path):
    run(store / "device", FakeRunner(), "random")
    runner = replay_runner(RecordStore(store / "device"), "run", tasks(), GENERIC_CPU)
    with pytest.raises(LookupFailed, match="no record of source"):
        run(store / "replay", runner, "random", seed=1)
