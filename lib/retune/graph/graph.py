"""Graph: a network as frozen values, in topological order, with every type known.

Read `Node` and `Graph` first. This file must not know any particular op: shape rules and meanings
live in `graph.ops`. Nobody changes an `attrs`, `types` or `constants` mapping after construction.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from retune.core.dims import Dim, Size, SizeValues, is_fixed, sizes_of
from retune.core.dtypes import INT64, NUMPY_DTYPES, DType, TensorType, dtype_of
from retune.core.errors import ModelError
from retune.core.keys import content_key
from retune.core.states import State, shape_in_model
from retune.ops.extents import (
    EXTENTS,
    array_of_extents,
    depends_on_sizes,
    extents_attrs,
    over_extents,
)
from retune.ops.registry import Array, Attrs, AttrValue, Subgraph, lookup

Types: TypeAlias = Mapping[str, TensorType]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One application of an op."""

    op: str
    name: str
    inputs: tuple[str, ...]
    """Value names; '' is an omitted optional input."""
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)

    def at(self, values: SizeValues) -> "Node":
        """The node for these sizes."""
        attrs = {key: _attribute_at(value, values) for key, value in self.attrs.items()}
        return replace(self, attrs=attrs)

    def __str__(self) -> str:
        attrs = "".join(f", {key}={_shown(self.attrs[key])}" for key in sorted(self.attrs))
        arguments = ", ".join(self.inputs)
        return f"{', '.join(self.outputs)} = {self.op}({arguments}{attrs})"


def _shape_at(shape: tuple[int, ...], values: SizeValues) -> tuple[int, ...]:
    return tuple([e.at(values) if isinstance(e, Dim) else e for e in shape])


def _attribute_at(value: AttrValue, values: SizeValues) -> AttrValue:
    match value:
        case Dim() | Graph():
            return value.at(values)
        case tuple():
            return tuple([e.at(values) if isinstance(e, Dim) else e for e in value])
        case _:
            return value


