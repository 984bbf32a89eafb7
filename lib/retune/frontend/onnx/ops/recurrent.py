"""Recurrent layers: LSTM, GRU and RNN as steps of dense layers, unrolled at import.

Read `RecurrentLayer` and `unrolled` first; what one step computes is in `recurrent_cells`. The
products of the data with the input weights do not depend on the state: one dense layer makes them
for all steps. What is left of a step is, for each gate, a dense layer of the state that takes in
the gate's arithmetic as its epilogue.

What unrolling costs: a network with T steps in a layer has T times the nodes of one step (LSTM: 9
groups, of which 4 only fetch the gates' rows; GRU 7; RNN 2), so that import, the passes, the memory
plan and the bundle's list of steps grow with T. Kernels and tuning do not: a step fetches its rows
by an index that is a constant, so all steps state the same programs, and share their tasks. A first
step with a state of zeros has less to do, and programs of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.recurrent_activations import Activation, Put, activations_of
from retune.frontend.onnx.ops.recurrent_cells import (
    Cell,
    Product,
    State,
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
_JOINED = 16
"""Operands of one concatenation of states."""


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

    def data(self, direction: int) -> Product:
        """The product with W of all gates."""
        ...

    def state(self, direction: int, gate: int) -> Product:
        """The product with R of one gate."""
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
    places: tuple[str, ...]
    """Constants: the numbers from 0 to steps * gates - 1, to fetch rows by."""
    valid: str
    """bool[steps, batch, 1]: the step is inside the sequence; '' if every step always is."""
    batch_first: bool


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

    def data(self, direction: int) -> Product:
        """A dense layer with W."""
        return _dense(self.emit.single(self.of_data, 0, direction))

    def state(self, direction: int, gate: int) -> Product:
        """A dense layer with R of that gate."""
        hidden = self.emit.shape(self.of_state)[-1]
        weight = self.emit.single(self.of_state, 0, direction)
        return _dense(self.emit.part(weight, 0, gate * hidden, hidden))


def _dense(weight: str) -> Product:
    def product(put: Put, rows: str) -> str:
        return put("dense", rows, weight)

    return product


def import_layer(node: OnnxNode, emit: Emitter, kind: Kind, weights: Weights) -> None:
    """The node's outputs are those of a recurrent layer with these weights."""
    layer = _layer(node, emit, kind, weights)
    functions = activations_of(node, kind.activations, len(layer.directions))
    cells = [_cell(layer, direction, own) for direction, own in enumerate(functions)]
    _outputs(layer, [unrolled(layer, direction, cell) for direction, cell in enumerate(cells)])


def unrolled(layer: RecurrentLayer, direction: int, cell: Cell) -> list[State]:
    """The states after each step of one direction, in the order of the sequence.

    Where a sequence has ended, a state stays as it is.
    """
    backward = layer.directions[direction] == "reverse"
    table, gates = _gate_rows(layer, direction, cell), layer.kind.gates
    state = cell.initial
    found: list[State] = []
    for t in range(layer.steps)[:: -1 if backward else 1]:
        put = cell.at(t)
        rows = tuple(
            put("gather", table, layer.places[t * gates + gate], axis=0) for gate in range(gates)
        )
        after = layer.kind.step(put, cell, rows, state)
        if layer.valid:
            inside = put("gather", layer.valid, layer.places[t], axis=0)
            pairs = zip(after, state, strict=True)
            after = tuple(put("where", inside, new, old or cell.zero) for new, old in pairs)
        state = after
        found.append(state)
    return found[:: -1 if backward else 1]


def _layer(node: OnnxNode, emit: Emitter, kind: Kind, weights: Weights) -> RecurrentLayer:
    data = node.inputs[0]
    batch_first = bool(node.integer("layout", 0))
    if batch_first:
        data = emit.temp("transpose", data, perm=(1, 0, 2))
    steps, batch, width = emit.shape(data)
    found = weights.shapes()
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
        places=tuple(
            emit.stored(f"place{place}", np.asarray(place, np.int32))
            for place in range(steps * kind.gates)
        ),
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
    numbers = np.arange(steps, dtype=emit.type(lengths).dtype).reshape(steps, 1, 1)
    return emit.temp(
        "less",
        emit.stored("steps", numbers),
        emit.reshaped(lengths, (1, batch, 1)),
        label="valid",
    )


