"""How much of a cost model's regret is noise: recorded candidates are measured a second time.

    python -m benchmarks.regret --records artifacts/records --again artifacts/again.json

Of some tasks of a store the fastest candidates are measured once more, and the first five of the
cost model and of the static estimate, under the options of the record. Then three choose from the
records of the first time: the model (networks held out), the estimate, and an oracle that knows the
first measurement. Printed is, for each, how much of the best time its first choice and the best of
its first five reach, judged by the first measurement, by the second, and by the mean of both. What
the oracle lacks to 1 by the second is noise: a model that reaches as much is worth a measurement of
each candidate, and only one that knows more than that reaches more. The second measurements are
kept in the file `--again`; those that it has are not taken again, so two people can judge by the
same ones. `--seconds 0` measures nothing.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.command import parser_of
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import RecordError, ScheduleError
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions, Runner
from retune.ir.stored import from_text
from retune.records import origins
from retune.records.cost import measured_costs
from retune.records.store import RecordStore
from retune.schedule.trace import Trace
from retune.search.model.cost_model import static_score
from retune.search.model.offline import Rows, cross_validate, judge, load_rows
from retune.search.model.registry import Metrics
from retune.search.recorded import Recorded, recorded_sketch
from retune.search.task import Task, expression_task
from retune.targets.devices import target_of

if TYPE_CHECKING:
    from retune.records import Table

_FIRST = 5
"""Choices of each that are measured again."""
_LEAST = 8
"""Right candidates of a task, without which its ranking says little."""
_COLUMNS = ("record_id", "task_key", "sketch", "decisions", "trace", "spread_bytes")

Choices = Mapping[str, np.ndarray]
"""By who chooses: a score for each row, larger is better. float64 [n]"""


@dataclass(frozen=True, eq=False, slots=True)
class Twice:
    """Rows that were measured two times."""

    rows: Rows
    """With the first costs."""
    second: np.ndarray
    """The others. float64 [n]; NaN for a failure."""

    def judges(self) -> Iterator[tuple[str, Rows]]:
        """The rows with the costs of the first time, of the second, and their means."""
        first = self.rows.cost
        for name, cost in (
            ("first", first),
            ("second", self.second),
            ("mean", (first + self.second) / 2.0),
        ):
            yield name, replace(self.rows, cost=cost)


def rows_again(rows: Rows, choices: Choices, tasks: int, fastest: int) -> list[np.ndarray]:
    """Numbers of the rows to measure again, for each of so many tasks, always the same ones."""
    order = np.random.default_rng(0).permutation(np.unique(rows.task))
    found: list[np.ndarray] = []
    for task in order:
        mine = np.flatnonzero((rows.task == task) & ~np.isnan(rows.cost))
        if len(mine) >= _LEAST and len(found) < tasks:
            liked = [mine[np.argsort(-c[mine], kind="stable")][:_FIRST] for c in choices.values()]
            fast = mine[np.argsort(rows.cost[mine], kind="stable")][:fastest]
            found.append(np.unique(np.concatenate([fast, *liked])))
    return found


def task_of(store: RecordStore, key: str) -> Task:
    """The task of that key, from its stored expression. Raises: RecordError if there is none."""
    text = origins.read(store.root, "expression", key)
    if text is None:
        raise RecordError(f"{store.root}: holds no expression of task {key}")
    return expression_task(from_text(text, key, f"expression of task {key}"))


def sources_of(task: Task, frame: "Table", runner: Runner) -> list[ProgramSource]:
    """The recorded candidates as programs. Raises: RecordError, ScheduleError."""
    found: list[ProgramSource] = []
    for sketch, decisions, text in zip(
        frame["sketch"].tolist(), frame["decisions"].tolist(), frame["trace"].tolist(), strict=True
    ):
        part = Recorded(
            layer=task.name,
            sketch=sketch,
            trace=Trace.from_json(text).undecided(),
            decisions=np.array(decisions, np.int64).reshape(1, -1),
            time_us=np.zeros(1),
        )
        built, rows = recorded_sketch(task.program, part)
        found.append(lower(built.instantiate(rows[0]), target_of(runner.spec)))
    return found


def measure_again(
    store: RecordStore, frame: "Table", runner: Runner, known: dict[str, float], path: Path
) -> None:
    """Costs of one task's rows that were not `known` are known and in the file."""
    try:
        task = task_of(store, str(frame["task_key"].iloc[0]))
        sources = sources_of(task, frame, runner)
    except (RecordError, ScheduleError) as error:
        print(f"left out: {error}", flush=True)
        return
    runner.prepare(task.workload())
    options = MeasureOptions(spread_bytes=int(frame["spread_bytes"].iloc[0]))
    measured = runner.submit(task.workload_key(), sources, options).result()
    costs = measured_costs(measured)[1].tolist()
    known |= dict(zip(frame["record_id"].tolist(), costs, strict=True))
    path.write_text(json.dumps(known))
    print(f"{task.name}: {len(costs)} candidates again", flush=True)


