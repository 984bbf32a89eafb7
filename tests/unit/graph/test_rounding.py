"""What a survey holds deviations against grows with what a network makes of its last bits."""

import numpy as np

from benchmarks.rounding import agrees, moved_by_rounding
from retune.core.dtypes import TensorType
from retune.graph.evaluate import random_inputs
from retune.graph.graph import Graph, GraphBuilder


def difference(factor: float) -> Graph:
    """What is left of numbers around `factor` less it, and their codes."""
    build = GraphBuilder("net")
    build.input("x", TensorType((64,)))
    far = build.constant("far", np.asarray(factor, np.float32))
    less = build.add("subtract", (build.add("add", ("x", far)), far))
    codes = build.add("cast", (build.add("round", (less,)),), {"to": "int8"})
    return build.finish([less, codes]).verify()


def test_roundings_move_a_network_as_far_as_it_makes_much_of_them():
    graphs = [difference(factor) for factor in (1.0, 1e2, 1e4)]
    moved = [moved_by_rounding(graph, random_inputs(graph)) for graph in graphs]
    assert moved[0] < 1e-6
    assert 30 < moved[1] / moved[0] < 300
    assert 30 < moved[2] / moved[1] < 300


def test_the_same_seed_rounds_the_same():
    graph = difference(10.0)
    inputs = random_inputs(graph)
    assert moved_by_rounding(graph, inputs) == moved_by_rounding(graph, inputs)
    assert moved_by_rounding(graph, inputs) != moved_by_rounding(graph, inputs, seed=1)


def test_a_deviation_is_held_against_the_tolerance_and_roundings():
    assert agrees(1e-4)
    assert not agrees(2e-4)
    assert agrees(2e-4, 3e-4)
    assert not agrees(4e-4, 3e-4)
    assert not agrees(float("inf"), 1.0)
