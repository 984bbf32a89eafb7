"""Import and extraction: once for each content of the model's files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from retune.api import tune_network
from retune.core.dims import assuming
from retune.core.errors import ModelError
from retune.pipeline import network as importing
from retune.pipeline.network import (
    import_network,
    open_network,
    stage_extract,
    stage_import,
    traced_network,
)
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.sampling import stage_samples
from tests.support.device_networks import write
from tests.support.networks import model, node, normal


def request_for(folder: Path, file: Path, **fields: object) -> TuneRequest:
    given = {"model": str(file), "out": "out", "records": "records", "work": str(folder / "work")}
    return TuneRequest(**{**given, **fields})  # type: ignore[arg-type]


def convolution(file: Path, seed: int = 0, batch: int | str = 1) -> Path:
    weight = normal(np.random.default_rng(seed), 4, 3, 3, 3)
    conv = node("Conv", ["x", "w"], ["y"])
    onnx.save(model([conv], {"x": [batch, 3, 6, 6]}, weights={"w": weight}), file)
    return file


def external(folder: Path, value: float) -> Path:
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"")
    external_data_helper.set_external_data(weight, location="w.bin", length=16)
    weight.data_location = TensorProto.EXTERNAL
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [4]})
    made.graph.initializer.append(weight)
    (folder / "w.bin").write_bytes(np.full(4, value, np.float32).tobytes())
    (folder / "net.onnx").write_bytes(made.SerializeToString())
    return folder / "net.onnx"


def test_the_facts_of_a_network(tmp_path: Path):
    request = request_for(tmp_path, convolution(tmp_path / "net.onnx"))
    found = stage_import(request)
    assert [(v.name, v.shape) for v in found.inputs] == [("x", (1, 3, 6, 6))]
    assert [(v.name, v.shape) for v in found.output_values] == [("y", (1, 4, 4, 4))]
    assert found.parameters == 4 * 3 * 9
    assert found.flops >= 2 * 16 * 4 * 27
    (task,) = [t for t in stage_extract(request, found).tasks if t.tunable]
    assert (task.op, task.weight) == ("conv2d_nhwc", 1)


def test_an_import_says_for_which_sizes_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told: list[TuneEvent] = []
    monkeypatch.setattr(importing, "tell", told.append)
    monkeypatch.setattr(importing, "_MANY_NODES", 1)
    file = convolution(tmp_path / "net.onnx", batch="batch")
    request = request_for(tmp_path, file, shapes={"batch": "1..8"})
    with assuming({"batch": 4}):
        traced_network(request, "", counts=False)
    stage_import(request_for(tmp_path, convolution(tmp_path / "fixed.onnx")))
    assert [event.text for event in told] == [
        "net.onnx: 1 nodes are optimized and cut into tasks for batch=4",
        "fixed.onnx: 1 nodes are optimized and cut into tasks",
    ]


@pytest.mark.parametrize(("element", "oracle"), [("INT16", "numpy"), ("FLOAT", "onnxruntime")])
def test_what_onnxruntime_cannot_run_is_compared_with_numpy(
    tmp_path: Path, element: str, oracle: str
):
    kind = TensorProto.DataType.Value(element)
    short = model([node("Relu", ["x"], ["y"])], {"x": [4]}, element=kind)
    onnx.save(short, tmp_path / "net.onnx")
    request = request_for(tmp_path, tmp_path / "net.onnx")
    assert stage_samples(request, stage_import(request)).oracle == oracle


def test_samples_are_such_that_the_oracle_takes_them(tmp_path: Path):
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 3, 4]),
        helper.make_tensor_value_info("n", TensorProto.INT32, [3]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((1, 18, 4), "f"), "r": rng.random((1, 18, 6), "f")}
    graph = helper.make_graph(
        [node("GRU", ["x", "w", "r", "", "n"], ["y"], hidden_size=6)],
        "net",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 1, 3, 6])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
    made.ir_version = 8
    onnx.save(made, tmp_path / "net.onnx")
    request = request_for(tmp_path, tmp_path / "net.onnx")
    assert stage_samples(request, stage_import(request)).ranges == (("n", 1, 5),)


def test_the_key_follows_what_the_network_is(tmp_path: Path):
    file = convolution(tmp_path / "net.onnx", batch="n")
    one = request_for(tmp_path, file, shapes=(("x", (1, 3, 6, 6)),))
    key = stage_import(one).model_key
    assert stage_import(one).model_key == key
    assert stage_import(replace(one, shapes=(("x", (2, 3, 6, 6)),))).model_key != key
    assert stage_import(replace(one, layout="NCHW")).model_key != key
    convolution(file, seed=1, batch="n")
    assert stage_import(one).model_key != key


def test_the_key_follows_external_data(tmp_path: Path):
    request = request_for(tmp_path, external(tmp_path, 1.0))
    first, ones = stage_import(request), open_network(request).network.graph.constants
    external(tmp_path, 2.0)
    assert stage_import(request).model_key != first.model_key
    twos = open_network(request).network.graph.constants
    assert [float(array.max()) for array in (*ones.values(), *twos.values())] == [1.0, 2.0]


def test_places_may_be_paths_or_text(tmp_path: Path):
    file = convolution(tmp_path / "net.onnx")
    assert import_network(file, cache=str(tmp_path)).onnx == file
    assert import_network(str(file), cache=tmp_path).onnx == file
    with pytest.raises(ModelError, match="no such file"):
        tune_network(tmp_path / "none.onnx", str(tmp_path / "out"))


def test_a_missing_model_is_a_model_error(tmp_path: Path):
    with pytest.raises(ModelError, match="no such file"):
        import_network(str(tmp_path / "none.onnx"), {}, "NHWC", tmp_path)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_every_task_has_its_entry(layout: str, tmp_path: Path):
    request = request_for(tmp_path, write("bottleneck", tmp_path), layout=layout)
    tasks = stage_extract(request, stage_import(request)).tasks
    assert len({task.key for task in tasks}) == len(tasks)
    assert sum(task.op == f"conv2d_{layout.lower()}" for task in tasks) == 4


def test_a_model_that_fails_is_tried_again(tmp_path: Path):
    file = convolution(tmp_path / "net.onnx", batch="n")
    request = request_for(tmp_path, file)
    with pytest.raises(ModelError, match="'x' is n,3,6,6"):
        stage_import(request)
    convolution(file)
    assert stage_import(request).model_key
