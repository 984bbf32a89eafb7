"""Networks with host steps: as ONNX files, and as graphs in which some nodes are host steps.

`detector` ends in NonMaxSuppression and what follows from it; `ranked` has a TopK in its middle,
`both` has the two. Which nodes are host steps is said here, not left to the importer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from retune.core.dtypes import FLOAT32, INT64, UNKNOWN, TensorType
from retune.frontend.host.step import host_attrs
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.subgraph import extract_subgraph
from retune.graph.graph import Graph, Node
from retune.ops.registry import HOST
from tests.support.device_networks import Net

CELLS = 64
CLASSES = 3


@dataclass(frozen=True)
class Step:
    """Values that a host step reads, and what it makes of them."""

    reads: tuple[str, ...]
    makes: Mapping[str, TensorType]


@dataclass(frozen=True)
class HostNetwork:
    """An ONNX file and its graph."""

    path: Path
    graph: Graph


def detector(folder: Path) -> HostNetwork:
    """Convolutions make boxes and scores; the rest depends on which of them are chosen."""
    net = Net("detector", 17)
    boxes, scores = _heads(net, net.input(1, 3, 8, 8))
    step, outputs = _detection(net, boxes, scores)
    return _network(net, folder, outputs, [step])


def ranked(folder: Path) -> HostNetwork:
    """conv -> the eight largest values, on the host -> dense."""
    net = Net("ranked", 17)
    step, values, places = _ranking(net, net.input(1, 3, 8, 8))
    made = net("Softmax", net("MatMul", values, net.weight(8, 5)))
    return _network(net, folder, [made, places], [step])


def both(folder: Path) -> HostNetwork:
    """The eight largest values change what the detector sees."""
    net = Net("both", 17)
    x = net.input(1, 3, 8, 8)
    ranking, values, _ = _ranking(net, x)
    gain = net("Reshape", net("MatMul", values, net.weight(8, 3)), net.ints(1, 3, 1, 1))
    boxes, scores = _heads(net, net("Mul", x, net("Sigmoid", gain)))
    detection, outputs = _detection(net, boxes, scores)
    return _network(net, folder, [*outputs, gain], [ranking, detection])


NETWORKS: dict[str, Callable[[Path], HostNetwork]] = {
    "detector": detector,
    "ranked": ranked,
    "both": both,
}


def _heads(net: Net, image: str) -> tuple[str, str]:
    seen = net("Relu", net.conv(image, 3, 8))
    places = net("Transpose", net("Sigmoid", net.conv(seen, 8, 4)), perm=[0, 2, 3, 1])
    scores = net("Sigmoid", net.conv(seen, 8, CLASSES))
    return (
        net("Reshape", places, net.ints(1, CELLS, 4)),
        net("Reshape", scores, net.ints(1, CLASSES, CELLS)),
    )


def _detection(net: Net, boxes: str, scores: str) -> tuple[Step, list[str]]:
    limits = [net.stored(np.array([value], np.float32)) for value in (0.6, 0.3)]
    chosen = net("NonMaxSuppression", boxes, scores, net.ints(12), *limits, center_point_box=1)
    which = net("Gather", chosen, net.stored(np.array(2, np.int64)), axis=1)
    picked = net("Gather", net("Squeeze", boxes, net.ints(0)), which)
    makes = {
        chosen: TensorType((UNKNOWN, 3), INT64),
        picked: TensorType((UNKNOWN, 4), FLOAT32),
    }
    return Step((boxes, scores), makes), [chosen, picked]


def _ranking(net: Net, x: str) -> tuple[Step, str, str]:
    flat = net("Flatten", net.conv(x, 3, 4))
    values, places = f"values_{len(net.nodes)}", f"places_{len(net.nodes)}"
    net.nodes.append(helper.make_node("TopK", [flat, net.ints(8)], [values, places], "ranking"))
    makes = {values: TensorType((1, 8), FLOAT32), places: TensorType((1, 8), INT64)}
    return Step((flat,), makes), values, places


def _network(net: Net, folder: Path, outputs: Sequence[str], steps: Sequence[Step]) -> HostNetwork:
    path = folder / f"{net.name}.onnx"
    onnx.save(net.model(*outputs), str(path))
    inputs = {
        entry.name: TensorType(tuple(d.dim_value for d in entry.type.tensor_type.shape.dim))
        for entry in net.inputs
    }
    return HostNetwork(path, graph_with_hosts(path, inputs, outputs, steps))


def graph_with_hosts(
    path: Path, inputs: Mapping[str, TensorType], outputs: Sequence[str], steps: Sequence[Step]
) -> Graph:
    """The file's network, imported, whose host steps are these."""
    made = {name: kind for step in steps for name, kind in step.makes.items()}
    given = {**inputs, **{name: kind for name, kind in made.items() if kind.known}}
    seams = [name for step in steps for name in step.reads if name not in given]
    wanted = dict.fromkeys([*seams, *(name for name in outputs if name not in made)])
    part = extract_subgraph(path, given, list(wanted))
    assert part is not None
    device = import_model(onnx.ModelProto.FromString(part), name=path.stem)
    types = {**device.types, **given, **made}
    nodes = [_node(path, step, types) for step in steps]
    return replace(
        device,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        nodes=_sorted([*device.nodes, *nodes], {*inputs, *device.constants}),
        types=types,
    ).verify()


def _node(path: Path, step: Step, types: Mapping[str, TensorType]) -> Node:
    part = extract_subgraph(path, {name: types[name] for name in step.reads}, list(step.makes))
    assert part is not None
    model = onnx.ModelProto.FromString(part)
    own = tuple(entry.name for entry in model.graph.input)
    attrs = host_attrs(model, list(step.makes.values()))
    return Node(op=HOST, name="step", inputs=own, outputs=tuple(step.makes), attrs=attrs)


def _sorted(nodes: list[Node], ready: set[str]) -> tuple[Node, ...]:
    done: list[Node] = []
    while nodes:
        node = next(node for node in nodes if {*node.inputs} <= {"", *ready})
        nodes.remove(node)
        ready.update(node.outputs)
        done.append(node)
    return tuple(done)
