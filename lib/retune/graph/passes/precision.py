"""16-bit storage between kernels, in a network of float32.

Read `Precision` and `in_precision`. A value of a graph is stored in its type, and every float
computes in its compute type: so the pass states types, and casts where a value is read or stored in
another one. Casts fuse with their neighbours, as conversions of loads and stores. Weights of
products are rounded once, to the nearest, ties to even. What 16 bits would ruin stays in float32:

- inputs and outputs of the network, and all that host steps and loops read and make;
- small vectors: constants that no product multiplies by, such as biases and scales;
- sums, means and products over axes, running ones included, and all that is made of them alone;
- functions that amplify what they are given, or jump (`_AMPLIFYING`);
- products that are divided by: a quotient of two such sums is in a type's range, as that of linear
  attention is, where the sums themselves need not be;
- positions: what is made of integers, and what integers of several values are added to;
- what has an operand beyond the type's range, such as the -1e9 of a mask in float16.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.core.dtypes import FLOAT32, Array, DType, dtype_of
from retune.graph.graph import Graph, GraphBuilder, Node, type_of
from retune.graph.passes.attention import AttentionFusion
from retune.ops import lookup
from retune.ops.registry import SEVERAL_OUTPUTS

PRODUCTS = ("conv2d", "conv3d", "conv_transpose", "depthwise_conv2d", "dense", "matmul")
"""Ops whose operands are both stored in 16 bits: instructions multiply such."""
_OF_ONE_RESULT = "depthwise_conv2d"
"""The product whose operands serve one channel each: no matrix instruction multiplies them."""
_STATISTICS = (
    *("reduce_mean", "reduce_sum", "reduce_prod", "cumulative_sum", "cumulative_product"),
    *("fold_rows", "leaf_sums", "batch_norm"),
)
_AMPLIFYING = (
    *("exp", "log", "power", "reciprocal", "softplus", "sin", "cos", "tan", "sinh", "cosh"),
    *("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh"),
    *("floor", "ceil", "round", "sign", "quotient", "fmod", "mod", "bitcast"),
)
"""Those whose error is many times that of their argument, or whose value jumps."""
_POSITIONED = ("sample", "gather_elements", "last_writers")
_TABLES = ("gather",)
"""Ops that take rows of a constant: its elements are stored in 16 bits, as those of a weight."""
_APART = ("offload", "opaque", "table", *SEVERAL_OUTPUTS)
"""Kinds of ops that read and make the types that they had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a network of float32 is computed with."""

    own: frozenset[DType] = frozenset()
    """Small floats that stay between kernels where a network has them; others are of their compute
    types there."""
    stored: DType = FLOAT32
    """What is of float32 in the network is stored as that between kernels."""
    operands: DType | None = None
    """What products of float32 round their operands to, as instructions do that read less: storage
    stays."""
    kept: tuple[str, ...] = ()
    """Layers that read and make float32, by their outputs, see `layers`."""
    attention: AttentionFusion = AttentionFusion()
    """What attention the device computes as one op."""
    beside: bool = False
    """Whether its kernels make several products of one row, see `passes.beside`."""

    @property
    def changes(self) -> bool:
        """Whether a network of float32 becomes another one."""
        return self.stored is not FLOAT32 or self.operands is not None


def in_precision(graph: Graph, precision: Precision) -> Graph:
    """The graph with values of float32 stored as `precision` says; its interface stays."""
    if precision.stored is not FLOAT32:
        graph = _StoredGraph(graph, precision).finish()
    if precision.operands is None:
        return graph
    shared = (n for n in layers(graph) if n.op in PRODUCTS and n.op != _OF_ONE_RESULT)
    read = {n.outputs[0] for n in shared} - {*precision.kept}
    nodes = (
        replace(node, attrs={**node.attrs, "operands": precision.operands})
        if node.outputs[0] in read
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def layers(graph: Graph) -> tuple[Node, ...]:
    """What reads weights of float32: products, also of two activations, and rows of tables."""
    return tuple(node for node in graph.nodes if _is_layer(node, graph))


def _is_layer(node: Node, graph: Graph) -> bool:
    if node.op in _TABLES:
        array = graph.constants.get(node.inputs[0])
        return array is not None and array.ndim > 1 and graph.types[node.inputs[0]].dtype is FLOAT32
    ends = (*node.inputs, *node.outputs)
    return node.op in PRODUCTS and all(graph.types[value].dtype is FLOAT32 for value in ends)


class _StoredGraph:
    """The new graph as it grows; `_new` maps old values to those that hold them."""

    def __init__(self, graph: Graph, precision: Precision) -> None:
        self._old, self._to = graph, precision.stored
        self._limit = float(precision.stored.finfo.max)
        self._build = GraphBuilder(graph.name, reserved=graph.types)
        self._build.states = graph.states
        self._new: dict[str, str] = {"": ""}
        self._narrow: dict[str, str] = {}
        self._positions: set[str] = set()
        self._layers = {node.outputs[0] for node in layers(graph)} - {*precision.kept}
        self._layers -= _of_states(graph) | _divisors(graph)
        kept = (node for node in graph.nodes if node.outputs[0] in precision.kept)
        self._whole = {value for node in kept for value in (*node.inputs, *node.outputs)}
        """Values of kept layers, which stay in float32."""
        read = {node.outputs[0] for node in layers(graph) if node.op in PRODUCTS}
        self._wanted = _read_by(graph, read & self._layers)

    def finish(self) -> Graph:
        """The new graph."""
        old = self._old
        for name in old.inputs:
            self._new[name] = self._build.input(name, old.types[name], old.values.get(name, ()))
            self._want(name)
        for node in old.nodes:
            self._add(node)
        for name in old.outputs:
            if name not in self._build.types:
                self._end(name)
        return self._build.finish(old.outputs)

    def _end(self, name: str) -> None:
        if name in self._old.constants:
            self._build.constant(name, self._old.constants[name], self._old.types[name].dtype)
        else:
            to = {"to": self._old.types[name].dtype}
            self._build.add("cast", [self._new[name]], to, outputs=[name])

    def _add(self, node: Node) -> None:
        definition = lookup(node.op)
        if definition.kind in _APART or node.op == "append":
            inputs = [self._as(value, FLOAT32) for value in node.inputs]
            self._build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
            self._new |= {value: value for value in node.outputs}
            return
        self._make(node, self._operands(node))

    def _make(self, node: Node, inputs: Sequence[str]) -> None:
        """The node over these inputs; what it makes is of float32 where that is asked for."""
        (output,) = node.outputs
        read = [type_of(self._build.types, value) for value in inputs]
        (entry,) = lookup(node.op).infer(read, node.attrs)
        whole = output in self._old.ends or output in self._whole
        name = output
        if entry.dtype is self._to and self._old.types[output].dtype is FLOAT32 and whole:
            name = self._build.fresh(f"{output}.{self._to}")
        self._new[output] = self._build.add(
            node.op, inputs, node.attrs, outputs=[name], name=node.name, types=(entry,)
        )
        if name != output and output in self._whole:
            self._new[output] = self._cast(name, FLOAT32, output)
        self._want(output)

    def _want(self, value: str) -> None:
        """The value is rounded before it is moved to the products that alone read it."""
        if value in self._wanted:
            self._new[value] = self._as(value, self._to)

    def _operands(self, node: Node) -> list[str]:
        """What the node reads, in the types in which it does."""
        if node.outputs[0] in self._layers and all(map(self._fits, node.inputs)):
            return [self._as(value, self._to) for value in node.inputs]
        if node.outputs[0] in self._whole or self._is_whole(node):
            return [self._as(value, FLOAT32) for value in node.inputs]
        own = [self._own(value) for value in node.inputs]
        if node.op == "concat" and any(self._build.types[v].dtype is self._to for v in own):
            return [self._as(value, self._to) for value in node.inputs]
        return own

    def _is_whole(self, node: Node) -> bool:
        """Whether the node reads, and makes, float32."""
        floats = [v for v in node.inputs if v and self._old.types[v].dtype is FLOAT32]
        made = self._old.types[node.outputs[0]].dtype is FLOAT32
        found = [v for v in floats if v not in self._old.constants]
        position = made and all(v in self._positions for v in found) and (found or not floats)
        if position or (node.op in ("add", "subtract") and any(map(self._is_grid, floats))):
            self._positions.add(node.outputs[0])
            return True
        return (
            node.op in (*_STATISTICS, *_AMPLIFYING, *_POSITIONED)
            or node.op in PRODUCTS
            or not all(map(self._fits, floats))
        )

    def _own(self, value: str) -> str:
        """The value in the type in which it is stored."""
        return self._as(value, FLOAT32) if value in self._old.constants else self._new[value]

    def _as(self, value: str, dtype: DType) -> str:
        """The old value as that type, if it was of float32; others stay.

        Readers share what is rounded, and each has a conversion back of its own.
        """
        if value in self._old.constants:
            return self._constant(value, dtype)
        new = self._new[value]
        float32 = bool(value) and self._old.types[value].dtype is FLOAT32
        if not float32 or self._build.types[new].dtype is dtype:
            return new
        if dtype is FLOAT32:
            return self._cast(new, dtype)
        if value not in self._narrow:
            self._narrow[value] = self._cast(new, dtype)
        return self._narrow[value]

    def _cast(self, new: str, dtype: DType, name: str = "") -> str:
        name = name or self._build.fresh(f"{new}.{dtype}")
        return self._build.add("cast", [new], {"to": dtype}, outputs=[name])

    def _constant(self, value: str, dtype: DType) -> str:
        """The constant as that type, rounded to the nearest, if it is of float32."""
        array, entry = self._old.constants[value], self._old.types[value]
        if entry.dtype is not FLOAT32 or dtype is FLOAT32:
            if value not in self._build.types:
                self._build.constant(value, array, entry.dtype)
            return value
        if value not in self._narrow:
            name = self._build.fresh(f"{value}.{dtype}")
            self._narrow[value] = self._build.constant(name, array.astype(dtype.numpy), dtype)
        return self._narrow[value]

    def _fits(self, value: str) -> bool:
        """Whether the type holds the value's numbers, as far as they are known."""
        array = self._old.constants.get(value)
        return array is None or not array.size or not _beyond(array, self._limit)

    def _is_grid(self, value: str) -> bool:
        """Whether it is a constant of several integers, such as the corners of a grid."""
        array = self._old.constants.get(value)
        if array is None or array.size < 2 or not dtype_of(array).is_float:
            return False
        return bool(np.ptp(array) > 1 and np.array_equal(array, np.rint(array)))


