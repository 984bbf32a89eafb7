"""Layers are left in floats until the network answers well enough, and no more of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from retune.graph.quantize import leaving
from retune.graph.quantize.leaving import leave_in_floats
from retune.graph.quantize.quality import agreement, layer_noise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings
from tests.support.quantize_networks import residual, squeezing

DIGITS = Path(__file__).parents[2] / "data" / "digits"
COARSE = QuantizeSettings(method="global_scale", global_scale=0.05, bias_correction=False)


def test_nothing_is_left_where_nothing_need_be():
    graph, data = residual()
    found = leave_in_floats(graph, data, data, COARSE, drop=100)
    assert (found.layers, found.settings) == ((), COARSE)


@pytest.mark.parametrize("network", [residual, squeezing])
def test_the_noisiest_layers_are_left_until_the_answers_agree(network):
    graph, data = network()
    noise = layer_noise(graph, data, data, COARSE)
    ranked = [n.layer for n in sorted(noise, key=lambda n: n.decibels)]
    found = leave_in_floats(graph, data, data, COARSE, drop=0)
    assert found.top1 == 1.0
    assert found.layers
    assert list(found.layers) == ranked[: len(found.layers)]
    assert found.settings == replace(COARSE, skip=found.layers)
    one = {name: array[:1] for name, array in data.items()}
    for name in graph.outputs:
        expected, got = (run_graph(g, one)[name] for g in (graph, found.graph))
        np.testing.assert_array_equal(got.argmax(-1), expected.argmax(-1))
    fewer = quantize(graph, data, replace(COARSE, skip=found.layers[:-1]))
    assert min(entry.top1 for entry in agreement(graph, fewer, data)) < 1


def test_samples_that_ranges_do_not_follow_from_are_the_judge():
    """What is fine over faint images cuts off all that is brighter."""
    with np.load(DIGITS / "digits.npz") as stored:
        data = {"image": stored["images"][:100].astype(np.float32) / 16}
    graph = load_file(DIGITS / "digits.onnx", {"image": data["image"].shape})
    faint = {"image": data["image"] / 8}
    settings = QuantizeSettings(bias_correction=False)
    assert not leave_in_floats(graph, faint, faint, settings, drop=5).layers
    found = leave_in_floats(graph, faint, data, settings, drop=5)
    assert found.layers
    assert found.top1 >= 0.95


def test_few_networks_are_tried(monkeypatch):
    """As many as halving takes, that without any left, and that with all left."""
    graph, data = squeezing()
    tried = []
    known = leaving.quantize

    def counted(graph, data, settings):
        tried.append(settings)
        return known(graph, data, settings)

    monkeypatch.setattr(leaving, "quantize", counted)
    found = leave_in_floats(graph, data, data, COARSE, drop=0)
    layers = len(layer_noise(graph, data, data, COARSE))
    assert 1 < len(found.layers) <= layers == 13
    assert len(tried) <= 1 + 4 + 1
    assert len(set(tried)) == len(tried)


def test_a_drop_is_in_points():
    graph, data = residual()
    with pytest.raises(InputError, match="points"):
        leave_in_floats(graph, data, data, COARSE, drop=-1)
