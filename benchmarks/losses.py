"""Losses of the cost model compared, on the candidates of tasks and networks that were held out.

    python -m benchmarks.losses --records artifacts/records [--seeds 5]
    python -m benchmarks.losses --replay tests/data/replay.parquet

For the trees of each loss alone, and for the cost model as tuning asks it, which weighs them with
the static estimate: the rank correlation, how much of the best time the model's first choice and
the best of its first five reach (peak@1, peak@5, over tasks with at least eight candidates), and
which share of a task's fastest tenth is in the predicted tenth. Features of a record store are
those recorded; those of a packed grid are today's.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.command import parser_of
from benchmarks.recorded import read_replay
from benchmarks.search_quality import layer_grids, training_set
from retune.records.store import RecordStore
from retune.search.model.cost_model import LOSS, Loss, OfflineModel, learned_score, static_score
from retune.search.model.learning import TrainingSet
from retune.search.model.offline import Answer, Rows, cross_validate, judge, load_rows, predictions

_LEAST = 8


def replay_rows(path: Path) -> Rows:
    """The rows of a packed grid; each layer is a network."""
    replay = read_replay(path)
    lessons = [training_set(n, g, replay.spec) for n, g in layer_grids(replay).items()]
    whole = TrainingSet.joined(lessons)
    layer = np.repeat(np.arange(len(lessons)), [len(item.costs) for item in lessons])
    return Rows(
        features=whole.features,
        cost=whole.costs,
        task=layer,
        network=layer,
        record_id=np.arange(len(layer)).astype(str),
        time=np.zeros(len(layer), "datetime64[us]"),
    )


def recall(rows: Rows, predicted: np.ndarray) -> float:
    """Mean share of a task's fastest tenth that is in the predicted tenth; at least one each."""
    shares: list[float] = []
    for task in np.unique(rows.task):
        mine = np.flatnonzero(rows.task == task)
        if len(mine) < _LEAST or np.isnan(rows.cost[mine]).all():
            continue
        most = -(-len(mine) // 10)
        best = np.argsort(rows.cost[mine], kind="stable")[:most]
        liked = np.argsort(-predicted[mine], kind="stable")[:most]
        shares.append(len(np.intersect1d(best, liked)) / most)
    return float(np.mean(shares))


def _line(rows: Rows, predictions: Iterable[np.ndarray]) -> str:
    found = np.array(
        [
            (m.rank_correlation, m.peak1, m.peak5, recall(rows, predicted))
            for predicted in predictions
            for m in (judge(rows, predicted),)
        ]
    ).mean(axis=0)
    return f"rank {found[0]:.3f}  peak@1 {found[1]:.3f}  peak@5 {found[2]:.3f}  top {found[3]:.3f}"


def _alone(model: OfflineModel, rows: Rows) -> np.ndarray:
    return learned_score(model, rows.features)


def main() -> None:
    """Prints a line for each loss and the whole model, tasks held out and networks held out."""
    parser = parser_of(__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--records", type=Path)
    source.add_argument("--replay", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    stored = options.records and load_rows(RecordStore(options.records))
    rows = stored or replay_rows(options.replay)
    print(f"{len(rows)} rows, {judge(rows, rows.score).tasks} judged tasks")
    print(f"{'static estimate':30} {_line(rows, [static_score(rows.features)])}")
    asked: list[tuple[str, Loss, Answer]] = [(loss, loss, _alone) for loss in get_args(Loss)]
    asked.append(("with estimate", LOSS, predictions))
    for turn, turned in {"tasks": replace(rows, network=rows.task), "networks": rows}.items():
        for name, loss, answer in asked:
            tried = (cross_validate(turned, seed, loss, answer) for seed in range(options.seeds))
            print(f"{name:13} {turn + ' held out':17}{_line(rows, tried)}", flush=True)


if __name__ == "__main__":
    main()
