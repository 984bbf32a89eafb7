"""Resize, Upsample and Pad mean what onnxruntime computes, alone and between convolutions."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops.resizing import COORDINATES, CROP, Method, ResizedAxis, taps
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.import_semantics import assert_as_onnxruntime, rand
from tests.support.networks import model, node

SHAPE = (1, 2, 5, 7)


def resize(
    *,
    scales: Any = None,
    sizes: Any = None,
    roi: Any = None,
    opset: int = 19,
    shape: tuple[int, ...] = SHAPE,
    convolved: bool = False,
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one Resize, or of one between two convolutions."""
    weights = {
        "roi": np.asarray([] if roi is None else roi, np.float32),
        "scales": np.asarray([] if scales is None else scales, np.float32),
    }
    if sizes is not None:
        weights["sizes"] = np.asarray(sizes, np.int64)
    nodes = [node("Resize", ["x", *weights], ["y"], **attrs)]
    if convolved:
        nodes = [
            node("Conv", ["x", "w"], ["a"]),
            node("Resize", ["a", *weights], ["b"], **attrs),
            node("Conv", ["b", "v"], ["y"]),
        ]
        weights |= {"w": rand(3, shape[1], 1, 1, seed=1), "v": rand(2, 3, 1, 1, seed=2)}
    return model(nodes, {"x": shape}, weights=weights, opset=opset)


NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
PLAIN = [mode for mode in COORDINATES if mode not in (CROP, "tf_half_pixel_for_nn")]


SCALED = [
    (mode, scales)
    for mode in PLAIN
    for scales in ((2, 3), (0.6, 0.6), (1.7, 0.5), (1, 2.5))
    # Where the scaled extent is a fraction, onnxruntime's symmetric coordinates are rounded
    # differently, which decides between two elements.
    if mode != "half_pixel_symmetric" or scales == (2, 3)
]


@pytest.mark.parametrize("rounding", NEAREST)
@pytest.mark.parametrize(("mode", "scales"), SCALED)
def test_nearest_by_scales(mode, scales, rounding):
    attrs = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    assert_as_onnxruntime(resize(scales=(1, 1, *scales), **attrs), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("sizes", [(10, 7), (4, 3), (8, 5), (5, 1), (11, 14)])
@pytest.mark.parametrize("rounding", NEAREST)
@pytest.mark.parametrize("mode", PLAIN)
def test_nearest_to_sizes(mode, rounding, sizes):
    attrs = {"coordinate_transformation_mode": mode, "nearest_mode": rounding}
    assert_as_onnxruntime(resize(sizes=(1, 2, *sizes), **attrs), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("sizes", [(10, 14), (4, 3), (8, 5), (5, 1), (1, 20)])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
@pytest.mark.parametrize("mode", PLAIN)
def test_between_elements(mode, interpolation, sizes):
    attrs = {"coordinate_transformation_mode": mode, "mode": interpolation}
    assert_as_onnxruntime(resize(sizes=(1, 2, *sizes), **attrs), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("scales", [(1.5, 1.5), (0.7, 2.3), (0.2, 0.3), (1.5, 3)])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
@pytest.mark.parametrize("mode", PLAIN)
def test_between_elements_by_scales_of_a_fraction(mode, interpolation, scales):
    """The corners that are aligned are those of the result, whose extent is a whole number."""
    attrs = {"coordinate_transformation_mode": mode, "mode": interpolation}
    assert_as_onnxruntime(resize(scales=(1, 1, *scales), **attrs), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("scales", [(2, 2), (0.8, 0.4), (1.5, 3)])
@pytest.mark.parametrize(("a", "exclude"), [(-0.75, 0), (-0.75, 1), (-0.5, 0), (-0.5, 1)])
def test_cubic_filters(a, exclude, scales):
    attrs = {"cubic_coeff_a": a, "exclude_outside": exclude, "mode": "cubic"}
    assert_as_onnxruntime(resize(scales=(1, 1, *scales), **attrs), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.5, 0.25), (0.4, 2)])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode, exclude, scales):
    attrs = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    shape = (1, 2, 12, 16)
    made = resize(scales=(1, 1, *scales), shape=shape, **attrs)
    assert_as_onnxruntime(made, {"x": rand(*shape)})


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("region", [(0.4, 0.6, 0.6, 0.8), (-0.2, 0.3, 1.1, 0.7), (0, 0, 1, 1)])
def test_crops_show_a_stated_value_outside(mode, region):
    top, left, bottom, right = region
    roi = [0, 0, top, left, 1, 1, bottom, right]
    attrs = {"coordinate_transformation_mode": CROP, "extrapolation_value": 3.5, "mode": mode}
    made = resize(roi=roi, sizes=(1, 2, 6, 4), **attrs)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2]])
