"""Networks of types that are only stored, such as float16: computed in wider ones.

Where a device keeps them in memory, kernels read and write them, and compute in float32: sums in
float16 lose most digits of a thousand products, and what exceeds 65504 is infinite. (MobileNet with
such sums is 1.0e-2 of the range from onnxruntime; like this 5.8e-4.) Elsewhere all values between
the inputs and outputs of the network are of the compute type, too. What a network casts to a stored
type is rounded to it everywhere.
"""

from collections.abc import Collection

from retune.core.dtypes import DTYPES, DType, TensorType
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ir.functions import rounding
from retune.ops import lookup
from retune.ops.registry import SEVERAL_OUTPUTS


def in_compute_types(graph: Graph, own: Collection[DType] = ()) -> Graph:
    """float16 -> float32, inside; inputs and outputs, and those of host steps and loops, keep their
    types through casts.

    A graph whose small floats are all among `own` stays itself.
    """
    found = {entry.dtype for entry in graph.types.values() if _only_stored(entry)}
    return _Widened(graph).finish() if found - {*own} else graph


def computed_wide(group: Graph) -> Graph:
    """The graph of one kernel, which reads and makes stored types, with compute types between.

    A graph that only moves data stays itself.
    """
    moves = (only_moves(n, group) and not _is_rounded(n, group) for n in group.nodes)
    return group if all(moves) else in_compute_types(group)


def only_moves(node: Node, graph: Graph) -> bool:
    """Whether it does no arithmetic: it moves data, or converts what is stored."""
    if node.op == "cast":
        ends = (graph.types[value].dtype for value in (*node.inputs, *node.outputs))
        return len({dtype.compute for dtype in ends}) == 1
    return node.op == "identity" or lookup(node.op).kind == "injective"


def _is_rounded(node: Node, graph: Graph) -> bool:
    """Whether it casts to a stored type what is calculated with before a store rounds it."""
    if node.op != "cast":
        return False
    made, given = (graph.types[value] for value in (node.outputs[0], node.inputs[0]))
    narrows = _only_stored(made) and made.dtype is not given.dtype
    return narrows and not _is_moved_to_stores(node.outputs[0], graph)


def _is_moved_to_stores(value: str, graph: Graph) -> bool:
    """Whether nodes only move it to outputs of its type, where a store rounds it."""
    dtype, readers = graph.types[value].dtype, graph.consumers(value)
    if not all(only_moves(node, graph) for node in readers):
        return False
    made = [output for node in readers for output in node.outputs]
    same = all(graph.types[output].dtype is dtype for output in made)
    return same and all(_is_moved_to_stores(output, graph) for output in made)


def _only_stored(entry: TensorType) -> bool:
    return entry.dtype.compute is not entry.dtype


class _Widened:
    """The wide graph as it grows; `_wide` maps the old values to those that are read instead."""

    def __init__(self, graph: Graph) -> None:
        self._old = graph
        self._build = GraphBuilder(graph.name, fold=True, reserved=graph.types)
        self._build.states = graph.states
        self._wide: dict[str, str] = {"": ""}
        for name in graph.inputs:
            self._wide[name] = self._widen(
                self._build.input(name, graph.types[name], graph.values.get(name, ()))
            )
        for name, array in graph.constants.items():
            dtype, held = graph.types[name].dtype.compute, array
            if _only_stored(graph.types[name]):
                held = array.astype(dtype.numpy)
            self._wide[name] = self._build.constant(self._name(name), held, dtype)

    def finish(self) -> Graph:
        """The wide graph."""
        for node in self._old.nodes:
            if lookup(node.op).kind in SEVERAL_OUTPUTS:
                self._add_whole(node)
            else:
                self._add(node)
        for name in self._old.outputs:
            if name not in self._build.types:
                self._build.add(
                    "cast", [self._wide[name]], {"to": self._old.types[name].dtype}, outputs=[name]
                )
        return self._build.finish(self._old.outputs)

    def _name(self, value: str) -> str:
        """What the wide form of a value is called: as the value, unless that is an output's."""
        if value in self._old.ends and _only_stored(self._old.types[value]):
            return self._build.fresh(f"{value}.wide")
        return value

    def _widen(self, value: str) -> str:
        entry = self._build.types[value]
        if not _only_stored(entry):
            return value
        name = self._build.fresh(f"{value}.wide")
        return self._build.add("cast", [value], {"to": entry.dtype.compute}, outputs=[name])

    def _add(self, node: Node) -> None:
        attrs = {
            key: DType(value).compute if isinstance(value, str) and value in DTYPES else value
            for key, value in node.attrs.items()
        }
        made = {value: self._name(value) for value in node.outputs}
        inputs = [self._wide[value] for value in node.inputs]
        if _is_rounded(node, self._old):
            entry = self._old.types[node.outputs[0]]
            held = self._build.add(node.op, inputs, attrs)
            self._build.add(rounding(entry.dtype), [held], {}, outputs=made.values())
        else:
            self._build.add(node.op, inputs, attrs, outputs=made.values(), name=node.name)
        self._wide |= made

    def _add_whole(self, node: Node) -> None:
        """The types of a host step or loop are its own: it reads and makes what is stored."""
        inputs = [self._narrow(value) if value else "" for value in node.inputs]
        self._build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
        self._wide |= {v: self._widen(v) for v in node.outputs if self._old.types[v].known}

    def _narrow(self, value: str) -> str:
        """The old value in its own type."""
        if self._build.types.get(value) == self._old.types[value]:
            return value
        name = self._build.fresh(f"{value}.half")
        to = self._old.types[value].dtype
        return self._build.add("cast", [self._wide[value]], {"to": to}, outputs=[name])
