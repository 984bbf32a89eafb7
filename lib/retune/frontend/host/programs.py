"""A node of a host step by the import of its operator: its graph operators, run in numpy.

Read `ImportedNode`. Once the inputs are there, their shapes are known, and so is each value that a
handler has to know: the node is imported for them, and what came out of that is kept for the next
inputs of the same types. So an operator means on the host what it means on the device.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from retune.core.dtypes import TensorType
from retune.core.errors import ModelError
from retune.frontend.onnx.functions import Functions
from retune.frontend.onnx.ops.registry import Emitter, Handler, InnerGraph, NotConstant, OnnxNode
from retune.frontend.onnx.ops.values import Values
from retune.graph.graph import Graph, GraphBuilder, array_type
from retune.ops import Array, lookup
from retune.proto.scope import NameScope, Opsets

_KEPT_TYPES = 64
"""Types of inputs whose programs a node keeps: numbers of detections come again."""
_KEPT_VALUES = 16
"""Programs that it keeps for different values of inputs that decide sizes."""
_LONGEST_KEY = 1 << 10
"""Bytes of such values: larger ones hardly come again."""
_MALFORMED = (IndexError, ValueError, KeyError, TypeError, ZeroDivisionError, OverflowError)


class _Builder(GraphBuilder):
    """A graph over inputs whose contents are there, for what asks for them."""

    def __init__(self, name: str, given: Mapping[str, Array], reserved: Collection[str]) -> None:
        super().__init__(name, fold=True, reserved=reserved)
        self._given = given
        self.asked: set[str] = set()
        """Inputs whose contents the graph depends on."""

    def contents(self, name: str) -> Array | None:
        """The contents of an input are constant from here on."""
        if name in self._given and name not in self.constants:
            self.asked.add(name)
            self.constants[name] = self._given[name]
        return super().contents(name)


@dataclass(frozen=True, slots=True)
class _Alone:
    """What a handler gets that asks for more than its node."""

    build: GraphBuilder
    opsets: Opsets
    functions: Functions

    def apply(self, proto: onnx.NodeProto, opset: int | None) -> tuple[str, ...]:
        """The outputs of another ONNX operator, which reads values of the graph."""
        from retune.frontend.onnx.body import BodyImporter  # it runs nodes of constants by this

        scope = NameScope(opsets=self.opsets)
        importer = BodyImporter(self.build, self.functions, scope, Path())
        return importer.apply(proto, opset, scope)

    def body(self, graph: onnx.GraphProto, inputs: Sequence[str], label: str) -> tuple[str, ...]:
        """Raises: ModelError."""
        del graph, inputs
        raise ModelError(f"'{label}': a body of an operator that has no function on the host")

    def inside(
        self, loop: InnerGraph, graph: onnx.GraphProto, inputs: Sequence[str]
    ) -> tuple[str, ...]:
        """Raises: ModelError."""
        del loop, inputs
        return self.body(graph, (), graph.name)

    def run_on_host(self, types: Sequence[TensorType]) -> None:
        """Raises: NotConstant, as with all inputs known there may be another way."""
        del types
        raise NotConstant("it runs on the host already; expected inputs that decide what it does")


class _NumpyProgram:
    """A graph as calls of numpy functions."""

    def __init__(self, graph: Graph, outputs: Sequence[str]) -> None:
        self._outputs = tuple(outputs)
        self._constants = dict(graph.constants)
        self._steps = [
            (lookup(node.op).reference, node.inputs, node.attrs, node.outputs)
            for node in graph.nodes
        ]

    def __call__(self, given: Mapping[str, Array]) -> list[Array | None]:
        values: dict[str, Array | None] = {**given, **self._constants, "": None}
        for reference, inputs, attrs, outputs in self._steps:
            made = reference([values[name] for name in inputs], attrs)
            for name, array in zip(outputs, made, strict=True):
                values[name] = array if type(array) is np.ndarray else np.asarray(array)
        return [values[name] for name in self._outputs]


@dataclass(slots=True)
class _NumpyPrograms:
    """The programs for inputs of some types."""

    asked: tuple[str, ...] = ()
    """Inputs whose values they depend on, too."""
    by_values: dict[tuple[bytes, ...], _NumpyProgram] = field(
        default_factory=dict[tuple[bytes, ...], _NumpyProgram]
    )


class ImportedNode:
    """A node, ready to run by its handler."""

    def __init__(
        self,
        node: OnnxNode,
        handler: Handler,
        constants: Mapping[str, Array],
        opsets: Opsets,
        functions: Functions,
        *,
        by_rank: bool = False,
    ) -> None:
        """`constants` are values whose contents never change, those that it reads among them.

        `by_rank` is what the handler claims.
        """
        self._node = node
        self._by_rank = by_rank
        self._handler = handler
        self._opsets = opsets
        self._functions = functions
        read = dict.fromkeys(name for name in node.inputs if name)
        self._constants = {name: constants[name] for name in read if name in constants}
        self._kept: dict[tuple[Any, ...], _NumpyPrograms] = {}

    def __call__(self, args: Sequence[Array | None]) -> list[Array | None]:
        """The node's outputs. Raises: ModelError if it cannot work with these inputs."""
        given = {
            name: array
            for name, array in zip(self._node.inputs, args, strict=True)
            if array is not None and name not in self._constants
        }
        if self._by_rank:
            kinds = tuple([(name, array.ndim, array.dtype) for name, array in given.items()])
        else:
            kinds = tuple([(name, array.shape, array.dtype) for name, array in given.items()])
        programs = self._kept.get(kinds)
        if programs is None:
            while len(self._kept) >= _KEPT_TYPES:
                del self._kept[next(iter(self._kept))]
            programs = self._kept[kinds] = _NumpyPrograms()
        program = programs.by_values.get(tuple([given[n].tobytes() for n in programs.asked]))
        return (program or self._made(given, programs))(given)

    def _made(self, given: Mapping[str, Array], programs: _NumpyPrograms) -> _NumpyProgram:
        """The program for these inputs, now kept."""
        program, asked = self._imported(given)
        if not asked <= set(programs.asked):
            programs.asked = tuple(name for name in given if name in asked.union(programs.asked))
            programs.by_values.clear()
        key = tuple([given[name].tobytes() for name in programs.asked])
        if sum(map(len, key)) <= _LONGEST_KEY:
            while len(programs.by_values) >= _KEPT_VALUES:
                del programs.by_values[next(iter(programs.by_values))]
            programs.by_values[key] = program
        return program

    def _imported(self, given: Mapping[str, Array]) -> tuple[_NumpyProgram, set[str]]:
        """A program for inputs of these types, and those whose values it depends on.

        Where the handler refuses values that it does not know, it gets all of them.
        """
        try:
            return self._run_handler(given, ())
        except ModelError:
            return self._run_handler(given, given)

    def _run_handler(
        self, given: Mapping[str, Array], known: Collection[str]
    ) -> tuple[_NumpyProgram, set[str]]:
        present = {*given, *self._constants}
        inputs = tuple([name if name in present else "" for name in self._node.inputs])
        node = self._node if inputs == self._node.inputs else replace(self._node, inputs=inputs)
        build = _Builder(node.name, given, [name for name in node.outputs if name])
        for name, array in given.items():
            build.input(name, array_type(array))
        for name, array in self._constants.items():
            build.constant(name, array)
        for name in known:
            build.contents(name)
        values = Values()
        try:
            around = _Alone(build, self._opsets, self._functions)
            self._handler(node, Emitter(build, node, around, values))
        except _MALFORMED as error:
            raise ModelError(f"malformed ({error}); check the model with onnx.checker") from error
        outputs = [values.resolve(name) for name in node.outputs]
        missing = [name for name in outputs if name and name not in build.types]
        if missing:
            raise ModelError(f"output '{missing[0]}' is not a tensor")
        graph = build.finish(name for name in outputs if name)
        return _NumpyProgram(graph, outputs), build.asked
