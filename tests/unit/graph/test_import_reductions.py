"""Reductions, extremes, top elements and running sums mean what onnxruntime says."""

from typing import Any

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.ops import ranking
from retune.graph.evaluate import run_graph
from tests.support.one_node import assert_as_onnxruntime, imported

X = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + 0.5
OPS = (
    *("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [None, [1], [-1, 0]])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("opset", [7, 11, 13, 18])
def test_reductions_of_every_opset(op: str, axes: list[int] | None, keep: int, opset: int):
    inputs: dict[str, Any] = {"x": POSITIVE}
    attrs: dict[str, Any] = {"keepdims": keep}
    if axes is not None and opset >= (13 if op == "ReduceSum" else 18):
        inputs["axes"] = np.array(axes)
    elif axes is not None:
        attrs["axes"] = axes
    assert_as_onnxruntime(op, inputs, known=set(inputs) - {"x"}, opset=opset, **attrs)


@pytest.mark.parametrize("op", OPS)
def test_no_axes_at_all_leave_what_is_around_the_reduction(op: str):
    given = {"x": POSITIVE, "axes": np.zeros(0, np.int64)}
    graph = imported(op, given, known=["axes"], opset=18, noop_with_empty_axes=1)
    change = {"ReduceL2": np.abs, "ReduceLogSum": np.log, "ReduceSumSquare": np.square}
    (made,) = run_graph(graph, {"x": POSITIVE}).values()
    np.testing.assert_allclose(made, change.get(op, np.array)(POSITIVE), rtol=1e-5)


@pytest.mark.parametrize("op", [op for op in OPS if op != "ReduceLogSum"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_reductions_of_integers(op: str, dtype: type):
    x = np.array([[3, -4, 2], [-7, 1, 0]], dtype)
    graph = imported(op, {"x": x}, opset=13, axes=[1], keepdims=0) if op != "ReduceSum" else None
    if graph is None:
        given = {"x": x, "axes": np.array([1])}
        graph = imported(op, given, known=["axes"], opset=13, keepdims=0)
    wanted = {
        "ReduceMean": [0, -2], "ReduceSum": [1, -6], "ReduceProd": [-24, 0], "ReduceMax": [3, 1],
        "ReduceMin": [-4, -7], "ReduceL1": [9, 8], "ReduceL2": [5, 7], "ReduceSumSquare": [29, 50],
        "ReduceLogSumExp": [3, 1],
    }  # fmt: skip
    (made,) = run_graph(graph, {"x": x}).values()
    assert made.dtype == dtype and made.tolist() == wanted[op]


@pytest.mark.parametrize(
    ("op", "x", "wanted"),
    [
        ("ReduceMax", np.array([[True, False], [False, False]]), [True, False]),
        ("ReduceMin", np.array([[True, False], [True, True]]), [False, True]),
        ("ReduceMax", np.array([[1, 255], [7, 3]], np.uint8), [255, 7]),
        ("ReduceMin", np.array([[1, -128], [7, 3]], np.int8), [-128, 3]),
    ],
)
def test_extremes_of_truth_and_bytes(op: str, x: np.ndarray, wanted: list[object]):
    given = {"x": x, "axes": np.array([1])}
    graph = imported(op, given, known=["axes"], opset=20, keepdims=0)
    (made,) = run_graph(graph, {"x": x}).values()
    assert made.dtype == x.dtype and made.tolist() == wanted


def test_a_logarithm_of_a_sum_of_exponentials_does_not_overflow():
    x = np.array([[1000, 999], [-1000, -999], [-np.inf, -np.inf], [np.inf, 0]], np.float32)
    given = {"x": x, "axes": np.array([1])}
    graph = imported("ReduceLogSumExp", given, known=["axes"], opset=18, keepdims=0)
    (made,) = run_graph(graph, {"x": x}).values()
    rest = np.log1p(np.exp(-1))
    np.testing.assert_allclose(made, [1000 + rest, -999 + rest, -np.inf, np.inf], rtol=1e-6)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_extremes(op: str, axis: int, keep: int, last: int):
    x = np.random.default_rng(1).integers(0, 3, (3, 4, 5)).astype(np.float32)
    attrs = {"axis": axis, "keepdims": keep, "select_last_index": last}
    assert_as_onnxruntime(op, {"x": x}, opset=12, **attrs)
    assert_as_onnxruntime(op, {"x": x}, opset=7, axis=axis % 3, keepdims=keep)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("opset", [7, 11, 13])
def test_hardmax_before_and_after_opset_13(axis: int, opset: int):
    x = np.random.default_rng(1).integers(0, 3, (3, 4, 5)).astype(np.float32)
    assert_as_onnxruntime("Hardmax", {"x": x}, opset=opset, axis=axis)


TOP: list[tuple[int, dict[str, Any]]] = [
    (1, {}), (10, {"axis": 0}), (11, {"axis": 1}), (11, {"largest": 0}),
    (11, {"axis": -2, "largest": 0, "sorted": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("opset", "attrs"), TOP)
@pytest.mark.parametrize("count", [1, 3])
def test_top_elements(opset: int, attrs: dict[str, Any], count: int):
    x = np.random.default_rng(2).integers(0, 4, (3, 4, 5)).astype(np.float32)
    inputs = {"x": x}
    if opset < 10:
        opset, attrs = 7, {**attrs, "k": count}
    else:
        inputs["k"] = np.array([count])
    options = {"known": set(inputs) - {"x"}, "outputs": ("y", "z"), "opset": opset}
    assert_as_onnxruntime("TopK", inputs, **options, **attrs)


def test_only_the_places_of_the_top_elements():
    """The outputs are used one by one."""
    given = {"x": X, "k": np.array([2])}
    order = np.argsort(-X, axis=-1)[..., :2]
    values = np.take_along_axis(X, order, -1)
    for outputs, wanted in ((("", "z"), order), (("y", ""), values), (("y",), values)):
        graph = imported("TopK", given, known=["k"], outputs=outputs)
        (made,) = run_graph(graph, {"x": X}).values()
        assert np.array_equal(made, wanted)


def test_many_elements_are_ranked_on_the_host(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranking, "RANKED_EXTENT", 3)
    given = {"x": X, "k": np.array([2])}
    graph = imported("TopK", given, known=["k"], outputs=("y", "z"))
    assert [node.op for node in graph.nodes] == ["host"]
    assert_as_onnxruntime("TopK", given, known=["k"], outputs=("y", "z"))


def test_more_top_elements_than_there_are():
    given = {"x": X, "k": np.array([5])}
    with pytest.raises(ModelError, match=r"the first 5 of float32\[2, 3, 4\] along dimension 2"):
        imported("TopK", given, known=["k"], outputs=("y", "z"))


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize(("extent", "blocks"), [(5, False), (13, True), (100, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_running_sums_whole_and_in_blocks(
    exclusive: int, reverse: int, extent: int, blocks: bool, dtype: type,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    if blocks:
        monkeypatch.setattr(ranking, "RUNNING_EXTENT", 4)
    x = np.random.default_rng(2).integers(-4, 5, (2, extent, 3)).astype(dtype)
    given = {"x": x, "axis": np.array(1)}
    attrs = {"exclusive": exclusive, "reverse": reverse}
    assert_as_onnxruntime("CumSum", given, known=["axis"], opset=11, **attrs)


def test_running_products_in_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranking, "RUNNING_EXTENT", 2)
    x = np.array([1, 2, 3, 4, 5], np.float64)
    given = {"x": x, "axis": np.array(-1)}
    graph = imported("CumProd", given, known=["axis"], opset=26)
    (made,) = run_graph(graph, {"x": x}).values()
    assert made.tolist() == [1, 2, 6, 24, 120]


def test_an_axis_that_is_computed_is_refused():
    given = {"x": X, "axis": np.array(1)}
    with pytest.raises(
        ModelError, match=r"the axis \(input 'axis'\) .*: write --value axis=1\.\.8"
    ):
        imported("CumSum", given)
