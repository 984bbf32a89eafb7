"""A bundle in a service: calls from threads, calls that wait in line, and memory without copies.

    .venv/bin/python examples/08_serve.py [TRIALS] [OUT]

A module is loaded once. `run` may be called by several threads, which take turns; `submit` returns
a future at once; `shared` is the memory of an input or output where host and device share it.
"""

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import retune.api
from retune.bundle.runtime.module import Module

CALLS = 200


def from_threads(network: Module, images: np.ndarray) -> list[int]:
    """The class of each image, asked for by four threads."""
    with ThreadPoolExecutor(4) as pool:
        return [int(found[0].argmax()) for found in pool.map(network.run, images)]


def in_line(network: Module, images: np.ndarray) -> list[int]:
    """The same, submitted by one thread that could do something else meanwhile."""
    later = [network.submit(image) for image in images]
    return [int(each.result()[0].argmax()) for each in later]


def without_copies(network: Module, images: np.ndarray) -> list[int]:
    """The same, written to the memory of the input and read from that of the output."""
    (given,), (made,) = network.inputs, network.outputs
    where, found = network.shared(given), network.shared(made)
    classes: list[int] = []
    for image in images:
        where[:] = image
        network.run_launches()
        classes.append(int(found.argmax()))
    return classes


def main() -> None:
    """Tunes a small network, and runs it in three ways that give the same classes."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    out = sys.argv[2] if len(sys.argv) > 2 else "artifacts/serve"
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("retune.bundle").setLevel(logging.DEBUG)  # what a load did
    result = retune.api.tune_network("zoo:mlp", out, trials=trials)
    images = np.random.default_rng(0).random((CALLS, 1, 784), np.float32)
    with Module.load(result.module) as network:
        expected = [int(network.run(image)[0].argmax()) for image in images]
        for way in (from_threads, in_line, without_copies):
            start = time.perf_counter()
            classes = way(network, images)
            spent = 1e6 * (time.perf_counter() - start) / CALLS
            same = "same classes" if classes == expected else "OTHER CLASSES"
            print(f"{way.__name__:15} {spent:8.1f} us a call, {same}")


if __name__ == "__main__":
    main()
