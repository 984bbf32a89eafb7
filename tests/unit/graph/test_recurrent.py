"""LSTM, GRU and RNN compute what onnxruntime does, for every attribute, and share their tasks."""

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops.recurrent_activations import KINDS
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.networks import node
from tests.support.peer import assert_as_peer, assert_computes, peer_outputs, typed_model

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
ORDER = ("X", "W", "R", "B", "lengths", "initial_h", "initial_c", "P")
STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
BOTH = "bidirectional"
LENGTHS = np.array([5, 2, 3], np.int32)


def arrays_of(
    op: str, optional: tuple[str, ...], directions: int, steps: int = STEPS
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(optional) + directions)
    gates = GATES[op] * HIDDEN
    shapes = {
        "X": (steps, BATCH, WIDTH),
        "W": (directions, gates, WIDTH),
        "R": (directions, gates, HIDDEN),
        "B": (directions, 2 * gates),
        "initial_h": (directions, BATCH, HIDDEN),
        "initial_c": (directions, BATCH, HIDDEN),
        "P": (directions, 3 * HIDDEN),
    }
    wanted = {"X", "W", "R", *optional}
    made = {n: rng.standard_normal(shapes[n]).astype(np.float32) for n in shapes if n in wanted}
    return made | ({"lengths": LENGTHS} if "lengths" in wanted else {})


