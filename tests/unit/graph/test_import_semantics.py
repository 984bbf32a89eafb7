"""Imported ops mean what onnxruntime computes, forms of every attribute included."""

from typing import Any

import numpy as np
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.fuse import partition
from retune.graph.passes.pipeline import optimise
from tests.support.import_semantics import assert_as_onnxruntime, rand
from tests.support.networks import model, node

CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 17, 13), (5, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 16, 13), (5, 3, 4, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((2, 3, 9, 9), (5, 3, 3, 3), {"auto_pad": "VALID"}),
    ((1, 6, 9, 9), (4, 3, 3, 3), {"group": 2, "pads": [0, 1, 2, 3]}),
    ((1, 6, 9, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4}),
    ((1, 3, 17, 19), (67, 3, 1, 3), {"pads": [0, 1, 0, 1]}),
    ((3, 17, 11, 7), (5, 17, 3, 1), {"dilations": [2, 1], "pads": [2, 0, 2, 0]}),
    ((2, 3, 11), (4, 3, 3), {"strides": [2], "pads": [1, 0]}),
    ((2, 4, 11), (4, 1, 3), {"group": 4}),
    ((1, 2, 5, 6, 7), (4, 1, 3, 2, 1), {"group": 2, "pads": [1, 0, 0, 1, 1, 0]}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "attrs"), CONVOLUTIONS)
def test_convolution(shape, kernel, attrs, bias):
    weights = {"w": rand(*kernel, seed=1)}
    if bias:
        weights["b"] = rand(kernel[0], seed=2)
    made = model([node("Conv", ["x", *weights], ["y"], **attrs)], {"x": shape}, weights=weights)
    assert_as_onnxruntime(made, {"x": rand(*shape)})


def test_layers_along_one_dimension_fuse_as_images_do():
    """Residual layers, a pool, and branches side by side, as exporters write them."""
    made = model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1]),
            node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
            node("Relu", ["n"], ["r"]),
            node("Conv", ["r", "w2"], ["c"], pads=[2, 2], dilations=[2]),
            node("Mul", ["c", "rows"], ["d"]),
            node("Add", ["d", "r"], ["e"]),
            node("MaxPool", ["e"], ["p"], kernel_shape=[2], strides=[2]),
            node("Conv", ["p", "w2"], ["q"], pads=[1, 1]),
            node("Concat", ["p", "q"], ["j"], axis=1),
            node("LeakyRelu", ["j"], ["k"]),
            node("GlobalAveragePool", ["k"], ["y"]),
        ],
        {"x": (2, 5, 12)},
        weights={
            "w": rand(6, 5, 3, seed=1),
            "w2": rand(6, 6, 3, seed=2),
            "rows": rand(6, 1, seed=3),
            **{name: rand(6, seed=i) for i, name in enumerate("sbm", 4)},
            "v": np.abs(rand(6, seed=7)) + 1,
        },
    )
    assert_as_onnxruntime(made, {"x": rand(2, 5, 12)})
    groups = partition(optimise(import_model(made), "NHWC"))
    assert ["conv2d", "add", "relu"] in [[n.op for n in group.nodes] for group in groups]


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    (
        (1, 3, 9, 8),
        {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 0, 1, 1]},
    ),
    (
        (1, 3, 7, 7),
        {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
    ),
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 9, 8), {"kernel_shape": [2, 4], "auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    ((1, 3, 9, 8), {"kernel_shape": [3, 3], "pads": [0, 1, 2, 1]}),
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
    ((1, 3, 7, 7), {"kernel_shape": [7, 7]}),
]


@pytest.mark.parametrize(("shape", "attrs"), POOLS)
@pytest.mark.parametrize("form", ["max", "average", "average with pads"])
def test_pooling(shape, attrs, form):
    attrs = attrs | ({"count_include_pad": 1} if form == "average with pads" else {})
    op = "MaxPool" if form == "max" else "AveragePool"
    made = model([node(op, ["x"], ["y"], **attrs)], {"x": shape}, opset=19)
    assert_as_onnxruntime(made, {"x": rand(*shape)})


def test_dilated_max_pool():
    attrs = {"kernel_shape": [3, 2], "dilations": [2, 3], "pads": [1, 1, 1, 1]}
    made = model([node("MaxPool", ["x"], ["y"], **attrs)], {"x": (1, 2, 9, 9)})
    assert_as_onnxruntime(made, {"x": rand(1, 2, 9, 9)})


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (5,), (3, 1), (1, 5), (3, 5)])
def test_gemm(trans_a, trans_b, bias):
    weights = {"b": rand(*((5, 4) if trans_b else (4, 5)))}
    if bias is not None:
        weights["c"] = rand(*bias, seed=3)
    attrs = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    shape = (4, 3) if trans_a else (3, 4)
    made = model([node("Gemm", ["a", *weights], ["y"], **attrs)], {"a": shape}, weights=weights)
    assert_as_onnxruntime(made, {"a": rand(*shape)})


