"""A decoder as the GenAI builder writes it generates as it does in onnxruntime."""

import numpy as np
import onnxruntime
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.external.on_device import compile_graph
from tests.support.decoder import LAYERS, SHARED, WIDE, WORDS, decoder

Arrays = dict[str, np.ndarray]


def step(past: Arrays, ids: np.ndarray, held: int) -> Arrays:
    """The inputs of a step: words, a mask of all tokens, and what the last step left."""
    batch, length = ids.shape
    mask = np.ones((batch, held + length), np.int64)
    caches = {name.replace("present", "past"): a for name, a in past.items() if name != "logits"}
    return {"input_ids": ids, "attention_mask": mask, **caches}


def empty(batch: int) -> Arrays:
    """The caches before the first step."""
    names = [f"present.{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    return {name: np.zeros((batch, SHARED, 0, WIDE), np.float32) for name in names}


@pytest.mark.parametrize("batch", [1, 2])
def test_it_generates_as_onnxruntime_does(batch: int) -> None:
    made = decoder()
    session = onnxruntime.InferenceSession(made.SerializeToString())
    rng, state, held = np.random.default_rng(batch), empty(batch), 0
    for length in (5, 1, 1):
        inputs = step(state, rng.integers(0, WORDS, (batch, length)), held)
        shapes = {name: array.shape for name, array in inputs.items()}
        names = [entry.name for entry in session.get_outputs()]
        state = dict(zip(names, session.run(names, inputs), strict=True))
        found = run_graph(import_model(made, shapes), inputs)
        for name, array in state.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
        held += length


@pytest.mark.slow
@pytest.mark.device
def test_a_step_runs_as_kernels() -> None:
    made = decoder()
    rng = np.random.default_rng(3)
    caches = {k: rng.standard_normal((1, SHARED, 6, WIDE)).astype(np.float32) for k in empty(1)}
    inputs = step(caches, rng.integers(0, WORDS, (1, 1)), 6)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    graph = import_model(made, {name: array.shape for name, array in inputs.items()})
    found = compile_graph(graph).run(inputs)
    for name, array in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
