"""A run has one owner at a time; why it must, and what a second start of it sees."""

import logging
import subprocess
import sys
from collections.abc import Sequence
from contextvars import Context
from pathlib import Path

import pandas as pd
import pytest

from retune.codegen.source import ProgramSource
from retune.core.errors import BusyError, InputError
from retune.device.measure.workload import MeasureOptions
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.search.owner import own_run
from retune.search.program import tune
from retune.search.session import Session, search_all
from tests.support.processes import heard, talk, tell
from tests.support.program import matmul, tiled
from tests.support.search_fakes import FakeRunner, settings, tasks

TRIALS = 20
RUN = "import sys, tests.unit.search.test_owner as here; here.tune_when_told(sys.argv[1])"


def open_session(store: Path, trials: int = TRIALS) -> Session:
    """A session of the run, which ends when it has had so many trials."""
    return Session(tasks(), FakeRunner(), RecordStore(store), settings(trials=trials))


def doubles(store: Path) -> pd.DataFrame:
    """Trials of which another one of the same run has the candidate and the number."""
    rows = RecordStore(store).scan(columns=["run_id", "task_key", "config_hash", "trial"])
    assert rows["run_id"].nunique() == 1
    return rows[rows.duplicated(["task_key", "config_hash", "trial"])]


def test_two_sessions_of_a_run_would_propose_the_same_under_the_same_numbers(store: Path):
    """Neither knows of what the other one measures: a session reads its history once."""
    first, second = open_session(store), open_session(store)
    search_all(first)
    search_all(second)
    assert len(doubles(store)) == TRIALS


def test_owners_in_turn_make_no_double(store: Path):
    for turn in range(1, 4):
        with own_run(store, "run", "net"):
            search_all(open_session(store, turn * TRIALS))
    assert not len(doubles(store))
    assert len(RecordStore(store).scan(columns=["trial"])) == 3 * TRIALS


def test_an_owner_may_come_back_and_another_is_refused(store: Path):
    with own_run(store, "run", "net"):
        with own_run(store, "run", "net", wait=False):
            pass  # the owner's own context
        refused = Context().run(own, store)
    assert "run net (run) is being tuned by this process" in refused
    assert own(store) == ""


def own(store: Path) -> str:
    """Why the run cannot be owned; empty if it can."""
    try:
        with own_run(store, "run", "net", wait=False):
            return ""
    except BusyError as error:
        return str(error)


def test_a_store_that_cannot_be_written_to_is_found_out_first(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    runner = FakeRunner()
    with pytest.raises(InputError, match="expected a folder that can be written to"):
        tune(matmul(), space=tiled, records=tmp_path / "file", runner=runner)
    assert not runner.measured


class ToldRunner(FakeRunner):
    """Says when it is to measure, and does when it is told to."""

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        print("measuring")
        sys.stdin.readline()
        return super().measure(workload_key, candidates, options)


def tune_when_told(records: str) -> None:
    """What the second process of a test does, and the first one too."""
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    runner = ToldRunner()
    tune(matmul(), space=tiled, trials=TRIALS, records=records, runner=runner)
    print(f"measured {len(runner.measured)}")


def let_measure(process: subprocess.Popen[str]) -> str:
    """What it says in the end, having been told to measure whenever it asked."""
    while (said := heard(process)) == "measuring":
        tell(process)
    return said


@pytest.mark.process
def test_a_second_start_waits_for_the_first_and_measures_nothing_again(store: Path):
    with talk(RUN, str(store)) as first:
        assert heard(first) == "measuring"
        with talk(RUN, str(store)) as second:
            waiting = heard(second)
            assert f"is being tuned by process {first.pid} on " in waiting
            assert waiting.endswith("; waiting until it ends")
            tell(first)
            assert let_measure(first) == f"measured {TRIALS}"
            assert heard(second).startswith("the wait is over after ")
            assert heard(second) == "measured 0"
    assert not len(doubles(store))


@pytest.mark.process
def test_a_second_start_goes_on_where_a_killed_one_stopped(store: Path):
    with talk(RUN, str(store)) as first:
        assert heard(first) == "measuring"
        with talk(RUN, str(store)) as second:
            assert heard(second).endswith("; waiting until it ends")
            tell(first)
            assert heard(first) == "measuring"
            first.kill()
            done = len(RecordStore(store).scan(columns=["trial"]))
            assert heard(second).startswith("the wait is over after ")
            assert let_measure(second) == f"measured {TRIALS - done}"
    assert 0 < done < TRIALS
    assert not len(doubles(store))
    assert len(RecordStore(store).scan(columns=["trial"])) == TRIALS
