"""What rounding does to a network excuses results that are as exact as it allows, and no others."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from retune.bundle.verify import rounding
from retune.bundle.verify.compare import TOLERANCE, Verification, compare, verify
from retune.bundle.verify.rounding import FACTOR, OutputRounding, RoundingModel, StoredRounding
from retune.core.dtypes import TensorType
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from tests.support.peer import typed_model

Arrays = Mapping[str, np.ndarray]
OFFSET = np.float32(30000)


def difference(factor: float) -> Graph:
    """What is left of numbers around `factor` less it, and their codes."""
    build = GraphBuilder("net")
    build.input("x", TensorType((64,)))
    far = build.constant("far", np.asarray(factor, np.float32))
    less = build.add("subtract", (build.add("add", ("x", far)), far))
    codes = build.add("cast", (build.add("round", (less,)),), {"to": "int8"})
    return build.finish([less, codes]).verify()


def moved(graph: Graph) -> float:
    inputs = random_inputs(graph)
    found = RoundingModel(lambda: graph)(inputs)[graph.outputs[0]]
    return float(found.spread(found.numpy).max() / np.ptp(found.numpy[0]))


def test_rounding_moves_a_network_as_far_as_it_makes_much_of_it():
    found = [moved(difference(factor)) for factor in (1.5, 1.5e2, 1.5e4)]
    assert found[0] < 1e-6
    assert 30 < found[1] / found[0] < 300
    assert 30 < found[2] / found[1] < 300


def test_numbers_that_are_exact_everywhere_do_not_move():
    build = GraphBuilder("net")
    build.input("x", TensorType((64,)))
    graph = build.finish([build.add("floor", (build.add("add", ("x", "x")),))]).verify()
    inputs = {"x": np.arange(64, dtype=np.float32) / 2}
    found = RoundingModel(lambda: graph)(inputs)[graph.outputs[0]]
    assert not found.spread(found.numpy).any()


def test_the_same_inputs_give_the_same_and_are_computed_once(tmp_path: Path):
    graph, loads = difference(10.3), []

    def load() -> Graph:
        loads.append(1)
        return graph

    inputs = [random_inputs(graph, seed) for seed in (0, 1)]

    def found(which: int, network: str = "n") -> Arrays:
        stored = StoredRounding(RoundingModel(load), lambda: network, tmp_path)
        return {name: entry.numpy for name, entry in stored(inputs[which]).items()}

    first = found(0)
    again = found(0)
    assert all(np.array_equal(first[name], again[name]) for name in first) and len(loads) == 1
    assert not np.array_equal(found(1)[graph.outputs[0]], first[graph.outputs[0]])
    found(0, "another network")
    assert len(loads) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert np.array_equal(found(0)[graph.outputs[0]], first[graph.outputs[0]])
    assert len(loads) == 4, "a damaged file is made again"


def test_large_outputs_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rounding, "_STORED_BYTES", 1000)
    graph = difference(10.3)
    stored = StoredRounding(RoundingModel(lambda: graph), lambda: "n", tmp_path)
    assert stored(random_inputs(graph)) and not [*tmp_path.iterdir()]


# ------------------------------------------------------------------ wrong results do not pass
Plant = Callable[[dict[str, np.ndarray], dict[str, object]], None]


def network(plant: Plant | None = None) -> Graph:
    """Two convolutions around a large offset: a range of 2e-4, and rounding makes 2e-3 of it."""
    rng = np.random.default_rng(5)
    weights = {
        "w": rng.standard_normal((6, 3, 3, 3)).astype(np.float32) * np.float32(0.2),
        "b": rng.standard_normal(6).astype(np.float32),
        "v": rng.standard_normal((4, 6, 1, 1)).astype(np.float32) * np.float32(0.3),
        "far": OFFSET + rng.random((1, 6, 1, 1)).astype(np.float32),
        "small": np.float32(1.1e-5),
    }
    attrs: dict[str, object] = {"pads": [1, 1, 1, 1]}
    if plant:
        plant(weights, attrs)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **attrs),
        helper.make_node("Add", ["c", "far"], ["d"]),
        helper.make_node("Sub", ["d", "far"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["f"]),
        helper.make_node("Mul", ["f", "small"], ["y"]),
    ]
    return import_model(typed_model(nodes, {"x": sample(0)["x"]}, ["y"], weights))


def sample(seed: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((1, 3, 9, 11)).astype(np.float32)
    return {"x": x}


def judged(
    module: Graph, changed: Callable[[np.ndarray], np.ndarray] = lambda y: y
) -> Verification:
    right = network()

    def compute(inputs: Arrays) -> Arrays:
        return {"y": changed(run_graph(module, inputs)["y"])}

    reference = lambda inputs: run_graph(right, inputs)  # noqa: E731
    return verify(compute, reference, sample, samples=2, rounding=RoundingModel(lambda: right))


def reordered(weights: dict[str, np.ndarray], _: object) -> None:
    """Not an error: the offset is another one, so that all sums round elsewhere."""
    weights["far"] *= np.float32(1.5)


def one_weight(weights: dict[str, np.ndarray], _: object) -> None:
    weights["w"][2, 1, 0, 2] += np.float32(0.2)


def one_channel_scaled(weights: dict[str, np.ndarray], _: object) -> None:
    weights["v"][3] *= np.float32(1.1)


def dropped_bias(weights: dict[str, np.ndarray], _: object) -> None:
    weights["b"][4] = 0


def shifted_padding(_: object, attrs: dict[str, object]) -> None:
    attrs["pads"] = [0, 1, 2, 1]


def swapped_channels(weights: dict[str, np.ndarray], _: object) -> None:
    weights["v"] = weights["v"][[1, 0, 2, 3]]


def test_a_network_that_is_as_exact_as_its_peer_passes_by_rounding():
    found = judged(network(reordered))
    assert found.max_rel_range > TOLERANCE, "the share of the range alone would refuse it"
    assert found.passed and found.criterion == "rounding" and 0.02 < found.used < 0.7
    assert found.rounding is not None and found.rounding > TOLERANCE
    assert f"within {FACTOR:g} times what rounding alone does" in found.decision


@pytest.mark.parametrize(
    "plant", [one_weight, one_channel_scaled, dropped_bias, shifted_padding, swapped_channels]
)
def test_wrong_results_do_not_pass_by_rounding(plant: Plant):
    found = judged(network(plant))
    assert not found.passed and found.used > 3
    assert "above" in found.decision


def test_one_wrong_element_does_not_pass_by_rounding():
    def change(y: np.ndarray) -> np.ndarray:
        y = y.copy()
        y[0, 2, 4, 5] += np.float32(0.03) * np.ptp(y)
        return y

    assert not judged(network(), change).passed


def of(numpy: np.ndarray, oracle: np.ndarray | None = None) -> OutputRounding:
    return OutputRounding(numpy=numpy, oracle=numpy[:0] if oracle is None else oracle)


def test_what_an_inexact_oracle_scatters_over_is_no_error_if_numpy_agrees():
    exact = np.linspace(0, 1, 50, dtype=np.float32)
    scattered = exact + np.random.default_rng(0).uniform(-0.01, 0.01, (6, 50)).astype(np.float32)
    rounding = of(np.stack([exact] * 5), scattered)
    found = compare("y", exact, scattered[0], rounding=rounding)
    assert found.max_rel_range > 5e-3 and found.used <= 1
    assert compare("y", exact + np.float32(0.002), scattered[0], rounding=rounding).used > 1
    assert compare("y", exact, scattered[0] + np.float32(0.1), rounding=rounding).used > 1


def test_rounding_of_some_elements_does_not_excuse_others():
    runs = np.zeros((5, 100), np.float32)
    runs[:, :50] = np.random.default_rng(0).standard_normal((5, 50)) * 0.1
    runs[:, 50:] = np.linspace(-1, 1, 50)
    rounding = of(runs)
    exact, off = runs[0].copy(), runs[0].copy()
    off[:50] += 0.15
    assert compare("y", off, exact, rounding=rounding).used <= 1
    off[70] += 0.6
    assert compare("y", off, exact, rounding=rounding).used > 1


@pytest.mark.parametrize(("got", "right"), [(3, True), (2, True), (4, False)])
def test_integers_are_those_that_rounding_decides_between(got: int, right: bool):
    runs = np.array([[3, 7], [2, 7], [3, 7]])
    found = compare("y", np.array([got, 7]), np.array([3, 7]), rounding=of(runs))
    assert (found.used <= 1) is right
    assert compare("y", np.array([3, 8]), runs[0], rounding=of(runs)).used > 1


def test_shapes_and_infinities_are_not_rounding():
    rounding = of(np.zeros((3, 2), np.float32) + np.arange(3, dtype=np.float32)[:, None])
    expected = np.zeros(2, np.float32)
    assert compare("y", np.zeros(3, np.float32), expected, rounding=rounding).used > 1
    assert compare("y", np.full(2, np.inf, np.float32), expected, rounding=rounding).used > 1
