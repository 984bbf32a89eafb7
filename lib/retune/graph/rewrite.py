"""Rebuilding a graph node by node: what every pass is written with.

A rule sees each node in order and either answers the name of the value that replaces the node's
output, or None to keep the node. Every op that a rule sees has exactly one output: host steps and
loops, which may have several, go from the old graph to the new one as they are. Constants fold on
the way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from retune.core.dtypes import TensorType
from retune.graph.graph import Graph, GraphBuilder, Node, folds, without_dead
from retune.ops import Array, Attrs, lookup
from retune.ops.registry import SEVERAL_OUTPUTS


class GraphRewriter:
    """The graph under construction, and what a rule asks of the old and the new one.

    As long as nothing differs, the new graph is the old one, up to the node that comes next.
    """

    def __init__(self, graph: Graph) -> None:
        self.old = graph
        self.types = graph.types
        self._constants = graph.constants
        self._new: dict[str, str] = {}
        self._made: dict[str, Node] = {v: node for node in graph.nodes for v in node.outputs}
        self._builder: GraphBuilder | None = None
        self._passed = 0
        """Nodes at the old graph's begin that are the new one's."""

    def _build(self) -> GraphBuilder:
        """The builder of the new graph, from the first difference on."""
        if self._builder is None:
            self._builder = build = GraphBuilder(self.old.name, fold=True, reserved=self.old.types)
            build.carry(self.old, self._passed)
            self.types, self._constants = build.types, build.constants
            passed = self.old.nodes[: self._passed]
            self._made = {v: node for node in passed for v in node.outputs}
        return self._builder

    @cached_property
    def _uses(self) -> Counter[str]:
        """The number of reads of each value; the network's outputs count."""
        uses = Counter(v for node in self.old.nodes for v in node.inputs if v)
        uses.update(self.old.outputs)
        return uses

    def _pass(self, node: Node, old: Node) -> bool:
        """Whether the new graph is the old one still, with this node, which folds to nothing."""
        if self._builder is not None or node is not old:
            return False
        types = (self.old.types[v] for v in node.outputs if v)
        passed = not folds(node, types, self._constants)
        self._passed += passed
        return passed

    def value(self, old: str) -> str:
        """The new name of an old value."""
        return self._new.get(old, old)

    def current(self, old: Node) -> Node:
        """The old node over its inputs in the new graph: itself if these have their old names."""
        if not self._new:
            return old
        inputs = tuple([self._new.get(value, value) for value in old.inputs])
        return old if inputs == old.inputs else replace(old, inputs=inputs)

    def constant(self, new: str) -> Array | None:
        """The contents of a new value, if they are known."""
        return self._constants.get(new)

    def shape(self, new: str) -> tuple[int, ...]:
        """The shape of a new value."""
        return self.types[new].shape

    def producer(self, new: str) -> Node | None:
        """The node that makes a new value; None for inputs and constants."""
        return self._made.get(new)

    def only_use(self, new: str) -> bool:
        """True if at most one node reads the value, and it is not an output of the network."""
        return self._uses[new] <= 1 and new not in self.old.ends

    def emit(self, op: str, inputs: tuple[str, ...], attrs: Attrs, output: str = "") -> str:
        """The value made by an op over new values, named `output` or a fresh name."""
        name = output or self._fresh(f"{inputs[0]}.{op}")
        return self._add(op, inputs, attrs, name)

    def copy(self, node: Node, old: Node) -> None:
        """The old node over its inputs in the new graph makes its output there too."""
        before, now, (made,) = self.old.types, self.types, old.outputs
        if node.name == made and self._pass(node, old):
            return
        same = node is old and all(now.get(v) is before.get(v) for v in node.inputs)
        types = (before[made],) if same else ()
        if types and node.name == made:
            self._build().put(node, types)
            self._note(made)
        else:
            self._add(node.op, node.inputs, node.attrs, made, types)

    def _add(
        self,
        op: str,
        inputs: tuple[str, ...],
        attrs: Attrs,
        name: str,
        types: Sequence[TensorType] = (),
    ) -> str:
        self._build().add(op, inputs, attrs, outputs=[name], name=name, types=types)
        return self._note(name)

    def _note(self, made: str) -> str:
        """The value, whose node was added last unless it was folded."""
        if made not in self._build().constants:
            self._made[made] = self._build().last
        return made

    def keep(self, node: Node, old: Node | None = None) -> None:
        """The node, whose inputs are new, makes its outputs in the new graph too.

        It may be the `old` one itself.
        """
        if old is not None and self._pass(node, old):
            return
        self._build().add(node.op, node.inputs, node.attrs, outputs=node.outputs, name=node.name)
        self._made.update((v, node) for v in node.outputs if v not in self._build().constants)

    def store(self, stem: str, array: Array) -> str:
        """The name of a new constant."""
        return self._build().constant(self._fresh(stem), array)

    def replace(self, old: str, new: str) -> None:
        """Readers of `old` read `new` from here on."""
        if old != new:
            self._build()
            self._new[old] = new
            self._uses[new] += self._uses[old]

    def finish(self) -> Graph:
        """The new graph; replaced outputs keep their names through an identity.

        It is the old one itself where nothing differs.
        """
        if self._builder is None:
            return without_dead(self.old)
        for output in self.old.outputs:
            if output not in self.types:
                self.emit("identity", (self.value(output),), {}, output)
        return self._build().finish(self.old.outputs)

    def _fresh(self, stem: str) -> str:
        return self._build().fresh(stem)


Rule = Callable[[GraphRewriter, Node], str | None]
"""The name of the value that replaces the node's output, or None. The node's inputs are new."""


def rebuild(graph: Graph, *rules: Rule) -> Graph:
    """The graph after the first rule that answers has replaced each node."""
    rewriter = GraphRewriter(graph)
    for old in graph.nodes:
        node = rewriter.current(old)
        if lookup(node.op).kind in SEVERAL_OUTPUTS:
            rewriter.keep(node, old)
            continue
        # without inputs it makes positions or sizes: there is nothing to be rewritten
        for rule in rules if node.inputs else ():
            if (answer := rule(rewriter, node)) is not None:
                rewriter.replace(old.outputs[0], answer)
                break
        else:
            rewriter.copy(node, old)
    return rewriter.finish()


def to_fixed_point(graph: Graph, step: Callable[[Graph], Graph]) -> Graph:
    """The graph after as many steps as still change its nodes, so that one more changes none."""
    while True:
        after = step(graph)
        if len(after.nodes) == len(graph.nodes) and all(
            a is b or (a.op == b.op and a.inputs == b.inputs)
            for a, b in zip(after.nodes, graph.nodes, strict=True)
        ):
            return after
        graph = after


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of some of its values."""
    return replace(
        graph,
        inputs=_new(graph.inputs, names),
        outputs=_new(graph.outputs, names),
        nodes=tuple(node_renamed(node, names) for node in graph.nodes),
        types={names.get(value, value): entry for value, entry in graph.types.items()},
        constants={names.get(value, value): array for value, array in graph.constants.items()},
        values={names.get(value, value): entry for value, entry in graph.values.items()},
        states=tuple(
            replace(each, input=new_input, output=new_output)
            for each in graph.states
            for new_input, new_output in [_new((each.input, each.output), names)]
        ),
    )


def node_renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names of its inputs and outputs."""
    return replace(node, inputs=_new(node.inputs, names), outputs=_new(node.outputs, names))


def _new(values: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(names.get(value, value) for value in values)
