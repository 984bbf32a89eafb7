"""A decoder as the GenAI builder writes it generates as it does in onnxruntime."""

import numpy as np
import onnxruntime
import pytest

from retune.core.dims import Size, assuming, dim_of
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.inputs import input_types
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


def test_one_import_serves_all_lengths() -> None:
    """The mask's own symbol is the sum of the cache's and the new tokens', and caches grow."""
    made = decoder()
    sizes = {"sequence": dim_of(Size("sequence", 1, 8)), "past": dim_of(Size("past", 0, 15))}
    with assuming({"sequence": 3, "past": 4}) as assumed:
        shapes = {"batch": (1,)} | {name: (dim,) for name, dim in sizes.items()}
        graph = import_model(made, shapes)
    assert [str(each.dim) for each in assumed.conditions] == ["sequence - 1"]
    assert sum(node.op == "concat" for node in graph.nodes) == 2 * LAYERS
    session = onnxruntime.InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(2)
    for length, held in ((3, 4), (5, 1)):
        caches = {
            name: rng.standard_normal((1, SHARED, held, WIDE)).astype(np.float32)
            for name in empty(1)
        }
        inputs = step(caches, rng.integers(0, WORDS, (1, length)), held)
        names = [entry.name for entry in session.get_outputs()]
        found = run_graph(graph.at({"sequence": length, "past": held}), inputs)
        for name, array in zip(names, session.run(names, inputs), strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("column", [False, True])
def test_buffers_that_are_shared_keep_their_length(column: bool) -> None:
    """Caches of full length, of which the mask says how many tokens there are after the step; the
    builder counts them by rows [batch], or by columns [batch, 1]."""
    made, capacity = decoder(), 8
    (counted,) = (node for node in made.graph.node if node.op_type == "ReduceSum")
    counted.attribute[0].i = int(column)
    shapes = {"batch": (1,), "sequence": (1,), "past": (capacity,)}
    with assuming({"total": 4}):
        graph = import_model(made, shapes | {"total": (dim_of(Size("total", 1, capacity)),)})
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    rng = np.random.default_rng(4)
    for held in (0, 3, capacity - 1):
        caches = {
            name: rng.standard_normal((1, SHARED, capacity, WIDE)).astype(np.float32)
            for name in empty(1)
        }
        inputs = step(caches, rng.integers(0, WORDS, (1, 1)), held)
        found = run_graph(graph.at({"total": held + 1}), inputs)
        for name, array in zip(names, session.run(names, inputs), strict=True):
            filled = (slice(None), slice(None), slice(held + 1))[: 1 if name == "logits" else 3]
            np.testing.assert_allclose(
                found[name][filled], array[filled], rtol=1e-4, atol=1e-4, err_msg=name
            )
            assert name == "logits" or found[name].shape[2] == capacity


@pytest.mark.parametrize(("past", "sequence"), [((0, 24), 9), ((0, 32), 1), ((0, 0), 33)])
def test_tokens_beyond_the_tables_of_the_rotation_are_refused(
    past: tuple[int, int], sequence: int
) -> None:
    """Kernels would read what lies behind the tables."""
    held = dim_of(Size("past", *past)) if past[1] else 0
    shapes = {"batch": (1,), "sequence": (sequence,), "past": (held,)}
    with (
        assuming({"past": past[1]}),
        pytest.raises(ModelError, match=r"32 rows, got up to 33 tokens.*--shape"),
    ):
        import_model(decoder(), shapes)


@pytest.mark.parametrize("symbol", ["past + sequence", "total", "1+ past +sequence"])
def test_a_symbol_may_be_a_sum_of_others(symbol: str) -> None:
    made = decoder()
    mask = made.graph.input[1].type.tensor_type.shape.dim[1]
    mask.dim_param = symbol
    types = input_types(made.graph, {"batch": (1,), "sequence": (2,), "past": (5,)}, ())
    assert types["attention_mask"].shape == (1, 8 if symbol[0] == "1" else 7)


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