def test_gemm_of_two_activations():
    nodes = [node("Gemm", ["a", "b"], ["y"], alpha=0.25)]
    inputs = {"a": rand(3, 4), "b": rand(4, 5, seed=1)}
    assert_as_onnxruntime(model(nodes, {n: a.shape for n, a in inputs.items()}), inputs)


MATRICES = (
    *(((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2))),
    *(((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))),
)


@pytest.mark.parametrize(("a", "b"), MATRICES)
@pytest.mark.parametrize("constant", [False, True])
def test_matmul(a, b, constant):
    right = rand(*b, seed=1)
    given = {"x": rand(*a)} | ({} if constant else {"w": right})
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        {name: array.shape for name, array in given.items()},
        weights={"w": right} if constant else {},
    )
    assert_as_onnxruntime(made, given)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("opset", [9, 11, 13])
def test_softmax_before_and_after_opset_13(op, axis, opset):
    made = model([node(op, ["x"], ["y"], axis=axis)], {"x": (2, 3, 4)}, opset=opset)
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4)})


@pytest.mark.parametrize("shape", [[0, -1], [2, 0, 2, 2], [-1], [0, 0, 4, 1]])
def test_reshape_with_zero_and_rest(shape):
    weights = {"s": np.array(shape, np.int64)}
    made = model([node("Reshape", ["x", "s"], ["y"])], {"x": (2, 3, 4)}, weights=weights)
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4)})


def test_clip_by_attributes_and_by_inputs():
    old = model([node("Clip", ["x"], ["y"], min=-0.5, max=0.5)], {"x": (9,)}, opset=9)
    assert_as_onnxruntime(old, {"x": rand(9)})
    for inputs in (["x", "lo", "hi"], ["x", "lo"], ["x", "", "hi"], ["x"]):
        weights = {"lo": np.float32(-0.25), "hi": np.float32(0.5)}
        weights = {name: np.asarray(weights[name]) for name in inputs[1:] if name}
        made = model([node("Clip", inputs, ["y"])], {"x": (9,)}, weights=weights)
        assert_as_onnxruntime(made, {"x": rand(9)})


def test_lrn_with_an_even_size():
    """By the text of the specification: onnxruntime refuses even sizes."""
    attrs = {"size": 4, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    made = model([node("LRN", ["x"], ["y"], **attrs)], {"x": (1, 7, 3, 3)})
    x = rand(1, 7, 3, 3)
    squares = [(x[:, max(0, c - 1) : min(7, c + 3)] ** 2).sum(axis=1) for c in range(7)]
    expected = x / (1.5 + 0.5 / 4 * np.stack(squares, axis=1)) ** 0.6
    np.testing.assert_allclose(run_graph(import_model(made), {"x": x})["y"], expected, rtol=1e-5)


def test_same_padding_counts_the_dilation():
    attrs = {"dilations": [2, 3], "auto_pad": "SAME_UPPER"}
    weights = {"w": rand(4, 3, 3, 3)}
    made = model([node("Conv", ["x", "w"], ["y"], **attrs)], {"x": (1, 3, 9, 9)}, weights=weights)
    (found,) = run_graph(import_model(made), {"x": rand(1, 3, 9, 9)}).values()
    explicit = {"dilations": [2, 3], "pads": [2, 3, 2, 3]}
    same = model(
        [node("Conv", ["x", "w"], ["y"], **explicit)], {"x": (1, 3, 9, 9)}, weights=weights
    )
    (expected,) = run_graph(import_model(same), {"x": rand(1, 3, 9, 9)}).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_lrn(size):
    attrs = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    made = model([node("LRN", ["x"], ["y"], **attrs)], {"x": (1, 7, 3, 3)})
    assert_as_onnxruntime(made, {"x": rand(1, 7, 3, 3)})


def test_batch_norm_of_images_and_of_rows():
    weights = {n: rand(3, seed=i) for i, n in enumerate("sbm")} | {"v": np.ones(3, np.float32) * 2}
    for shape in ((2, 3, 4, 4), (4, 3)):
        attrs = {"epsilon": 0.01}
        nodes = [node("BatchNormalization", ["x", *weights], ["y"], **attrs)]
        assert_as_onnxruntime(model(nodes, {"x": shape}, weights=weights), {"x": rand(*shape)})


def test_dropout_in_both_forms():
    old = model([node("Dropout", ["x"], ["y"], ratio=0.5)], {"x": (4,)}, opset=9)
    assert_as_onnxruntime(old, {"x": rand(4)})
    new = model([node("Dropout", ["x"], ["d"]), node("Relu", ["d"], ["y"])], {"x": (4,)})
    assert_as_onnxruntime(new, {"x": rand(4)})


def test_a_shape_computed_from_a_tensor_is_folded():
    """x.view(x.size(0), -1), as exporters write it."""
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Shape", ["r"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "axes"], ["first"]),
        node("Concat", ["first", "rest"], ["target"], axis=0),
        node("Reshape", ["r", "target"], ["y"]),
    ]
    weights = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    made = model(nodes, {"x": ("n", 3, 4, 5)}, weights=weights)
    graph = import_model(made, {"x": (2, 3, 4, 5)})
    assert [n.op for n in graph.nodes] == ["relu", "reshape"]
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4, 5)})


