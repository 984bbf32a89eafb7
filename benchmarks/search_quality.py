"""How good a tuner's best of 16 and of 64 trials is, on layers whose candidates were all measured.

    python -m benchmarks.search_quality [--replay tests/data/replay.parquet] [--seeds 5] [TUNER ...]

Nothing is measured: times come from the file that `benchmarks.make_replay` wrote. For each tuner
and layer, over some seeds: the best time of the whole grid over the best time found (geometric
means), and how many random trials are needed on average for what 64 trials found. Model-led tuners
are run twice: knowing nothing, and with an offline model of the other layers. Every search is
repeated once from its seed: the same trials must come, bit for bit.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.make_replay import PACKED
from benchmarks.recorded import RecordedGrid, Replay, read_replay, recorded_grid
from benchmarks.replay_layers import LAYERS
from benchmarks.table import geometric_mean
from retune.core.target import DeviceSpec
from retune.search.model.cost_model import OfflineModel, train_offline
from retune.search.model.features import featurise
from retune.search.model.learning import Learner, TrainingSet, scores
from retune.search.tuners import TUNERS, Setting, make_tuner

_BATCH = 8
_TRIALS = 64
_EARLY = 16
_LED = ("evolutionary", "xgb")
"""Tuners that ask a model."""


def layer_grids(replay: Replay) -> dict[str, RecordedGrid]:
    """What was recorded of each layer, with the layer's program of today."""
    names = dict.fromkeys(part.layer for part in replay.recorded)
    return {
        name: recorded_grid(LAYERS[name]().program, [p for p in replay.recorded if p.layer == name])
        for name in names
    }


def training_set(layer: str, grid: RecordedGrid, spec: DeviceSpec) -> TrainingSet:
    """Everything that was recorded of a layer, to learn from."""
    return TrainingSet(
        features=featurise(grid.space, grid.candidates, spec),
        costs=grid.time_us,
        tasks=np.full(len(grid.time_us), layer, object),
    )


def offline(lessons: Mapping[str, TrainingSet], held_out: str) -> OfflineModel:
    """A model of all layers but one."""
    whole = TrainingSet.joined([item for name, item in lessons.items() if name != held_out])
    return train_offline(whole.features, *scores(whole), seed=0, name=f"all but {held_out}")


def search(
    tuner: str,
    layer: str,
    grid: RecordedGrid,
    spec: DeviceSpec,
    seed: int,
    model: OfflineModel | None = None,
    trials: int = _TRIALS,
) -> tuple[np.ndarray, np.ndarray]:
    """Each trial's number in the space and its time, in order. int64, float64 [at most trials]

    The time is NaN for a failure.
    """
    learner = Learner(spec, seed, TrainingSet.nothing(), model)
    space = grid.space
    setting = Setting(space=space, seed=seed, scorer=learner.scorer(space), seeds=space.locate([]))
    searching = make_tuner(tuner, setting, layer)
    numbers: list[int] = []
    found: list[float] = []
    while len(found) < trials:
        chosen = searching.propose(min(_BATCH, trials - len(found)))
        if not len(chosen):
            break
        costs = grid.times(chosen)
        searching.observe(chosen, costs)
        features = featurise(space, chosen, spec)
        tasks = np.full(len(costs), layer, object)
        learner.observe(TrainingSet(features=features, costs=costs, tasks=tasks))
        numbers += space.numbers(chosen).tolist()
        found += costs.tolist()
    return np.array(numbers), np.array(found)


def random_trials(times: np.ndarray, reached: float) -> float:
    """Mean number of distinct random trials until one is at most `reached`."""
    good = int(np.sum(times <= reached))
    return (len(times) + 1) / (good + 1)


def compare(tuner: str, grids: Mapping[str, RecordedGrid], spec: DeviceSpec, seeds: int) -> None:
    """Prints a line for each layer, and the geometric means, with and without offline models."""
    lessons = {name: training_set(name, grid, spec) for name, grid in grids.items()}
    for led in (False, True) if tuner in _LED and len(grids) > 1 else (False,):
        label = f"{tuner}+offline" if led else tuner
        shares = np.ones((len(grids), seeds, 2))
        needed = np.ones((len(grids), seeds))
        for i, (name, grid) in enumerate(grids.items()):
            model = offline(lessons, name) if led else None
            best = np.nanmin(grid.time_us)
            runs = [search(tuner, name, grid, spec, seed, model) for seed in range(seeds)]
            for seed, (_, found) in enumerate(runs):
                shares[i, seed] = best / np.nanmin(found[:_EARLY]), best / np.nanmin(found)
                needed[i, seed] = random_trials(grid.time_us, float(np.nanmin(found)))
            again, _ = search(tuner, name, grid, spec, seeds - 1, model)
            same = "same" if np.array_equal(again, runs[-1][0]) else "OTHER"
            line = _line(shares[i], needed[i])
            print(f"{label:20} {name:14} {line} of {len(grid.time_us)}, again: {same} trials")
        print(f"{label:20} {'all':14} {_line(shares.reshape(-1, 2), needed.ravel())}", flush=True)


def _line(shares: np.ndarray, needed: np.ndarray) -> str:
    early, late = (geometric_mean(column) for column in shares.T)
    return f"best of 16 {early:.3f}  best of 64 {late:.3f}  random needs {needed.mean():6.0f}"


def main() -> None:
    """Prints what `compare` finds for each tuner."""
    parser = parser_of(__doc__)
    parser.add_argument("tuners", nargs="*", default=list(TUNERS))
    parser.add_argument("--replay", type=Path, default=PACKED)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    replay = read_replay(options.replay)
    print("; ".join(f"{key}: {value}" for key, value in replay.notes.items() if value))
    grids = layer_grids(replay)
    for tuner in options.tuners:
        compare(tuner, grids, replay.spec, options.seeds)


if __name__ == "__main__":
    main()
