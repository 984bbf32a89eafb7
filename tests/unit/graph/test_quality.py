"""The noise of layers and the agreement of networks are what their definitions say."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.core.errors import InputError
from retune.core.results import MOST_DECIBELS
from retune.graph.graph import GraphBuilder
from retune.graph.quantize.quality import agreement, layer_noise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from tests.support.quantize_networks import residual, samples


def test_each_layer_of_integers_has_its_noise():
    graph, data = residual()
    found = layer_noise(graph, data, data, QuantizeSettings())
    assert [entry.op for entry in found].count("dense") == 1
    assert len(found) == 6
    assert all(25 < entry.decibels < 60 for entry in found)
    assert all(entry.saturation == 0 for entry in found)  # the ranges are those of the same data


def test_coarser_scales_are_noisier():
    graph, data = residual()
    fine = layer_noise(graph, data, data, QuantizeSettings())
    coarse = layer_noise(graph, data, data, replace(POWER2, method="minmax"))
    assert all(c.decibels < f.decibels for c, f in zip(coarse, fine, strict=True))


def test_what_lies_outside_the_range_saturates():
    graph, data = residual()
    (name,) = graph.inputs
    narrow = QuantizeSettings(method="global_scale", global_scale=1.0)
    first = layer_noise(graph, data, data, narrow)[0]
    assert first.saturation == pytest.approx(np.mean(np.abs(data[name]) > 1.0), abs=0.02)


def test_skipped_layers_have_none():
    graph, data = residual()
    some = layer_noise(graph, data, data, QuantizeSettings(skip_conv_layers=(0,)))
    assert len(some) == 5
    assert (
        layer_noise(
            graph, data, data, QuantizeSettings(skip=("conv2d", "depthwise_conv2d", "dense"))
        )
        == ()
    )


def test_integers_have_no_noise():
    """Weights and activations that are codes times their scales are exact."""
    build = GraphBuilder("exact")
    x = build.input("x", TensorType((1, 4), "float32"))
    weight = np.array([[127, 1, -5, 0], [3, -127, 8, 9]], np.float32)
    build.add("dense", (x, build.constant("w", weight)), outputs=("y",))
    graph = build.finish(("y",)).verify()
    data = {"x": np.array([[127, -3, 5, 8], [1, 2, -127, 4]], np.float32)}
    (entry,) = layer_noise(graph, data, data, QuantizeSettings(activations="int8"))
    assert (entry.decibels, entry.saturation) == (MOST_DECIBELS, 0.0)


def test_a_network_agrees_with_itself_and_nearly_with_its_integers():
    graph, data = residual()
    for entry in agreement(graph, graph, data):
        assert entry.cosine == pytest.approx(1.0)
        assert entry.top1 == 1.0
    made = quantize(graph, data, QuantizeSettings())
    new = {name: -array for name, array in samples(graph).items()}
    assert [entry.output for entry in agreement(graph, made, new)] == list(graph.outputs)
    assert all(0.99 < entry.cosine < 1 for entry in agreement(graph, made, new))


def test_nothing_is_compared_without_samples():
    graph, _ = residual()
    with pytest.raises(InputError, match="at least"):
        agreement(graph, graph, samples(graph, 0))
