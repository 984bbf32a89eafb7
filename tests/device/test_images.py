"""Operators of images between convolutions: generated kernels agree with onnxruntime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.bundle.verify.compare import compare
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import Layout
from tests.external.on_device import compile_graph
from tests.support.networks import model, node, normal
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")
CHANNELS = 16
SCALES = {"roi": np.zeros(0, np.float32), "scales": np.asarray((1, 1, 2, 2), np.float32)}
SMALLER = {**SCALES, "scales": np.asarray((1, 1, 0.4, 0.5), np.float32)}
ODD = {**SCALES, "scales": np.asarray((1, 1, 1.6, 1.3), np.float32)}
PADS = {"pads": np.array([0, 0, 2, 1, 0, 0, 1, 3])}
CROP = {
    "roi": np.asarray((0, 0, -0.2, 0.1, 1, 1, 0.9, 1.2), np.float32),
    "scales": np.zeros(0, np.float32),
    "sizes": np.array([1, CHANNELS, 8, 7]),
}


def kernel(*shape: int) -> dict[str, np.ndarray]:
    """A weight, as a node's second input."""
    return {"kernel": normal(np.random.default_rng(7), *shape)}


def grid(*shape: int) -> dict[str, np.ndarray]:
    """Points in an image and around it."""
    points = np.random.default_rng(8).uniform(-1.4, 1.4, shape)
    return {"grid": points.astype(np.float32)}


FLOOR = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
BESIDE = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES: dict[str, tuple[str, dict[str, np.ndarray], dict[str, Any]]] = {
    "repeated": ("Resize", SCALES, FLOOR),
    "picked": ("Resize", ODD, {}),
    "bilinear": ("Resize", SCALES, {"mode": "linear"}),
    "bicubic": ("Resize", ODD, {"mode": "cubic"}),
    "antialiased": ("Resize", SMALLER, {"mode": "cubic", "antialias": 1}),
    "cropped": (
        "Resize",
        CROP,
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 2.0,
        },
    ),
    "reflected": ("Pad", PADS, {"mode": "reflect"}),
    "edges": ("Pad", PADS, {"mode": "edge"}),
    "wrapped": ("Pad", PADS, {"mode": "wrap"}),
    "transposed": ("ConvTranspose", kernel(CHANNELS, 12, 4, 4), BESIDE),
    "transposed by 2x2": ("ConvTranspose", kernel(CHANNELS, 12, 2, 2), {"strides": [2, 2]}),
    "transposed by 3x3": (
        "ConvTranspose",
        kernel(CHANNELS, 12, 3, 3),
        BESIDE | {"output_padding": [1, 1]},
    ),
    "transposed, no stride": ("ConvTranspose", kernel(CHANNELS, 5, 3, 3), {"pads": [1] * 4}),
    "transposed in groups": (
        "ConvTranspose",
        kernel(CHANNELS, 4, 3, 3),
        BESIDE | {"group": 4, "output_padding": [1, 1]},
    ),
    "transposed by channel": (
        "ConvTranspose",
        kernel(CHANNELS, 1, 4, 4),
        BESIDE | {"group": CHANNELS},
    ),
    "unpacked": ("DepthToSpace", {}, {"blocksize": 2}),
    "unpacked by channel": ("DepthToSpace", {}, {"blocksize": 2, "mode": "CRD"}),
    "sampled": ("GridSample", grid(1, 7, 5, 2), {"mode": "linear"}),
    "sampled by many": ("GridSample", grid(1, 7, 5, 2), {"mode": "cubic"}),
    "norms": ("LpPool", {}, {"kernel_shape": [3, 3], "strides": [2, 2], "p": 3}),
}


