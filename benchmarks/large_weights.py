"""Peak memory of a network with weights of several gigabytes: import, compile, load and run.

    python -m benchmarks.large_weights                 # 3 GiB in a stack of products
    python -m benchmarks.large_weights --gib 0.5

The model is an ONNX file with external data. Each row is a process of its own: seconds of processor
time, and the peak of its resident memory above what it held before, as a multiple of the weights.
The last row also states the largest deviation from onnxruntime, as a part of the output's range.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
from onnx import TensorProto, helper

from benchmarks.command import parser_of
from benchmarks.memory import resident_mib
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import open_peer
from retune.device.opencl.runtime import open_device
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract

_WIDTH = 4096
LAYER_BYTES = 4 * _WIDTH * _WIDTH
_DATA, _OUTPUT = "weights.bin", "output.npy"


def write_model(folder: Path, layers: int) -> Path:
    """A stack of products with random weights in a file beside the model."""
    random = np.random.default_rng(0)
    nodes, stored, last = [], [], "x"
    with (folder / _DATA).open("wb") as data:
        for number in range(layers):
            weight = random.standard_normal((_WIDTH, _WIDTH), np.float32)
            weight *= np.float32(1.4 / _WIDTH**0.5)
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT)
            tensor.dims.extend(weight.shape)
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": _DATA, "offset": data.tell(), "length": weight.nbytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            data.write(weight.data)
            stored.append(tensor)
            nodes.append(helper.make_node("MatMul", [last, f"w{number}"], [f"m{number}"]))
            nodes.append(helper.make_node("Relu", [f"m{number}"], [f"r{number}"]))
            last = f"r{number}"
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, _WIDTH)) for name in ("x", last)
    )
    graph = helper.make_graph(nodes, "large", [given], [made], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def import_it(folder: Path) -> None:
    """The graph, optimised and cut into tasks."""
    extract(optimise(load_file(folder / "model.onnx")))


def compile_it(folder: Path) -> None:
    """A bundle with default schedules."""
    network = extract(optimise(load_file(folder / "model.onnx")))
    plan = build_plan(network, {}, open_device("pocl").spec, model_key="large", notes={})
    write_bundle(plan, folder / "module")


def load_it(folder: Path) -> None:
    """The bundle loaded, and run once."""
    module = Module.load(folder / "module")
    (output,) = module.run(_feeds()).values()
    np.save(folder / _OUTPUT, output)


def compare_it(folder: Path) -> float:
    """The bundle's output against onnxruntime's, which reads the model."""
    (wanted,) = open_peer("onnxruntime", folder / "model.onnx")(_feeds()).values()
    return float(np.abs(np.load(folder / _OUTPUT) - wanted).max() / np.ptp(wanted))


def _feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((1, _WIDTH), np.float32)}


STAGES: dict[str, Callable[[Path], float | None]] = {
    "import": import_it,
    "compile": compile_it,
    "load": load_it,
    "onnxruntime": compare_it,
}


def child(stage: str, folder: Path) -> None:
    """Prints seconds, peak and result as a line of JSON."""
    open_device("pocl")
    before, start = resident_mib("VmRSS"), process_time()
    result = STAGES[stage](folder)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([process_time() - start, peak_mib - before, result]))


def main() -> None:
    """Prints a row for each stage."""
    parser = parser_of(__doc__)
    parser.add_argument("--gib", type=float, default=3.0, help="of weights")
    parser.add_argument("--folder", type=Path, help="where files go; needs three times as much")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    layers = max(1, round(options.gib * 2**30 / LAYER_BYTES))
    weights_mib = layers * LAYER_BYTES / 2**20
    with TemporaryDirectory(dir=options.folder) as name:
        write_model(Path(name), layers)
        for stage in STAGES:
            command = [sys.executable, "-m", "benchmarks.large_weights", "--child", stage, name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            seconds, peak, result = json.loads(done.stdout.splitlines()[-1])
            said = "" if result is None else f", deviation {result:.1e}"
            times = f"{peak / weights_mib:.2f} of {weights_mib:.0f} MiB of weights"
            print(f"{stage:11} {seconds:6.1f} s, {peak:6.0f} MiB, {times}{said}", flush=True)


if __name__ == "__main__":
    main()
