"""Networks of float16: computed in float32, by kernel or as a whole.

Where a device keeps float16, kernels read and write it, and compute in float32: sums in float16
lose most digits of a thousand products, and what exceeds 65504 is no number. (MobileNet with such
sums is 1.0e-2 of the range from onnxruntime; like this 5.8e-4.) Elsewhere all values between the
inputs and outputs of the network are of float32, too.
"""

from retune.core.dtypes import FLOAT16, FLOAT32, TensorType
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops import lookup


def widen_half(graph: Graph) -> Graph:
    """float16 -> float32, inside; inputs, outputs and host steps keep their types through casts."""
    if not any(_is_half(entry) for entry in graph.types.values()):
        return graph
    return _Widened(graph).finish()


def computed_wide(group: Graph) -> Graph:
    """The graph of one kernel, which reads and makes float16, with float32 between.

    A graph that only moves data stays itself.
    """
    return group if all(moves_half(node, group) for node in group.nodes) else widen_half(group)


def moves_half(node: Node, graph: Graph) -> bool:
    """Whether it needs no arithmetic of float16: it moves data, or casts to float32 or from it."""
    if node.op == "cast":
        ends = (graph.types[value].dtype for value in (*node.inputs, *node.outputs))
        return all(dtype in (FLOAT16, FLOAT32) for dtype in ends)
    return node.op == "identity" or lookup(node.op).kind == "injective"


def _is_half(entry: TensorType) -> bool:
    return entry.dtype == FLOAT16


class _Widened:
    """The wide graph as it grows; `_wide` maps the old values to those that are read instead."""

    def __init__(self, graph: Graph) -> None:
        self._old = graph
        self._build = GraphBuilder(graph.name, fold=True, reserved=graph.types)
        self._wide: dict[str, str] = {"": ""}
        for name in graph.inputs:
            self._wide[name] = self._widen(self._build.input(name, graph.types[name]))
        for name, array in graph.constants.items():
            half = _is_half(graph.types[name])
            wide = array.astype(FLOAT32) if half else array
            dtype = FLOAT32 if half else graph.types[name].dtype
            self._wide[name] = self._build.constant(self._name(name), wide, dtype)

    def finish(self) -> Graph:
        """The wide graph."""
        for node in self._old.nodes:
            if lookup(node.op).kind == "host":
                self._add_host(node)
            else:
                self._add(node)
        for name in self._old.outputs:
            if name not in self._build.types:
                self._build.add("cast", [self._wide[name]], {"to": FLOAT16}, outputs=[name])
        return self._build.finish(self._old.outputs)

    def _name(self, value: str) -> str:
        """What the wide form of a value is called: as the value, unless that is an output's."""
        if value in self._old.outputs and _is_half(self._old.types[value]):
            return self._build.fresh(f"{value}.wide")
        return value

    def _widen(self, value: str) -> str:
        if not _is_half(self._build.types[value]):
            return value
        name = self._build.fresh(f"{value}.wide")
        return self._build.add("cast", [value], {"to": FLOAT32}, outputs=[name])

    def _add(self, node: Node) -> None:
        attrs = {key: FLOAT32 if value == FLOAT16 else value for key, value in node.attrs.items()}
        made = {value: self._name(value) for value in node.outputs}
        inputs = [self._wide[value] for value in node.inputs]
        self._build.add(node.op, inputs, attrs, outputs=made.values(), name=node.name)
        self._wide |= made

    def _add_host(self, node: Node) -> None:
        """The types of a host step are its own: it reads and makes float16 as before."""
        inputs = [self._narrow(value) if value else "" for value in node.inputs]
        self._build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
        self._wide |= {v: self._widen(v) for v in node.outputs if self._old.types[v].known}

    def _narrow(self, value: str) -> str:
        """The old value in its own type."""
        if self._build.types.get(value) == self._old.types[value]:
            return value
        name = self._build.fresh(f"{value}.half")
        return self._build.add("cast", [self._wide[value]], {"to": FLOAT16}, outputs=[name])
