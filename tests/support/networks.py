"""Small networks for the tests: ONNX models of a few nodes, and random graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.frontend.onnx.importer import import_model
from retune.graph.fuse import Group, group_graph
from retune.graph.graph import Graph
from retune.graph.lower import group_tensors
from retune.ir.te import Dag
from tests.support.random_networks import random_model


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 13,
    element: int = onnx.TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(n, element, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, element, None) for n in outputs],
        initializer=[numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def dag_of(graph: Graph, group: Group) -> Dag:
    """The group as tensor expressions; its params are constant placeholders."""
    return group_tensors(group_graph(graph, group), group.params).dag


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def random_network(seed: int, steps: int = 8) -> Graph:
    """A network as it is imported; the same seed gives the same."""
    return import_model(random_model(seed, steps)).verify()
