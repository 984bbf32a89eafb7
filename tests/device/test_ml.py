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
