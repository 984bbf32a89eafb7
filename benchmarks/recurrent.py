"""Recurrent layers: our time for a run against onnxruntime's, interleaved, and what import takes.

    python -m benchmarks.recurrent --records artifacts/records --out build

Two layers of 256 units over 512 steps, for one sequence and for sixteen, as LSTM and GRU in floats
and as LSTM whose weights onnxruntime quantizes; then the import of 2,000 steps. The best records of
the store are used, and default schedules without any: `retune tune build/lstm_1.onnx` makes some.
The machine's load stands beside each ratio: on a busy one both take longer, but not alike.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import parser_of
from benchmarks.networks import known_candidates
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.core.config import records_root
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import open_device
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.records.store import RecordStore
from retune.search.extract import extract

GATES = {"LSTM": 4, "GRU": 3}
STEPS, LONG, LAYERS, HIDDEN = 512, 2000, 2, 256


def model_of(op: str, steps: int, batch: int) -> onnx.ModelProto:
    """Layers one after the other, of random weights, as PyTorch exports them."""
    rng = np.random.default_rng(0)
    rows = GATES[op] * HIDDEN
    shapes = {"W": (1, rows, HIDDEN), "R": (1, rows, HIDDEN), "B": (1, 2 * rows)}
    attrs: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    stored = [numpy_helper.from_array(np.array([1]), "axes")]
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            array = rng.uniform(-1 / 16, 1 / 16, shape).astype(np.float32)
            stored.append(numpy_helper.from_array(array, f"{name}{layer}"))
        inputs = [value, *(f"{name}{layer}" for name in shapes)]
        nodes.append(helper.make_node(op, inputs, [f"y{layer}"], hidden_size=HIDDEN, **attrs))
        value = f"s{layer}"
        nodes.append(helper.make_node("Squeeze", [f"y{layer}", "axes"], [value]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [steps, batch, HIDDEN])
        for name in ("x", value)
    ]
    graph = helper.make_graph(nodes, op, ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write_models(folder: Path) -> list[Path]:
    """The files of all networks that are compared."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder.mkdir(parents=True, exist_ok=True)
    found: list[Path] = []
    for op in GATES:
        for batch in (1, 16):
            found.append(folder / f"{op.lower()}_{batch}.onnx")
            onnx.save(model_of(op, STEPS, batch), found[-1])
    for batch in (1, 16):
        found.append(folder / f"lstm_int8_{batch}.onnx")
        quantize_dynamic(folder / f"lstm_{batch}.onnx", found[-1], weight_type=QuantType.QInt8)
    return found


def compare(path: Path, store: RecordStore, seconds: float) -> None:
    """One line: our median, onnxruntime's, their ratio and the load."""
    device = open_device("pocl")
    network = extract(optimise(load_file(path)))
    chosen = known_candidates(network, store, device.spec)
    module = Module(build_plan(network, chosen, device.spec, model_key="", notes={}), device)
    feeds = module.random_inputs()
    peer = open_peer("onnxruntime", path)
    calls = {"ours": lambda: module.run(feeds), "onnxruntime": lambda: peer(feeds)}
    with lease(device.spec):
        outcome = compare_times(calls, options=BenchOptions(budget_s=seconds))
    ours, theirs = (timing.median_s for timing in outcome.timings)
    print(
        f"{path.stem:14} {1e3 * ours:8.1f} ms, onnxruntime {1e3 * theirs:8.1f} ms: "
        f"{ours / theirs:.2f}, {len(chosen)} tasks from records, load {os.getloadavg()[0]:.1f}"
    )


def time_import(folder: Path) -> None:
    """One line: what 2,000 steps take from the file to tasks."""
    path = folder / "long.onnx"
    onnx.save(model_of("LSTM", LONG, 1), path)
    start, used = time.perf_counter(), time.process_time()
    network = extract(optimise(load_file(path)))
    print(
        f"{LONG} steps: {len(network.tasks)} tasks in {time.perf_counter() - start:.2f} s, "
        f"{time.process_time() - used:.2f} s of the processor"
    )


def main() -> None:
    """Prints a line for each network."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build"), help="Folder for the models.")
    parser.add_argument("--records", type=Path, default=records_root(), help="Record store.")
    parser.add_argument("--seconds", type=float, default=10, help="Time for each network.")
    parser.add_argument("--only", default="", help="Part of the names of networks to compare.")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    time_import(given.out)
    for path in write_models(given.out):
        if given.only in path.stem:
            compare(path, RecordStore(given.records), given.seconds)


if __name__ == "__main__":
    main()
