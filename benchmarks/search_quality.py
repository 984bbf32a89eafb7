"""How good a tuner's best of 64 trials is, on layers whose every candidate was measured before.

    python -m benchmarks.search_quality [--replay tests/data/replay.parquet] [TUNER ...]

Nothing is measured: times come from the file that `benchmarks.make_replay` wrote. For each tuner
and layer, over some seeds: the best time of the whole grid over the best time found, after 16 and
after 64 trials, and how many random trials are needed on average for the latter.
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.make_replay import PACKED
from benchmarks.replay_layers import LAYERS
from retune.records.replay import Replay, read_replay
from retune.schedule.space import Space
from retune.search.features import featurise
from retune.search.learning import Learner, Lesson
from retune.search.recorded import recorded_space
from retune.search.tuners import TUNERS, Setting, make_tuner

_BATCH = 8
_TRIALS = 64


def layer_space(replay: Replay, name: str) -> tuple[Space, dict[int, float]]:
    """The recorded part of a layer's space, and the time of each candidate by its number."""
    recorded = {p.sketch: p for p in replay.recorded if p.layer == name}
    decided = {sketch: part.decided() for sketch, part in recorded.items()}
    space = recorded_space(LAYERS[name]().space(replay.spec), decided)
    times: dict[int, float] = {}
    for number, sketch in enumerate(space.sketches):
        rows = np.stack([sketch.row(values) for values in decided[sketch.name]])
        numbers = space.numbers(space.population(number, rows))
        times |= dict(zip(numbers.tolist(), recorded[sketch.name].time_us.tolist(), strict=True))
    return space, times


def search(
    tuner: str, layer: str, space: Space, times: dict[int, float], replay: Replay, seed: int
) -> np.ndarray:
    """The time of each trial, in order; NaN for a failure. float64 [at most 64]"""
    learner = Learner(replay.spec, seed, Lesson.nothing())
    setting = Setting(space=space, seed=seed, scorer=learner.scorer(space), seeds=space.locate([]))
    searching = make_tuner(tuner, setting, layer)
    found: list[float] = []
    while len(found) < _TRIALS:
        chosen = searching.propose(min(_BATCH, _TRIALS - len(found)))
        if not len(chosen):
            break
        costs = np.array([times[n] for n in space.numbers(chosen).tolist()])
        searching.observe(chosen, costs)
        features = featurise(space, chosen, replay.spec)
        tasks = np.full(len(costs), layer, object)
        learner.observe(Lesson(features=features, costs=costs, tasks=tasks))
        found += costs.tolist()
    return np.array(found)


def random_trials(times: np.ndarray, reached: float) -> float:
    """Mean number of distinct random trials until one is at most `reached`."""
    good = int(np.sum(times <= reached))
    return (len(times) + 1) / (good + 1)


def main() -> None:
    """Prints one line for each tuner and layer, and the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tuners", nargs="*", default=list(TUNERS))
    parser.add_argument("--replay", type=Path, default=PACKED)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    replay = read_replay(options.replay)
    print("; ".join(f"{key}: {value}" for key, value in replay.notes.items() if value))
    layers = {name: layer_space(replay, name) for name in LAYERS}
    for tuner in options.tuners:
        shares = np.ones((len(layers), options.seeds, 2))
        needed = np.ones((len(layers), options.seeds))
        for i, (name, (space, times)) in enumerate(layers.items()):
            everything = np.array(list(times.values()))
            for seed in range(options.seeds):
                found = search(tuner, name, space, times, replay, seed)
                best = np.nanmin(everything)
                shares[i, seed] = best / np.nanmin(found[:16]), best / np.nanmin(found)
                needed[i, seed] = random_trials(everything, float(np.nanmin(found)))
            print(f"{tuner:14} {name:14} {_line(shares[i], needed[i])} of {len(everything)}")
        print(f"{tuner:14} {'all':14} {_line(shares.reshape(-1, 2), needed.ravel())}", flush=True)


def _line(shares: np.ndarray, needed: np.ndarray) -> str:
    early, late = np.exp(np.log(shares).mean(axis=0))
    return f"best of 16 {early:.3f}  best of 64 {late:.3f}  random needs {needed.mean():6.0f}"


if __name__ == "__main__":
    main()
