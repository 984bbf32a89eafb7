"""Candidates sampled, checked, featurised and scored each second, on one core.

python -m benchmarks.search_speed
"""

from time import process_time

import numpy as np

from benchmarks.command import parser_of
from benchmarks.replay_layers import LAYERS
from retune.core.target import GENERIC_CPU
from retune.search.model.cost_model import CostModel
from retune.search.model.features import featurise

_SEED = 0


def main() -> None:
    """Prints one line for each layer, by processor time of this process."""
    parser = parser_of(__doc__)
    parser.add_argument("--population", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    print(f"{'layer':14} {'sample+check':>13} {'featurise':>10} {'score':>7}  us a candidate")
    for name, make in LAYERS.items():
        space = make().space(GENERIC_CPU)
        rng = np.random.default_rng(_SEED)
        first = featurise(space, space.sample(256, rng), GENERIC_CPU)
        model = CostModel(_SEED)
        model.update(first, rng.random(len(first)), np.zeros(len(first), np.int64))
        seconds = np.zeros(3)
        count = 0
        for _ in range(options.repeats):
            times = [process_time()]
            drawn = space.sample(options.population, rng)
            times.append(process_time())
            features = featurise(space, drawn, GENERIC_CPU)
            times.append(process_time())
            model.predict(features)
            times.append(process_time())
            seconds += np.diff(times)
            count += len(drawn)
        sample, feature, score = 1e6 * seconds / count
        rate = count / seconds.sum()
        print(f"{name:14} {sample:13.2f} {feature:10.2f} {score:7.2f}  {rate:,.0f} a second")


if __name__ == "__main__":
    main()
