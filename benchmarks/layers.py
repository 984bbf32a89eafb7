"""Single layers as ONNX models, so that every contender runs exactly the same computation."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retune.api import import_network
from retune.bundle.runtime.module import Module
from retune.core.config import cache_root
from retune.graph.graph import Graph, Node
from retune.search.task import Task

_OPSET = 13
ROUNDS = 16
"""Runs of a layer in one launch, when it is timed as the step of a network that it is."""


def layer_launches(module: Module) -> tuple[int, int]:
    """First launch of the layer itself, and the one after its last: without changes of layout."""
    own = [i for i, x in enumerate(module.plan.launches) if not x.kernel.startswith("transpose")]
    return own[0], own[-1] + 1


def heavy_tasks(models: Sequence[str]) -> dict[str, Task]:
    """Distinct convolutions and dense layers of the networks, with their epilogues, by key.

    Residual operands are left out: a layer has one activation input.
    """
    found: dict[str, Task] = {}
    for model in models:
        network = import_network(model, {}, "NCHW", cache_root()).network
        for task in network.tasks.values():
            graph = graph_of(task)
            if graph.nodes[0].op in ("conv2d", "depthwise_conv2d", "dense"):
                activations = [v for v in graph.inputs if v not in network.graph.constants]
                if len(activations) == 1:
                    found.setdefault(task.key, task)
    return found


def graph_of(task: Task) -> Graph:
    """The graph of a task that was cut out of a network."""
    assert task.graph is not None, f"{task.name} is a tensor expression of its own"
    return task.graph


def reference_task() -> Task:
    """The layer by which machines and hours are compared: 3x3, 64 to 64 channels, 56x56."""
    shape = [1, 64, 56, 56]
    weights = np.zeros((64, 64, 3, 3), np.float32)
    value = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["data", "weight"], ["out"], pads=[1, 1, 1, 1])],
            "reference",
            [value("data", TensorProto.FLOAT, shape)],
            [value("out", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(weights, "weight")],
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=8,
    )
    path = cache_root() / "layers" / "reference.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    (task,) = heavy_tasks([str(path)]).values()
    return task


def write_layer(task: Task, path: Path, seed: int = 0) -> Path:
    """The task of an NCHW network as an ONNX file with random weights."""
    graph = graph_of(task)
    data = graph.nodes[0].inputs[0]
    rng = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(
            (rng.standard_normal(graph.types[v].shape) * 0.1).astype(np.float32), v
        )
        for v in graph.inputs
        if v != data
    ]
    model = helper.make_model(
        helper.make_graph(
            [_node(graph, node) for node in graph.nodes],
            "layer",
            [_value(graph, data)],
            [_value(graph, v) for v in graph.outputs],
            weights,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def _value(graph: Graph, name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, graph.types[name].shape)


def _node(graph: Graph, node: Node) -> onnx.NodeProto:
    attrs = node.attrs
    match node.op:
        case "conv2d" | "depthwise_conv2d":
            groups = (
                attrs["groups"] if node.op == "conv2d" else graph.types[node.inputs[0]].shape[1]
            )
            return helper.make_node(
                "Conv",
                node.inputs,
                node.outputs,
                strides=attrs["strides"],
                pads=attrs["pads"],
                dilations=attrs["dilations"],
                group=groups,
            )
        case "dense":
            return helper.make_node("Gemm", node.inputs, node.outputs, transB=1)
        case "add" | "relu" | "multiply":
            name = {"add": "Add", "relu": "Relu", "multiply": "Mul"}[node.op]
            return helper.make_node(name, node.inputs, node.outputs)
        case _:
            raise ValueError(f"{node.op} has no place in a layer of this benchmark")
