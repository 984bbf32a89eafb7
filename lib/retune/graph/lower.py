"""Lowering of a group to a tensor program: placeholders for its inputs, stages for its nodes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from retune.core.errors import ModelError
from retune.graph.graph import Graph
from retune.ir.te import Dag, Tensor, placeholder, stored
from retune.ops.registry import Names, OpCall, expression_of

_ROLES: Mapping[str, str] = {
    "conv2d": "weight",
    "conv3d": "weight",
    "depthwise_conv2d": "weight",
    "conv_transpose": "weight",
    "dense": "weight",
    "dense_blocks": "weight",
    "add": "bias",
    "multiply": "scale",
    "prelu": "slope",
    "lookup_codes": "table",
}
"""Op -> what its constant operand is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTensors:
    """A group as tensor expressions; the maps go from the graph's values to tensors."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]

    @property
    def dag(self) -> Dag:
        """The program, outputs in the group's order."""
        return Dag(tuple(self.outputs.values()))


def group_tensors(graph: Graph, params: Collection[str] = ()) -> GroupTensors:
    """A small graph as tensor expressions; `params` are inputs whose contents are known.

    Names of placeholders say their role (data, weight, bias, ...), not the network's names, so
    equal groups give equal text. Raises: ModelError if the graph holds constants of its own.
    """
    if graph.constants:
        raise ModelError(f"{graph.name}: constants {list(graph.constants)} should be inputs")
    names = Names()
    values: dict[str, Tensor] = {}
    for value in graph.inputs:
        entry = graph.types[value]
        stem = names(_role(graph, value) if value in params else "data")
        values[value] = placeholder(stem, entry.shape, entry.dtype, constant=value in params)
    inputs = dict(values)
    for node in graph.nodes:
        output = node.outputs[0]
        made = expression_of(node.op)(
            OpCall(
                op=node.op,
                inputs=[values[value] for value in node.inputs],
                attrs=node.attrs,
                output=graph.types[output],
                name=names,
            )
        )
        loaded = values[node.inputs[0]] if node.op == "cast" else made
        read = _converts_when_read(graph, output, loaded)
        values[output] = loaded if read else stored(made, graph.types[output].dtype)
    return GroupTensors(inputs=inputs, outputs={v: values[v] for v in graph.outputs})


def _converts_when_read(graph: Graph, cast: str, source: Tensor) -> bool:
    """Whether it is a cast of an input to its compute type: all who read the input do that."""
    converted = source.op is None and source.dtype.compute is graph.types[cast].dtype
    joined = any(node.op == "concat" for node in graph.consumers(cast))
    return (
        converted
        and source.dtype.compute is not source.dtype
        and not (joined or cast in graph.ends)
    )


def _role(graph: Graph, value: str) -> str:
    reader = next(iter(graph.consumers(value)), None)
    if reader is not None and reader.op == "cast":
        return _role(graph, reader.outputs[0])
    return _ROLES.get(reader.op, "operand") if reader else "operand"
