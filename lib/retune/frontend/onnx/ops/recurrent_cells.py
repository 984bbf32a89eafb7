"""What one step of a recurrent layer computes.

`Cell` holds what the steps of one direction share; `lstm_step`, `gru_step` and `rnn_step` go from
the rows that the data contributes to each gate and the state before to the state after. All values
are [batch, hidden].

A value '' is zero everywhere: sums leave it out, and products with it are '' too. A state that
starts at zero thus costs nothing in the first step. Operands are made before the dense layer whose
epilogue reads them: only then are they fused with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from retune.frontend.onnx.ops.recurrent_activations import Activation, Put
from retune.frontend.onnx.ops.registry import Emitter

State = tuple[str, ...]
"""The hidden state, and for LSTM the cell."""

Product = Callable[[Put, str], str]
"""Emits the product of rows [n, k] with a weight: [n, m], in floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The weights and settings of one direction."""

    emit: Emitter
    name: str
    bias: str
    """[1, gates * hidden], what is added to the data's product with W; '' for none."""
    recurrence: tuple[Product, ...]
    """The product of a hidden state with R of each gate."""
    inner_bias: str
    """GRU with linear_before_reset: the bias [hidden] that the reset gate scales too."""
    peepholes: tuple[str, str, str]
    """Input, output, forget: [hidden] each, or ''."""
    activations: tuple[Activation, ...]
    clip: float | None
    """Sums of gates are kept within [-clip, clip]. The cell that LSTM makes its hidden state of is
    not: the specification may be read either way, and onnxruntime reads it so."""
    coupled: bool
    """LSTM: the forget gate is one minus the input gate."""
    linear: bool
    """GRU: the reset gate scales the product with the state, not the state."""
    initial: State
    zero: str
    one: str

    def at(self, step: int) -> Put:
        """Emits ops under the names of that step."""
        emit, name = self.emit, f"{self.name}{step}"

        def put(op: str, *inputs: str, **attrs: Any) -> str:
            return emit.temp(op, *inputs, label=f"{name}.{op}", **attrs)

        return put

    def gate(self, put: Put, which: int, total: str) -> str:
        """Activation number `which` of the clipped sum."""
        if self.clip is not None:
            total = put("clip", total, min=-self.clip, max=self.clip)
        return self.activations[which].apply(put, total, self.emit)


Step = Callable[[Put, Cell, tuple[str, ...], State], State]
"""From the gates' rows and the state before to the state after."""


def lstm_step(put: Put, cell: Cell, rows: tuple[str, ...], state: State) -> State:
    """Gates in the order input, output, forget, cell."""
    hidden, memory = state

    def gate(which: int, activation: int, seen: str = "") -> str:
        value = _sum(put, _dense(put, hidden, cell.recurrence[which]), rows[which], seen)
        return cell.gate(put, activation, value)

    look_in, look_out, look_forget = cell.peepholes
    taken = gate(0, 0, _product(put, memory, look_in))
    if cell.coupled:
        forget = put("subtract", cell.one, taken)
    else:
        forget = gate(2, 0, _product(put, memory, look_forget))
    kept = _product(put, forget, memory)
    after = _sum(put, _product(put, gate(3, 1), taken), kept)
    shown = gate(1, 0, _product(put, after, look_out))
    visible = cell.activations[2].apply(put, after, cell.emit)
    return _product(put, visible, shown), after


def gru_step(put: Put, cell: Cell, rows: tuple[str, ...], state: State) -> State:
    """Gates in the order update, reset, hidden; H = (1 - z) * h + z * H, with 1 - z as `change`."""
    (hidden,) = state
    update = _sum(put, _dense(put, hidden, cell.recurrence[0]), rows[0])
    change = put("subtract", cell.one, cell.gate(put, 0, update))
    kept = put("subtract", hidden, _product(put, change, hidden)) if hidden else ""
    inner = _sum(put, _dense(put, hidden, cell.recurrence[1]), rows[1])
    reset = cell.gate(put, 0, inner)
    if cell.linear:
        product = _sum(put, _dense(put, hidden, cell.recurrence[2]), cell.inner_bias)
        seen = _product(put, product, reset)
    else:
        seen = _dense(put, _product(put, reset, hidden), cell.recurrence[2])
    fresh = cell.gate(put, 1, _sum(put, seen, rows[2]))
    return (_sum(put, _product(put, fresh, change), kept),)


def rnn_step(put: Put, cell: Cell, rows: tuple[str, ...], state: State) -> State:
    """One gate, whose activation is the state."""
    value = _sum(put, _dense(put, state[0], cell.recurrence[0]), rows[0])
    return (cell.gate(put, 0, value),)


def _dense(put: Put, state: str, product: Product) -> str:
    return state and product(put, state)


def _product(put: Put, a: str, b: str) -> str:
    return a and b and put("multiply", a, b)


def _sum(put: Put, *terms: str) -> str:
    present = [term for term in terms if term]
    return reduce(lambda total, term: put("add", total, term), present) if present else ""
