"""Trees and support vectors through generated kernels, by default schedules."""

from typing import Any

import numpy as np
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.external.on_device import compile_graph
from tests.support.ml_models import ml_model, rows_of, trees

pytestmark = pytest.mark.device

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_EQ")
ROWS = [1, pytest.param(300, marks=pytest.mark.slow)]
CASES = [
    {"missing": True, "depth": 5},
    pytest.param({"depth": 9}, marks=pytest.mark.slow),
    pytest.param({"modes": MODES, "missing": True}, marks=pytest.mark.slow),
    pytest.param({"depth": 14, "modes": MODES}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", CASES)
def test_classes_by_trees(shape: dict[str, Any], rows: int) -> None:
    """Each leaf is found exactly; only the order of the sums may differ."""
    rng = np.random.default_rng(rows)
    attrs, leaves = trees(rng, 12, 6, **shape)
    ids = [(tree, node, tree % 3) for tree, node in leaves]
    for name, column in zip(("treeids", "nodeids", "ids"), zip(*ids, strict=True), strict=True):
        attrs[f"class_{name}"] = list(column)
    attrs["class_weights"] = rng.uniform(0, 1, len(ids)).tolist()
    inputs = {"x": rows_of(rng, rows, 6, nan="missing" in shape)}
    made = ml_model(
        "TreeEnsembleClassifier", inputs, ("label", "scores"), classlabels_int64s=[3, 1, 2],
        post_transform="SOFTMAX", **attrs,
    )  # fmt: skip
    graph = import_model(made)
    assert not any(node.op == "host" for node in graph.nodes)
    found = compile_graph(graph).run(inputs)
    expected = run_graph(graph, inputs)
    np.testing.assert_array_equal(found["label"], expected["label"])
    np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-6)


RNG = np.random.default_rng(42)


def floats(*shape: int) -> list[float]:
    return RNG.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


OPERATORS: dict[str, dict[str, Any]] = {
    "Scaler": {"scale": floats(4), "offset": floats(4)},
    "Normalizer": {"norm": "L2"},
    "Imputer": {"imputed_value_floats": floats(4), "replaced_value_float": 0.25},
    "OneHotEncoder": {"cats_int64s": [1, -1, 0]},
    "LabelEncoder": {"keys_floats": [0.5, -0.25], "values_floats": [7.0, 8.0]},
    "LinearRegressor": {"coefficients": floats(2, 4), "targets": 2, "post_transform": "PROBIT"},
    "SVMRegressor": {
        "kernel_type": "RBF", "kernel_params": [0.25, 0.0, 0.0], "coefficients": floats(6),
        "support_vectors": floats(6, 4), "n_supports": 6, "rho": [0.25],
    },
    "SVMClassifier": {
        "kernel_type": "POLY", "kernel_params": [0.25, 0.5, 2.0], "classlabels_ints": [4, 2, 7],
        "vectors_per_class": [2, 3, 2], "coefficients": floats(2, 7),
        "support_vectors": floats(7, 4), "rho": floats(3), "prob_a": [-1.0, -0.5, -2.0],
        "prob_b": floats(3),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: str) -> None:
    inputs = {"x": (RNG.integers(-4, 5, (9, 4)) / 4).astype(np.float32)}
    outputs = ("label", "scores") if "Classifier" in op else ("y",)
    graph = import_model(ml_model(op, inputs, outputs, version=2, **OPERATORS[op]))
    found = compile_graph(graph).run(inputs)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)
