"""What further trials are expected to save, against what they do save, on recorded layers.

    python -m benchmarks.expectation --repeats 200

Each layer of the recorded grid is searched at random: what `further_gain` expects after so many
trials beside what as many again save. No device is needed.
"""

from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.recorded import read_replay
from retune.search.expectation import further_gain

TRIALS = (8, 16, 32, 64, 128)


def main() -> None:
    """A line for each number of trials: means over layers and random orders."""
    parser = parser_of(__doc__)
    parser.add_argument("--replay", type=Path, default=Path("tests/data/replay.parquet"))
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    layers: dict[str, list[np.ndarray]] = {}
    for part in read_replay(options.replay).recorded:
        layers.setdefault(part.layer, []).append(part.time_us)
    every = [np.concatenate(parts) for parts in layers.values()]
    rng = np.random.default_rng(0)
    for trials in TRIALS:
        orders = [rng.permutation(times) for times in every for _ in range(options.repeats)]
        pairs = np.array([_pair(order, trials) for order in orders])
        expected, saved = np.nanmean(pairs, axis=0)
        print(f"after {trials:4} trials: expected {expected:.3f}, saved {saved:.3f}")


def _pair(times: np.ndarray, trials: int) -> tuple[float, float]:
    """What is expected after the first trials, and what as many again saved; NaN where none of
    the first ones was right."""
    first, both = times[:trials], times[: 2 * trials]
    if np.isnan(first).all():
        return np.nan, np.nan
    return further_gain(first, np.zeros(trials)), 1.0 - float(np.nanmin(both) / np.nanmin(first))


if __name__ == "__main__":
    main()
