"""States of a graph: which of its inputs are outputs of the call before. Read `with_states`."""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.dims import always_same
from retune.core.errors import InputError
from retune.core.states import State, states_among
from retune.graph.graph import Graph


def with_states(graph: Graph, stated: Sequence[str]) -> Graph:
    """The graph with the states that are stated, and those that its names show.

    Names are no promise: what they show and types contradict is an input like any other.
    Raises: InputError for a stated one that cannot be.
    """
    found: list[State] = []
    for state, explicit in states_among(stated, graph.inputs, graph.outputs):
        before, after = graph.types[state.input], graph.types[state.output]
        if before.dtype == after.dtype and always_same(before.shape, after.shape):
            found.append(state)
        elif explicit:
            raise InputError(
                f"--state {state}: expected an output of the input's type, {before}; got {after}; "
                "name another output"
            )
    return replace(graph, states=tuple(found))
