"""Normalisations and activations of today's networks, each as few nodes as possible."""

from typing import Any

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.fuse import partition
from retune.graph.passes.pipeline import optimise
from tests.support.networks import node
from tests.support.peer import assert_as_peer, assert_computes, typed_model

RNG = np.random.default_rng(5)


def rand(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def standardised(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    spread = x.var(axes, keepdims=True) + epsilon
    return ((x - x.mean(axes, keepdims=True)) / np.sqrt(spread)).astype(np.float32)


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_layer_normalization(axis, bias):
    x = rand(2, 3, 4)
    weights = {"s": rand(*x.shape[axis:])} | ({"b": rand(*x.shape[axis:])} if bias else {})
    nodes = [node("LayerNormalization", ["x", *weights], ["y"], axis=axis, epsilon=1e-3)]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=17)
    assert_as_peer(made, {"x": x})
    assert len(import_model(made).nodes) == 2 + bias


def test_layer_normalization_gives_mean_and_deviation():
    x, weights = rand(2, 3, 4), {"s": rand(4)}
    nodes = [node("LayerNormalization", ["x", "s"], ["y", "mean", "inverse"])]
    made = typed_model(nodes, {"x": x}, ["y", "mean", "inverse"], weights, opset=17)
    assert_as_peer(made, {"x": x})


def test_layer_normalization_of_other_types_computes_in_the_stashed_type():
    x, weights = RNG.standard_normal((2, 6)), {"s": RNG.standard_normal(6)}
    nodes = [node("LayerNormalization", ["x", "s"], ["y"])]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=17)
    expected = standardised(x.astype(np.float32), (1,), 1e-5).astype(np.float64) * weights["s"]
    assert_computes(made, {"x": x}, {"y": expected})


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis):
    x = rand(2, 3, 4)
    weights = {"s": rand(*x.shape[axis:])}
    nodes = [node("RMSNormalization", ["x", "s"], ["y"], axis=axis, epsilon=1e-3)]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=23)
    axes = tuple(range(axis % 3, 3))
    scale = np.sqrt(np.square(x).mean(axes, keepdims=True) + np.float32(1e-3))
    assert_computes(made, {"x": x}, {"y": x / scale * weights["s"]})
    assert len(import_model(made).nodes) == 2


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 4), (1, 6, 2, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_scales_groups_and_since_opset_21_channels(shape, groups, opset):
    x, count = rand(*shape), groups if opset == 18 else shape[1]
    weights = {"s": rand(count), "b": rand(count)}
    nodes = [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=groups)]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset)
    parts = x.reshape(shape[0], groups, -1)
    normal = standardised(parts, (2,), 1e-5).reshape(shape[0], count, -1)
    scaled = normal * weights["s"][:, None] + weights["b"][:, None]
    assert_computes(made, {"x": x}, {"y": scaled.reshape(shape)})


def test_group_normalization_between_convolutions_moves_nothing():
    weights = {"w": rand(8, 3, 3, 3), "s": rand(8), "b": rand(8), "v": rand(4, 8, 1, 1)}
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("GroupNormalization", ["c", "s", "b"], ["n"], num_groups=2),
        node("Swish", ["n"], ["a"]),
        node("Conv", ["a", "v"], ["y"]),
    ]
    x = rand(1, 3, 9, 9)
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=24)
    groups = [[n.op for n in g.nodes] for g in partition(optimise(import_model(made), "NHWC"))]
    assert ["standardise", "multiply", "add", "swish"] in groups
    assert groups.count(["transpose"]) == 2  # the network's input and its output


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("plain", [True, False])
def test_group_norms_as_exporters_write_them(groups: int, plain: bool):
    """As an instance norm over rows of groups: with scale and shift of one and nought, or not."""
    gain, shift = np.ones(groups), np.zeros(groups)
    weights = {
        "w": rand(8, 3, 3, 3), "v": rand(4, 8, 1, 1), "rows": np.array([0, groups, -1]),
        "image": np.array([1, 8, 7, 7]), "s": rand(8, 1, 1), "b": rand(8, 1, 1),
        "g": (gain if plain else gain * 2).astype(np.float32), "h": shift.astype(np.float32),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Reshape", ["c", "rows"], ["r"]),
        node("InstanceNormalization", ["r", "g", "h"], ["n"], epsilon=1e-3),
        node("Reshape", ["n", "image"], ["i"]),
        node("Mul", ["i", "s"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Conv", ["a", "v"], ["y"]),
    ]
    x = rand(1, 3, 9, 9)
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=17)
    assert_as_peer(made, {"x": x})
    graph = optimise(import_model(made), "NHWC")
    (found,), (expected,) = (run_graph(g, {"x": x}).values() for g in (graph, import_model(made)))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    if plain:
        made_of = [[n.op for n in group.nodes] for group in partition(graph)]
        assert ["standardise", "multiply", "add"] in made_of
        assert made_of.count(["transpose"]) == 2  # the network's input and its output


def test_a_group_count_that_does_not_divide_the_channels_is_said():
    weights = {"s": rand(6), "b": rand(6)}
    nodes = [node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=4)]
    made = typed_model(nodes, {"x": rand(1, 6, 3)}, ["y"], weights, opset=21)
    with pytest.raises(ModelError, match="num_groups 4 for 6 channels"):
        import_model(made)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization_leaves_zeros_alone(order, axis):
    x = rand(3, 4)
    x[1], x[:, 2] = 0, 0
    nodes = [node("LpNormalization", ["x"], ["y"], p=order, axis=axis)]
    made = typed_model(nodes, {"x": x}, ["y"])
    norm = np.linalg.norm(x, order, axis, keepdims=True)
    assert_computes(made, {"x": x}, {"y": x / np.where(norm == 0, 1, norm)})