def test_some_axes_by_a_policy(axes, policy):
    attrs = {"axes": axes, "keep_aspect_ratio_policy": policy, "mode": "linear"}
    assert_as_onnxruntime(resize(sizes=[9, 10], **attrs), {"x": rand(*SHAPE)})


def test_an_axis_from_the_end():
    assert_as_onnxruntime(resize(sizes=[9], axes=[-1], mode="linear"), {"x": rand(*SHAPE)})


def test_half_pixel_symmetric_by_a_fraction():
    attrs = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "linear"}
    shape = (1, 1, 1, 4)
    made = import_model(resize(scales=(1, 1, 2.3, 2.94), shape=shape, **attrs))
    x = np.array([[[[1.0, 2.0, 3.0, 4.0]]]], np.float32)
    first = run_graph(made, {"x": x})["y"][0, 0, 0]
    middle = (first[0] + first[-1]) / 2
    np.testing.assert_allclose(middle, 2.5, atol=1e-5)


LARGER, SMALLER = [(2, 3), (1.3, 2)], [(0.6, 1.5), (0.5, 0.5)]
FIRST_VERSIONS = [
    *(("Upsample", opset, scales) for opset in (7, 9) for scales in LARGER),
    *(("Resize", 10, scales) for scales in LARGER + SMALLER),
]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("op", "opset", "scales"), FIRST_VERSIONS)
def test_the_first_versions(op, opset, scales, mode):
    whole = np.asarray((1, 1, *scales), np.float32)
    attrs: dict[str, Any] = {"mode": mode}
    weights = {} if opset == 7 else {"scales": whole}
    if opset == 7:
        attrs["scales"] = whole.tolist()
    nodes = [node(op, ["x", *weights], ["y"], **attrs)]
    made = model(nodes, {"x": SHAPE}, weights=weights, opset=opset)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        *(("nearest", shape) for shape in ((4,), (3, 6), (2, 3, 5), (1, 2, 3, 4, 5))),
        *(("linear", shape) for shape in ((3, 6), (2, 3, 5), (1, 2, 3, 4, 5))),
    ],
)
def test_any_number_of_dimensions(mode, shape):
    sizes = (*shape[:-1], 2 * shape[-1])
    assert_as_onnxruntime(resize(sizes=sizes, shape=shape, mode=mode), {"x": rand(*shape)})


def test_volumes_between_elements():
    shape = (1, 2, 3, 4, 5)
    assert_as_onnxruntime(
        resize(sizes=(1, 2, 6, 5, 9), shape=shape, mode="linear"), {"x": rand(*shape)}
    )


FLOORS = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
FORMS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"scales": (1, 1, 2, 2)}, {"repeat": 1}),
    ({"scales": (1, 1, 3, 1), **FLOORS}, {"repeat": 1}),
    ({"sizes": (1, 3, 3, 7), **FLOORS}, {"gather": 1}),
    ({"scales": (1, 1, 1.6, 1.2)}, {"gather": 2}),
    ({"scales": (1, 1, 2, 2), "mode": "linear"}, {"resample": 1}),
    ({"scales": (1, 1, 2, 2), "mode": "cubic"}, {"resample": 2}),
    ({"scales": (1, 1, 0.5, 0.5), "mode": "linear", "antialias": 1}, {"resample": 2}),
    ({"sizes": (1, 3, 5, 7), "mode": "linear"}, {}),
]