def _shown(value: AttrValue) -> str:
    """Bytes by their number, as they are whole models, and a graph by its nodes."""
    if isinstance(value, Graph):
        return f"{len(value.nodes)} nodes"
    return f"{len(value)} bytes" if isinstance(value, bytes) else repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Subgraph):
    """A network: nodes in topological order; `types` covers inputs, constants and all outputs."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Types
    constants: Mapping[str, Array] = field(default_factory=dict)
    values: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]], compare=False
    )
    """Inputs whose elements are stated, as numbers or Dims: what says how long a slice is, or an
    image. Bodies of loops have none, so that it is no part of their contents; `key` has it."""
    states: tuple[State, ...] = field(default=(), compare=False)
    """Inputs that are outputs in the next call; bodies of loops have none. What grows does so along
    its first axis here."""
    ends: frozenset[str] = field(init=False, compare=False, repr=False)
    """The outputs, for passes that ask of each value whether it is one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", frozenset(self.outputs))

    @property
    def key(self) -> str:
        """Content key of the whole network, constants' values included, its name excluded."""
        return content_key(
            self.inputs,
            self.outputs,
            self.nodes,
            {name: str(entry) for name, entry in self.types.items()},
            dict(self.constants),
            *([dict(self.values)] if self.values else []),
            *([("states", self.states)] if self.states else []),
        )

    def same(self, other: "Graph") -> bool:
        """Whether it has the nodes, types and arrays of the other one: those arrays, not equal
        ones, which a pass that changes nothing keeps."""
        return (
            self.nodes == other.nodes
            and self.outputs == other.outputs
            and self.types == other.types
            and self.constants.keys() == other.constants.keys()
            and all(array is other.constants[name] for name, array in self.constants.items())
        )

    def type_in_model(self, name: str) -> TensorType:
        """The type of an input or output as the model has it."""
        kind = self.types[name]
        return TensorType(shape_in_model(self.states, name, kind.shape), kind.dtype)

    @property
    def sizes(self) -> dict[Size, tuple[str, int]]:
        """The input, or what a host step makes, and the dimension that each size is the extent of,
        in order.

        Others are elements of inputs, see `values`. Raises: ModelError for a size that
        none of them states.
        """
        found: dict[Size, tuple[str, int]] = {}
        hosts = (n for n in self.nodes if lookup(n.op).kind == "host")
        made = [value for node in hosts for value in node.outputs if value]
        used = {value for node in self.nodes for value in node.inputs} | {*self.outputs}
        made.sort(key=lambda value: value not in used)  # others have no memory
        for name in (*self.inputs, *made):
            for axis, extent in enumerate(self.types[name].shape):
                size = extent.size if isinstance(extent, Dim) else None
                if size is not None and (size.counted or name in self.inputs):
                    found.setdefault(size, (name, axis))
        read = (extent for entry in self.types.values() for extent in entry.shape)
        elements = (element for entry in self.values.values() for element in entry)
        if lost := sizes_of(read) - found.keys() - sizes_of(elements):
            names = ", ".join(sorted(size.name for size in lost))
            raise ModelError(
                f"graph {self.name}: no input has an extent that is {names}; expected one that is "
                "that size alone, for it to be read when the network runs"
            )
        return found

    @property
    def sizes_read(self) -> frozenset[Size]:
        """All sizes that extents of values and attributes of nodes depend on."""
        stated = (value for node in self.nodes for value in node.attrs.values())
        rows = (value if isinstance(value, tuple) else (value,) for value in stated)
        attributes = (each for row in rows for each in row if isinstance(each, Dim))
        return sizes_of(e for t in self.types.values() for e in t.shape) | sizes_of(attributes)

    def at(self, values: SizeValues) -> "Graph":
        """The graph for these sizes: the same nodes, with all extents fixed.

        Raises: KeyError for a size without a value.
        """
        return replace(
            self,
            nodes=tuple(node.at(values) for node in self.nodes),
            types={name: entry.at(values) for name, entry in self.types.items()},
            values={name: _shape_at(entry, values) for name, entry in self.values.items()},
        )

    def uses(self) -> dict[str, tuple[Node, ...]]:
        """Every read value with the nodes that read it, each node once, in order."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                if value:
                    found.setdefault(value, []).append(node)
        return {value: tuple(nodes) for value, nodes in found.items()}

    def producer(self, value: str) -> Node | None:
        """The node that makes the value, or None for inputs and constants."""
        return next((node for node in self.nodes if value in node.outputs), None)

    def consumers(self, value: str) -> tuple[Node, ...]:
        """The nodes that read the value, in order."""
        return tuple(node for node in self.nodes if value in node.inputs)

    def verify(self) -> "Graph":
        """The graph itself, once names, order and types are consistent. Raises: ModelError."""
        for check in (_check_names, _check_order, _check_known, _check_types, _check_constants):
            check(self)
        return self

    def __str__(self) -> str:
        lines = [f"graph {self.name}"]
        lines += [f"  input {name}: {self.types[name]}" for name in self.inputs]
        lines += [f"  constant {name}: {self.types[name]}" for name in self.constants]
        for node in self.nodes:
            made = ", ".join(str(self.types[value]) for value in node.outputs if value)
            lines.append(f"  {node}: {made}")
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"]) + "\n"


def _check_names(graph: Graph) -> None:
    made = [*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs if v)]
    seen: set[str] = set()
    for value in made:
        if value in seen:
            raise ModelError(
                f"graph {graph.name}: value '{value}' is made more than once; expected each value "
                "to have one producer; rename one of them"
            )
        seen.add(value)
        if value not in graph.types:
            raise ModelError(f"graph {graph.name}: value '{value}' has no type")


def _check_order(graph: Graph) -> None:
    ready = {"", *graph.inputs, *graph.constants}
    for node in graph.nodes:
        for value in node.inputs:
            if value not in ready:
                raise ModelError(
                    f"graph {graph.name}: node '{node.name}' ({node.op}) reads '{value}', which no "
                    "earlier node, input or constant makes; expected topological order"
                )
        ready.update(node.outputs)
    for value in graph.outputs:
        if value not in ready:
            raise ModelError(f"graph {graph.name}: output '{value}' is never made")


def _check_known(graph: Graph) -> None:
    """Only host steps make values of unknown extents, and no node reads them."""
    made = {v for n in graph.nodes if lookup(n.op).kind == "host" for v in n.outputs}
    for value, kind in graph.types.items():
        if not kind.known and value not in made:
            raise ModelError(
                f"graph {graph.name}: value '{value}' is {kind}; expected known extents of all but "
                "outputs of host steps"
            )
    for node in graph.nodes:
        _refuse_unknown(graph.name, node.name, node.op, node.inputs, graph.types)


def _refuse_unknown(graph: str, name: str, op: str, inputs: Iterable[str], types: Types) -> None:
    """Raises: ModelError if a node reads a value of unknown extents."""
    for value in inputs:
        if value and not types[value].known:
            raise ModelError(
                f"graph {graph}: node '{name}' ({op}) reads '{value}', which is {types[value]}; "
                "expected known extents, as what depends on the data may only be an output of the "
                "network; put the node into the host step that makes the value"
            )


def _check_types(graph: Graph) -> None:
    for node in graph.nodes:
        inferred = lookup(node.op).infer([type_of(graph.types, v) for v in node.inputs], node.attrs)
        stated = tuple(graph.types[value] for value in node.outputs)
        if tuple(inferred) != stated:
            raise ModelError(
                f"graph {graph.name}: node '{node.name}' ({node.op}) makes "
                f"{', '.join(map(str, inferred))}; the graph states {', '.join(map(str, stated))}"
            )


def _check_constants(graph: Graph) -> None:
    for name, array in graph.constants.items():
        stated = graph.types[name]
        if array_type(array, stated.dtype) != stated:
            raise ModelError(
                f"graph {graph.name}: constant '{name}' holds {array_type(array)}; "
                f"the graph states {stated}"
            )


def type_of(types: Types, value: str) -> TensorType | None:
    """The value's type; None for an omitted input."""
    return types[value] if value else None


