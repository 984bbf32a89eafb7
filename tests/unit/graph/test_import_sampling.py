"""Values at any points of an image mean what onnxruntime computes."""

from typing import Any

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.import_semantics import assert_as_onnxruntime, rand
from tests.support.networks import model, node


def grid(*shape: int) -> np.ndarray:
    """Points inside of the image and around it."""
    return np.random.default_rng(3).uniform(-1.8, 1.8, shape).astype(np.float32)


MODES = ("linear", "nearest", "cubic")
OUTSIDE = ("zeros", "border", "reflection")


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("mode", MODES)
def test_a_grid_over_an_image(mode, outside, corners):
    attrs = {"mode": mode, "padding_mode": outside, "align_corners": corners}
    inputs = {"x": rand(2, 3, 5, 4), "grid": grid(2, 6, 7, 2)}
    shapes = {name: array.shape for name, array in inputs.items()}
    made = model([node("GridSample", ["x", "grid"], ["y"], **attrs)], shapes, opset=20)
    assert_as_onnxruntime(made, inputs)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_grid_over_a_volume(mode, outside, corners):
    attrs = {"mode": mode, "padding_mode": outside, "align_corners": corners}
    inputs = {"x": rand(1, 2, 3, 5, 4), "grid": grid(1, 2, 3, 4, 3)}
    shapes = {name: array.shape for name, array in inputs.items()}
    made = model([node("GridSample", ["x", "grid"], ["y"], **attrs)], shapes, opset=20)
    assert_as_onnxruntime(made, inputs)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_grid_in_the_first_version(mode):
    inputs = {"x": rand(1, 2, 5, 4), "grid": grid(1, 3, 3, 2)}
    shapes = {name: array.shape for name, array in inputs.items()}
    made = model([node("GridSample", ["x", "grid"], ["y"], mode=mode)], shapes, opset=16)
    assert_as_onnxruntime(made, inputs)


def test_a_known_grid_leaves_one_op():
    weights = {"grid": grid(1, 3, 3, 2)}
    made = model(
        [node("GridSample", ["x", "grid"], ["y"])], {"x": (1, 2, 5, 4)}, weights=weights, opset=20
    )
    assert_as_onnxruntime(made, {"x": rand(1, 2, 5, 4)})
    graph = optimise(import_model(made))
    assert [n.op for n in graph.nodes if n.op != "reshape"] == ["sample"]


def test_an_image_of_a_single_row_is_reflected_onto_itself():
    attrs: dict[str, Any] = {"padding_mode": "reflection", "align_corners": 1}
    inputs = {"x": rand(1, 1, 1, 4), "grid": grid(1, 3, 3, 2)}
    shapes = {name: array.shape for name, array in inputs.items()}
    made = import_model(
        model([node("GridSample", ["x", "grid"], ["y"], **attrs)], shapes, opset=20)
    )
    flat = inputs["grid"].copy()
    flat[..., 1] = 0
    expected = run_graph(made, {**inputs, "grid": flat})["y"]
    np.testing.assert_allclose(run_graph(made, inputs)["y"], expected)


def regions(count: int = 4) -> dict[str, np.ndarray]:
    """Boxes in and around an image of 10 x 12, and the image that each is of."""
    rng = np.random.default_rng(5)
    start = rng.uniform(-2, 8, (count, 2))
    boxes = np.concatenate([start, start + rng.uniform(0.2, 9, (count, 2))], axis=1)
    return {"rois": boxes.astype(np.float32), "images": rng.integers(0, 2, count)}


def aligned(known: bool, *, opset: int = 16, **attrs: Any):
    """A model of one RoiAlign, and its inputs."""
    weights = regions()
    inputs = {"x": rand(2, 3, 10, 12)}
    if not known:
        inputs["rois"] = weights.pop("rois")
    shapes = {name: array.shape for name, array in inputs.items()}
    nodes = [node("RoiAlign", ["x", "rois", "images"], ["y"], **attrs)]
    return model(nodes, shapes, weights=weights, opset=opset), inputs


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("form", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 2, 3])
@pytest.mark.parametrize("known", [False, True])
def test_regions_with_a_number_of_samples(known, ratio, form, mode):
    made, inputs = aligned(
        known,
        mode=mode,
        sampling_ratio=ratio,
        coordinate_transformation_mode=form,
        output_height=3,
        output_width=2,
        spatial_scale=0.8,
    )
    assert_as_onnxruntime(made, inputs)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("form", ["half_pixel", "output_half_pixel"])
