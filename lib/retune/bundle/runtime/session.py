"""Session: calls of a module in a row, whose states stay on the device.

Read `Session.run`. A session has memory for its states, and shares all else with its module and the
module's other sessions: kernels, weights, temporaries and the queue. States that a run makes beside
those that it reads lie in two memories, which are swapped after each run; those that grow, or
that stay as they are, lie in one. Nothing of a state is copied by a run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from retune.bundle.runtime.allocations import Allocations
from retune.bundle.runtime.executor import Bind
from retune.bundle.runtime.inputs import InputCheck
from retune.bundle.runtime.runs import Loaded, Runs, shown, stored
from retune.bundle.states import growths_of, outputs_of, state_memories
from retune.core.dims import Dim, SizeValues, at, most, sizes_of, values_text
from retune.core.errors import InputError
from retune.core.states import State

_OPEN = ("_memories", "_runs")
"""What a session has until it is closed."""


class Session:
    """A sequence of calls. Not for two threads at once, nor are two sessions of one module.

    With a `with` statement, the memory of its states is free when its block ends.
    """

    def __init__(
        self, loaded: Loaded, bind: Bind, held: Allocations, sizes: SizeValues | None = None
    ) -> None:
        """States are zeros, and those that grow are empty.

        `sizes` are those that no input but states says. Raises: InputError if there are no states,
        or if one that grows has no range to do so.
        """
        plan = loaded.plan
        if not plan.states:
            raise InputError(
                f"bundle {plan.name}: expected states, got none; compile the model with --state "
                "INPUT=OUTPUT"
            )
        self._loaded, self._plan, self._stated = loaded, plan, dict(sizes or {})
        self._growths = growths_of(plan)
        self._states = {state.input: state for state in plan.states}
        self._check = InputCheck(plan, [n for n in plan.inputs if n not in self._states])
        shapes = (loaded.types[name].shape for name in self._states)
        found = {size.name for shape in shapes for size in sizes_of(shape)}
        self._kept = sorted(found - self._growths.keys())
        """Sizes that are the same in all calls: states have these extents."""
        self._by_hosts = [s for s in plan.states if _is_made_by_host(s, loaded)]
        fresh = held.with_states(loaded.host)
        alone = all(each.in_place for each in state_memories(plan))
        self._memories = [fresh] if alone else [fresh, fresh.turned]
        by_hosts = {state.output for state in self._by_hosts}
        others = {state.output for state in plan.states} - by_hosts
        taken = [name for name in plan.outputs if name not in others]
        self._runs = [
            Runs(loaded, bind(memory), memory, self._check.names, taken)
            for memory in self._memories
        ]
        self._turn, self._lengths = 0, dict.fromkeys(self._growths, 0)
        self._first: SizeValues = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The memory of its states is free, and it cannot run any more; twice is as once."""
        for name in _OPEN:
            vars(self).pop(name, None)

    def __getattr__(self, name: str) -> Any:
        if name in _OPEN and "_plan" in vars(self):
            raise InputError(
                f"bundle {self._plan.name}: expected an open session, got one that was closed; "
                "open another one"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def length(self) -> int:
        """Elements of growing states along the axis on which they grow; 0 if nothing grows."""
        return max(self._lengths.values(), default=0)

    @property
    def capacity(self) -> int:
        """The greatest length with which a call may begin; 0 if nothing grows."""
        return min((growth.size.most for growth in self._growths.values()), default=0)

    @property
    def state_bytes(self) -> int:
        """Device memory of its states."""
        return sum(self._memories[0].placement.state_bytes)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are not states, by name; the states are those after this call.

        Raises: InputError as `Module.run`, and beyond the capacity; the states stay as they are
        then.
        """
        arrays = self._check.arrays(inputs)
        runs = self._runs[self._turn]
        key = (*self._check.key(arrays), *self._lengths.values())
        wanted = runs.prepared(key) or runs.keep(key, self._sizes(arrays))
        if self._kept:
            self._check_kept(wanted.values)
        values = wanted.values
        self._check.indices(arrays, values)
        if self._plan.hosts:
            outputs, _, values = runs.observe(wanted, arrays)
        else:
            outputs = runs.run(wanted, arrays)
        self._turn = (self._turn + 1) % len(self._runs)
        for name, growth in self._growths.items():
            self._lengths[name] = at(growth.after, values)
        for state in self._by_hosts:
            self._write(state, outputs.pop(state.output))
        return outputs

    __call__ = run

    def reset(self, states: Mapping[str, np.ndarray] | None = None) -> None:
        """States are zeros again, and those that grow are empty, but for inputs with values here.

        States of one length, or of one batch, are given together. Raises: InputError for what is
        not a state, or not of its type, and for extents that differ; nothing changes then.
        """
        given = {name: np.asarray(array) for name, array in (states or {}).items()}
        sizes: dict[str, int] = {}
        for name, array in given.items():
            sizes |= self._sizes_of(name, array, sizes)
        lengths = {name: sizes.get(name, 0) for name in self._growths}
        for name, state in self._states.items():
            if name not in given and state.axis is not None:
                self._check_empty(name, lengths)
        self._turn, self._lengths = 0, lengths
        self._first = {name: sizes[name] for name in self._kept if name in sizes}
        for name, state in self._states.items():
            if name in given:
                self._write(state, given[name])
            elif state.axis is None:
                kind = self._loaded.types[name]
                self._write(state, np.zeros(most(kind.elements), kind.dtype.numpy))

    def states(self) -> dict[str, np.ndarray]:
        """Copies of all states, by the names of the inputs, for `reset` or `Module.run`.

        Raises: InputError before the first call, if their extents depend on its inputs.
        """
        values = {**self._stated, **self._first, **self._lengths}
        memory, host = self._memories[self._turn], self._loaded.host
        found: dict[str, np.ndarray] = {}
        for name, state in self._states.items():
            kind = self._loaded.types[name]
            if lacking := sorted(s.name for s in sizes_of(kind.shape) if s.name not in values):
                raise InputError(
                    f"bundle {self._plan.name}: state {name}: expected a call that says "
                    f"{', '.join(lacking)} before its states are read; call run() first"
                )
            found[name] = shown(state, host.read(memory.interface(name, host), kind.at(values)))
        return found

    def _write(self, state: State, array: np.ndarray) -> None:
        """The array is what the next call reads of the state."""
        memory, host = self._memories[self._turn], self._loaded.host
        host.write(memory.interface(state.input, host), stored(state, array))

    def _sizes_of(self, name: str, array: np.ndarray, others: SizeValues) -> dict[str, int]:
        """The sizes that an array says of a state. Raises: InputError if it does not fit."""
        state = self._states.get(name)
        if state is None:
            known = ", ".join(self._states)
            raise InputError(f"bundle {self._plan.name}: expected states among {known}; got {name}")
        kind, values = self._loaded.types[name], dict[str, int]()
        fits = array.dtype == kind.dtype.numpy and array.ndim == len(kind.shape)
        shape = stored(state, array).shape if fits else ()
        for extent, number in zip(kind.shape, shape, strict=False):
            size = extent.size if isinstance(extent, Dim) else None
            fits = fits and (number == extent if size is None else number in size.values)
            if size is not None:
                agreed = values.setdefault(size.name, others.get(size.name, number))
                fits = fits and number == agreed
        if not fits:
            same = f" with {values_text(others)}" if others else ""
            raise InputError(
                f"bundle {self._plan.name}: state {name}: expected what Session.states returns of "
                f"it{same}; got {array.dtype}{list(array.shape)}; run a call and look at its states"
            )
        return values

    def _check_empty(self, name: str, lengths: SizeValues) -> None:
        """Raises: InputError if a state without a value would have a length."""
        extent = self._loaded.types[name].shape[0]
        if length := at(extent, lengths):
            raise InputError(
                f"bundle {self._plan.name}: state {name}: expected a value as well, of the length "
                f"of other states, {extent}={length}; got none; pass it as well"
            )

    def _sizes(self, arrays: Sequence[np.ndarray]) -> dict[str, int]:
        """The sizes of a call. Raises: InputError."""
        for name, length in self._lengths.items():
            size = self._growths[name].size
            if length not in size.values:
                raise InputError(
                    f"bundle {self._plan.name}: session: expected a length of "
                    f"{size.least} to {size.most} before a call, as {size} allows; got {length}; "
                    f"call reset(), or compile the model with --shape {name}=0..{2 * size.most + 1}"
                )
        return self._check.sizes(arrays, {**self._stated, **self._lengths})

    def _check_kept(self, values: SizeValues) -> None:
        """Raises: InputError for sizes that are not those of the states so far."""
        own = {name: values[name] for name in self._kept}
        if any(own[name] != value for name, value in self._first.items()):
            raise InputError(
                f"bundle {self._plan.name}: session: expected "
                f"{values_text(self._first)} as its states have; got {values_text(own)}; "
                "call reset() before"
            )
        self._first = own


def _is_made_by_host(state: State, loaded: Loaded) -> bool:
    """Whether a host step makes the output, in some variant."""
    outputs = outputs_of(loaded.plan, state.output)
    return any(loaded.roots[name] in loaded.elsewhere for name in outputs)
