"""LSTM, GRU and RNN as loops: one for each direction, whose body is a step.

Read `RecurrentLayer` and `_run` first; what one step computes is in `recurrent_cells`. The products
of the data with the input weights do not depend on the state: one dense layer before the loop makes
them for all steps and gates. The graph is as large for any number of steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retune.core.dtypes import DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.loops import LoopBody
from retune.frontend.onnx.ops.recurrent_activations import Activation, activations_of
from retune.frontend.onnx.ops.recurrent_cells import (
    Cell,
    Product,
    Step,
    gru_step,
    lstm_step,
    rnn_step,
)
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op

DIRECTIONS = {
    "forward": ("forward",),
    "reverse": ("reverse",),
    "bidirectional": ("forward", "reverse"),
}
"""The attribute `direction` -> how the sequence is walked, one entry for each set of weights."""

INITIAL_STATES = (5, 6)
"""Inputs that hold the hidden state and the cell before the first step."""
PEEPHOLES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What tells the three ops apart."""

    gates: int
    activations: tuple[str, ...]
    states: int
    """One for the hidden state, two with the cell."""
    step: Step


class Weights(Protocol):
    """W and R of a layer, as what multiplies by them."""

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """[directions, gates * hidden, width] and [directions, gates * hidden, hidden]."""
        ...

    def data(self, direction: int, rows: str) -> str:
        """The product of rows [n, width] with W of all gates, in floats."""
        ...

    def state(self, direction: int, body: LoopBody) -> Product:
        """What makes products with R in the body of a loop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLayer:
    """A layer's extents and what all its directions share."""

    node: OnnxNode
    emit: Emitter
    kind: Kind
    weights: Weights
    steps: int
    batch: int
    hidden: int
    directions: tuple[str, ...]
    rows: str
    """The data as [steps * batch, width]."""
    valid: str
    """bool[steps, batch, 1]: the step is inside the sequence; '' if every step always is."""
    batch_first: bool

    @property
    def dtype(self) -> DType:
        """The element type of data and states."""
        return self.emit.type(self.rows).dtype


LSTM = Kind(gates=4, activations=("Sigmoid", "Tanh", "Tanh"), states=2, step=lstm_step)
GRU = Kind(gates=3, activations=("Sigmoid", "Tanh"), states=1, step=gru_step)
RNN = Kind(gates=1, activations=("Tanh",), states=1, step=rnn_step)


@onnx_op("LSTM")
def lstm(node: OnnxNode, emit: Emitter) -> None:
    """Long short-term memory; outputs Y, Y_h, Y_c, of which any may be left out."""
    import_layer(node, emit, LSTM, FloatWeights(emit, *node.inputs[1:3]))


@onnx_op("GRU")
def gru(node: OnnxNode, emit: Emitter) -> None:
    """Gated recurrent units; outputs Y and Y_h."""
    import_layer(node, emit, GRU, FloatWeights(emit, *node.inputs[1:3]))


@onnx_op("RNN")
def rnn(node: OnnxNode, emit: Emitter) -> None:
    """A plain recurrent layer; outputs Y and Y_h."""
    import_layer(node, emit, RNN, FloatWeights(emit, *node.inputs[1:3]))


@dataclass(frozen=True, slots=True)
class FloatWeights:
    """W and R in floats, one row for each unit of each gate."""

    emit: Emitter
    of_data: str
    of_state: str

    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of W and R."""
        return self.emit.shape(self.of_data), self.emit.shape(self.of_state)

    def data(self, direction: int, rows: str) -> str:
        """A dense layer with W."""
        return self.emit.temp("dense", rows, self.emit.single(self.of_data, 0, direction))

    def state(self, direction: int, body: LoopBody) -> Product:
        """Dense layers with R."""
        weight, hidden = (
            body.capture(self.emit.single(self.of_state, 0, direction)),
            self.shapes()[1][-1],
        )

        def product(rows: str, first: int, count: int) -> str:
            part = body.emit.part(weight, 0, first * hidden, count * hidden)
            return body.emit.temp("dense", rows, part)

        return product


def import_layer(node: OnnxNode, emit: Emitter, kind: Kind, weights: Weights) -> None:
    """The node's outputs are those of a recurrent layer with these weights."""
    layer = _layer(node, emit, kind, weights)
    functions = activations_of(node, kind.activations, len(layer.directions))
    made = [_run(layer, direction, own) for direction, own in enumerate(functions)]
    if node.has_output(0):
        _all_steps(layer, [rows for *_, rows in made])
    for index, values in enumerate(zip(*(states for *states, _ in made), strict=True), start=1):
        if node.has_output(index):
            last = emit.stacked(values, 1 if layer.batch_first else 0)
            emit.out("identity", last, index=index)


def _run(layer: RecurrentLayer, direction: int, activations: tuple[Activation, ...]) -> list[str]:
    """One direction: the states after the last step, then the hidden states of all steps.

    Where a sequence has ended, a state stays as it is.
    """
    backward = layer.directions[direction] == "reverse"
    name = f"{layer.emit.label}.{layer.directions[direction]}"
    body = LoopBody(layer.emit, name, layer.steps)
    state = tuple(
        body.state(f"state{position}", _initial(layer, index, direction))
        for position, index in enumerate(INITIAL_STATES[: layer.kind.states])
    )
    gates, inner_bias = _gates(layer, direction)
    data = body.slice("data", gates, backward=backward)
    inside = body.slice("inside", layer.valid, backward=backward) if layer.valid else ""
    cell = _cell(layer, direction, activations, body, inner_bias)
    after = layer.kind.step(cell, data, state)
    if inside:
        pairs = zip(after, state, strict=True)
        after = tuple(cell.put("where", inside, new, old) for new, old in pairs)
    return body.finish(after, [(after[0], backward)])


