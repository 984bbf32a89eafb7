"""The nodes of a model in an order in which each reads what was made before."""

from collections.abc import Iterable, Mapping, Sequence

import onnx

from retune.core.errors import ModelError
from retune.proto.file import initializer_names
from retune.proto.scope import label_of, read_by

_SHOWN = 8
"""Nodes of a cycle that are named."""


def sorted_nodes(graph: onnx.GraphProto, where: str) -> list[onnx.NodeProto]:
    """The nodes, producers first, in the file's order where that is possible.

    Raises: ModelError for a value that is made twice or never, and for a cycle.
    """
    outer = {entry.name for entry in graph.input} | initializer_names(graph)
    makers = _makers(graph, outer, where)
    nodes = list(graph.node)
    order: list[int] = []
    state: dict[int, int] = {}  # 1: being visited, 2: done
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            position = stack[-1]
            if state.get(position, 0) == 2:
                stack.pop()
                continue
            state[position] = 1
            waiting = _unmet(nodes[position], makers, outer, state, where)
            if waiting is None:
                state[position] = 2
                order.append(position)
                stack.pop()
            elif state.get(waiting) == 1:
                raise _cycle([nodes[p] for p in stack[stack.index(waiting) :]], where)
            else:
                stack.append(waiting)
    return [nodes[position] for position in order]


def needed_nodes(graph: onnx.GraphProto, ordered: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Those that an output needs, in the same order: the others may be anything."""
    needed = read_of(graph, ())
    kept: list[onnx.NodeProto] = []
    for proto in reversed(ordered):
        if needed.intersection(proto.output):
            kept.append(proto)
            needed.update(read_by(proto))
    return kept[::-1]


def read_of(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """What these nodes of the graph read, and what it returns."""
    read = {name for proto in nodes for name in read_by(proto)}
    return read | {entry.name for entry in graph.output}


def _makers(graph: onnx.GraphProto, outer: set[str], where: str) -> dict[str, int]:
    makers: dict[str, int] = {}
    for position, proto in enumerate(graph.node):
        for value in filter(None, proto.output):
            if value in makers or value in outer:
                raise ModelError(
                    f"{where}: value '{value}' is made more than once; expected each value to "
                    "have one producer; rename one of them"
                )
            makers[value] = position
    return makers


def _unmet(
    proto: onnx.NodeProto,
    makers: Mapping[str, int],
    outer: set[str],
    state: Mapping[int, int],
    where: str,
) -> int | None:
    for value in read_by(proto):
        if value in outer:
            continue
        if value not in makers:
            raise ModelError(
                f"{where}: node '{label_of(proto)}' ({proto.op_type}) reads '{value}', which is "
                "not an input, an initializer or another node's output; the file is damaged or "
                "cut out of a larger network, export it again"
            )
        if state.get(makers[value], 0) != 2:
            return makers[value]
    return None


def _cycle(protos: Iterable[onnx.NodeProto], where: str) -> ModelError:
    names = [f"'{label_of(proto)}'" for proto in protos]
    between = ["..."] if len(names) > _SHOWN else []
    chain = [*names[:_SHOWN], *between, names[0]]
    return ModelError(
        f"{where}: the nodes {' -> '.join(chain)} form a cycle; expected an acyclic "
        "network; unroll the loop when exporting"
    )
