"""Pipelines as scikit-learn's exporter writes them; skl2onnx is not a dependency of retune."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.proto.labels import with_numbers
from tests.support.peer import peer_outputs

pytestmark = pytest.mark.slow

skl2onnx: Any = pytest.importorskip("skl2onnx", reason="pip install skl2onnx: the exporter")


def part(name: str) -> Any:
    """A module of scikit-learn, which comes with skl2onnx."""
    return pytest.importorskip(f"sklearn.{name}")


cluster, datasets, decomposition, ensemble = map(
    part, ("cluster", "datasets", "decomposition", "ensemble")
)
linear_model, mixture, naive_bayes, neighbors = map(
    part, ("linear_model", "mixture", "naive_bayes", "neighbors")
)
neural_network, preprocessing, svm, tree = map(
    part, ("neural_network", "preprocessing", "svm", "tree")
)
make_pipeline = part("pipeline").make_pipeline

X, Y = datasets.load_iris(return_X_y=True)
X = X.astype(np.float32)
NAMES = datasets.load_iris().target_names[Y]

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: linear_model.LogisticRegression(max_iter=500),
    "random forest": lambda: ensemble.RandomForestClassifier(20, random_state=0),
    "gradient boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=10),
    "ada boost": lambda: ensemble.AdaBoostClassifier(n_estimators=5),
    "support vectors": svm.SVC,
    "chances of support vectors": lambda: svm.SVC(probability=True, random_state=0),
    "multi-layer perceptron": lambda: neural_network.MLPClassifier((8,), max_iter=100),
    "naive Bayes": naive_bayes.GaussianNB,
    "neighbours": lambda: neighbors.KNeighborsClassifier(3),
    "principal components": lambda: make_pipeline(
        decomposition.PCA(2), linear_model.LogisticRegression()
    ),
    "bins": lambda: make_pipeline(
        preprocessing.KBinsDiscretizer(4, encode="onehot-dense"), linear_model.LogisticRegression()
    ),
    "votes": lambda: ensemble.VotingClassifier(
        [("a", tree.DecisionTreeClassifier(max_depth=3)), ("b", naive_bayes.GaussianNB())],
        voting="soft",
        flatten_transform=False,
    ),
    "stacks": lambda: ensemble.StackingClassifier(
        [("a", tree.DecisionTreeClassifier(max_depth=3)), ("b", naive_bayes.GaussianNB())],
        final_estimator=linear_model.LogisticRegression(),
    ),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "clusters": lambda: cluster.KMeans(3, n_init=2, random_state=0),
    "mixture": lambda: mixture.GaussianMixture(3, random_state=0),
    "outliers": lambda: ensemble.IsolationForest(n_estimators=10, random_state=0),
    "components": lambda: decomposition.PCA(2),
}


def assert_as_onnxruntime(model: onnx.ModelProto) -> None:
    """Nothing is left to the host, and outputs are those of onnxruntime."""
    rows = X[::5]
    numbers = with_numbers(model).model
    name = model.graph.input[0].name
    expected = peer_outputs(numbers, {name: rows})
    graph = optimise(import_model(model, {name: rows.shape}))
    assert not [node for node in graph.nodes if node.op == "host"]
    found = run_graph(graph, {name: rows})
    for output, array in expected.items():
        assert found[output].dtype == array.dtype
        np.testing.assert_allclose(found[output], array, rtol=1e-4, atol=1e-5, err_msg=output)


@pytest.mark.parametrize("zipmap", [False, True])
@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classifiers(kind: str, names: bool, zipmap: bool) -> None:
    last = CLASSIFIERS[kind]()
    pipeline = make_pipeline(preprocessing.StandardScaler(), last).fit(X, NAMES if names else Y)
    options = {} if zipmap else {id(pipeline): {"zipmap": False}}
    assert_as_onnxruntime(skl2onnx.to_onnx(pipeline, X[:1], options=options, target_opset=18))


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models(kind: str) -> None:
    pipeline = OTHERS[kind]().fit(X)
    assert_as_onnxruntime(skl2onnx.to_onnx(pipeline, X[:1], target_opset={"": 18, "ai.onnx.ml": 3}))
