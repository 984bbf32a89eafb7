"""Softmax and norms, as exporters write them, are one kernel each and agree with onnxruntime."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, numpy_helper
from onnx import helper as h

from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.core.target import GENERIC_GPU
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from retune.targets.cost.estimate import default_candidate
from tests.external.on_device import compile_graph
from tests.support.oracle import assert_items_agree

pytestmark = pytest.mark.device

SHAPE = (2, 12, 48)
SCALAR, ROW = {"two": 2.0, "epsilon": 1e-5, "scale": 0.125}, ("w", "b")


def mean(source: str, made: str) -> NodeProto:
    return h.make_node("ReduceMean", [source], [made], axes=[-1])


NETWORKS: dict[str, Sequence[NodeProto]] = {
    "softmax": [h.make_node("Softmax", ["x"], ["y"])],
    "scaled softmax": [
        h.make_node("Mul", ["x", "scale"], ["s"]),
        h.make_node("Softmax", ["s"], ["y"]),
    ],
    "log-softmax": [h.make_node("LogSoftmax", ["x"], ["y"])],
    "layer norm": [h.make_node("LayerNormalization", ["x", "w", "b"], ["y"])],
    "layer norm in parts": [
        mean("x", "m"),
        h.make_node("Sub", ["x", "m"], ["d"]),
        h.make_node("Pow", ["d", "two"], ["p"]),
        mean("p", "v"),
        h.make_node("Add", ["v", "epsilon"], ["e"]),
        h.make_node("Sqrt", ["e"], ["r"]),
        h.make_node("Div", ["d", "r"], ["n"]),
        h.make_node("Mul", ["n", "w"], ["nw"]),
        h.make_node("Add", ["nw", "b"], ["y"]),
    ],
    "root mean square norm": [
        h.make_node("Pow", ["x", "two"], ["p"]),
        mean("p", "v"),
        h.make_node("Add", ["v", "epsilon"], ["e"]),
        h.make_node("Sqrt", ["e"], ["r"]),
        h.make_node("Div", ["x", "r"], ["n"]),
        h.make_node("Mul", ["n", "w"], ["y"]),
    ],
    "unit length": [
        h.make_node("ReduceL2", ["x"], ["l"], axes=[-1]),
        h.make_node("Div", ["x", "l"], ["y"]),
    ],
}


def write(name: str, folder: Path) -> Path:
    rng = np.random.default_rng(0)
    known = {key: np.float32(value).reshape(()) for key, value in SCALAR.items()}
    known |= {key: rng.normal(size=SHAPE[-1]).astype(np.float32) for key in ROW}
    nodes = NETWORKS[name]
    used = {value for node in nodes for value in node.input}
    graph = h.make_graph(
        nodes,
        "rows",
        [h.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [h.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)],
        [numpy_helper.from_array(v, k) for k, v in known.items() if k in used],
    )
    path = folder / "rows.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_one_kernel_and_agrees_with_onnxruntime(name: str, tmp_path: Path):
    path = write(name, tmp_path)
    module = compile_graph(load_file(path), "NHWC")
    assert len(module.plan.launches) == 1
    outcome = verify(module, open_peer("onnxruntime", path), module.random_inputs, samples=1)
    assert outcome.passed, outcome


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_one_kernel_of_work_items_without_a_race(name: str, tmp_path: Path):
    (task,) = extract(optimise(load_file(write(name, tmp_path)))).tasks.values()
    space = task.space(GENERIC_GPU)
    chosen = default_candidate(space, GENERIC_GPU)
    assert chosen.sketch == "gpu.rows.fused"
    assert_items_agree(task.dag, space.instantiate(chosen))
