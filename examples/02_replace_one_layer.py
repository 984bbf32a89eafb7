"""Tune one layer of a network, put it back, and see what changed: the time, not the answer.

.venv/bin/python examples/02_replace_one_layer.py [TRIALS]
"""

import sys

import numpy as np

from retune import api


def main() -> None:
    """Tunes the first layer of `zoo:mlp` (784-128-10) and compares the two networks."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    network = api.import_network("zoo:mlp")
    first, *others = api.extract_tasks(network)
    print(f"{first.name} ({first.flops / 1e3:.0f} kFLOP), and {len(others)} more tasks\n")
    print(first.text, "\n")

    tuned = api.tune(first, trials=trials)
    print(tuned)

    before = api.compile_network(network)
    after = api.compile_network(network, [tuned])

    image = before.random_inputs(seed=1)
    times = api.compare_times(
        {"before": lambda: before.run(image), "after": lambda: after.run(image)}
    )
    for timing in times.timings:
        print(f"{timing.name:6}  {1e6 * timing.median_s:8.1f} us a run")

    old, new = before.run(image)["prob"], after.run(image)["prob"]
    print(f"\nprediction: class {np.argmax(old)} before, class {np.argmax(new)} after")
    print(f"largest change of a probability: {np.abs(old - new).max():.1e}")


if __name__ == "__main__":
    main()
