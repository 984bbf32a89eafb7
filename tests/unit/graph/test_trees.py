"""Tree ensembles give what onnxruntime gives."""

from typing import Any

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from tests.support.ml_models import ml_model, rows_of, trees
from tests.support.peer import assert_as_peer, assert_computes, peer_outputs
from tests.support.sampling import one_of_each

MODES = [f"BRANCH_{mode}" for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")]
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def weights(
    rng: np.random.Generator,
    leaves: list[tuple[int, int]],
    targets: list[list[int]],
    what: str,
    low: float = -1.0,
) -> dict[str, Any]:
    """Weights of each leaf, for the targets of its tree (by turns)."""
    rows = [(t, n, target) for t, n in leaves for target in targets[t % len(targets)]]
    return {
        f"{what}_treeids": [row[0] for row in rows],
        f"{what}_nodeids": [row[1] for row in rows],
        f"{what}_ids": [row[2] for row in rows],
        f"{what}_weights": rng.uniform(low, 1, len(rows)).astype(np.float32).tolist(),
    }


@pytest.mark.parametrize("mode", [*MODES, "all"])
@pytest.mark.parametrize("missing", [False, True])
def test_every_comparison(mode: str, missing: bool) -> None:
    rng = np.random.default_rng(len(mode) + missing)
    modes = MODES if mode == "all" else [mode]
    attrs, leaves = trees(rng, 7, 4, modes=modes, missing=missing)
    inputs = {"x": rows_of(rng, 40, 4, nan=missing)}
    attrs |= weights(rng, leaves, [[0]], "target")
    assert_as_peer(ml_model("TreeEnsembleRegressor", inputs, n_targets=1, **attrs), inputs)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [[[0]], [[0, 1, 2]], [[0], [1], [2]], [[0], [1, 2], [2]]])
@pytest.mark.parametrize("base", [False, True])
def test_regressors(aggregate: str, targets: list[list[int]], base: bool) -> None:
    rng = np.random.default_rng(5)
    count = len({target for several in targets for target in several})
    attrs, leaves = trees(rng, 6, 5)
    attrs |= weights(rng, leaves, targets, "target")
    if base:
        attrs["base_values"] = [0.5, -0.25, 0.125][:count]
    inputs = {"x": rows_of(rng, 12, 5)}
    made = ml_model(
        "TreeEnsembleRegressor", inputs, n_targets=count, aggregate_function=aggregate, **attrs
    )
    assert_as_peer(made, inputs)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("count", [1, 3])
def test_transforms_of_regressors(transform: str, count: int) -> None:
    rng = np.random.default_rng(6)
    attrs, leaves = trees(rng, 3, 5)
    attrs |= weights(rng, leaves, [list(range(count))], "target", low=0.0)
    attrs["target_weights"] = [w / 3 for w in attrs["target_weights"]]
    inputs = {"x": rows_of(rng, 12, 5)}
    made = ml_model(
        "TreeEnsembleRegressor", inputs, n_targets=count, post_transform=transform, **attrs
    )
    assert_as_peer(made, inputs, 3e-5)


TWO = {"first": [[0]], "second": [[1]], "both": [[0, 1]]}
BASED = {f"{name}, {bases} bases": (name, bases) for name in TWO for bases in range(3)}
MANY = {
    "all": [[0, 1, 2]],
    "by turns": [[0], [1], [2]],
    "two of three": [[0], [2]],
    "some": [[0, 1], [2], [1, 2]],
}
"""The classes that have weights in the leaves of each tree."""


@pytest.mark.parametrize(("case", "transform"), one_of_each(BASED, TRANSFORMS[:4]))
@pytest.mark.parametrize("low", [0.0, -1.0])
def test_two_classes(case: str, transform: str, low: float) -> None:
    targets, bases = TWO[BASED[case][0]], BASED[case][1]
    rng = np.random.default_rng(7)
    attrs, leaves = trees(rng, 4, 5)
    attrs |= weights(rng, leaves, targets, "class", low)
    if bases:
        attrs["base_values"] = [0.125, 0.375][:bases]
    inputs = {"x": rows_of(rng, 12, 5)}
    made = ml_model(
        "TreeEnsembleClassifier", inputs, ("label", "scores"), classlabels_int64s=[10, 20],
        post_transform=transform, **attrs,
    )  # fmt: skip
    assert_as_peer(made, inputs)


