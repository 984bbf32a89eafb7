"""Layers are left in floats until the network answers well enough, and no more of them."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.graph.evaluate import run_graph
from retune.graph.quantize.leaving import leave_in_floats
from retune.graph.quantize.quality import layer_noise
from retune.graph.quantize.settings import QuantizeSettings
from tests.unit.graph.quantize_networks import residual

COARSE = QuantizeSettings(method="global_scale", global_scale=0.05, bias_correction=False)


def test_nothing_is_left_where_nothing_need_be():
    graph, data = residual()
    found = leave_in_floats(graph, data, COARSE, drop=100)
    assert (found.layers, found.settings) == ((), COARSE)


def test_the_noisiest_layers_are_left_until_the_answers_agree():
    graph, data = residual()
    noise = layer_noise(graph, data, data, COARSE)
    ranked = [n.layer for n in sorted(noise, key=lambda n: n.signal_to_noise)]
    found = leave_in_floats(graph, data, COARSE, drop=0)
    assert found.top1 == 1.0
    assert found.layers
    assert list(found.layers) == ranked[: len(found.layers)]
    assert found.settings == replace(COARSE, skip=found.layers)
    one = {name: array[:1] for name, array in data.items()}
    for name in graph.outputs:
        expected, got = (run_graph(g, one)[name] for g in (graph, found.graph))
        np.testing.assert_array_equal(got.argmax(-1), expected.argmax(-1))


def test_a_drop_is_in_points():
    graph, data = residual()
    with pytest.raises(InputError, match="points"):
        leave_in_floats(graph, data, COARSE, drop=-1)