def test_pads_slices_and_splits():
    weights = {
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]),
        "value": np.asarray(0.5, np.float32),
        "starts": np.array([-1, 1]),
        "ends": np.array([-100, 7]),
        "axes": np.array([2, 3]),
        "steps": np.array([-2, 2]),
        "parts": np.array([1, 2]),
    }
    nodes = [
        node("Pad", ["x", "pads", "value"], ["p"]),
        node("Slice", ["p", "starts", "ends", "axes", "steps"], ["s"]),
        node("Split", ["s", "parts"], ["y", "z"], axis=1),
    ]
    made = model(nodes, {"x": (1, 3, 6, 7)}, outputs=("y", "z"), weights=weights)
    assert_as_onnxruntime(made, {"x": rand(1, 3, 6, 7)})


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize(("axes", "keep"), [((1,), 1), ((2, 3), 0), ((-1,), 0), ((1, 2, 3), 0)])
def test_reductions_after_a_convolution(op, axes, keep):
    weights = {"w": rand(5, 3, 1, 1)}
    last: dict[str, Any] = {"keepdims": keep}
    inputs = ["c"]
    if op == "ReduceSum":
        weights["axes"] = np.array(axes)
        inputs.append("axes")
    else:
        last["axes"] = list(axes)
    nodes = [node("Conv", ["x", "w"], ["c"]), node(op, inputs, ["y"], **last)]
    assert_as_onnxruntime(
        model(nodes, {"x": (2, 3, 4, 5)}, weights=weights), {"x": rand(2, 3, 4, 5)}
    )


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("keep", [0, 1])
def test_what_is_found_along_an_axis_after_a_convolution(axis, keep):
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("CumSum", ["c", "axis"], ["s"]),
        node("ArgMax", ["s"], ["a"], axis=axis, keepdims=keep),
        node("Cast", ["a"], ["y"], to=1),
        node("TopK", ["s", "count"], ["z", "rest"], axis=axis),
    ]
    weights = {"w": rand(5, 3, 1, 1), "axis": np.array(axis), "count": np.array([2])}
    made = model(nodes, {"x": (2, 3, 4, 5)}, outputs=("y", "z"), weights=weights)
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4, 5)})


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1), (4, 5), (2, 3, 4, 5), (1, 3, 1, 5)])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_broadcasting_with_an_image_after_a_convolution(op, shape):
    weights = {"w": rand(3, 3, 1, 1), "c": rand(*shape) + 3}
    for inputs in (["r", "c"], ["c", "r"]):
        nodes = [
            node("Conv", ["x", "w"], ["r"]),
            node(op, inputs, ["m"]),
            node("Relu", ["m"], ["y"]),
        ]
        made = model(nodes, {"x": (2, 3, 4, 5)}, weights=weights)
        assert_as_onnxruntime(made, {"x": rand(2, 3, 4, 5)})


def test_depth_and_space():
    for mode in ("DCR", "CRD"):
        nodes = [node("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)]
        assert_as_onnxruntime(model(nodes, {"x": (1, 8, 3, 2)}), {"x": rand(1, 8, 3, 2)})
    nodes = [node("SpaceToDepth", ["x"], ["y"], blocksize=2)]
    assert_as_onnxruntime(model(nodes, {"x": (1, 2, 4, 6)}), {"x": rand(1, 2, 4, 6)})


def test_tile_expand_and_gather():
    weights = {
        "repeats": np.array([1, 2, 3]),
        "shape": np.array([2, 1, 1, 1]),
        "picked": np.array([[2, -1], [0, 0]]),
    }
    nodes = [
        node("Tile", ["x", "repeats"], ["t"]),
        node("Expand", ["t", "shape"], ["e"]),
        node("Gather", ["e", "picked"], ["y"], axis=2),
    ]
    made = model(nodes, {"x": (1, 3, 2)}, weights=weights)
    assert_as_onnxruntime(made, {"x": rand(1, 3, 2)})


def test_many_inputs():
    for op in ("Sum", "Mean", "Min", "Max"):
        for count in (1, 2, 3):
            names = [f"x{i}" for i in range(count)]
            made = model([node(op, names, ["y"])], dict.fromkeys(names, (2, 3)))
            assert_as_onnxruntime(made, {n: rand(2, 3, seed=i) for i, n in enumerate(names)})