def _layer(node: OnnxNode, emit: Emitter, kind: Kind, weights: Weights) -> RecurrentLayer:
    data, found = node.inputs[0], weights.shapes()
    batch_first = bool(node.integer("layout", 0))
    if batch_first:
        data = emit.temp("transpose", data, perm=(1, 0, 2))
    steps, batch, width = emit.shape(data)
    hidden = found[1][-1]
    directions = DIRECTIONS.get(node.text("direction", "forward").lower())
    if directions is None:
        raise ModelError(
            f"direction '{node.text('direction', '')}' is not known; expected one of "
            f"{', '.join(DIRECTIONS)}"
        )
    expected = (len(directions), kind.gates * hidden)
    stated = node.integer("hidden_size", hidden)
    if found != ((*expected, width), (*expected, hidden)) or stated != hidden or not steps:
        raise ModelError(
            f"data {emit.type(data)} with weights W {list(found[0])} and R {list(found[1])}, "
            f"hidden_size {stated} and {len(directions)} directions: expected one step at least, "
            f"W [directions, {kind.gates} * hidden_size, {width}] and "
            f"R [directions, {kind.gates} * hidden_size, hidden_size]"
        )
    return RecurrentLayer(
        node=node,
        emit=emit,
        kind=kind,
        weights=weights,
        steps=steps,
        batch=batch,
        hidden=hidden,
        directions=directions,
        rows=emit.reshaped(data, (steps * batch, width)),
        valid=_valid(node, emit, steps, batch),
        batch_first=batch_first,
    )


def _valid(node: OnnxNode, emit: Emitter, steps: int, batch: int) -> str:
    if not node.has_input(4):
        return ""
    lengths = node.inputs[4]
    known = emit.known(lengths)
    if known is not None and np.all(known >= steps):
        return ""
    return emit.temp(
        "less",
        emit.counted("steps", (steps, 1, 1), (1, 0, 0), dtype=emit.type(lengths).dtype),
        emit.reshaped(lengths, (1, batch, 1)),
        label="valid",
    )


def _cell(
    layer: RecurrentLayer,
    direction: int,
    activations: tuple[Activation, ...],
    body: LoopBody,
    inner_bias: str,
) -> Cell:
    """What the steps of one direction share."""
    node, hidden = layer.node, layer.hidden
    peepholes = ("", "", "")
    if node.has_input(PEEPHOLES):
        weights = _part(layer, node.inputs[PEEPHOLES], direction)
        first, second, third = (
            body.capture(layer.emit.part(weights, 0, k * hidden, hidden)) for k in range(3)
        )
        peepholes = (first, second, third)
    return Cell(
        emit=body.emit,
        hidden=hidden,
        recurrence=layer.weights.state(direction, body),
        inner_bias=body.capture(inner_bias),
        peepholes=peepholes,
        activations=activations,
        clip=node.number("clip", 0.0) if "clip" in node.attrs else None,
        coupled=bool(node.integer("input_forget", 0)),
        linear=bool(node.integer("linear_before_reset", 0)),
        one=body.emit.stored("one", np.asarray(1.0, layer.dtype.numpy)),
    )


def _initial(layer: RecurrentLayer, index: int, direction: int) -> str:
    """The state before the first step, [batch, hidden]."""
    emit = layer.emit
    if not layer.node.has_input(index):
        shape = (layer.batch, layer.hidden)
        return emit.filled("zeros", shape, np.zeros((), layer.dtype.numpy))
    value = layer.node.inputs[index]
    if layer.batch_first:
        value = emit.temp("transpose", value, perm=(1, 0, 2))
    return _part(layer, value, direction)


def _part(layer: RecurrentLayer, value: str, direction: int) -> str:
    """One direction's slice of a value whose first dimension is the directions."""
    return layer.emit.single(value, 0, direction)


def _gates(layer: RecurrentLayer, direction: int) -> tuple[str, str]:
    """X W' + b for every step, [steps, batch, gates * hidden]; the bias that is added later."""
    node, emit, hidden = layer.node, layer.emit, layer.hidden
    whole, inner, name = layer.kind.gates * hidden, "", layer.directions[direction]
    made = layer.weights.data(direction, layer.rows)
    if node.has_input(3):
        both = _part(layer, node.inputs[3], direction)
        bias, inner_all = emit.part(both, 0, 0, whole), emit.part(both, 0, whole, whole)
        if node.integer("linear_before_reset", 0):
            inner = emit.part(inner_all, 0, whole - hidden, hidden)
            outer = np.repeat([1, 1, 0], hidden).astype(emit.type(inner_all).dtype)
            inner_all = emit.temp("multiply", inner_all, emit.stored("outer", outer))
        bias = emit.reshaped(emit.temp("add", bias, inner_all, label="bias"), (1, whole))
        made = emit.temp("add", made, bias, label=f"{name}.biased")
    return emit.reshaped(made, (layer.steps, layer.batch, whole)), inner


def _all_steps(layer: RecurrentLayer, rows: Sequence[str]) -> None:
    """Y of every step."""
    emit = layer.emit
    made = emit.stacked(rows, 1)
    if layer.valid:
        inside = emit.reshaped(layer.valid, (layer.steps, 1, layer.batch, 1))
        made = emit.temp("where", inside, made, emit.scalar(0.0, made, "nothing"))
    if layer.batch_first:
        made = emit.temp("transpose", made, perm=(2, 0, 1, 3))
    emit.out("identity", made)
