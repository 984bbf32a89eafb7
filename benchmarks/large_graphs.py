"""Processor time of networks of thousands of nodes: import, extract, compile, load and run.

    python -m benchmarks.large_graphs                     # 10,000 nodes of each shape
    python -m benchmarks.large_graphs row sum --nodes 2000

Each network has default schedules and runs in a process of its own, whose seconds of processor time
and peak of resident memory are printed, beside the largest deviation from onnxruntime's output as a
part of its range. The driver's compiler is part of `load`; its cache is empty.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.command import parser_of
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import open_peer
from retune.device.opencl.runtime import open_device
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract

_ROWS, _COLUMNS = 4, 8


class _Writer:
    """An ONNX model as it grows."""

    def __init__(self, shape: tuple[int, ...] = (_ROWS, _COLUMNS)) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(0)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        """The name of the node's only output, or the stem of several: NAME_0, NAME_1, ..."""
        stem = f"v{len(self.nodes)}"
        made = [stem] if outputs == 1 else [f"{stem}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, **attrs))
        return stem

    def weight(self, *shape: int, scale: float = 0.3, mean: float = 0.0) -> str:
        """A random constant."""
        name = f"w{len(self.constants)}"
        array = np.asarray(self._random.normal(mean, scale, shape), np.float32)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def save(self, path: Path, outputs: list[str]) -> None:
        """The model with input `x` and these outputs, whose shapes are for readers to find."""
        made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        graph = helper.make_graph(self.nodes, "large", given, made, self.constants)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def _row(net: _Writer, nodes: int) -> list[str]:
    """Element-wise nodes in a row: x -> tanh(a x + b) -> ... with a around 2."""
    last = "x"
    for _ in range(nodes // 3):
        scaled = net("Mul", last, net.weight(mean=2.0))
        last = net("Tanh", net("Add", scaled, net.weight()))
    return [last]


def _beside(net: _Writer, nodes: int) -> list[str]:
    """Element-wise nodes side by side, all outputs of the network."""
    return [net("Mul", "x", net.weight(_COLUMNS)) for _ in range(nodes)]


def _concat(net: _Writer, nodes: int) -> list[str]:
    """Element-wise nodes side by side, into one Concat."""
    return [net("Concat", *_beside(net, nodes), axis=1)]


def _sum(net: _Writer, nodes: int) -> list[str]:
    """Element-wise nodes side by side, into one Sum."""
    return [net("Sum", *_beside(net, nodes))]


def _split(net: _Writer, nodes: int) -> list[str]:
    """One Split into as many parts, an element-wise node for each, one Concat."""
    net.shape = (_ROWS, nodes)
    parts = net("Split", "x", outputs=nodes, axis=1)
    return [net("Concat", *(net("Tanh", f"{parts}_{i}") for i in range(nodes)), axis=1)]


def _residual(net: _Writer, nodes: int) -> list[str]:
    """Residual blocks of four element-wise nodes: x + tanh(a x + b)."""
    last = "x"
    for _ in range(nodes // 4):
        scaled = net("Mul", last, net.weight(_COLUMNS))
        last = net("Add", last, net("Tanh", net("Add", scaled, net.weight(_COLUMNS))))
    return [last]


def _dense(net: _Writer, nodes: int) -> list[str]:
    """Residual blocks of five nodes with a product of matrices: x + tanh(x W + b) / 2."""
    last = "x"
    for _ in range(nodes // 5):
        made = net("Add", net("MatMul", last, net.weight(_COLUMNS, _COLUMNS)), net.weight(_COLUMNS))
        last = net("Add", last, net("Mul", net("Tanh", made), net.weight()))
    return [last]


def _conv(net: _Writer, nodes: int) -> list[str]:
    """Blocks of seven nodes: two convolutions side by side, joined, reduced, and added."""
    net.shape = (1, _COLUMNS, 6, 6)
    last = "x"
    for _ in range(nodes // 7):
        sides = [net("Relu", _conv2d(net, last, _COLUMNS, k)) for k in (1, 3)]
        reduced = _conv2d(net, net("Concat", *sides, axis=1), 2 * _COLUMNS, 1)
        last = net("Add", last, reduced)
    return [last]


def _conv2d(net: _Writer, value: str, channels: int, kernel: int) -> str:
    weight = net.weight(_COLUMNS, channels, kernel, kernel, scale=0.1)
    return net("Conv", value, weight, pads=[kernel // 2] * 4)


SHAPES: dict[str, Callable[[_Writer, int], list[str]]] = {
    make.__name__.removeprefix("_"): make
    for make in (_row, _beside, _concat, _sum, _split, _residual, _dense, _conv)
}
"""By name, what writes such a network into a model and gives its outputs."""


def write_model(path: Path, shape: str, nodes: int) -> Path:
    """An ONNX file of a network of that shape, of about so many nodes."""
    net = _Writer()
    outputs = SHAPES[shape](net, nodes)
    net.save(path, outputs)
    return path


def stages(path: Path, folder: Path, device: str) -> Iterator[tuple[str, object]]:
    """Each stage's name and result, once it is over; `import` includes the graph passes."""
    graph = optimise(load_file(path))
    yield "import", len(graph.nodes)
    network = extract(graph)
    yield "extract", len(network.tasks)
    opened = open_device(device)
    plan = build_plan(network, {}, opened.spec, model_key="large", notes={})
    yield "compile", len(plan.launches)
    write_bundle(plan, folder / "module")
    yield "write", len(plan.kernels)
    module = Module.load(folder / "module", opened)
    yield "load", module.form
    feeds = module.random_inputs()
    found = module.run(feeds)
    yield "run", None
    yield "deviation", _deviation(found, open_peer("onnxruntime", path)(feeds))


def _deviation(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> float:
    return max(
        float(np.abs(found[name] - want).max() / max(np.ptp(want), 1e-30))
        for name, want in wanted.items()
    )


def _seconds() -> float:
    """Of processor time, of this process and of those that it waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


def child(path: Path, folder: Path, device: str) -> None:
    """Prints a line of JSON after each stage."""
    start = _seconds()
    for name, result in stages(path, folder, device):
        seconds = _seconds() - start
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([name, result, seconds, peak_mib]), flush=True)
        start = _seconds()


def measure(
    path: Path, folder: Path, device: str, limit: float
) -> Iterator[tuple[str, object, float, float]]:
    """Name, result, seconds and peak MiB of each stage that ended within the limit."""
    command = [sys.executable, "-m", "benchmarks.large_graphs", "--child", str(path), str(folder)]
    environment = {**os.environ, "POCL_CACHE_DIR": str(folder / "pocl")}
    command += ["--device", device]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (int(limit), int(limit)))
        assert process.stdout is not None
        for line in process.stdout:
            yield tuple(json.loads(line))


def main() -> None:
    """Prints a row for each shape."""
    parser = parser_of(__doc__)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--limit", type=float, default=600, help="seconds of processor time")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), Path(options.child[1]), options.device)
        return
    for shape in options.shapes or SHAPES:
        with TemporaryDirectory() as name:
            path = write_model(Path(name) / "model.onnx", shape, options.nodes)
            rows = list(measure(path, Path(name), options.device, options.limit))
        print(f"{shape:9} {options.nodes} nodes: {', '.join(_told(rows))}", flush=True)


def _told(rows: Sequence[tuple[str, object, float, float]]) -> list[str]:
    seconds = sum(taken for name, _, taken, _ in rows if name != "deviation")
    peak = max((mib for *_, mib in rows), default=0.0)
    results = ["" if result is None else f" ({result})" for _, result, *_ in rows]
    parts = (f"{row[0]} {row[2]:.1f}{result}" for row, result in zip(rows, results, strict=True))
    return [f"{seconds:.1f} s", f"{peak:.0f} MiB", *parts]


if __name__ == "__main__":
    main()
