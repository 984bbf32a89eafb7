"""Memory of a plan's states: updated in place, or in two buffers that are swapped after a run.

Read `StateMemory`. A state whose output lies in the input's memory is updated in place; so are
those that grow, whose output begins with the input. Any other one is read from one memory while
its next value is written to another one, at the same offset. `growths_of` says how states grow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.bundle.plan import NetworkPlan, made_by_hosts
from retune.core.dims import Dim, Size, always_equal
from retune.core.errors import InputError
from retune.core.states import State


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMemory:
    """The memory of one state, by the storage roots of what is in it."""

    state: State
    read: str
    """Root of the input."""
    made: tuple[str, ...]
    """Roots of the output, on the device, in the variants of the plan; none where all of them are
    the input's, or where a host step makes it."""
    bytes: int
    """For the largest sizes."""
    in_place: bool

    @property
    def roots(self) -> tuple[str, ...]:
        """All of them."""
        return (self.read, *self.made)


def state_memories(plan: NetworkPlan) -> tuple[StateMemory, ...]:
    """The memory of each state, in the plan's order."""
    if not plan.states:
        return ()
    roots, elsewhere = plan.roots, made_by_hosts(plan)
    sizes = {entry.name: entry.most_bytes for entry in plan.buffers}
    found: list[StateMemory] = []
    for state in plan.states:
        read = roots[state.input]
        every = dict.fromkeys(roots[name] for name in outputs_of(plan, state.output))
        made = tuple(root for root in every if root != read and root not in elsewhere)
        found.append(
            StateMemory(
                state=state,
                read=read,
                made=made,
                bytes=max(sizes[root] for root in (read, *made)),
                in_place=read in every,
            )
        )
    return tuple(found)


def outputs_of(plan: NetworkPlan, output: str) -> Sequence[str]:
    """The buffers that are the output, in the variants of the plan."""
    number = plan.outputs.index(output)
    return [(v.outputs or plan.outputs)[number] for v in plan.alternatives]


@dataclass(frozen=True, slots=True)
class Growth:
    """A size that is the length of states, and the length after a call, in terms of sizes."""

    size: Size
    after: int


def growths_of(plan: NetworkPlan) -> dict[str, Growth]:
    """The sizes that are lengths of states, by name; none if no state grows.

    Raises: InputError for a state that grows and cannot be empty, so that calls cannot follow each
    other.
    """
    found: dict[str, Growth] = {}
    for state in plan.states:
        if state.axis is None:
            continue
        before, after = (plan.buffer(n).shape[0] for n in (state.input, state.output))
        size = before.size if isinstance(before, Dim) else None
        if size is None or size.least:
            raise InputError(
                f"bundle {plan.name}: state {state.input}: expected a length from 0 on for a "
                f"session; got {before}; compile the model with a range such as --shape past=0..511"
            )
        growth = found.setdefault(size.name, Growth(size, after))
        if not always_equal(growth.after, after):
            raise InputError(
                f"bundle {plan.name}: state {state.input}: expected {growth.after} after a call, "
                f"as other states of length {size.name}; got {after}; give it another symbol"
            )
    return found
