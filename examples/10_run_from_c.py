"""A bundle as a C program: exported, compiled, run, and compared with Python bit by bit.

    .venv/bin/python examples/10_run_from_c.py [TRIALS] [OUT]

The program needs a C compiler and an OpenCL library. Where the machine has none, it is linked with
the one in pyopencl's wheel.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

import retune.api
from retune.bundle.export.loader import brought_link
from retune.bundle.export.program import export_c
from retune.bundle.format import read_bundle
from retune.bundle.runtime.module import Module


def main() -> None:
    """Prints the program's own line about its time, and whether the outputs are equal."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "artifacts/from_c")
    result = retune.api.tune_network("zoo:mlp", out, trials=trials)
    program = out / "program"
    export_c(read_bundle(Path(result.module)), program)
    subprocess.run(["make", "-s", f"OPENCL={brought_link()}"], cwd=program, check=True)

    with Module.load(result.module) as network:
        (given,), (made,) = network.inputs, network.outputs
        image = np.random.default_rng(0).random(network.inputs[given].shape, np.float32)
        expected = network.run(image)[0]
    np.save(program / "in.npy", image)
    words = ["--input", f"{given}=in.npy", "--output", f"{made}=out.npy", "--runs", "20"]
    subprocess.run(["./network", *words], cwd=program, check=True)
    found = np.load(program / "out.npy")
    print("equal bit by bit" if np.array_equal(found, expected) else "DIFFERENT")


if __name__ == "__main__":
    main()