def _of_states(graph: Graph) -> set[str]:
    """What nodes make of states that grow, directly or moved.

    These stay in the types of the network's inputs: each call would convert all of them.
    """
    grown: set[str] = set()
    found: set[str] = set()
    for node in graph.nodes:
        if node.op == "append":
            grown.update(node.outputs)
        elif not grown.isdisjoint(node.inputs):
            found.update(node.outputs)
            grown.update(node.outputs if lookup(node.op).kind == "injective" else ())
    return found


def _divisors(graph: Graph) -> set[str]:
    """The products whose results others are divided by, moved or with a number added, and those
    that these are made of."""
    makers = {value: node for node in graph.nodes for value in node.outputs}
    wanted = [node.inputs[1] for node in graph.nodes if node.op == "divide"]
    found: set[str] = set()
    while wanted:
        node = makers.get(wanted.pop())
        if node is None or node.outputs[0] in found:
            continue
        moved = lookup(node.op).kind == "injective"
        added = node.op in ("add", "maximum") and any(v in graph.constants for v in node.inputs)
        if node.op == "matmul":
            found.update(node.outputs)
        if moved or added or node.op == "matmul":
            wanted += node.inputs
    return found


def _read_by(graph: Graph, products: Collection[str]) -> frozenset[str]:
    """The values that these products alone read, directly or moved."""
    uses, found = graph.uses(), set[str]()

    def moved(reader: Node) -> bool:
        made = reader.outputs[0]
        return made in products or (lookup(reader.op).kind == "injective" and made in found)

    values = [*graph.inputs, *(value for node in graph.nodes for value in node.outputs)]
    for value in reversed(values):
        readers = uses.get(value, ())
        if readers and value not in graph.ends and all(map(moved, readers)):
            found.add(value)
    return frozenset(found)


def _beyond(array: Array, limit: float) -> bool:
    """Whether a number, which is finite, is beyond the limit."""
    if not dtype_of(array).is_float:
        return False
    if not array.size:
        return False
    ends = array.min(), array.max()
    if not np.isfinite(ends).all():
        finite = array[np.isfinite(array)]
        ends = finite.min(initial=0), finite.max(initial=0)
    return bool(max(-ends[0], ends[1]) > limit)