def _cell(layer: RecurrentLayer, direction: int, activations: tuple[Activation, ...]) -> Cell:
    """What the steps of one direction share."""
    node, emit, hidden = layer.node, layer.emit, layer.hidden
    whole, linear = layer.kind.gates * hidden, bool(node.integer("linear_before_reset", 0))
    bias, inner = "", ""
    if node.has_input(3):
        both = _part(layer, node.inputs[3], direction)
        bias, inner_all = emit.part(both, 0, 0, whole), emit.part(both, 0, whole, whole)
        if linear:
            inner = emit.part(inner_all, 0, whole - hidden, hidden)
            outer = np.repeat([1, 1, 0], hidden).astype(emit.type(inner_all).dtype)
            inner_all = emit.temp("multiply", inner_all, emit.stored("outer", outer))
        bias = emit.reshaped(emit.temp("add", bias, inner_all, label="bias"), (1, whole))
    peepholes = ("", "", "")
    if node.has_input(PEEPHOLES):
        weights = _part(layer, node.inputs[PEEPHOLES], direction)
        first, second, third = (emit.part(weights, 0, k * hidden, hidden) for k in range(3))
        peepholes = (first, second, third)
    starts = INITIAL_STATES[: layer.kind.states]
    return Cell(
        emit=emit,
        name=layer.directions[direction],
        bias=bias,
        recurrence=tuple(layer.weights.state(direction, gate) for gate in range(layer.kind.gates)),
        inner_bias=inner,
        peepholes=peepholes,
        activations=activations,
        clip=node.number("clip", 0.0) if "clip" in node.attrs else None,
        coupled=bool(node.integer("input_forget", 0)),
        linear=linear,
        initial=tuple(_initial(layer, index, direction) for index in starts),
        zero=emit.scalar(0.0, layer.rows, "zero"),
        one=emit.scalar(1.0, layer.rows, "one"),
    )


def _initial(layer: RecurrentLayer, index: int, direction: int) -> str:
    """The state before the first step, [batch, hidden]; '' if it is known to be zero."""
    if not layer.node.has_input(index):
        return ""
    value, emit = layer.node.inputs[index], layer.emit
    if layer.batch_first:
        value = emit.temp("transpose", value, perm=(1, 0, 2))
    state = _part(layer, value, direction)
    known = emit.known(state)
    return "" if known is not None and not np.any(known) else state


def _part(layer: RecurrentLayer, value: str, direction: int) -> str:
    """One direction's slice of a value whose first dimension is the directions."""
    return layer.emit.single(value, 0, direction)


def _gate_rows(layer: RecurrentLayer, direction: int, cell: Cell) -> str:
    """X W' + b for every step and gate: [steps * gates, batch, hidden]."""
    emit, name = layer.emit, cell.name

    def put(op: str, *inputs: str, **attrs: Any) -> str:
        return emit.temp(op, *inputs, label=f"{name}.{op}", **attrs)

    made = layer.weights.data(direction)(put, layer.rows)
    if cell.bias:
        made = emit.temp("add", made, cell.bias, label=f"{name}.biased")
    apart = emit.reshaped(made, (layer.steps, layer.batch, layer.kind.gates, layer.hidden))
    moved = emit.temp("transpose", apart, label=f"{name}.gates", perm=(0, 2, 1, 3))
    return emit.reshaped(moved, (layer.steps * layer.kind.gates, layer.batch, layer.hidden))


def _outputs(layer: RecurrentLayer, states: Sequence[Sequence[State]]) -> None:
    """Y of every step, then the last states: [directions, batch, hidden] each."""
    node, emit = layer.node, layer.emit
    if node.has_output(0):
        _all_steps(layer, states)
    ends = [
        found[0 if direction == "reverse" else -1]
        for direction, found in zip(layer.directions, states, strict=True)
    ]
    for index, values in enumerate(zip(*ends, strict=True), start=1):
        if node.has_output(index):
            last = _stacked(layer, values)
            if layer.batch_first:
                last = emit.temp("transpose", last, perm=(1, 0, 2))
            emit.out("identity", last, index=index)


def _all_steps(layer: RecurrentLayer, states: Sequence[Sequence[State]]) -> None:
    emit, count = layer.emit, len(layer.directions)
    made = _stacked(layer, [step[0] for steps in zip(*states, strict=True) for step in steps])
    made = emit.reshaped(made, (layer.steps, count, layer.batch, layer.hidden))
    if layer.valid:
        inside = emit.reshaped(layer.valid, (layer.steps, 1, layer.batch, 1))
        made = emit.temp("where", inside, made, emit.scalar(0.0, made, "nothing"))
    if layer.batch_first:
        made = emit.temp("transpose", made, perm=(2, 0, 1, 3))
    emit.out("identity", made)


def _stacked(layer: RecurrentLayer, values: Sequence[str]) -> str:
    """The states [batch, hidden] side by side along a new first dimension.

    They are joined by sixteens: each operand of a concatenation is a kernel of its own, and equal
    concatenations share theirs.
    """
    emit = layer.emit
    parts = [emit.reshaped(value, (1, layer.batch, layer.hidden)) for value in values]
    while len(parts) > 1:
        joins = [parts[begin : begin + _JOINED] for begin in range(0, len(parts), _JOINED)]
        parts = [emit.temp("concat", *join, axis=0) if len(join) > 1 else join[0] for join in joins]
    return parts[0]