def known_costs(
    store: RecordStore,
    rows: Rows,
    wanted: Sequence[np.ndarray],
    runner: Runner,
    path: Path,
    seconds: float,
) -> dict[str, float]:
    """Second costs by record id: those of the file, and of the wanted rows, as time allows."""
    known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    table = store.scan({"record_id": rows.record_id.tolist()}, list(_COLUMNS))
    frame, end = table.set_index("record_id", drop=False), monotonic() + seconds
    for numbers in wanted:
        ids = [name for name in rows.record_id[numbers] if name not in known]
        if ids and monotonic() < end:
            measure_again(store, frame.loc[ids], runner, known, path)
    return known


def measured_twice(
    rows: Rows, wanted: Sequence[np.ndarray], known: Mapping[str, float]
) -> tuple[Twice, np.ndarray]:
    """Those of the wanted rows that have a second cost, and their numbers."""
    second = np.array([known.get(name, np.nan) for name in rows.record_id], float)
    every = np.concatenate(wanted)
    some = np.sort(every[~np.isnan(second[every])])
    return Twice(rows.take(some), second[some]), some


def judged(twice: Twice, choices: Choices) -> Iterator[tuple[str, str, Metrics]]:
    """Who chooses, the measurement that judges, and the metrics of it, for each two of them."""
    oracles = {"oracle of the first": -twice.rows.cost, "oracle of the second": -twice.second}
    for judge_name, rows in twice.judges():
        for name, score in {**choices, **oracles}.items():
            yield name, judge_name, judge(rows, np.nan_to_num(score, nan=-np.inf))


def main() -> None:
    """Measures what is missing, and prints what `judged` says."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--again", type=Path, required=True, help="file of second measurements")
    parser.add_argument("--tasks", type=int, default=40, help="measured again")
    parser.add_argument("--fastest", type=int, default=8, help="recorded candidates of each")
    parser.add_argument("--seconds", type=float, default=600.0, help="of measuring, about")
    parser.add_argument("--device", default="pocl")
    options = parser.parse_args()
    store = RecordStore(options.records)
    rows = load_rows(store)
    choices = {"model": cross_validate(rows, 0), "estimate": static_score(rows.features)}
    wanted = rows_again(rows, choices, options.tasks, options.fastest)
    with LocalRunner(options.device) as runner:
        known = known_costs(store, rows, wanted, runner, options.again, options.seconds)
    twice, some = measured_twice(rows, wanted, known)
    apart = np.abs(np.log(twice.second / twice.rows.cost))
    print(f"{len(some)} candidates twice, in the middle {np.median(apart):.1%} apart")
    for name, by, found in judged(twice, {name: score[some] for name, score in choices.items()}):
        print(f"{name:20} by the {by:6}  first {found.peak1:.3f}  fifth {found.peak5:.3f}")


if __name__ == "__main__":
    main()
