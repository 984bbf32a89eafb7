"""Fourier transforms and mel filters mean what numpy and onnxruntime compute."""

from typing import Any

import numpy as np
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.support.networks import node
from tests.support.peer import assert_as_peer, assert_computes, typed_model

RNG = np.random.default_rng(2)


def signal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def as_complex(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(np.complex128)


def as_components(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("components", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 8, 12])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_along_any_axis(axis, components, length, inverse):
    """A length cuts the signal or fills it up with zeros."""
    x = signal(9, 10, 8, components)
    weights = {"axis": np.asarray(axis)}
    weights |= {} if length is None else {"length": np.asarray(length)}
    names = ["x", "length" if length else "", "axis"]
    made = typed_model([node("DFT", names, ["y"], inverse=inverse)], {"x": x}, ["y"], weights, 20)
    function = np.fft.ifft if inverse else np.fft.fft
    along = axis if axis >= 0 else 2
    assert_computes(made, {"x": x}, {"y": as_components(function(as_complex(x), length, along))})


@pytest.mark.parametrize("length", [7, 8])
def test_one_side_of_the_spectrum_of_a_real_signal_and_back(length):
    x = signal(3, length, 1)
    nodes = [
        node("DFT", ["x", "length"], ["s"], axis=1, onesided=1),
        node("DFT", ["s", "length"], ["y"], axis=1, onesided=1, inverse=1),
    ]
    weights = {"length": np.asarray(length)}
    made = typed_model(nodes, {"x": x}, ["s", "y"], weights, opset=17)
    spectrum = as_components(np.fft.rfft(x[..., 0], axis=1))
    assert_computes(made, {"x": x}, {"s": spectrum, "y": x})


def test_a_spectrum_of_one_side_gives_an_even_number_of_samples_by_default():
    x = signal(2, 5, 2)
    nodes = [node("DFT", ["x"], ["y"], onesided=1, inverse=1)]
    expected = np.fft.irfft(as_complex(x), axis=1)[..., None].astype(np.float32)
    assert_computes(typed_model(nodes, {"x": x}, ["y"], opset=20), {"x": x}, {"y": expected})


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("names", [["w", "n"], ["w"], ["", "n"]])
def test_short_time_transforms(onesided, names):
    x = signal(2, 50, 1)
    weights = {
        "step": np.asarray(6),
        "w": np.hanning(16).astype(np.float32),
        "n": np.asarray(16),
    }
    nodes = [node("STFT", ["x", "step", *names], ["y"], onesided=onesided)]
    made = typed_model(nodes, {"x": x}, ["y"], weights, opset=17)
    assert_as_peer(made, {"x": x}, 1e-4)


def test_the_window_of_a_short_time_transform_may_be_an_input():
    x, window = signal(1, 20, 2), np.hanning(8).astype(np.float32)
    nodes = [node("STFT", ["x", "step", "w"], ["y"], onesided=0)]
    inputs = {"x": x, "w": window}
    made = typed_model(nodes, inputs, ["y"], {"step": np.asarray(4)}, opset=17)
    frames = np.stack([as_complex(x)[:, s : s + 8] * window for s in range(0, 13, 4)], axis=1)
    assert_computes(made, inputs, {"y": as_components(np.fft.fft(frames))})


def test_mel_filters():
    values: list[Any] = [np.int64(40), np.int64(400), np.int64(16000), np.float32(20)]
    weights = {f"x{i}": np.asarray(value) for i, value in enumerate([*values, np.float32(8000)])}
    nodes = [
        node("MelWeightMatrix", weights, ["m"]),
        node("MatMul", ["s", "m"], ["y"]),
    ]
    spectrum = np.abs(signal(3, 201))
    made = typed_model(nodes, {"s": spectrum}, ["y"], weights, opset=17)
    assert_as_peer(made, {"s": spectrum})


def test_a_transform_that_is_too_long_for_a_table_runs_on_the_host():
    x = signal(1, 20_000, 1)
    made = typed_model([node("DFT", ["x"], ["y"], axis=1)], {"x": x}, ["y"], opset=17)
    graph = import_model(made)
    assert not graph.constants
    found = run_graph(graph, {"x": x})["y"]
    np.testing.assert_allclose(found, as_components(np.fft.fft(as_complex(x), axis=1)), atol=1e-2)
