"""Which record each task is compiled from, by records and constraints alone. Read `choose`."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from retune.records.conditions import Conditions
from retune.records.schema import TuningRecord
from retune.schedule.space import Space
from retune.search.history import candidate_of


def choose(
    records: Iterable[TuningRecord],
    conditions: Sequence[Conditions],
    limits: Mapping[str, float],
    spaces: Mapping[str, Space],
    denied: Collection[str] = (),
    winners: Collection[str] = (),
) -> dict[str, TuningRecord]:
    """The best record of each task of `spaces`; a task without one keeps its default schedule.

    `records` come fastest first. Records of the first `conditions` go before those of the next, so
    times in the network, listed first, go before times of the task alone. The `winners` of an
    in-network comparison go before both. A record counts if it is right, not `denied`, in the
    task's space of today, and of a strategy whose error is within the task's limit.
    """
    ranks = {
        (where.device, key): rank
        for rank, where in reversed(list(enumerate(conditions)))
        for key in where.comparable["conditions"]
    }
    ranked: list[tuple[int, TuningRecord]] = []
    for record in records:
        taken = (record.device, record.conditions.key if record.conditions else None)
        rank = -1 if record.record_id in winners else ranks.get(taken)
        if rank is not None and record.record_id not in denied and record.measurement.ok:
            ranked.append((rank, record))
    chosen: dict[str, TuningRecord] = {}
    for _, record in sorted(ranked, key=lambda pair: pair[0]):
        key = record.task_key
        if key in chosen or key not in spaces:
            continue
        allowed = within_limit(spaces[key], limits.get(key))
        if record.sketch in allowed and candidate_of(record, spaces[key]) is not None:
            chosen[key] = record
    return chosen


def within_limit(space: Space, limit: float | None) -> list[str]:
    """The sketches of the space whose stated error is not larger than the limit, if there is one.

    They are named, as records name them.
    """
    return [s.name for s in space.sketches if limit is None or s.error <= limit]
