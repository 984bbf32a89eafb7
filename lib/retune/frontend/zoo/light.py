"""The nine networks of the onnx package with random weights.

The files hold architectures whose weights are fills of one constant: a kernel that mixes channels
up would pass on them. Here each fill becomes a stored random weight.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.frontend.zoo.writer import IR_VERSION, around_one, he_normal, small
from retune.ops import Array

LIGHT: dict[str, str] = {
    "alexnet": "bvlc_alexnet",
    "densenet121": "densenet121",
    "inception_v1": "inception_v1",
    "inception_v2": "inception_v2",
    "resnet50": "resnet50",
    "shufflenet": "shufflenet",
    "squeezenet": "squeezenet",
    "vgg19": "vgg19",
    "zfnet512": "zfnet512",
}
"""Short name -> the file's own."""


def light_path(name: str) -> Path:
    """The file in the onnx package."""
    return Path(onnx.__file__).parent / f"backend/test/data/light/light_{LIGHT[name]}.onnx"


def randomised(name: str, seed: int) -> onnx.ModelProto:
    """The architecture with seeded weights; layers still have to be calibrated."""
    model = onnx.load(light_path(name))
    generator = np.random.default_rng(seed)
    roles = _roles(model.graph)
    weights = [
        numpy_helper.from_array(_weight(generator, shape, *roles[value]), value)
        for value, shape in _fills(model.graph)
        if value in roles
    ]
    read = {value for node in model.graph.node for value in node.input}
    made = {tensor.name for tensor in weights}
    kept = [t for t in model.graph.initializer if t.name in read and t.name not in made]
    nodes = [node for node in model.graph.node if node.op_type != "ConstantOfShape"]
    used = {value for node in nodes for value in node.input}
    stored = [tensor for tensor in (*weights, *kept) if tensor.name in used]
    names = {tensor.name for tensor in stored}
    inputs = [entry for entry in model.graph.input if entry.name in used - names]
    graph = helper.make_graph(nodes, name, inputs, list(model.graph.output), initializer=stored)
    made_model = helper.make_model(graph, opset_imports=list(model.opset_import))
    made_model.ir_version = IR_VERSION
    return made_model


def _fills(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Each float weight with its shape: stored ones, then those filled by ConstantOfShape."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            yield tensor.name, tuple(tensor.dims)
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            shape = numpy_helper.to_array(stored[node.input[0]])
            yield node.output[0], tuple(int(extent) for extent in shape)


def _roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """What reads each value first: op and input position, seen through Unsqueeze."""
    roles: dict[str, tuple[str, int]] = {}
    for node in reversed(graph.node):
        for index, value in enumerate(node.input):
            role = (node.op_type, index)
            if node.op_type == "Unsqueeze":
                role = roles.get(node.output[0], role)
            roles[value] = role
    return roles


def _weight(generator: np.random.Generator, shape: tuple[int, ...], op: str, index: int) -> Array:
    match op, index:
        case ("Conv", 1):
            return he_normal(generator, shape, int(np.prod(shape[1:])))
        case ("Gemm", 1):
            return he_normal(generator, shape, shape[1])
        case ("BatchNormalization", 1 | 4) | ("Mul", _):
            return around_one(generator, shape)
        case _:
            return small(generator, shape)
