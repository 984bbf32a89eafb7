"""One bundle for a range of batches: sizes stay open, and each call has its own.

    .venv/bin/python examples/09_ranges_of_sizes.py [TRIALS] [OUT]

The model leaves its first dimension open. The range is stated once, the memory is there for the
largest size, and nothing is compiled between calls of different sizes.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import retune.api
from retune.bundle.runtime.module import Module
from retune.core.errors import InputError


def model(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Writes y = relu(x W) V for any number of rows of x; gives W and V."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s).astype("float32") / 8 for s in ((64, 96), (96, 10)))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "V"], ["y"]),
        ],
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(first, "W"), numpy_helper.from_array(second, "V")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return first, second


def main() -> None:
    """Tunes for batches from 1 to 32, and compares calls of several sizes with numpy."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    out = Path(sys.argv[2] if len(sys.argv) > 2 else "artifacts/ranges")
    out.mkdir(parents=True, exist_ok=True)
    first, second = model(out / "two_layers.onnx")
    result = retune.api.tune_network(
        out / "two_layers.onnx", out / "bundle", trials=trials, shapes={"batch": "1..32"}
    )
    with Module.load(result.module) as network:
        for batch in (1, 7, 32):
            x = np.random.default_rng(batch).random((batch, 64), np.float32)
            error = np.abs(network.run(x)["y"] - np.maximum(x @ first, 0) @ second).max()
            print(f"batch {batch:2}: largest difference from numpy {error:.1e}")
        try:
            network.run(np.zeros((33, 64), np.float32))
        except InputError as refused:
            print(f"batch 33: {refused}")


if __name__ == "__main__":
    main()