@pytest.mark.parametrize(("form", "expected"), FORMS)
def test_no_transposes_remain_between_convolutions(form, expected):
    made = resize(**form, convolved=True)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})
    graph = optimise(import_model(made), "NHWC")
    found = Counter(n.op for n in graph.nodes)
    assert found == Counter({"conv2d": 2, "transpose": 2, **expected})
    assert graph.nodes[0].op == graph.nodes[-1].op == "transpose"


def test_every_second_element_is_a_slice():
    graph = import_model(resize(sizes=(1, 2, 5, 3), shape=(1, 2, 10, 6), nearest_mode="floor"))
    assert [n.op for n in graph.nodes] == ["slice", "identity"]


def test_integers_are_rounded_and_stay_in_range():
    made = resize(sizes=(1, 1, 1, 7), shape=(1, 1, 1, 4), mode="cubic")
    made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    x = np.array([[[[0, 255, 255, 0]]]], np.uint8)
    found = run_graph(import_model(made), {"x": x})["y"]
    assert found.dtype == np.uint8
    assert found[0, 0, 0, 3] == 255
    assert found[0, 0, 0, 0] == 0


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("form", COORDINATES)
@pytest.mark.parametrize("made", [1, 3, 7, 20])
def test_weights_of_an_element_add_up_to_one(mode, form, made):
    axis = ResizedAxis(extent=7, made=made, scale=made / 7, whole=made, start=0.25, end=0.75)
    for antialias in (False, True):
        found = taps(axis, Method(mode=mode, coordinates=form, antialias=antialias))
        np.testing.assert_allclose(found.weights.sum(axis=1), 1)
        assert found.indices.min() >= 0
        assert found.indices.max() < 7


def test_a_third_as_float32_still_divides():
    """The scale 1 / 3 is stored as 0.33333334: element i is still element 3 * i."""
    axis = ResizedAxis(extent=30, made=10, scale=float(np.float32(1 / 3)), whole=10.0)
    found = taps(axis, Method(coordinates="asymmetric", rounding="floor"))
    assert found.picks is not None
    np.testing.assert_array_equal(found.picks, 3 * np.arange(10))


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"scales": (1, 1, 2)}, "3 scales for 4 axes"),
    ({"sizes": (1, 2, 3)}, "3 sizes for 4 axes"),
    ({}, "neither scales nor sizes"),
    ({"scales": (1, 1, 0, 1)}, "the scale of axis 2 is 0.0; expected a positive"),
    ({"scales": (1, 1, 0.1, 1)}, "axis 2 of 5 elements"),
    ({"scales": (1,) * 4, "mode": "area"}, "mode 'area' is not known"),
    ({"scales": (1,) * 4, "nearest_mode": "up"}, "nearest_mode 'up' is not known"),
    (
        {"scales": (1,) * 4, "coordinate_transformation_mode": "mid"},
        "coordinate_transformation_mode 'mid' is not known",
    ),
    ({"scales": (1,) * 4, "coordinate_transformation_mode": CROP}, "without a region of interest"),
    ({"sizes": SHAPE, "keep_aspect_ratio_policy": "fit"}, "keep_aspect_ratio_policy 'fit'"),
]


@pytest.mark.parametrize(("form", "message"), ERRORS)
def test_a_resize_that_makes_no_sense_is_named(form, message):
    with pytest.raises(ModelError, match=message):
        import_model(resize(**form))


# -- padding --------------------------------------------------------------------------------------


def pad(pads: list[int], shape: tuple[int, ...], *, opset: int = 19, **attrs: Any):
    """A model of one Pad, with a value where the mode takes one."""
    if opset < 11:
        return model([node("Pad", ["x"], ["y"], pads=pads, **attrs)], {"x": shape}, opset=opset)
    weights = {"pads": np.asarray(pads, np.int64)}
    return model(
        [node("Pad", ["x", *weights], ["y"], **attrs)], {"x": shape}, weights=weights, opset=opset
    )