def test_known_regions_with_as_many_samples_as_they_need(form, mode):
    attrs = {"mode": mode, "coordinate_transformation_mode": form}
    assert_as_onnxruntime(*aligned(known=True, output_height=2, output_width=3, **attrs))


def test_regions_in_the_first_version():
    assert_as_onnxruntime(*aligned(True, opset=10, output_height=2, output_width=2))


@pytest.mark.parametrize("cells", [(1, 1), (2, 3), (7, 7)])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_maxima_of_regions(known, cells, scale):
    boxes = regions(6)
    rois = np.concatenate([boxes["images"][:, None], 1.7 * boxes["rois"]], 1).astype(np.float32)
    inputs = {"x": rand(2, 3, 10, 12)} | ({} if known else {"rois": rois})
    shapes = {name: array.shape for name, array in inputs.items()}
    attrs = {"pooled_shape": list(cells), "spatial_scale": scale}
    nodes = [node("MaxRoiPool", ["x", "rois"], ["y"], **attrs)]
    weights = {"rois": rois} if known else {}
    assert_as_onnxruntime(model(nodes, shapes, weights=weights), inputs)


DEFORMED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 6, 5), (3, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 4, 6, 5), (4, 2, 3, 3), {"group": 2, "offset_group": 2, "strides": [2, 1]}),
    ((1, 4, 7, 7), (2, 4, 2, 3), {"dilations": [2, 2], "pads": [0, 1, 2, 1]}),
    ((1, 4, 6, 5), (4, 1, 3, 3), {"group": 4, "offset_group": 4, "pads": [1, 1, 1, 1]}),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "attrs"), DEFORMED)
def test_deformable_convolution(shape, kernel, attrs, masked):
    strides, dilations = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    pads, parts = attrs.get("pads", [0] * 4), attrs.get("offset_group", 1)
    counts = [
        (shape[2 + d] + pads[d] + pads[d + 2] - (kernel[2 + d] - 1) * dilations[d] - 1)
        // strides[d]
        + 1
        for d in range(2)
    ]
    taps = kernel[2] * kernel[3]
    inputs = {
        "x": rand(*shape),
        "offset": 2 * rand(shape[0], parts * taps * 2, *counts, seed=1),
        "mask": rand(shape[0], parts * taps, *counts, seed=2),
    }
    weights = {"w": rand(*kernel, seed=3), "b": rand(kernel[0], seed=4)}
    names = ["x", "w", "offset", "b", *(["mask"] if masked else [])]
    inputs = {name: inputs[name] for name in names if name in inputs}
    shapes = {name: array.shape for name, array in inputs.items()}
    made = model([node("DeformConv", names, ["y"], **attrs)], shapes, weights=weights, opset=19)
    assert_as_onnxruntime(made, inputs)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("GridSample", [(1, 2, 5, 4), (1, 3, 3, 3)], {}, "expected 2 coordinates in 1 grids"),
        ("GridSample", [(1, 2, 5, 4), (1, 3, 3, 2)], {"mode": "area"}, "got 'area' with 'zeros'"),
        (
            "DeformConv",
            [(1, 2, 5, 5), (3, 2, 2, 2), (1, 7, 4, 4)],
            {},
            r"expected offsets \[1, 8, 4, 4\]",
        ),
    ],
)
def test_what_makes_no_sense_is_named(op, shapes, attrs, message):
    names = [f"x{i}" for i in range(len(shapes))]
    made = model([node(op, names, ["y"], **attrs)], dict(zip(names, shapes, strict=True)), opset=20)
    with pytest.raises(ModelError, match=message):
        import_model(made)


def test_computed_regions_with_as_many_samples_as_they_need_are_a_host_step():
    made, inputs = aligned(known=False, output_height=2, output_width=2)
    assert_as_onnxruntime(made, inputs)
    assert [n.op for n in import_model(made).nodes] == ["host"]