@pytest.mark.parametrize("opset", [7, 8])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3)])
def test_batch_normalization_by_position(opset, shape):
    x = rand(*shape)
    weights = {name: rand(*shape[1:]) for name in "sbm"} | {"v": np.abs(rand(*shape[1:])) + 1}
    nodes = [node("BatchNormalization", ["x", *weights], ["y"], spatial=0, epsilon=0.01)]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset)
    s, b, m, v = weights.values()
    assert_computes(made, {"x": x}, {"y": (x - m) / np.sqrt(v + np.float32(0.01)) * s + b})


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3)])
def test_batch_normalization_in_training_mode_moves_the_running_statistics(shape):
    x = rand(*shape)
    weights = {name: rand(3) for name in "sbm"} | {"v": np.abs(rand(3)) + 1}
    attrs: dict[str, Any] = {"training_mode": 1, "momentum": 0.75}
    nodes = [node("BatchNormalization", ["x", *weights], ["y", "m2", "v2"], **attrs)]
    made = typed_model(nodes, {"x": x}, ["y", "m2", "v2"], weights, opset=15)
    axes = tuple(d for d in range(len(shape)) if d != 1)
    sides = (3, *(1,) * (len(shape) - 2))
    y = standardised(x, axes, 1e-5) * weights["s"].reshape(sides) + weights["b"].reshape(sides)
    expected = {
        "y": y,
        "m2": weights["m"] * np.float32(0.75) + x.mean(axes) * np.float32(0.25),
        "v2": weights["v"] * np.float32(0.75) + x.var(axes) * np.float32(0.25),
    }
    assert_computes(made, {"x": x}, expected)


@pytest.mark.parametrize(
    ("op", "opset", "attrs"),
    [("Gelu", 20, {}), ("Gelu", 20, {"approximate": "tanh"}), ("Mish", 18, {}), ("Swish", 24, {})],
)
def test_activations_are_one_node(op, opset, attrs):
    x = np.concatenate([rand(50) * 3, np.array([-100, -20, 0, 20, 100], np.float32)])
    made = typed_model([node(op, ["x"], ["y"], **attrs)], {"x": x}, ["y"], opset=opset)
    assert len(import_model(made).nodes) == 1
    if op == "Swish":
        wide = x.astype(np.float64)
        assert_computes(made, {"x": x}, {"y": (wide / (1 + np.exp(-wide))).astype(np.float32)})
    else:
        assert_as_peer(made, {"x": x})


def test_an_unknown_approximation_is_said():
    nodes = [node("Gelu", ["x"], ["y"], approximate="cubic")]
    with pytest.raises(ModelError, match="approximate 'cubic'"):
        import_model(typed_model(nodes, {"x": rand(3)}, ["y"], opset=20))


def test_dropout_in_training_mode_with_a_ratio_of_zero_changes_nothing():
    x = rand(3, 4)
    weights = {"r": np.asarray(0, np.float32), "t": np.asarray(True)}
    nodes = [node("Dropout", ["x", "r", "t"], ["y", "mask"])]
    made = typed_model(nodes, {"x": x}, ["y", "mask"], weights)
    assert_computes(made, {"x": x}, {"y": x, "mask": np.ones((3, 4), bool)})
    weights["r"] = np.asarray(0.5, np.float32)
    with pytest.raises(ModelError, match="training mode"):
        import_model(typed_model(nodes, {"x": x}, ["y", "mask"], weights))
