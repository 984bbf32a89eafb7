"""What a run knew when it began, from rows whose moments a clock has set."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from retune.records.schema import Phase
from retune.records.store import RecordStore
from retune.search.history import HISTORY_COLUMNS, began, split_run
from tests.support.store import DAY, record


def row(run: str, number: int, hours: float, phase: Phase = "search"):
    made = record(number, run_id=run, trial=number if phase == "search" else 0, phase=phase)
    moment = DAY + timedelta(hours=hours)
    return replace(made, measurement=replace(made.measurement, timestamp=moment))


@pytest.mark.parametrize("jump_h", [0, -24, 24])
def test_a_clock_that_jumps_by_a_day_takes_no_knowledge_away(store: Path, jump_h: float):
    """The run goes on after the jump: it knows what it knew, in the order in which it measured."""
    earlier = [row("before", number, -2 + number / 10) for number in range(3)]
    own = [row("run", 0, 0), row("run", 1, 1 + jump_h), row("run", 2, 2 + jump_h)]
    final = row("run", 3, 3 + jump_h, phase="final")
    beside = row("beside", 4, 0.5)
    RecordStore(store).append([*own[::-1], final, beside, *earlier])
    rows = RecordStore(store).scan(None, HISTORY_COLUMNS)
    known, mine = split_run(rows, "run")
    assert known["trial"].tolist() == [0, 1, 2] and set(known["run_id"]) == {"before"}
    assert mine["trial"].tolist() == [0, 1, 2]
    assert began(mine) == began(rows[rows["run_id"] == "run"]) == DAY


def test_a_run_without_rows_has_not_begun(store: Path):
    RecordStore(store).append([row("before", 0, 0)])
    rows = RecordStore(store).scan(None, HISTORY_COLUMNS)
    known, mine = split_run(rows, "run")
    assert len(known) == 1 and began(mine) is None