@pytest.mark.parametrize(("case", "transform"), one_of_each(MANY, TRANSFORMS[:4]))
@pytest.mark.parametrize("base", [False, True])
def test_many_classes(case: str, transform: str, base: bool) -> None:
    targets = MANY[case]
    rng = np.random.default_rng(8)
    attrs, leaves = trees(rng, 6, 5)
    attrs |= weights(rng, leaves, targets, "class")
    if base:
        attrs["base_values"] = [0.5, -0.25, 0.125]
    inputs = {"x": rows_of(rng, 24, 5)}
    made = ml_model(
        "TreeEnsembleClassifier", inputs, ("label", "scores"), classlabels_int64s=[7, 5, 9],
        post_transform=transform, **attrs,
    )  # fmt: skip
    assert_as_peer(made, inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_types_of_data(dtype: str) -> None:
    """Of float64 data, limits that are tensors are compared in float64."""
    rng = np.random.default_rng(9)
    attrs, leaves = trees(rng, 6, 5)
    attrs |= weights(rng, leaves, [[0, 1, 2]], "class")
    if dtype == "float64":
        wide = np.asarray(attrs.pop("nodes_values")) + 1e-12
        attrs["nodes_values_as_tensor"] = onnx_tensor(wide)
        attrs["class_weights_as_tensor"] = onnx_tensor(np.asarray(attrs.pop("class_weights")))
    inputs = {"x": (rows_of(rng, 24, 5) * 2).astype(dtype)}
    made = ml_model(
        "TreeEnsembleClassifier", inputs, ("label", "scores"), classlabels_int64s=[0, 1, 2], **attrs
    )
    assert_as_peer(made, inputs)


def onnx_tensor(array: np.ndarray) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(array)


@pytest.mark.parametrize("aggregate", range(4))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trees_of_opset_5(aggregate: int, dtype: str) -> None:
    """With a set of members, leaves of their own, and a leaf that two nodes lead to."""
    rng = np.random.default_rng(10)
    attrs: dict[str, Any] = {
        "nodes_modes": onnx_tensor(np.array([0, 6, 1, 4, 6], np.uint8)),
        "nodes_featureids": [0, 1, 2, 0, 1],
        "nodes_splits": onnx_tensor(np.array([0.25, 0, 0.5, 1.0, 0], dtype)),
        "nodes_truenodeids": [1, 0, 1, 2, 4],
        "nodes_falsenodeids": [2, 3, 4, 5, 0],
        "nodes_trueleafs": [0, 1, 1, 1, 1],
        "nodes_falseleafs": [0, 1, 1, 1, 1],
        "nodes_missing_value_tracks_true": [0, 1, 0, 0, 0],
        "membership_values": onnx_tensor(np.array([2, 3, 5, np.nan, 1, np.nan], dtype)),
        "leaf_targetids": [0, 1, 0, 1, 1, 0],
        "leaf_weights": onnx_tensor(rng.standard_normal(6).astype(dtype)),
        "tree_roots": [0, 3, 4],
        "n_targets": 2,
        "aggregate_function": aggregate,
    }
    inputs = {"x": (rows_of(rng, 40, 3, nan=True) * 4).astype(dtype)}
    assert_as_peer(ml_model("TreeEnsemble", inputs, version=5, **attrs), inputs)


@pytest.mark.parametrize("depth", [7, 10])
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trees_of_many_leaves(depth: int, rows: int, dtype: str) -> None:
    """Up to 1,024 leaves, of which some are compared with all nodes and some are walked."""
    rng = np.random.default_rng(depth)
    attrs, leaves = trees(rng, 5, 6, depth=depth, modes=MODES[:4], missing=True)
    attrs |= weights(rng, leaves, [[0]], "target")
    if dtype == "float64":
        attrs["nodes_values_as_tensor"] = onnx_tensor(np.asarray(attrs.pop("nodes_values")))
        wide = onnx_tensor(np.asarray(attrs.pop("target_weights"), np.float64))
        attrs["target_weights_as_tensor"] = wide
    inputs = {"x": rows_of(rng, rows, 6, nan=True).astype(dtype)}
    inputs["x"][0] = [0.0, -0.0, np.inf, -np.inf, 1e-42, -1e-42]
    assert_as_peer(ml_model("TreeEnsembleRegressor", inputs, n_targets=1, **attrs), inputs)


def test_a_row_alone() -> None:
    """onnxruntime wants two dimensions."""
    rng = np.random.default_rng(11)
    attrs, leaves = trees(rng, 3, 5)
    attrs |= weights(rng, leaves, [[0]], "target")
    row = rows_of(rng, 1, 5)
    expected = peer_outputs(
        ml_model("TreeEnsembleRegressor", {"x": row}, n_targets=1, **attrs), {"x": row}
    )
    made = ml_model("TreeEnsembleRegressor", {"x": row[0]}, **attrs)
    assert_computes(made, {"x": row[0]}, expected)


def test_a_tree_that_is_a_leaf() -> None:
    attrs: dict[str, Any] = {
        "nodes_treeids": [0], "nodes_nodeids": [0], "nodes_modes": ["LEAF"],
        "nodes_featureids": [0], "nodes_values": [0.0], "nodes_truenodeids": [0],
        "nodes_falsenodeids": [0], "target_ids": [0], "target_nodeids": [0],
        "target_treeids": [0], "target_weights": [2.5],
    }  # fmt: skip
    inputs = {"x": np.zeros((3, 2), np.float32)}
    made = ml_model("TreeEnsembleRegressor", inputs, n_targets=1, **attrs)
    assert_computes(made, inputs, {"y": np.full((3, 1), 2.5, np.float32)})


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"nodes_modes": ["BRANCH_IS", "LEAF", "LEAF"]}, "nodes_modes: expected BRANCH_LEQ"),
    ({"nodes_truenodeids": [5, 0, 0]}, "not in the tree"),
    ({"nodes_falsenodeids": [0, 0, 0]}, "leads back"),
    ({"nodes_featureids": [9, 0, 0]}, "the trees read 10"),
    ({"target_ids": [0, 4]}, "expected numbers below 1"),
    ({"nodes_nodeids": [0, 1, 1]}, "one number"),
    ({"aggregate_function": "MEDIAN"}, "expected one of"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_trees_are_refused(change: dict[str, Any], message: str) -> None:
    attrs: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0], "target_ids": [0, 0], "target_nodeids": [1, 2],
        "target_treeids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1,
    }  # fmt: skip
    made = ml_model(
        "TreeEnsembleRegressor", {"x": np.zeros((3, 2), np.float32)}, **(attrs | change)
    )
    with pytest.raises(ModelError, match=message):
        import_model(made)
