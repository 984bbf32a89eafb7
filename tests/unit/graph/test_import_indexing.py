"""Ops that read and write where an index says mean what onnxruntime says."""

import itertools
from collections.abc import Collection

import numpy as np
import onnxruntime
import pytest
from onnx import parser

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops import scatter
from retune.graph.evaluate import run_graph
from tests.support.one_node import assert_as_onnxruntime, imported

RNG = np.random.default_rng(7)
X = RNG.standard_normal((3, 4, 5)).astype(np.float32)
REDUCTIONS = ["none", "add", "mul", "max", "min"]
WRITES = ("write_rows", "fold_rows")


def both(index: str) -> Collection[Collection[str]]:
    """The index as a constant, and known only at run time."""
    return [[index], []]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", both("i"))
def test_elements_by_index(axis: int, known: Collection[str]):
    shape = [2, 3, 4]
    shape[axis] = 6
    index = RNG.integers(-X.shape[axis], X.shape[axis], shape)
    assert_as_onnxruntime("GatherElements", {"x": X, "i": index}, known=known, opset=11, axis=axis)


TUPLES = [
    (0, (2, 1)), (0, (2, 2)), (0, (2, 4, 3)), (0, (1,)), (0, (3,)),
    (1, (3, 1)), (1, (3, 2)), (1, (3, 5, 2)), (2, (3, 4, 1)), (2, (3, 4, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("batches", "shape"), TUPLES)
@pytest.mark.parametrize("known", both("i"))
def test_slices_by_index_tuples(batches: int, shape: tuple[int, ...], known: Collection[str]):
    bounds = np.array(X.shape[batches : batches + shape[-1]])
    index = RNG.integers(-bounds, bounds, shape)
    given = {"x": X, "i": index}
    assert_as_onnxruntime("GatherND", given, known=known, opset=12, batch_dims=batches)


def test_an_index_tuple_that_is_too_long():
    with pytest.raises(ModelError, match="index tuples of 4; expected 3 or fewer"):
        imported("GatherND", {"x": X, "i": np.zeros((2, 4), np.int64)})


def distinct(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Indices of X along the axis, no two of a line alike; some count from the end."""
    whole = (*shape[:axis], X.shape[axis], *shape[axis + 1 :])
    order = np.argsort(RNG.random(whole), axis).take(range(shape[axis]), axis)
    return order - X.shape[axis] * RNG.integers(0, 2, shape)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 4, 5)])
@pytest.mark.parametrize("known", both("i"))
def test_elements_are_written(
    reduction: str, axis: int, shape: tuple[int, ...], known: Collection[str]
):
    updates = RNG.standard_normal(shape).astype(np.float32)
    given = {"x": X, "i": distinct(shape, axis), "u": updates}
    options = {"known": known, "opset": 18, "axis": axis, "reduction": reduction}
    assert_as_onnxruntime("ScatterElements", given, **options)
    if reduction == "none":
        assert_as_onnxruntime("ScatterElements", given, known=known, opset=11, axis=axis)


@pytest.mark.parametrize("known", both("i"))
def test_elements_are_written_as_before_opset_11(known: Collection[str]):
    updates = RNG.standard_normal((3, 2, 5)).astype(np.float32)
    given = {"x": X, "i": distinct((3, 2, 5), 1) % 4, "u": updates}
    assert_as_onnxruntime("Scatter", given, known=known, opset=9, axis=1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("repeats", [2, 30])
@pytest.mark.parametrize("known", both("i"))
def test_several_updates_of_one_element(reduction: str, repeats: int, known: Collection[str]):
    """The last one counts, or all of them."""
    index = RNG.integers(0, 3, (2, repeats))
    updates = RNG.integers(1, 3, (2, repeats)).astype(np.float64)
    data = np.arange(10.0).reshape(2, 5)
    wanted = data.copy()
    combine = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for row, column in itertools.product(range(2), range(repeats)):
        at, update = (row, index[row, column]), updates[row, column]
        wanted[at] = combine[reduction](wanted[at], update) if reduction in combine else update
    given = {"x": data, "i": index, "u": updates}
    options = {"known": known, "opset": 18, "axis": 1, "reduction": reduction}
    graph = imported("ScatterElements", given, **options)
    (made,) = run_graph(graph, {name: given[name] for name in graph.inputs}).values()
    np.testing.assert_allclose(made, wanted)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("index", [[[2], [-3]], [[1, 3], [-1, 0]], [[[2, 1, -1]], [[0, 0, 0]]]])
@pytest.mark.parametrize("known", both("i"))
def test_slices_are_written(reduction: str, index: list[object], known: Collection[str]):
    tuples = np.array(index, np.int64)
    shape = (*tuples.shape[:-1], *X.shape[tuples.shape[-1] :])
    given = {"x": X, "i": tuples, "u": RNG.standard_normal(shape).astype(np.float32)}
    options = {"known": known, "opset": 18, "reduction": reduction}
    assert_as_onnxruntime("ScatterND", given, **options)


@pytest.mark.parametrize("reduction", ["none", "add", "max"])
@pytest.mark.parametrize(
    ("axis", "source", "whole"),
    [(0, (6, 1, 1), True), (1, (1, 6, 1), True), (2, (6,), True), (0, (6, 1, 5), False)],
)
def test_an_index_that_was_broadcast_is_one_of_rows(
    reduction: str, axis: int, source: tuple[int, ...], *, whole: bool
):
    """As sums over the edges of a graph are exported."""
    shape = [*X.shape]
    shape[axis] = 6
    index = RNG.integers(-X.shape[axis], X.shape[axis], source)
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    net (float[3, 4, 5] x, int64[{", ".join(map(str, source))}] i, float{shape} u) => (y)
    <int64[3] shape = {{{", ".join(map(str, shape))}}}> {{
        wide = Expand (i, shape)
        y = ScatterElements <axis = {axis}, reduction = "{reduction}"> (x, wide, u)
    }}"""
    model = parser.parse_model(text)
    given = {"x": X, "i": index, "u": RNG.standard_normal(shape).astype(np.float32)}
    graph = import_model(model)
    rows = [graph.types[n.inputs[0]].shape[-1] for n in graph.nodes if n.op in WRITES]
    assert rows == [int(np.prod(X.shape[axis + 1 :])) if whole else 1]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (made,) = run_graph(graph, given).values()
    np.testing.assert_allclose(made, session.run(None, given)[0], rtol=1e-5, atol=1e-6)


def test_writing_nothing_changes_nothing():
    given = {"x": X, "i": np.zeros((0, 1), np.int64), "u": np.zeros((0, 4, 5), np.float32)}
    graph = imported("ScatterND", given, known=["i", "u"], opset=16)
    assert [node.op for node in graph.nodes] == ["identity"]


def test_known_indices_make_a_read_of_a_write():
    given = {"x": X, "i": np.array([[1], [2]]), "u": X[1:]}
    graph = imported("ScatterND", given, known=["i"], opset=16)
    assert [node.op for node in graph.nodes if node.op != "reshape"] == ["write_rows"]


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_a_search_that_is_too_long_is_left_to_the_host(
    reduction: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(scatter, "SEARCHED_PAIRS", 4)
    given = {"x": X, "i": np.array([[1], [2]]), "u": X[1:]}
    options = {"opset": 16, "reduction": reduction}
    assert "host" in [node.op for node in imported("ScatterND", given, **options).nodes]
    assert_as_onnxruntime("ScatterND", given, **options)
    given = {"x": X, "i": distinct((3, 2, 5), 1) % 4, "u": X[:, :2]}
    assert "host" in [node.op for node in imported("ScatterElements", given, **options).nodes]
    assert_as_onnxruntime("ScatterElements", given, **options, axis=1)


def test_an_index_outside_is_refused():
    given = {"x": X, "i": np.array([[3]]), "u": X[:1]}
    with pytest.raises(ModelError, match=r"reach from 3 to 3; expected them inside .* \[3\]"):
        imported("ScatterND", given, known=["i"], opset=16)


def test_an_unknown_reduction_is_refused():
    given = {"x": X, "i": np.array([[1]]), "u": X[:1]}
    with pytest.raises(ModelError, match="reduction 'mean' is not known; expected one of none"):
        imported("ScatterND", given, opset=18, reduction="mean")


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2, 3])
@pytest.mark.parametrize("known", both("w"))
def test_a_cache_is_written(mode: str, axis: int, known: Collection[str]):
    cache = RNG.standard_normal((2, 5, 6, 7)).astype(np.float32)
    updates = RNG.standard_normal((2, 5, 6, 7)).astype(np.float32).take([0, 1, 2], axis)
    starts = np.array([1, 2 if mode == "linear" else 4])
    given = {"x": cache, "u": updates, "w": starts}
    graph = imported("TensorScatter", given, known=known, opset=24, mode=mode, axis=axis)
    wanted = np.moveaxis(cache.copy(), axis, 1)
    for row, step in itertools.product(range(2), range(3)):
        place = (starts[row] + step) % wanted.shape[1]
        wanted[row, place] = np.moveaxis(updates, axis, 1)[row, step]
    (made,) = run_graph(graph, {name: given[name] for name in graph.inputs}).values()
    assert np.array_equal(made, np.moveaxis(wanted, 1, axis))


def test_a_cache_is_written_from_its_beginning():
    given = {"x": X, "u": X[:, :2] + 1}
    graph = imported("TensorScatter", given, opset=24)
    (made,) = run_graph(graph, given).values()
    assert np.array_equal(made, np.concatenate([X[:, :2] + 1, X[:, 2:]], 1))


@pytest.mark.parametrize("axis", [0, 1, -1, -3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
@pytest.mark.parametrize("known", [["depth"], ["depth", "values"]])
def test_one_hot(axis: int, dtype: type, known: Collection[str]):
    index = np.array([[1, -3, 4], [0, 7, -6]], dtype)
    given = {"i": index, "depth": np.array(5), "values": np.array([-1, 2], np.float32)}
    graph = imported("OneHot", given, known=known, opset=11, axis=axis)
    (made,) = run_graph(graph, {name: given[name] for name in graph.inputs}).values()
    hit = (index[..., None] % 5 == range(5)) & (np.abs(index[..., None] + 0.5) < 5)
    assert np.array_equal(made, np.moveaxis(np.where(hit, 2, -1), -1, axis))
    if dtype == np.int64:  # onnxruntime leaves out the others
        assert_as_onnxruntime("OneHot", given, known=known, opset=11, axis=axis)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -2, 0, 1, 9])
@pytest.mark.parametrize("known", both("k"))
def test_triangles(upper: int, k: int | None, known: Collection[str]):
    given = {"x": X} if k is None else {"x": X, "k": np.array(k)}
    known = [] if k is None else known
    assert_as_onnxruntime("Trilu", given, known=known, opset=14, upper=upper)


@pytest.mark.parametrize("attrs", [{}, {"k": 2}, {"k": -1, "dtype": 7}])
def test_diagonals(attrs: dict[str, int]):
    assert_as_onnxruntime("EyeLike", {"x": X[0]}, opset=9, **attrs)


@pytest.mark.parametrize("condition", [[True, False, True], [False], [False, True]])
@pytest.mark.parametrize("attrs", [{}, {"axis": 0}, {"axis": -1}])
def test_slices_for_which_a_condition_holds(condition: list[bool], attrs: dict[str, int]):
    given = {"x": X, "c": np.array(condition)}
    assert_as_onnxruntime("Compress", given, known=["c"], opset=9, **attrs)


def test_a_condition_that_is_computed_is_met_on_the_host():
    given = {"x": X, "c": np.array([True, False, True])}
    graph = imported("Compress", given, axis=0)
    assert [node.op for node in graph.nodes] == ["host"]
    (made,) = run_graph(graph, given).values()
    assert np.array_equal(made, X[::2])


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("known", both("lengths"))
def test_sequences_are_reversed(batch: int, known: Collection[str]):
    given = {"x": X, "lengths": np.array([2, 1, 4] if batch == 0 else [3, 1, 2, 2])}
    attrs = {"batch_axis": batch, "time_axis": 1 - batch}
    assert_as_onnxruntime("ReverseSequence", given, known=known, opset=10, **attrs)