def layer(
    op: str,
    arrays: dict[str, np.ndarray],
    variable: tuple[str, ...] = ("X",),
    outputs: tuple[str, ...] = (),
    opset: int = 14,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one layer, and its inputs: the arrays named `variable`; the rest is constant."""
    names = [name if name in arrays else "" for name in ORDER]
    while not names[-1]:
        names.pop()
    made = outputs or OUTPUTS[op]
    nodes = [node(op, names, made, hidden_size=HIDDEN, **attrs)]
    inputs = {name: arrays[name] for name in variable}
    weights = {name: array for name, array in arrays.items() if name not in variable}
    used = [name for name in made if name]
    return typed_model(nodes, inputs, used, weights, opset), inputs


OPTIONAL: dict[str, list[tuple[str, ...]]] = {
    "LSTM": [
        (),
        ("B", "initial_h", "initial_c"),
        ("B", "lengths", "P"),
        ("lengths", "initial_h", "initial_c", "P"),
    ],
    "GRU": [(), ("B", "initial_h"), ("B", "lengths"), ("lengths", "initial_h")],
    "RNN": [(), ("B", "initial_h"), ("B", "lengths"), ("lengths", "initial_h")],
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "LSTM": [{}, {"clip": 0.4}, {"input_forget": 1}],
    "GRU": [{}, {"clip": 0.4}, {"linear_before_reset": 1}],
    "RNN": [{}, {"clip": 0.4}],
}
GRID = [
    (op, optional, attrs, direction)
    for op in GATES
    for optional, attrs in product(OPTIONAL[op], SETTINGS[op])
    for direction in ("forward", "reverse", "bidirectional")
]


@pytest.mark.parametrize(("op", "optional", "attrs", "direction"), GRID)
def test_every_attribute_means_what_onnxruntime_computes(op, optional, attrs, direction):
    arrays = arrays_of(op, optional, 2 if direction == "bidirectional" else 1)
    assert_as_peer(*layer(op, arrays, direction=direction, **attrs))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_weights_states_and_lengths_may_be_inputs(op, opset):
    optional = ("B", "lengths", "initial_h", *(("initial_c", "P") if op == "LSTM" else ()))
    arrays = arrays_of(op, optional, 2)
    made, inputs = layer(op, arrays, variable=tuple(arrays), opset=opset, direction="bidirectional")
    expected = peer_outputs(*layer(op, arrays, direction="bidirectional"))
    assert_computes(made, inputs, expected)


@pytest.mark.parametrize("name", KINDS)
def test_every_activation(name):
    """In a cell that runs forward with one list of parameters, and backward with another.

    Some of them have no bounds: states grow, and roundings with them.
    """
    arrays = arrays_of("LSTM", ("B",), 2)
    names = ["Sigmoid", name, "Tanh", name, "Tanh", "HardSigmoid"]
    attrs: dict[str, Any] = {}
    own = KINDS[name][1]
    if "alpha" in own:
        attrs["activation_alpha"] = [0.3, 0.7, 0.25]
    if "beta" in own:
        attrs["activation_beta"] = [0.6, 0.4, 0.45]
    made, inputs = layer("LSTM", arrays, activations=names, direction="bidirectional", **attrs)
    assert_as_peer(made, inputs, 1e-4)


@pytest.mark.parametrize("name", ["LeakyRelu", "HardSigmoid", "Elu"])
def test_activations_without_parameters_have_the_ops_defaults(name):
    arrays = arrays_of("RNN", ("B",), 1)
    assert_as_peer(*layer("RNN", arrays, activations=[name]))


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("optional", [(), ("lengths", "initial_h")])
def test_batch_first_is_the_same_with_other_orders(op, optional):
    arrays = arrays_of(op, optional, 2)
    expected = peer_outputs(*layer(op, arrays, direction="bidirectional"))
    swapped = {n: np.swapaxes(expected[n], 0, 1) for n in ("Y_h", "Y_c") if n in expected}
    swapped["Y"] = expected["Y"].transpose(2, 0, 1, 3)
    for name in ("X", "initial_h"):
        if name in arrays:
            arrays[name] = np.ascontiguousarray(np.swapaxes(arrays[name], 0, 1))
    made, inputs = layer(op, arrays, direction="bidirectional", layout=1)
    assert_computes(made, inputs, swapped)


@pytest.mark.parametrize("outputs", [("", "Y_h"), ("", "", "Y_c"), ("Y",), ("Y", "", "Y_c")])
def test_outputs_may_be_left_out(outputs):
    arrays = arrays_of("LSTM", ("B",), 1)
    assert_as_peer(*layer("LSTM", arrays, outputs=outputs))


def test_lengths_that_reach_the_end_need_no_masks():
    arrays = arrays_of("GRU", ("lengths",), 1) | {"lengths": np.full(BATCH, STEPS, np.int32)}
    made, inputs = layer("GRU", arrays)
    assert "where" not in {n.op for n in import_model(made).nodes}
    assert_as_peer(made, inputs)


@pytest.mark.parametrize("optional", [("B",), ("B", "lengths", "initial_h", "P")])
def test_steps_share_their_tasks(optional):
    def tasks(steps: int) -> int:
        arrays = arrays_of("LSTM", optional, 1, steps)
        graph = optimise(import_model(layer("LSTM", arrays, outputs=("", "Y_h"))[0]))
        return len(extract(graph).tasks)

    assert tasks(5) == tasks(9)


@pytest.mark.parametrize(
    ("op", "attrs", "products"),
    [
        ("LSTM", {}, 1),
        ("GRU", {"linear_before_reset": 1}, 1),
        ("GRU", {}, 2),
        ("RNN", {}, 1),
    ],
)
def test_a_step_makes_all_gates_by_one_product(op, attrs, products):
    """The reset gate of a GRU may have to be there before the last gate's product."""
    graph = optimise(import_model(layer(op, arrays_of(op, ("B",), 1), **attrs)[0]))
    (loop,) = extract(graph).loops.values()
    (part,) = loop.parts
    ops = [node.op for node in part.each.graph.nodes]
    assert (ops.count("dense"), part.times) == (products, STEPS)
    assert [node.op for node in graph.nodes].count("dense") == 1


def test_any_number_of_steps_is_one_loop():
    few, many = (
        import_model(layer("LSTM", arrays_of("LSTM", ("B",), 2, steps), direction=BOTH)[0])
        for steps in (STEPS, 2000)
    )
    assert [node.op for node in few.nodes] == [node.op for node in many.nodes]


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"direction": "sideways"}, "direction 'sideways'"),
        ({"activations": ["Sigmoid"]}, "expected 3 for each of 1 directions"),
        ({"activations": ["Sigmoid", "Tanh", "Cosine"]}, "activation 'Cosine'"),
        ({"direction": "bidirectional"}, r"W \[directions, 4 \* hidden_size, 4\]"),
    ],
)
def test_what_does_not_fit_is_said(attrs, said):
    made, _ = layer("LSTM", arrays_of("LSTM", (), 1), **attrs)
    with pytest.raises(ModelError, match=said):
        import_model(made)


def test_a_hidden_size_that_contradicts_the_weights_is_said():
    arrays = arrays_of("RNN", (), 1)
    arrays["R"] = arrays["R"][:, :, :-1]
    with pytest.raises(ModelError, match="hidden_size 6"):
        import_model(layer("RNN", arrays)[0])


def test_a_sequence_of_one_step():
    arrays = arrays_of("GRU", ("B",), 2, steps=1)
    made, inputs = layer("GRU", arrays, direction="bidirectional")
    assert run_graph(import_model(made), inputs)["Y"].shape == (1, 2, BATCH, HIDDEN)
    assert_as_peer(made, inputs)
