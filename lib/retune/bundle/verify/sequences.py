"""Calls of a session in a row against a reference that is fed with its own states.

Read `verify_calls`. What a single run shows is that a call is right for given states; calls in a
row show that a session keeps them, and that they grow where the next call looks for them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from retune.bundle.runtime.module import Module, sample_inputs
from retune.bundle.runtime.session import growths
from retune.bundle.verify.compare import Verification, verify
from retune.core.dims import SizeValues, sizes_of

if TYPE_CHECKING:
    from retune.bundle.verify.peers import Predict

CALLS = 3
"""Calls of a session that are compared."""


def verify_calls(
    module: Module,
    reference: "Predict",
    *,
    seed: int = 0,
    tolerance: float,
    sizes: SizeValues | None = None,
) -> Verification:
    """Compares a few calls of a session, outputs and states after each, with the reference.

    All begin from zeros, and from empty states that grow. Of sizes that may differ from call to
    call the first call has those given, or the largest ones, and the next ones the least. Where
    these leave states that are too long for another call, the next one begins from empty ones.
    """
    calls = _Calls(module, reference, dict(sizes or module.plan.largest))
    return verify(
        calls.ours, calls.theirs, calls.inputs, samples=CALLS, seed=seed, tolerance=tolerance
    )


class _Calls:
    """Both sides of a sequence of calls."""

    def __init__(self, module: Module, reference: "Predict", sizes: dict[str, int]) -> None:
        plan = self._plan = module.plan
        self._reference = reference
        self._states = {state.input: state.output for state in plan.states}
        types = {name: plan.type_of(name) for name in self._states}
        of_states = sizes_of(extent for kind in types.values() for extent in kind.shape)
        lengths = {growth.size for growth in growths(plan).values()}
        self._kept = {s.name: sizes[s.name] for s in of_states if s not in lengths}
        self._lengths, self._sizes, self._first = lengths, sizes, True
        self._session = module.session(self._kept)
        empty = {**sizes, **{size.name: 0 for size in lengths}}
        self._zeros: dict[str, np.ndarray] = {
            name: np.zeros(kind.at(empty).shape, kind.dtype.numpy) for name, kind in types.items()
        }
        self._theirs = self._zeros

    def inputs(self, seed: int) -> Mapping[str, np.ndarray]:
        """Those of the next call that are not states."""
        if any(self._session.length not in size.values for size in self._lengths):
            self._session.reset()
            self._theirs = self._zeros
        sizes = {each.size.name: each.size.least for each in self._plan.sizes}
        sizes = self._sizes if self._first else {**sizes, **self._kept}
        sizes = {**sizes, **{size.name: self._session.length for size in self._lengths}}
        self._first = False
        plan = replace(self._plan, samples={})
        made = sample_inputs(plan, seed, sizes if self._plan.sizes else None)
        return {name: array for name, array in made.items() if name not in self._states}

    def ours(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the session returns, and its states afterwards."""
        outputs = self._session.run(inputs)
        states = self._session.states()
        return outputs | {self._states[name]: array for name, array in states.items()}

    def theirs(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the reference returns for its own states."""
        outputs = self._reference({**inputs, **self._theirs})
        self._theirs = {name: np.asarray(outputs[made]) for name, made in self._states.items()}
        return outputs
