"""Layers stay in float32 until the rest in 16 bits is near enough, and no more of them."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.dtypes import BFLOAT16
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.mixed import mixed, rounding_noise
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision, in_precision, layers
from retune.graph.quantize.leaving import fewest
from retune.ops import Array
from tests.support.quantize_networks import residual

BF16 = Precision(stored=BFLOAT16)


def network() -> tuple[Graph, dict[str, Array]]:
    """A network in float32 as it is before a precision, and samples."""
    graph, data = residual()
    return optimise(graph), {name: array[:4] for name, array in data.items()}


@pytest.mark.parametrize("bound", [1.0, 2e-3, 0.0])
def test_as_many_layers_are_kept_as_the_bound_needs(bound: float):
    graph, data = network()
    found = mixed(graph, data, BF16, deviation=bound)
    kept = found.precision.kept
    ranked = sorted(found.noise, key=lambda entry: entry.decibels)
    assert kept == tuple(entry.layer for entry in ranked[: len(kept)])
    assert len(found.noise) == len(layers(graph))
    if bound:
        assert found.deviation <= bound
    if bound == 1.0:
        assert not kept
    else:
        fewer = in_precision(graph, replace(BF16, kept=kept[:-1]))
        one = {name: array[:1] for name, array in data.items()}
        exact, near = run_graph(graph, one), run_graph(fewer, one)
        assert any(not np.array_equal(exact[name], near[name]) for name in graph.outputs)


def test_noise_is_that_of_eight_bits_of_mantissa():
    graph, data = network()
    for entry in rounding_noise(graph, data, BFLOAT16):
        assert 35 < entry.decibels < 70, entry


@pytest.mark.parametrize("needed", range(6))
def test_the_fewest_are_found_by_halving(needed: int):
    tried: list[tuple[str, ...]] = []

    def attempt(kept: tuple[str, ...]) -> tuple[str, ...]:
        tried.append(kept)
        return kept

    found = fewest("abcde", attempt, lambda kept: len(kept) >= needed)
    assert found == tuple("abcde"[:needed])
    assert len(tried) <= 5 and len(set(tried)) == len(tried)


def test_with_all_layers_kept_it_is_the_network_in_float32():
    graph, data = network()
    found = mixed(graph, data, BF16, deviation=0.0)
    assert found.deviation == 0.0
    assert set(found.precision.kept) == {node.outputs[0] for node in layers(graph)}
