"""States of a graph: which of its inputs are outputs of the call before. Read `with_states`.

A state that grows, such as a cache of keys, does so along its first axis here, whatever the file's
order: what is new then lies behind what was there, and nothing of the rest has to move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.core.dims import always_same
from retune.core.dtypes import TensorType
from retune.core.errors import InputError
from retune.core.states import State, states_among
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops.registry import HOST


def with_states(graph: Graph, stated: Sequence[str]) -> Graph:
    """The graph with the states that are stated, and those that its names show.

    Names promise nothing: an input whose name the graph contradicts is one like any other.
    Raises: InputError for a stated one that cannot be.
    """
    found: list[State] = []
    growing: dict[str, _Growing] = {}
    makers = {value: node for node in graph.nodes for value in node.outputs}
    for state, explicit in states_among(stated, graph.inputs, graph.outputs):
        before, after = graph.types[state.input], graph.types[state.output]
        grows = _growing(graph, makers, state)
        if before.dtype == after.dtype and always_same(before.shape, after.shape):
            found.append(state)
        elif grows is not None:
            found.append(replace(state, axis=grows.axis))
            growing[state.output] = grows
        elif explicit:
            raise InputError(
                f"--state {state}: expected an output of the input's type, {before}, or a Concat "
                f"of the input and what is new; got {after}; name another output"
            )
    if not growing:
        return replace(graph, states=tuple(found))
    return replace(_grown(graph, growing), states=tuple(found))


@dataclass(frozen=True, slots=True)
class _Growing:
    """A state that grows."""

    input: str
    new: str
    """What is appended."""
    axis: int
    names: frozenset[str]
    """Values that are the output."""
    rank: int

    @property
    def outwards(self) -> tuple[int, ...]:
        """The order of axes in which it lies: the one along which it grows is the first."""
        return (self.axis, *(d for d in range(self.rank) if d != self.axis))

    @property
    def back(self) -> tuple[int, ...]:
        """From there to the model's order."""
        return tuple(self.outwards.index(d) for d in range(self.rank))


def _growing(graph: Graph, makers: Mapping[str, Node], state: State) -> _Growing | None:
    """How the output is made of the input and what is new; None where it is made otherwise."""
    value, names = state.output, {state.output}
    while (node := makers.get(value)) is not None and node.op == "identity":
        (value,) = node.inputs
        names.add(value)
    rank = len(graph.types[state.input].shape)
    if node is None or node.op != "concat" or len(node.inputs) != 2:
        return None
    (past, new), axis = node.inputs, int(str(node.attrs["axis"]))
    return _Growing(past, new, axis, frozenset(names), rank) if past == state.input else None


def _grown(graph: Graph, growing: Mapping[str, _Growing]) -> Graph:
    """The graph whose growing states have their order: transposes lead from it to the file's."""
    build = GraphBuilder(graph.name, fold=True, reserved=graph.types)
    by_input = {each.input: each for each in growing.values()}
    now = {"": ""}
    for name in graph.inputs:
        kind, each = graph.types[name], by_input.get(name)
        if each is not None:
            kind = TensorType(tuple(kind.shape[d] for d in each.outwards), kind.dtype)
        now[name] = build.input(name, kind, graph.values.get(name, ()))
    for name, array in graph.constants.items():
        now[name] = build.constant(name, array, graph.types[name].dtype)
    outputs = {name: output for output, each in growing.items() for name in each.names}
    for name, each in by_input.items():
        now[name] = build.add("transpose", [name], {"perm": each.back}, name=f"{name}.in_order")
    for node in graph.nodes:
        made = outputs.get(node.outputs[0])
        if made is None:
            _repeat(build, graph, node, now)
        elif node.op == "concat":
            each = growing[made]
            new = build.add(
                "transpose",
                [now.get(each.new, each.new)],
                {"perm": each.outwards},
                name=f"{made}.new",
            )
            build.add("append", [each.input, new], outputs=[made])
            shown = build.add("transpose", [made], {"perm": each.back}, name=f"{made}.in_order")
            now.update(dict.fromkeys(each.names, shown))
        if made is not None and made not in node.outputs and node.outputs[0] in graph.ends:
            build.add("identity", [now[node.outputs[0]]], outputs=node.outputs)
    return build.finish(graph.outputs)


def _repeat(build: GraphBuilder, graph: Graph, node: Node, now: dict[str, str]) -> None:
    types = [graph.types[value] for value in node.outputs if value]
    inputs = [now.get(value, value) for value in node.inputs]
    whole = len(types) == len(node.outputs)
    build.add(
        node.op,
        inputs,
        node.attrs,
        outputs=node.outputs,
        name=node.name,
        types=types if whole else (),
    )


def own_appended(graph: Graph) -> Graph:
    """What is appended to a state is made by a kernel for that alone: it writes to the state."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    nodes: list[Node] = []
    types = dict(graph.types)
    for node in graph.nodes:
        new = node.inputs[1] if node.op == "append" else ""
        if not new or _is_own(graph, makers.get(new), new):
            nodes.append(node)
            continue
        own = f"{new}.appended.{len(nodes)}"
        types[own] = types[new]
        nodes.append(Node(op="identity", name=own, inputs=(new,), outputs=(own,)))
        nodes.append(replace(node, inputs=(node.inputs[0], own)))
    return replace(graph, nodes=tuple(nodes), types=types)


def _is_own(graph: Graph, maker: Node | None, value: str) -> bool:
    """Whether a kernel makes the value, and nothing but the state is made of it."""
    if maker is None or maker.op in ("reshape", "append", HOST) or len(maker.outputs) > 1:
        return False
    return value not in graph.ends and len(graph.consumers(value)) == 1