def between(name: str) -> onnx.ModelProto:
    """The case's node between two convolutions, with a bias and a rectifier after it."""
    op, tables, attrs = CASES[name]
    rng = np.random.default_rng(3)
    weights = {"first": normal(rng, CHANNELS, 3, 3, 3)}
    nodes = [
        node("Conv", ["x", "first"], ["a"], pads=[1] * 4),
        node(op, ["a", *tables], ["b"], **attrs),
    ]
    shape = import_model(model(nodes, {"x": (1, 3, 11, 13)}, ["b"], {**tables, **weights}, 20))
    made = shape.types["b"].shape[1]
    weights |= {"bias": normal(rng, 1, made, 1, 1), "last": normal(rng, 8, made, 3, 3)}
    nodes += [
        node("Add", ["b", "bias"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Conv", ["d", "last"], ["y"], strides=[2, 2]),
    ]
    return model(nodes, {"x": (1, 3, 11, 13)}, ["y"], {**tables, **weights}, 20)


def assert_on_device(made: onnx.ModelProto, inputs: dict[str, np.ndarray], layout: Layout) -> None:
    """The network's outputs on PoCL are those of onnxruntime."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    expected = dict(zip(names, session.run(names, inputs), strict=True))
    found = compile_graph(import_model(made), layout).run(inputs)
    for name, array in expected.items():
        deviation = compare(name, found[name], array)
        assert deviation.max_rel_range < 1e-5, deviation


@pytest.mark.parametrize(("name", "layout"), one_of_each(CASES, LAYOUTS))
def test_between_convolutions(name: str, layout: Layout):
    x = normal(np.random.default_rng(4), 1, 3, 11, 13)
    assert_on_device(between(name), {"x": x}, layout)


@pytest.mark.parametrize(("layout", "window"), [("NHWC", 3), ("NCHW", 2)])
def test_positions_of_maxima(layout: Layout, window: int):
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("MaxPool", ["a"], ["y", "places"], kernel_shape=[window] * 2, **BESIDE),
    ]
    weights = {"w": np.round(normal(np.random.default_rng(1), 16, 1, 1, 1))}
    made = model(nodes, {"x": (2, 1, 9, 8)}, ["y", "places"], weights)
    made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    x = np.round(normal(np.random.default_rng(2), 2, 1, 9, 8))
    assert_on_device(made, {"x": x}, layout)


@pytest.mark.parametrize("outside", ["zeros", "border", "reflection"])
def test_a_grid_that_is_computed(outside: str):
    inputs = {"x": normal(np.random.default_rng(1), 2, 3, 6, 5), **grid(2, 4, 7, 2)}
    nodes = [node("GridSample", ["x", "grid"], ["y"], padding_mode=outside)]
    made = model(nodes, {name: array.shape for name, array in inputs.items()}, opset=20)
    assert_on_device(made, inputs, "NHWC")


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_that_are_computed(mode: str):
    rng = np.random.default_rng(6)
    start = rng.uniform(-1, 6, (5, 2))
    rois = np.concatenate([start, start + rng.uniform(1, 7, (5, 2))], axis=1)
    inputs = {"x": normal(rng, 2, 16, 9, 9), "rois": rois.astype(np.float32)}
    attrs = {"output_height": 3, "output_width": 3, "sampling_ratio": 2, "mode": mode}
    nodes = [node("RoiAlign", ["x", "rois", "images"], ["y"], **attrs)]
    weights = {"images": np.array([0, 1, 1, 0, 1])}
    shapes = {name: array.shape for name, array in inputs.items()}
    assert_on_device(model(nodes, shapes, weights=weights, opset=16), inputs, "NHWC")


def test_a_deformable_convolution():
    rng = np.random.default_rng(9)
    inputs = {"x": normal(rng, 1, 16, 8, 8), "offset": normal(rng, 1, 18, 8, 8)}
    nodes = [node("DeformConv", ["x", "w", "offset"], ["y"], pads=[1] * 4)]
    weights = {"w": normal(rng, 8, 16, 3, 3)}
    shapes = {name: array.shape for name, array in inputs.items()}
    assert_on_device(model(nodes, shapes, weights=weights, opset=19), inputs, "NHWC")


def test_volumes_are_resized_and_transposed():
    rng = np.random.default_rng(5)
    weights = {
        "roi": np.zeros(0, np.float32),
        "scales": np.asarray((1, 1, 2, 1.5, 2), np.float32),
        "w": normal(rng, 4, 3, 2, 2, 2),
    }
    nodes = [
        node("Resize", ["x", "roi", "scales"], ["a"], mode="linear"),
        node("ConvTranspose", ["a", "w"], ["y"], strides=[2, 1, 2]),
    ]
    made = model(nodes, {"x": (1, 4, 3, 4, 5)}, weights=weights, opset=19)
    assert_on_device(made, {"x": normal(rng, 1, 4, 3, 4, 5)}, "NHWC")
