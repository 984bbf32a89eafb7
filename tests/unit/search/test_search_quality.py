"""Search on a small packed grid of three layers: no device, the times are recorded ones."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.recorded import RecordedGrid, read_replay
from benchmarks.search_quality import layer_grids, search
from retune.core.target import DeviceSpec
from retune.search.defaults import DEFAULT_TUNER

_PACKED = Path(__file__).resolve().parents[2] / "data" / "replay_small.parquet"
_TRIALS = 16
_SEEDS = 3

Store = tuple[dict[str, RecordedGrid], DeviceSpec]


@pytest.fixture(scope="module")
def store() -> Store:
    replay = read_replay(_PACKED)
    return layer_grids(replay), replay.spec


def test_the_learned_tuner_beats_random_on_the_mean_over_seeds(store: Store):
    """Mean logarithm of the grid's best time over the best found: 0 is perfect."""
    grids, spec = store

    def merit(tuner: str) -> float:
        return float(
            np.mean(
                [
                    np.log(np.nanmin(grid.time_us) / np.nanmin(times))
                    for name, grid in grids.items()
                    for seed in range(_SEEDS)
                    for times in (search(tuner, name, grid, spec, seed, trials=_TRIALS)[1],)
                ]
            )
        )

    assert merit(DEFAULT_TUNER) > merit("random")


@pytest.mark.parametrize("tuner", ["evolutionary", "xgb", "random"])
def test_the_same_seed_gives_the_same_trials(store: Store, tuner: str):
    grids, spec = store
    name, grid = next(iter(grids.items()))
    first, times = search(tuner, name, grid, spec, 1, trials=24)
    again, same = search(tuner, name, grid, spec, 1, trials=24)
    other, _ = search(tuner, name, grid, spec, 2, trials=24)
    assert np.array_equal(first, again) and np.array_equal(times, same, equal_nan=True)
    assert not np.array_equal(first, other)
    assert len(np.unique(first)) == 24
