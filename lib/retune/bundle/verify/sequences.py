"""Calls in a row, from empty states: the samples of a network with states.

Read `with_states` and `verify_calls`. Random numbers instead of states are what no call leaves
behind, and a network that rounds rows, or decides by them, may make anything of such. So states of
samples are those that the reference makes of random inputs, and each call of a session is compared
for the states that it began with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module, random_inputs, sample_inputs
from retune.bundle.states import growths_of
from retune.bundle.verify.compare import Feeds, Verification, verify
from retune.bundle.verify.examination import Original
from retune.bundle.verify.rounding import OutputRounding, Rounding
from retune.core.dims import SizeValues, at, sizes_of
from retune.frontend.onnx.inputs import Symbols
from retune.proto.file import read_onnx

if TYPE_CHECKING:
    from retune.bundle.verify.by_parts import Parts
    from retune.bundle.verify.peers import Predict

CALLS = 3
"""Calls of a session that are compared."""
BEFORE = 2
"""Calls of the reference before a sample."""
_NEW = 64
"""Tokens of such a call at most. What caches hold beyond them is drawn from their slots."""


def with_states(
    plan: NetworkPlan,
    network: Original,
    reference: "Predict",
    sizes: SizeValues | None = None,
) -> Feeds:
    """Random inputs of a plan with states, which are those after calls of the reference.

    They begin with zeros, and with states that grow empty. A network whose states have a length
    that its file fixes is not asked for others: such states are random.
    """
    history = _History(plan, network, dict(sizes or plan.largest))
    plain = replace(plan, samples={})

    def feeds(seed: int) -> Mapping[str, np.ndarray]:
        return {**sample_inputs(plain, seed, sizes), **history.states(reference, seed)}

    return feeds


@dataclass(frozen=True)
class NewApart:
    """Outputs of programs whose states grow: what is new in a state, and what was there before.

    A whole cache has the range of all tokens, and rounding moves none of those before: judged as
    one, its new ones would be compared with what happens to others.
    """

    plan: NetworkPlan

    def program(self, predict: "Predict") -> "Predict":
        """The same program with such outputs."""
        return lambda inputs: self.split(inputs, predict(inputs))

    def rounding(self, rounding: Rounding | None) -> Rounding | None:
        """What rounding does to them."""
        if rounding is None:
            return None

        def found(inputs: Mapping[str, np.ndarray]) -> dict[str, OutputRounding]:
            made = rounding(inputs)
            own = self.split(inputs, {name: entry.numpy for name, entry in made.items()}, 1)
            oracle = self.split(inputs, {name: entry.oracle for name, entry in made.items()}, 1)
            return {name: OutputRounding(numpy=own[name], oracle=oracle[name]) for name in own}

        return found

    def split(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        first: int = 0,
    ) -> dict[str, np.ndarray]:
        """Such outputs of whole ones; `first` is the number of axes before those of an output."""
        found = dict(outputs)
        for state in self.plan.states:
            array = np.asarray(outputs[state.output]) if state.output in outputs else None
            rank = first + inputs[state.input].ndim
            if state.axis is not None and array is not None and array.ndim == rank:
                held = inputs[state.input].shape[state.axis]
                parts = np.split(array, [held], axis=first + state.axis)
                found |= {f"{state.output}, kept": parts[0], state.output: parts[1]}
        return found


class _History:
    """Calls of a network before one of some sizes, and the states that they leave."""

    def __init__(self, plan: NetworkPlan, network: Original, sizes: SizeValues) -> None:
        graph = read_onnx(network.onnx).graph
        stored = {entry.name for entry in graph.initializer}
        self._plan, self._network = plan, network
        self._symbols = Symbols(graph, network.shapes, stored)
        self._axes = {state.input: state.axis for state in plan.states}
        self._outputs = {state.input: state.output for state in plan.states}
        self._lengths = {self._symbols.at(n, d) for n, d in self._axes.items() if d is not None}
        """Symbols of the file that are lengths of states; '' among them: one is fixed."""
        grown = [state for state in plan.states if state.axis is not None]
        held, after = (
            max((at(plan.buffer(name).shape[0], sizes) for name in names), default=0)
            for names in ([s.input for s in grown], [s.output for s in grown])
        )
        self._held, self._new = held, self._symbol_of(after - held)
        self._made: dict[str, np.ndarray] = {}

    def _symbol_of(self, new: int) -> str:
        """The symbol that says how many tokens a call has, which are that many; '' for none."""
        of_states = {
            self._symbols.at(name, axis)
            for name in self._axes
            for axis in range(len(self._network.shapes[name]))
        }
        extents = self._symbols.extents
        return next((s for s, e in extents.items() if e == new and s not in of_states), "")

    def states(self, reference: "Predict", seed: int) -> dict[str, np.ndarray]:
        """The states after the calls, which are made once; each seed draws slots of its own."""
        if "" in self._lengths:
            return {}
        if not self._made:
            self._made = self._after_calls(reference)
        found = dict(self._made)
        for name, axis in self._axes.items():
            if axis is not None and found[name].shape[axis]:
                held = found[name].shape[axis]
                drawn = np.random.default_rng(seed).integers(held, size=self._held)
                slots = np.concatenate([np.arange(held), drawn])[: self._held]
                found[name] = found[name].take(slots, axis)
        return found

    def _after_calls(self, reference: "Predict") -> dict[str, np.ndarray]:
        states, held, plan = dict[str, np.ndarray](), 0, self._plan
        for number in range(BEFORE):
            new = {self._new: min(_NEW, self._held - held)} if self._new else {}
            types = self._symbols.types({**dict.fromkeys(self._lengths, held), **new})
            if not states:
                states = {n: np.zeros(types[n].shape, types[n].dtype.numpy) for n in self._axes}
            if self._lengths and held >= self._held:
                break
            values = self._network.values
            inputs = random_inputs(types, number, plan.counts, plan.least, values, held)
            outputs = reference({**inputs, **states})
            states = {name: np.asarray(outputs[made]) for name, made in self._outputs.items()}
            grown = [states[n].shape[d] for n, d in self._axes.items() if d is not None]
            held = max(grown, default=0)
        return states


def verify_calls(
    module: Module,
    reference: "Predict",
    *,
    seed: int = 0,
    tolerance: float,
    sizes: SizeValues | None = None,
    rounding: Rounding | None = None,
    parts: "Parts | None" = None,
) -> Verification:
    """Compares a few calls of a session, outputs and states after each, with the reference.

    All begin from zeros, and from empty states that grow. Of sizes that may differ from call to
    call the first call has those given, or the largest ones, and the next ones the least. Where
    these leave states that are too long for another call, the next one begins from empty ones. The
    reference is asked about each call for the states that the session has before, and so are
    `rounding` and `parts`, which are those of `verify`.
    """
    calls, apart = _SessionCalls(module, dict(sizes or module.plan.largest)), NewApart(module.plan)
    return verify(
        apart.program(calls.run),
        apart.program(reference),
        calls.inputs,
        samples=CALLS,
        seed=seed,
        tolerance=tolerance,
        rounding=apart.rounding(rounding),
        parts=parts,
    )


class _SessionCalls:
    """Calls of a session, and the states that each began with."""

    def __init__(self, module: Module, sizes: SizeValues) -> None:
        plan = self._plan = replace(module.plan, samples={})
        self._outputs = {state.input: state.output for state in plan.states}
        self._types = {name: plan.type_of(name) for name in self._outputs}
        self._growths, self._sizes = growths_of(plan), sizes
        of_states = sizes_of(extent for kind in self._types.values() for extent in kind.shape)
        kept = {size.name for size in of_states} - self._growths.keys()
        self._kept = {name: sizes[name] for name in sorted(kept)}
        self._session = module.session(self._kept)
        self._first, self._states = True, self._empty()

    def _empty(self) -> dict[str, np.ndarray]:
        at_first = {**self._sizes, **dict.fromkeys(self._growths, 0)}
        types = {name: kind.at(at_first) for name, kind in self._types.items()}
        return {name: np.zeros(kind.shape, kind.dtype.numpy) for name, kind in types.items()}

    def inputs(self, seed: int) -> Mapping[str, np.ndarray]:
        """Those of the next call, with the states that it begins with."""
        if any(self._session.length not in growth.size.values for growth in self._growths.values()):
            self._session.reset()
            self._states = self._empty()
        least = {each.size.name: each.size.least for each in self._plan.sizes}
        sizes = self._sizes if self._first else {**least, **self._kept}
        sizes = {**sizes, **dict.fromkeys(self._growths, self._session.length)}
        self._first = False
        made = sample_inputs(self._plan, seed, sizes if self._plan.sizes else None)
        return made | self._states

    def run(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the session returns, and its states afterwards."""
        others = {name: array for name, array in inputs.items() if name not in self._outputs}
        outputs = self._session.run(others)
        self._states = self._session.states()
        return outputs | {self._outputs[name]: array for name, array in self._states.items()}
