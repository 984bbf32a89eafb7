"""Where states of a plan lie: in place, or in two memories that change places after each run.

Read `StateMemory`. A state whose output lies in the input's memory is updated in place; so are
those that grow, whose output begins with the input. Any other one is read from one memory while
its next value is written to another one, at the same offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.bundle.plan import NetworkPlan, made_by_hosts, storage_roots
from retune.core.dims import most
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
    roots, elsewhere = storage_roots(plan), made_by_hosts(plan)
    sizes = {entry.name: most(entry.bytes) for entry in plan.buffers}
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
