"""Large inputs and outputs that a run uses where the caller has them."""

import numpy as np
import pytest

from retune.bundle.runtime import lending
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.placement import LEAST_LENT_BYTES, lent_roots
from retune.frontend.onnx.importer import import_model
from tests.support.networks import model, node
from tests.support.random_ways import compiled

SHAPE = (64, 600)
MANY = 2 * lending._MOST_KEPT + 2


def _module(*nodes, inputs=("x",), outputs=("y",)) -> Module:
    made = model(list(nodes), {name: list(SHAPE) for name in inputs}, outputs=list(outputs))
    return compiled(import_model(made), "pocl", "NHWC")


def _array(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


@pytest.fixture(scope="module")
def relu() -> Module:
    made = _module(node("Relu", ["x"], ["y"]))
    assert {*lent_roots(made.plan)} == {"x", "y"}
    assert 4 * _array(0).size >= LEAST_LENT_BYTES
    return made


def test_outputs_that_somebody_holds_do_not_change(relu: Module):
    inputs = [_array(seed) for seed in range(MANY)]
    whole = [relu.run(x)["y"] for x in inputs]
    for x, y in zip(inputs, whole, strict=True):
        np.testing.assert_array_equal(y, np.maximum(x, 0))
    parts = [y[5:7].T for y in whole]
    del whole, y
    for x in inputs:
        relu.run(-x)
    relu.run_launches()
    for x, part in zip(inputs, parts, strict=True):
        np.testing.assert_array_equal(part, np.maximum(x, 0)[5:7].T)


def test_memory_of_dropped_outputs_is_used_again(relu: Module):
    relu.run(_array(0))
    places = {relu.run(_array(seed))["y"].ctypes.data for seed in range(MANY)}
    assert len(places) <= lending._MOST_KEPT


def test_outputs_belong_to_the_caller():
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["same"])]
    module = _module(*nodes, outputs=["y", "same"])
    x = _array(0)
    for _ in range(3):
        found = module.run(x)
        found["y"][:] = 7
        np.testing.assert_array_equal(found["same"], np.maximum(x, 0))
    module.close()
    np.testing.assert_array_equal(found["same"], np.maximum(x, 0))


def test_inputs_lie_anywhere(relu: Module):
    x = _array(3)
    read_only = x.copy()
    read_only.flags.writeable = False
    unaligned = np.zeros(x.nbytes + 4, np.uint8)[4:].view(np.float32).reshape(SHAPE)
    unaligned[:] = x
    wide = np.zeros((SHAPE[0], 2 * SHAPE[1]), np.float32)
    wide[:, ::2] = x
    for given in (x, read_only, unaligned, wide[:, ::2], np.asfortranarray(x), x[::-1][::-1]):
        for _ in range(2):
            np.testing.assert_array_equal(relu.run(given)["y"], np.maximum(x, 0))


def test_inputs_may_change_after_the_call_and_are_left_as_they_were(relu: Module):
    x = _array(4)
    before = x.copy()
    for _ in range(3):
        found = relu.run(x)["y"]
        np.testing.assert_array_equal(x, before)
        x[:] = 9
        np.testing.assert_array_equal(found, np.maximum(before, 0))
        x[:] = before


def test_one_array_is_two_inputs_and_an_output_is_an_input():
    module = _module(node("Add", ["x", "b"], ["y"]), inputs=["x", "b"])
    x = _array(5)
    for _ in range(3):
        np.testing.assert_array_equal(module.run({"x": x, "b": x})["y"], x + x)
        found = x
        for _ in range(4):
            found = module.run({"x": found, "b": found})["y"]
        np.testing.assert_array_equal(found, 16 * x)


def test_inputs_that_kernels_read_again_and_again_are_copied():
    weights = {"w": np.ones((SHAPE[1], SHAPE[1]), np.float32)}
    made = model([node("MatMul", ["x", "w"], ["y"])], {"x": list(SHAPE)}, weights=weights)
    assert lent_roots(compiled(import_model(made), "pocl", "NHWC").plan) == ("y",)
