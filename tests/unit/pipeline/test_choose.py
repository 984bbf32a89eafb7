"""What is chosen of known records: allowed, the best known in the network, the same every time."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from retune.core.target import GENERIC_CPU
from retune.pipeline.choose import choose
from retune.records.conditions import Conditions, within
from retune.records.schema import TuningRecord, failed, succeeded
from retune.schedule.space import Space
from retune.search.conditions import network_conditions
from retune.search.task import expression_task
from tests.support.dags import dense

ALONE = network_conditions(GENERIC_CPU, ())
IN_NETWORK = replace(ALONE, place=within("this"))
ELSEWHERE = replace(ALONE, place=within("another"))
PLACES = [IN_NETWORK, ALONE]
ERRORS = (0.0, 1e-7, 1e-6)
"""What the sketches of each space state, in turn."""


@cache
def spaces() -> dict[str, Space]:
    """Those of three tasks."""
    found: dict[str, Space] = {}
    for columns in (8, 16, 24):
        task = expression_task(dense(8, 16, columns))
        sketches = task.space(GENERIC_CPU).sketches
        stated = (replace(s, error=ERRORS[i % 3]) for i, s in enumerate(sketches))
        found[task.key] = Space(tuple(stated))
    assert all(len(space.sketches) >= len(ERRORS) for space in found.values())
    return found


def record(
    key: str, number: int, conditions: Conditions | None = ALONE, *, right: bool = True
) -> TuningRecord:
    """A record of some candidate of the task, by the sketch that the number says."""
    space = spaces()[key]
    which = number % len(space.sketches)
    rows = space.sketches[which].sample(1, np.random.default_rng(number))
    candidate = space.candidate(space.population(which, rows), 0)
    time = succeeded([1.0], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)
    return TuningRecord(
        run_id="run",
        model="m",
        target=GENERIC_CPU.model,
        task_key=key,
        task_name="dense",
        sketch=candidate.sketch,
        decisions=tuple(v for _, values in candidate.decisions for v in values),
        trace=space.trace(candidate).to_json(),
        config_hash=candidate.key,
        device=GENERIC_CPU.fingerprint,
        conditions=conditions,
        measurement=time if right else failed("wrong_result", "it is in quarantine"),
    )


def chosen(records: Sequence[TuningRecord], **given: object) -> dict[str, str]:
    """Task key -> id of the record."""
    limits = given.pop("limits", {})
    found = choose(records, PLACES, limits, spaces(), **given)  # type: ignore[arg-type]
    return {key: best.record_id for key, best in found.items()}


def expected(
    records: Sequence[TuningRecord],
    limits: Mapping[str, float],
    denied: Collection[str],
    winners: Collection[str],
) -> dict[str, TuningRecord]:
    """The same by definition: of all records that are allowed the one of the least rank."""

    def allowed(r: TuningRecord) -> bool:
        space = spaces().get(r.task_key)
        if space is None or not r.measurement.ok or r.record_id in denied:
            return False
        here = r.conditions != ELSEWHERE or r.record_id in winners
        return here and space.sketch(r.sketch).error <= limits.get(r.task_key, np.inf)

    def rank(r: TuningRecord) -> tuple[bool, bool, int]:
        return r.record_id not in winners, r.conditions != IN_NETWORK, records.index(r)

    able = [r for r in records if allowed(r)]
    return {
        key: min((r for r in able if r.task_key == key), key=rank)
        for key in spaces()
        if any(r.task_key == key for r in able)
    }


def test_whatever_is_known_what_is_chosen_is_allowed_and_none_allowed_is_better(seed: int):
    rng = random.Random(seed)
    keys = [*spaces(), "a task that the network lacks"]
    for _ in range(200):
        records = [
            replace(
                record(
                    rng.choice(keys[:3]),
                    rng.randrange(12),
                    rng.choice([None, ALONE, IN_NETWORK, ELSEWHERE]),
                    right=rng.random() < 0.8,
                ),
                **({"task_key": keys[3]} if rng.random() < 0.1 else {}),
            )
            for _ in range(rng.randrange(12))
        ]
        limits = {key: rng.choice(ERRORS) for key in keys if rng.random() < 0.5}
        some = [r.record_id for r in records]
        denied = {i for i in some if rng.random() < 0.3}
        winners = {i for i in some if rng.random() < 0.2}
        found = choose(records, PLACES, limits, spaces(), denied, winners)
        told = f"seed {seed}: {records}, {limits}, {denied}, {winners}"
        assert found == expected(records, limits, denied, winners), told
        assert choose(iter(records), PLACES, limits, spaces(), denied, winners) == found


def test_times_in_the_network_go_before_those_alone():
    key = next(iter(spaces()))
    alone, old, there = record(key, 1), record(key, 2, None), record(key, 3, IN_NETWORK)
    assert chosen([alone, there]) == {key: there.record_id}
    assert chosen([alone, old]) == {key: alone.record_id}, "the first of equal rank"
    assert chosen([alone, there], winners={alone.record_id}) == {key: alone.record_id}
    assert chosen([record(key, 3, ELSEWHERE)]) == {}, "the default schedule stays"


def test_a_candidate_that_todays_space_lacks_is_not_chosen():
    key = next(iter(spaces()))
    gone = [replace(record(key, 1), sketch="cpu.gone"), replace(record(key, 1), trace="{}")]
    assert chosen(gone) == {}
    assert chosen([*gone, last := record(key, 1)]) == {key: last.record_id}
