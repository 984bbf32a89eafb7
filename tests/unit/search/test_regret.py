"""Recorded candidates are measured a second time, so that noise can be told from regret."""

from pathlib import Path

import numpy as np

from benchmarks.regret import Twice, judged, known_costs, measured_twice, rows_again
from retune.records.store import RecordStore
from retune.search.model.cost_model import static_score
from retune.search.model.offline import Rows, load_rows
from retune.search.session import Session, search_all
from tests.support.search_fakes import FakeRunner, settings, tasks

FASTEST = 8


def recorded(folder: Path) -> tuple[RecordStore, Rows]:
    store = RecordStore(folder)
    search_all(Session(tasks(), FakeRunner(), store, settings(trials=48)))
    return store, load_rows(store)


def test_the_fastest_and_what_is_chosen_first_are_measured_again_once(store: Path):
    records, rows = recorded(store)
    estimate = static_score(rows.features)
    wanted = rows_again(rows, {"estimate": estimate}, tasks=40, fastest=FASTEST)
    assert len(wanted) == len(np.unique(rows.task))
    for numbers in wanted:
        mine = np.flatnonzero(rows.task == rows.task[numbers[0]])
        assert set(mine[np.argsort(rows.cost[mine])][:FASTEST]) <= set(numbers)
        assert mine[np.argmax(estimate[mine])] in numbers
    runner, path = FakeRunner(), store / "again.json"
    known = known_costs(records, rows, wanted, runner, path, seconds=60.0)
    assert len(runner.measured) == len(known) == sum(map(len, wanted))
    assert known_costs(records, rows, wanted, runner, path, seconds=60.0) == known
    assert len(runner.measured) == len(known), "the file has them"
    twice, some = measured_twice(rows, wanted, known)
    assert set(rows.record_id[some]) == set(known)
    assert twice.second.tolist() == [known[name] for name in twice.rows.record_id]


def test_an_oracle_is_as_good_as_measurements_agree(store: Path):
    _, rows = recorded(store)
    same, mirrored = (
        {(name, by): found.peak1 for name, by, found in judged(Twice(rows, second), {})}
        for second in (rows.cost.copy(), 3.0 - rows.cost)
    )
    assert set(same.values()) == {1.0}
    assert mirrored["oracle of the first", "first"] == 1.0
    assert mirrored["oracle of the first", "second"] < 0.9
