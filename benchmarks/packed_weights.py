"""Products with weights of 4 and 8 bits (MatMulNBits): our time for a run against onnxruntime's.

    python -m benchmarks.packed_weights
    python -m benchmarks.packed_weights --bits 4 --rows 1 32 --size 2048 2048

One product of float32 rows with a weight that is quantized in blocks of 32, for several numbers of
rows; default schedules, interleaved. Ratios below 1 are faster. With `accuracy_level` 4, which the
GenAI builder writes, onnxruntime rounds the rows to int8; ours are floats always.
"""

import os
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import parser_of
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import open_device

BLOCK = 32
LEVELS = {"float": 0, "int8": 4}
"""What onnxruntime may compute in, as `accuracy_level` numbers it."""
_TOLERANCE = 1e-2
"""Of the range: onnxruntime rounds rows to int8 where it may."""


def model_of(bits: int, inputs: int, outputs: int, level: int) -> onnx.ModelProto:
    """A product with a random quantized weight, for any number of rows."""
    rng, blocks = np.random.default_rng(0), inputs // BLOCK
    arrays = {
        "b": rng.integers(0, 256, (outputs, blocks, BLOCK * bits // 8), np.uint8),
        "scales": rng.uniform(0.01, 0.02, outputs * blocks).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft",
        K=inputs, N=outputs, bits=bits, block_size=BLOCK, accuracy_level=level,
    )  # fmt: skip
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", inputs])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "packed", [given], [made], stored)
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def compare(path: Path, rows: int, inputs: int, seconds: float) -> str:
    """Our median, onnxruntime's and their ratio."""
    device, shapes = open_device("pocl"), {"x": (rows, inputs)}
    network = import_network(str(path), shapes).network
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    data = {"x": np.random.default_rng(1).random((rows, inputs), np.float32)}
    peer = open_peer("onnxruntime", path, shapes=shapes)
    with lease(device.spec):
        module = Module(best_form(plan, device), device)
        found, wanted = (call(data)["y"] for call in (module.run, peer))
        np.testing.assert_allclose(found, wanted, atol=_TOLERANCE * np.ptp(wanted))
        calls = {"ours": lambda: module.run(data), "onnxruntime": lambda: peer(data)}
        outcome = compare_times(calls, options=BenchOptions(budget_s=seconds))
    ours, theirs = (1e3 * timing.median_s for timing in outcome.timings)
    return f"{rows:4} rows {ours:7.3f} / {theirs:7.3f} ms = {ours / theirs:4.2f}"


def main() -> None:
    """Prints a line for each number of bits and type that onnxruntime computes in."""
    parser = parser_of(__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--size", type=int, nargs=2, default=[1024, 1024], help="inputs, outputs")
    parser.add_argument("--peer", choices=LEVELS, nargs="+", default=["float", "int8"])
    parser.add_argument("--seconds", type=float, default=2, help="Time for each number of rows.")
    given = parser.parse_args()
    inputs, outputs = given.size
    with TemporaryDirectory() as folder:
        for bits, level in product(given.bits, given.peer):
            path = Path(folder) / f"packed_{bits}_{level}.onnx"
            onnx.save(model_of(bits, inputs, outputs, LEVELS[level]), path)
            cells = [compare(path, rows, inputs, given.seconds) for rows in given.rows]
            load = os.getloadavg()[0]
            print(
                f"{bits} bits {inputs} x {outputs}, {level:5} {'   '.join(cells)}, load {load:.1f}"
            )


if __name__ == "__main__":
    main()
