"""A detector with a second stage behind its suppression: our calls against onnxruntime's, in turns.

    python -m benchmarks.two_stage
    python -m benchmarks.two_stage --image 320 --proposals 300 --seconds 5

Convolutions make boxes and scores, NonMaxSuppression keeps some of the boxes, and dense layers see
the features of each box that is kept (RoiAlign). Weights are random, schedules are default ones.
The first line says what runs on the host, the next ones the times of the steps, and the last one
the times of a call and their ratio; below 1 is faster.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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

ANCHORS = (24.0, 48.0, 96.0)
"""Extents of the boxes of each cell, in pixels."""
CELLS = 7
"""Of a box along height and width."""
CLASSES = 20
WIDTHS = (32, 64, 128, 256)
_SHOWN = 12


class _Writer:
    """An ONNX graph as it grows; a call adds a node and gives its output's name."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def floats(self, values: Any) -> str:
        return self.constant(np.asarray(values, np.float32))

    def weight(self, *shape: int) -> str:
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        return self.floats(scale * self.rng.standard_normal(shape))

    def conv(self, x: str, depth: int, made: int, kernel: int = 3, stride: int = 1) -> str:
        bias = self.floats(0.1 * self.rng.standard_normal(made))
        sides = {"pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self("Conv", x, self.weight(made, depth, kernel, kernel), bias, **sides)

    def dense(self, x: str, depth: int, made: int) -> str:
        bias = self.floats(0.1 * self.rng.standard_normal(made))
        return self("Gemm", x, self.weight(made, depth), bias, transB=1)


def detector(image: int, widths: Sequence[int], proposals: int, hidden: int) -> onnx.ModelProto:
    """The detector for square images; each of the `widths` halves the features' extents."""
    net = _Writer()
    features = "image"
    for depth, made in zip((3, *widths), widths, strict=False):
        features = net("Relu", net.conv(features, depth, made, stride=2))
    stride, cells = 2 ** len(widths), image >> len(widths)
    boxes, scores = _proposed(net, features, widths[-1], cells, stride)
    kept = net("NonMaxSuppression", boxes, scores, net.ints(proposals), net.floats(0.5), "least")
    chosen = net("Squeeze", net("Slice", kept, net.ints(2), net.ints(3), net.ints(1)), net.ints(1))
    images = net("Squeeze", net("Slice", kept, net.ints(0), net.ints(1), net.ints(1)), net.ints(1))
    rois = net("Gather", net("Squeeze", boxes, net.ints(0)), chosen, axis=0)
    rows = net("Gather", rois, net.ints(1, 0, 3, 2), axis=1)  # x before y
    sides = {"output_height": CELLS, "output_width": CELLS, "sampling_ratio": 2}
    cut = net("RoiAlign", features, rows, images, spatial_scale=1 / stride, **sides)
    seen = net("Flatten", cut, axis=1)
    seen = net("Relu", net.dense(seen, widths[-1] * CELLS**2, hidden))
    seen = net("Relu", net.dense(seen, hidden, hidden))
    classes = net("Softmax", net.dense(seen, hidden, CLASSES), axis=1)
    moved = net("Add", rows, net.dense(seen, hidden, 4))
    net.stored.append(numpy_helper.from_array(np.full(1, 0.6, np.float32), "least"))
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        net.nodes,
        "two_stage",
        [helper.make_tensor_value_info("image", floats, [1, 3, image, image])],
        [
            helper.make_tensor_value_info(classes, floats, ["kept", CLASSES]),
            helper.make_tensor_value_info(moved, floats, ["kept", 4]),
        ],
        net.stored,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _proposed(net: _Writer, features: str, depth: int, cells: int, stride: int) -> tuple[str, str]:
    """Boxes [1, boxes, 4] as corners, y first, and their scores [1, 1, boxes]."""
    count = len(ANCHORS)
    seen = net("Relu", net.conv(features, depth, depth))
    scores = net("Sigmoid", net.conv(seen, depth, count, 1))
    scores = net("Reshape", net("Transpose", scores, perm=[0, 2, 3, 1]), net.ints(1, 1, -1))
    moves = net("Transpose", net.conv(seen, depth, 4 * count, 1), perm=[0, 2, 3, 1])
    moves = net("Tanh", net("Reshape", moves, net.ints(1, -1, 4)))
    places = (np.mgrid[:cells, :cells] + 0.5) * stride
    centers = np.repeat(places.reshape(2, -1).T, count, axis=0)
    halves = np.tile(np.asarray(ANCHORS) / 2, cells * cells)[:, None]
    shift, growth = (
        net("Slice", moves, net.ints(at), net.ints(at + 2), net.ints(2)) for at in (0, 2)
    )
    middle = net("Add", net("Mul", shift, net.floats(halves[None])), net.floats(centers[None]))
    half = net("Mul", net("Exp", growth), net.floats(halves[None]))
    corners = (net("Sub", middle, half), net("Add", middle, half))
    return net("Concat", *corners, axis=2), scores


def compare(path: Path, seconds: float) -> None:
    """Prints the lines. Raises: AssertionError where the two differ."""
    device = open_device("pocl")
    network = import_network(path).network
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    peer = open_peer("onnxruntime", path)
    with lease(device.spec):
        module = Module(best_form(plan, device), device)
        feeds = module.random_inputs()
        found, expected = module.run(feeds), peer(feeds)
        for name, array in expected.items():
            assert found[name].shape == array.shape, f"{found[name].shape}, not {array.shape}"
            np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-3)
        kept = len(next(iter(found.values())))
        print(f"on the host: {'; '.join(network.host_steps)}; {kept} boxes are kept")
        for step in sorted(module.profile(inputs=feeds), key=lambda step: -step.median_s)[:_SHOWN]:
            print(f"{1e6 * step.median_s:9.1f} us  {step.share:6.1%}  {step.label} ({step.kernel})")
        calls = {"bundle": lambda: module.run(feeds), "onnxruntime": lambda: peer(feeds)}
        timings = compare_times(calls, options=BenchOptions(budget_s=seconds)).timings
    ours, theirs = (1e3 * timing.median_s for timing in timings)
    print(f"{ours:.3f} / {theirs:.3f} ms = {ours / theirs:.2f}, load {os.getloadavg()[0]:.1f}")


def main() -> None:
    """Times the detector in turns with onnxruntime."""
    parser = parser_of(__doc__)
    parser.add_argument("--image", type=int, default=256)
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "two_stage.onnx"
        onnx.save(detector(given.image, WIDTHS, given.proposals, given.hidden), path)
        compare(path, given.seconds)


if __name__ == "__main__":
    main()