def array_type(array: Array, dtype: DType | None = None) -> TensorType:
    """The tensor type of a numpy array: its own, or `dtype` if the array's elements have that type.

    Raises: ModelError for a type that a graph cannot hold.
    """
    try:
        own = dtype_of(array)
    except ValueError:
        expected = ", ".join(NUMPY_DTYPES)
        raise ModelError(
            f"element type {array.dtype} is not supported; expected one of {expected}"
        ) from None
    if dtype and dtype != own and array.dtype == dtype.numpy:
        least, most = dtype.limits
        own = dtype if np.all((least <= array) & (array <= most)) else own
    return TensorType(tuple(array.shape), own)


class GraphBuilder:
    """Grows a graph node by node, inferring each type; `finish` gives the frozen value."""

    def __init__(self, name: str, *, fold: bool = False, reserved: Iterable[str] = ()) -> None:
        """An empty graph. With `fold`, a node whose inputs are all constant becomes a constant.

        `reserved` names are kept for values that are still to come under just that name.
        """
        self.name = name
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
        self.extents: dict[str, Array] = {}
        """Numbers in terms of sizes, as arrays of objects: a node makes them if one reads them."""
        self._unmade: dict[str, Node] = {}
        """Those that no node has read: what they are computed by."""
        self._inputs: list[str] = []
        self._values: dict[str, tuple[int, ...]] = {}
        self.states: tuple[State, ...] = ()
        """Inputs of the graph that are outputs in the next call."""
        self._nodes: list[Node] = []
        self._fold = fold
        self._reserved = set(reserved)
        self._counts: dict[str, int] = {}
        """Of each stem the last number that `fresh` found: those before it stay taken."""

    def input(self, name: str, tensor_type: TensorType, values: Sequence[int] = ()) -> str:
        """The value that nodes read for an input of that name; its elements are `values`, or
        unknown.

        It is the input, or a constant where all elements are numbers.
        """
        self._inputs.append(self._claim(name, tensor_type))
        if not values:
            return name
        self._values[name] = tuple(values)
        if all(map(is_fixed, values)):
            array = np.asarray(values, tensor_type.dtype.numpy).reshape(tensor_type.shape)
            return self.constant(f"{name}.value", array, tensor_type.dtype)
        self.extents[name] = array_of_extents(values).reshape(tensor_type.shape)
        return name

    def constant(self, name: str, array: Array, dtype: DType | None = None) -> str:
        """A constant's name: `name`, or `name.1`, ... if that is taken.

        Its type is that of the array, or `dtype` if the array's elements have that type.
        """
        name = self.fresh(name) if name in self.types else name
        self.constants[name] = array
        return self._claim(name, array_type(array, dtype))

    def define_extents(self, name: str, array: Array, dtype: DType = INT64) -> str:
        """The name, now of integers some of which depend on sizes; a constant if none does."""
        if not sizes_of(array.reshape(-1).tolist()):
            return self.constant(name, array.astype(dtype.numpy))
        self.extents[name] = array_of_extents(array)
        self._unmade[name] = Node(op=EXTENTS, name=name, inputs=(), outputs=(name,))
        return self._claim(name, TensorType(tuple(array.shape), dtype))

    def contents(self, name: str) -> Array | None:
        """The value's contents where it is constant, asked for by what has to know them."""
        return self.constants.get(name)

    def producer(self, value: str) -> Node | None:
        """The node that made the value; None for an input or a constant."""
        return next((node for node in reversed(self._nodes) if value in node.outputs), None)

    def inputs_of(self, value: str) -> tuple[str, ...]:
        """The inputs that the value follows from, in order."""
        read = {value}
        for node in reversed(self._nodes):
            if read.intersection(node.outputs):
                read.update(node.inputs)
        return tuple(name for name in self._inputs if name in read)

    def carry(self, graph: Graph, nodes: int = 0) -> None:
        """The inputs, constants and first nodes of a valid graph are those of this one, which had
        none. These nodes do not fold."""
        self._inputs += graph.inputs
        self._values.update(graph.values)
        self.states = graph.states
        self.constants.update(graph.constants)
        self._nodes += graph.nodes[:nodes]
        made = (value for node in self._nodes for value in node.outputs if value)
        known = (*graph.inputs, *graph.constants, *made)
        self.types.update((name, graph.types[name]) for name in known)

    @property
    def last(self) -> Node:
        """The node that was added last."""
        return self._nodes[-1]

    def fresh(self, name: str) -> str:
        """`name`, or the first of `name.1`, `name.2`, ... that is neither taken nor reserved."""
        if name not in self.types and name not in self._reserved:
            return name
        count = max(1, self._counts.get(name, 0))
        while (found := f"{name}.{count}") in self.types or found in self._reserved:
            count += 1
        self._counts[name] = count
        return found

    def reserve(self, name: str) -> str:
        """A fresh name, now reserved."""
        found = self.fresh(name)
        self._reserved.add(found)
        return found

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        attrs: Attrs | None = None,
        *,
        outputs: Iterable[str] | None = None,
        name: str = "",
        types: Sequence[TensorType] = (),
    ) -> str:
        """The first output's name, after the node is appended (or folded to a constant).

        `types` are those of the outputs, where they were inferred before.
        Raises: ModelError when the op does not accept these inputs.
        """
        sources, attributes = tuple(inputs), dict(attrs or {})
        definition = lookup(op)
        if not types:
            _refuse_unknown(self.name, name or op, op, sources, self.types)
            read = [type_of(self.types, value) for value in sources]
            types = tuple(definition.infer(read, attributes))
        made = tuple(outputs) if outputs is not None else self._names(name or op, len(types))
        node = Node(op=op, name=name or made[0], inputs=sources, outputs=made, attrs=attributes)
        return self.put(node, types)

    def put(self, node: Node, types: Sequence[TensorType]) -> str:
        """The first output's name, after a valid node is appended (or folded to a constant).

        `types` are those of its outputs.
        """
        if not (self._fold and self._folded(node, types)):
            for value, entry in zip(node.outputs, types, strict=True):
                self._claim(value, entry)
            self._append(node)
        return node.outputs[0]

    def _folded(self, node: Node, types: Sequence[TensorType]) -> bool:
        """Whether what the node makes is known, now as constants or in terms of sizes."""
        constants, inputs, made = self.constants, node.inputs, node.outputs
        if folds(node, types, constants):
            arrays = [constants[v] if v else None for v in inputs]
            results = lookup(node.op).reference(arrays, node.attrs)
            for value, result, entry in zip(made, results, types, strict=True):
                self.constants[value] = np.asarray(result)
                self._claim(value, array_type(self.constants[value], entry.dtype))
            return True
        if len(made) != 1 or not any(value in self.extents for value in inputs):
            return False
        (output,), (entry,) = made, types
        arrays = [self.extents.get(v, self.constants.get(v)) for v in inputs]
        if any(array is None for array in arrays):
            return False
        found = over_extents(lookup(node.op), arrays, node.attrs, entry)
        if found is not None and found.dtype == object:
            self.extents[output] = found
            self._unmade[output] = node
            self._claim(output, entry)
        elif found is not None:
            self.constant(output, found, entry.dtype)
        return found is not None

    def _append(self, node: Node) -> None:
        """Append the node, after the nodes that make extents that it reads."""
        if self._unmade:
            for value in node.inputs:
                self._make(value)
        self._nodes.append(node)

    def _make(self, value: str) -> None:
        """If the value is known in terms of sizes, a node makes it."""
        if value in self._unmade:
            array, entry = self.extents[value], self.types[value]
            node = self._unmade.pop(value)
            if node.op == EXTENTS or not entry.dtype.is_float:
                attrs = extents_attrs(array, entry.dtype)
                node = replace(node, op=EXTENTS, inputs=(), attrs=attrs)
            self._append(node)

    def uses(self, op: str) -> bool:
        """Whether one of its nodes is of that op."""
        return any(node.op == op for node in self._nodes)

    def finish(self, outputs: Iterable[str]) -> Graph:
        """The graph with these outputs, without nodes and constants that no output needs."""
        named = tuple(outputs)
        for value in named:
            self._make(value)
        graph = Graph(
            name=self.name,
            inputs=tuple(self._inputs),
            outputs=named,
            nodes=tuple(self._nodes),
            types=self.types,
            constants=self.constants,
            values=self._values,
            states=self.states,
        )
        return without_dead(graph)

    def _names(self, base: str, count: int) -> tuple[str, ...]:
        if count == 1:
            return (self.fresh(base),)
        return tuple(self.fresh(f"{base}.{index}") for index in range(count))

    def _claim(self, name: str, tensor_type: TensorType) -> str:
        if name in self.types:
            raise ModelError(
                f"graph {self.name}: value '{name}' is made more than once; "
                "expected each value to have one producer; rename one of them"
            )
        self.types[name] = tensor_type
        return name


def folds(node: Node, types: Iterable[TensorType], constants: Container[str]) -> bool:
    """Whether what the node makes, of these types, is known: it reads constants alone."""
    for value in node.inputs:
        if value and value not in constants:
            return False
    return not depends_on_sizes(node.attrs, [*types])


def without_dead(graph: Graph) -> Graph:
    """The graph without nodes, constants and types that no output needs; inputs all stay.

    It is the same object where there are none.
    """
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    alive = needed | set(graph.inputs) | {v for node in kept for v in node.outputs}
    whole = len(kept) == len(graph.nodes) and needed.issuperset(graph.constants)
    if whole and alive.issuperset(graph.types):
        return graph
    return Graph(
        name=graph.name,
        inputs=graph.inputs,
        outputs=graph.outputs,
        nodes=tuple(reversed(kept)),
        types={name: entry for name, entry in graph.types.items() if name in alive},
        constants={name: array for name, array in graph.constants.items() if name in needed},
        values=graph.values,
        states=graph.states,
    )
