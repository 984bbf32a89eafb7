"""Random networks of special values mean to onnxruntime what they mean here, all the way.

A failure names the seed; `random_values(seed, steps)` with fewer steps is its beginning.
"""

from collections import Counter

import numpy as np
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from tests.support.oracle import assert_close
from tests.support.peer import peer_outputs
from tests.support.random_values import random_values, special_functions


def check_peer(seed: int) -> None:
    model, feeds = random_values(seed, peer=True)
    found = run_graph(import_model(model).verify(), feeds)
    assert_close(found, peer_outputs(model, feeds), f"import of seed {seed}")


def check_passes(seed: int) -> None:
    model, feeds = random_values(seed)
    graph = import_model(model).verify()
    with np.errstate(invalid="ignore", over="ignore"):
        meant = run_graph(graph, feeds)
        for layout in ("NHWC", "NCHW"):
            found = run_graph(optimise(graph, layout).verify(), feeds)
            assert_close(found, meant, f"{layout} of seed {seed}")


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_values_are_onnxruntimes(first: int):
    for seed in range(first, first + 10):
        check_peer(seed)


@pytest.mark.parametrize("first", range(100, 120, 10))
def test_passes_keep_special_values(first: int):
    for seed in range(first, first + 10):
        check_passes(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_values(first: int):
    for seed in range(first, first + 100):
        check_peer(seed)
        check_passes(seed)


def test_the_generator_reaches_what_it_aims_at():
    """Every operator and rank, all types, and results that are not numbers."""
    made = [random_values(seed) for seed in range(150)]
    ops = Counter(node.op_type for model, _ in made for node in model.graph.node)
    wanted = "Relu Clip Max Min Div Mod Where Cast ReduceMean ArgMax TopK Hardmax CumSum Pad Tile"
    assert min(ops[op] for op in wanted.split()) >= 10, ops
    arrays = [array for _, feeds in made for array in feeds.values()]
    assert {array.ndim for array in arrays} >= {0, 1, 2, 3, 4, 5}
    assert {array.dtype.name for array in arrays} == {"float32", "int32", "int64", "int8", "uint8"}
    assert sum(bool(np.isnan(a).any()) for a in arrays if a.dtype == np.float32) >= 50


def test_functions_of_special_values_are_onnxruntimes():
    model, feeds = special_functions()
    with np.errstate(all="ignore"):
        found = run_graph(import_model(model).verify(), feeds)
    expected = peer_outputs(model, feeds)
    assert len(expected) > 40
    assert_close(found, expected, "functions of special values")
