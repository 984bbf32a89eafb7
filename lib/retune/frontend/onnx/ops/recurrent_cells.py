"""One step of each recurrent layer.

`Cell` holds what the steps of one direction share; `lstm_step`, `gru_step` and `rnn_step` go from
what the data contributes to the gates, and the state before, to the state after. States are
[batch, hidden], values of all gates [batch, gates * hidden]: one product makes those of all gates
that need the same state.

A value '' is zero everywhere: sums leave it out, and products with it are '' too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from retune.frontend.onnx.ops.recurrent_activations import Activation
from retune.frontend.onnx.ops.registry import Emitter

State = tuple[str, ...]
"""The hidden state, and for LSTM the cell."""

Product = Callable[[str, int, int], str]
"""Rows [n, hidden], the first of some gates and their number -> the rows' product with R of these
gates, in floats: [n, gates * hidden]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The weights and settings of one direction, as values of the loop's body."""

    emit: Emitter
    hidden: int
    recurrence: Product
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
    one: str

    def put(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A value made by a graph op."""
        return self.emit.temp(op, *inputs, **attrs)

    def part(self, gates: str, which: int, count: int = 1) -> str:
        """Some gates' columns of a value of all gates."""
        return self.emit.part(gates, 1, which * self.hidden, count * self.hidden)

    def gate(self, which: int, total: str) -> str:
        """Activation number `which` of the clipped sum."""
        if self.clip is not None:
            total = self.put("clip", total, min=-self.clip, max=self.clip)
        return self.activations[which].apply(self.put, total, self.emit)

    def sum(self, *terms: str) -> str:
        """The terms added up."""
        return reduce(lambda total, term: self.put("add", total, term), filter(None, terms))

    def product(self, a: str, b: str) -> str:
        """The product; '' if a factor is."""
        return a and b and self.put("multiply", a, b)


Step = Callable[[Cell, str, State], State]
"""From what the data contributes and the state before to the state after."""


def lstm_step(cell: Cell, data: str, state: State) -> State:
    """Gates in the order input, output, forget, cell."""
    hidden, memory = state
    gates = cell.sum(cell.recurrence(hidden, 0, 4), data)
    look_in, look_out, look_forget = cell.peepholes
    # All parts first: kernels that need several of them can then be one.
    to_take, to_show, to_keep, new = (cell.part(gates, which) for which in range(4))
    taken = cell.gate(0, cell.sum(to_take, cell.product(memory, look_in)))
    if cell.coupled:
        forget = cell.put("subtract", cell.one, taken)
    else:
        forget = cell.gate(0, cell.sum(to_keep, cell.product(memory, look_forget)))
    fresh = cell.product(cell.gate(1, new), taken)
    after = cell.sum(cell.product(forget, memory), fresh)
    shown = cell.gate(0, cell.sum(to_show, cell.product(after, look_out)))
    return cell.product(cell.activations[2].apply(cell.put, after, cell.emit), shown), after


def gru_step(cell: Cell, data: str, state: State) -> State:
    """Gates in the order update, reset, hidden; H = (1 - z) * h + z * H, with 1 - z as `change`."""
    (hidden,) = state
    if cell.linear:
        both = cell.recurrence(hidden, 0, 3)
        update, reset = (
            cell.gate(0, cell.sum(cell.part(both, n), cell.part(data, n))) for n in range(2)
        )
        seen = cell.product(cell.sum(cell.part(both, 2), cell.inner_bias), reset)
    else:
        both = cell.sum(cell.recurrence(hidden, 0, 2), cell.part(data, 0, 2))
        update, reset = (cell.gate(0, cell.part(both, n)) for n in range(2))
        seen = cell.recurrence(cell.product(reset, hidden), 2, 1)
    fresh = cell.gate(1, cell.sum(seen, cell.part(data, 2)))
    change = cell.put("subtract", cell.one, update)
    kept = cell.put("subtract", hidden, cell.product(change, hidden))
    return (cell.sum(cell.product(fresh, change), kept),)


def rnn_step(cell: Cell, data: str, state: State) -> State:
    """One gate, whose activation is the state."""
    total = cell.sum(cell.recurrence(state[0], 0, 1), data)
    return (cell.gate(0, total),)
