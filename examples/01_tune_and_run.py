"""Tune a network, run the bundle, and compare it with onnxruntime's answer.

    .venv/bin/python examples/01_tune_and_run.py [TRIALS] [OUT]

The network is a small classifier that comes with retune. With more trials it gets faster; with 0
its kernels have default schedules.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

import retune
from retune.bundle.runtime.module import Module
from retune.frontend.models import resolve_model

MODEL = "zoo:mlp"


def main() -> None:
    """Prints what was found, and how far the outputs are apart."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "artifacts/examples/mlp")

    result = retune.tune_network(MODEL, out, trials=trials)
    for row in result.latency:
        print(f"{row.name:12} {row.median_us:8.1f} us a call")

    image = np.random.default_rng(0).random((1, 784), np.float32)
    with Module.load(result.module) as network:
        outputs = network.run(image)  # one input needs no name
        print(f"class {outputs['prob'].argmax()}, the same as outputs[0]: {outputs[0].argmax()}")

    session = onnxruntime.InferenceSession(resolve_model(MODEL))
    (expected,) = session.run(None, {session.get_inputs()[0].name: image})
    print(f"largest difference from onnxruntime: {np.abs(outputs['prob'] - expected).max():.1e}")


if __name__ == "__main__":
    main()
