"""The winner is the candidate that is fastest, not the one whose first sample was luckiest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.codegen.source import ProgramSource
from retune.core.target import GENERIC_CPU
from retune.records.ranking import top
from retune.records.schema import Measurement, succeeded
from retune.records.store import RecordStore
from retune.schedule.estimate import default_candidate
from retune.search.finalists import PASSES, decided, race, standing
from retune.search.playoff import play_off
from retune.search.session import Session
from tests.unit.search.fakes import HERE, FakeRunner, measured, settings, tasks


def noisy_race(truth: dict[str, float], noise: float, rng: np.random.Generator) -> str | None:
    def measure(names: Sequence[str]) -> list[float]:
        moment = rng.lognormal(0.0, 0.2)  # the machine's speed, the same for a whole pass
        return [truth[name] * moment * rng.lognormal(0.0, noise) for name in names]

    return race({name: [] for name in truth}, measure, lambda: True)


def test_a_race_finds_the_fastest_more_often_than_one_sample_does(rng: np.random.Generator):
    truth = {"a": 1.0, "b": 1.03, "c": 1.05, "d": 1.08}
    noise, rounds = 0.03, 200
    races = sum(noisy_race(truth, noise, rng) == "a" for _ in range(rounds))
    samples = sum(
        min(truth, key=lambda name: truth[name] * rng.lognormal(0.0, noise)) == "a"
        for _ in range(rounds)
    )
    assert races > 0.75 * rounds
    assert races > samples + 0.05 * rounds


def test_a_clear_race_is_short():
    passes: list[tuple[str, ...]] = []

    def measure(names: Sequence[str]) -> list[float]:
        passes.append(tuple(names))
        return [{"a": 1.0, "b": 1.5, "c": 2.0}[name] + 0.001 * len(passes) for name in names]

    assert race({"b": [], "a": [], "c": []}, measure, lambda: True) == "a"
    assert passes == [("b", "a", "c")] * 3


def test_equals_are_not_raced_for_ever(rng: np.random.Generator):
    costs = {"a": [1.0, 1.001, 0.999], "b": [1.001, 1.0, 1.0]}
    assert decided(standing(costs), costs)
    close = {"a": [1.0, 1.05, 0.96], "b": [1.0, 0.97, 1.06]}
    assert not decided(standing(close), close)
    assert noisy_race({"a": 1.0, "b": 1.001}, 0.05, rng) in {"a", "b"}


def test_a_race_goes_on_where_it_was():
    asked: list[int] = []

    def measure(names: Sequence[str]) -> list[float]:
        asked.append(len(names))
        return [1.0 + 0.03 * (len(asked) % 2) for _ in names]

    noise = [1.0, 1.04, 0.97, 1.03]
    race({"a": noise, "b": noise[::-1]}, measure, lambda: True)
    assert len(asked) == PASSES - len(noise)


def test_who_fails_cannot_win_and_without_time_nobody_is_measured():
    nan = float("nan")
    assert standing({"a": [1.0, nan], "b": [2.0, 2.0]}).leader == "b"
    assert standing({"a": [nan]}).leader is None
    assert race({"a": [], "b": []}, lambda names: pytest.fail("measured"), lambda: False) is None


class Noisy(FakeRunner):
    """The first sample of everything is up to a third lucky; later ones are true."""

    def __init__(self) -> None:
        super().__init__(self.sample)
        self.seen: set[str] = set()

    def sample(self, source: ProgramSource) -> Measurement:
        true = measured(source).median_us or 0.0
        lucky = 1.0 if source.text in self.seen else 1.0 - (true * 1e4 % 1) / 3
        self.seen.add(source.text)
        time_us = true * lucky
        return succeeded([time_us], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)


def test_one_lucky_sample_does_not_shut_the_others_out(store: Path):
    records = RecordStore(store)
    session = Session(tasks(), Noisy(), records, settings())
    session.round(60, 1e9, lambda text, trials: None)
    key = session.runs[0].task.key
    luckiest, second = top(records, key, HERE, 2)
    time_us = (luckiest.measurement.median_us or 0.0) / 2
    lucky = replace(luckiest.measurement, median_us=time_us)
    records.append([replace(luckiest, record_id="lucky", measurement=lucky)])
    play_off(session, key, lambda: True)
    raced = records.scan({"task_key": key, "phase": "final"}, ["config_hash"])
    assert {luckiest.config_hash, second.config_hash} <= set(raced["config_hash"])


def test_finalists_of_a_session_are_recorded_and_no_trials(store: Path):
    records, runner = RecordStore(store), Noisy()
    session = Session(tasks(), runner, records, settings())
    session.round(60, 1e9, lambda text, trials: None)
    for run in session.runs:
        key, spec = run.task.key, GENERIC_CPU
        winner = play_off(session, key, lambda: True)
        assert winner is not None and winner.phase == "final"
        rows = records.scan({"task_key": key, "phase": "final"}, ["config_hash", "median_us"])
        hashes = set(rows["config_hash"])
        assert default_candidate(run.space, spec).key in hashes
        assert len(hashes) > 1
        fastest = rows.sort_values(by="median_us")["config_hash"].iloc[0]
        assert winner.config_hash == fastest
        count = len(runner.measured)
        again = play_off(session, key, lambda: True)
        assert again is not None and again.config_hash == winner.config_hash
        assert len(runner.measured) == count, "what was measured counts"
    assert session.trials == 60
    assert Session(tasks(), runner, records, settings()).trials == 60