PADS = [
    [0, 0, 1, 2, 0, 0, 2, 0],
    [0, 0, 4, 6, 0, 0, 4, 6],
    [0, 1, 0, 3, 0, 1, 2, 0],
    [0, 0, -1, 2, 0, 0, 1, -2],
    [0, 0, -1, 0, 0, 0, 0, -3],
]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding(mode, pads):
    assert_as_onnxruntime(pad(pads, SHAPE, mode=mode), {"x": rand(*SHAPE)})


@pytest.mark.parametrize("opset", [7, 10, 11, 13, 18, 21])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_padding_in_every_version(mode, opset):
    made = pad([0, 0, 1, 2, 0, 0, 3, 1], SHAPE, mode=mode, opset=opset)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(("low", "high"), [(9, 2), (5, 13), (0, 4)])
def test_padding_by_more_than_there_is(mode, low, high):
    made = pad([0, low, 0, high], (2, 3), mode=mode)
    x = rand(2, 3)
    expected = np.pad(x, [(0, 0), (low, high)], mode=mode)
    np.testing.assert_array_equal(run_graph(import_model(made), {"x": x})["y"], expected)


def test_padding_of_some_axes():
    weights = {
        "pads": np.array([1, 2, 0, 1]),
        "value": np.asarray(0.5, np.float32),
        "axes": np.array([3, -2]),
    }
    made = model([node("Pad", ["x", *weights], ["y"])], {"x": SHAPE}, weights=weights, opset=18)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_padding_between_convolutions_needs_no_transposes(mode):
    weights = {
        "w": rand(3, 2, 1, 1, seed=1),
        "v": rand(2, 3, 3, 3, seed=2),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    nodes = [
        node("Conv", ["x", "w"], ["a"]),
        node("Pad", ["a", "pads"], ["b"], mode=mode),
        node("Conv", ["b", "v"], ["y"]),
    ]
    made = model(nodes, {"x": SHAPE}, weights=weights, opset=19)
    assert_as_onnxruntime(made, {"x": rand(*SHAPE)})
    graph = optimise(import_model(made), "NHWC")
    assert [n.op for n in graph.nodes] == ["transpose", "conv2d", "extend", "conv2d", "transpose"]


def test_rows_are_padded_and_resized_as_the_layers_beside_them():
    weights = {
        "w": rand(4, 3, 3, seed=1),
        "v": rand(2, 4, 3, seed=2),
        "pads": np.array([0, 0, 1, 0, 0, 1]),
        "roi": np.zeros(0, np.float32),
        "scales": np.asarray((1, 1, 2), np.float32),
    }
    nodes = [
        node("Pad", ["x", "pads"], ["a"]),
        node("Conv", ["a", "w"], ["b"]),
        node("Resize", ["b", "roi", "scales"], ["c"], mode="linear"),
        node("Pad", ["c", "pads"], ["d"], mode="reflect"),
        node("Conv", ["d", "v"], ["y"]),
    ]
    made = model(nodes, {"x": (1, 3, 8)}, weights=weights, opset=19)
    assert_as_onnxruntime(made, {"x": rand(1, 3, 8)})
    ops = [n.op for n in optimise(import_model(made), "NHWC").nodes if n.op != "reshape"]
    assert ops == ["transpose", "conv2d", "resample", "extend", "conv2d", "transpose"]


@pytest.mark.parametrize(
    ("weights", "attrs", "message"),
    [
        ({"p": np.array([1, 1])}, {"mode": "mirror"}, "mode 'mirror' is not known"),
        ({"p": np.array([1, 1, 1])}, {}, "3 pads for 1 axes; expected two for each axis"),
    ],
)
def test_padding_that_makes_no_sense_is_named(weights, attrs, message):
    made = model([node("Pad", ["x", "p"], ["y"], **attrs)], {"x": (4,)}, weights=weights)
    with pytest.raises(ModelError, match=message):
        import_model(made)
