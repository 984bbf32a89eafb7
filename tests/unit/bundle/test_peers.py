"""Peers give the same outputs behind one form; what is missing is said in one sentence."""

import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.bundle.plan import INTEGERS_NOTE, NetworkPlan
from retune.bundle.runtime.module import random_inputs
from retune.bundle.verify import peers
from retune.bundle.verify.compare import verify
from retune.bundle.verify.examination import Original
from retune.bundle.verify.oracles import multiplies_bytes, rounding_of
from retune.bundle.verify.peers import (
    numpy_peer,
    open_peer,
    open_reference,
    oracle_version,
    peer_versions,
    unoptimised_is_exact,
)
from retune.core.dtypes import TensorType
from retune.core.errors import InputError, ModelError
from retune.core.target import GENERIC_CPU
from retune.frontend.onnx.importer import load_file

BATCH_OF_TWO = {"x": (2, 3)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x) and z = x + x, over a batch that is not fixed."""
    return _save(tmp_path / "model.onnx", TensorProto.FLOAT)


def test_onnxruntime_runs_the_model(model: Path) -> None:
    peer = open_peer("onnxruntime", model, shapes=BATCH_OF_TWO)
    assert (peer.name, peer.outputs) == ("onnxruntime", ("y", "z"))
    assert peer.inputs == {"x": TensorType((2, 3))}
    out = peer({"x": np.full((2, 3), -1, np.float32)})
    assert (out["y"].max(), out["z"].max()) == (0, -2)


def test_onnxruntime_agrees_with_the_numpy_meaning(model: Path) -> None:
    peer = open_peer("onnxruntime", model, shapes=BATCH_OF_TWO)
    meaning = numpy_peer(load_file(model, BATCH_OF_TWO))
    assert meaning.inputs == peer.inputs
    assert verify(meaning, peer, partial(random_inputs, peer.inputs)).passed


@pytest.fixture
def product_of_bytes(tmp_path: Path) -> Path:
    """Two products of the largest bytes do not fit 16 bits, which some processors add them in."""
    weight = numpy_helper.from_array(np.full((8, 4), 127, np.int8), "w")
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["codes", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [3, 8]), ("y", [3, 4]))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [weight])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path := tmp_path / "bytes.onnx")
    return path


BYTES = {"x": np.linspace(0.5, 1, 24, dtype=np.float32).reshape(3, 8)}


def test_the_oracle_multiplies_bytes_exactly(product_of_bytes: Path) -> None:
    load = partial(load_file, product_of_bytes)
    oracle, numpy = open_reference(product_of_bytes, load), numpy_peer(load())
    np.testing.assert_allclose(oracle(BYTES)["y"], numpy(BYTES)["y"], rtol=1e-6)


def test_sums_that_are_cut_off_are_not_taken_for_rounding(
    product_of_bytes: Path, plan: NetworkPlan
) -> None:
    """On any processor: where onnxruntime cannot add exactly, it is not asked to."""
    network = Original(onnx=product_of_bytes, shapes={"x": (3, 8)})
    assert multiplies_bytes(load_file(product_of_bytes))
    oracle = open_reference(product_of_bytes, partial(load_file, product_of_bytes))
    found = rounding_of(plan, network, GENERIC_CPU, oracle)
    assert found is not None
    runs = found(BYTES)["y"].oracle
    np.testing.assert_allclose(runs, np.broadcast_to(runs[0], runs.shape), rtol=1e-5)


@pytest.mark.parametrize(("op", "rounds"), [("Relu", False), ("Softmax", True)])
def test_bytes_that_follow_from_sums_of_floats_are_judged_by_rounding(
    op: str, rounds: bool, tmp_path: Path, plan: NetworkPlan
) -> None:
    """Each copy of the network rounds its sums otherwise, so that one is on either side of 2.5."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> net (float[1, 2] x) => (float[1, 2] y)
        <float a = {{0.25}}, float s = {{0.2}}, uint8 z = {{0}}> {{
            q = QuantizeLinear(x, a, z) d = DequantizeLinear(q, a, z) r = {op}(d)
            p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z) }}"""
    onnx.save(onnx.parser.parse_model(text), file := tmp_path / "net.onnx")
    integers = replace(plan, notes={INTEGERS_NOTE: "rescaled 2 times"})
    network = Original(onnx=file, shapes={"x": (1, 2)})
    numpy = numpy_peer(load_file(file))
    found = rounding_of(integers, network, GENERIC_CPU, numpy)
    assert (found is not None) is rounds
    if found:
        inputs = {"x": np.full((1, 2), 0.75, np.float32)}  # shares of a half: 2.5 steps
        assert np.ptp(found(inputs)["y"].numpy) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("flags", "exact"),
    [("", True), ("avx2 fma", False), ("avx2 avx512bw", False), ("avx2 avx_vnni", True)],
)
def test_what_a_processor_adds_exactly(flags: str, exact: bool) -> None:
    assert unoptimised_is_exact(frozenset(flags.split())) is exact


@pytest.mark.parametrize(("flags", "name"), [("avx2", "numpy"), ("avx2 avx_vnni", "onnxruntime")])
def test_an_oracle_that_cuts_off_sums_of_a_recurrent_layer_is_not_asked(
    flags: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "read_flags", lambda: frozenset(flags.split()))
    weight = np.full((1, 4, 16), 127, np.int8)
    scale, zero = np.float32([0.01]), np.int8([0])
    known = {"w": weight, "r": weight, "ws": scale, "wz": zero, "rs": scale, "rz": zero}
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"],
        ["y"],
        domain="com.microsoft",
        hidden_size=4,
    )
    given, made = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [3, 1, 4]), ("y", [3, 1, 1, 4]))
    )
    constants = [numpy_helper.from_array(array, key) for key, array in known.items()]
    graph = helper.make_graph([node], "net", [given], [made], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, file := tmp_path / "lstm.onnx")
    oracle = open_reference(file, partial(load_file, file))
    assert oracle.name == name
    assert ("cuts off sums of DynamicQuantizeLSTM" in oracle.note) is (name == "numpy")


def test_nodes_that_share_a_name_are_no_reason_to_refuse_a_network(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", [a], [b], name="n") for a, b in ("xa", "ay")]
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph(nodes, "net", kinds[:1], kinds[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    peer = open_peer("onnxruntime", tmp_path / "net.onnx")
    assert peer({"x": np.float32([1, -2])})["y"].tolist() == [1, -2]


def test_the_reference_is_onnxruntime_where_it_is_installed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load_file(model, BATCH_OF_TWO)
    graph_of = lambda: graph  # noqa: E731
    assert open_reference(model, graph_of, shapes=BATCH_OF_TWO).name == "onnxruntime"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    missing = open_reference(model, graph_of)
    assert missing.name == "numpy" and "onnxruntime is not installed" in missing.note


def test_the_oracle_s_version_is_that_of_what_is_opened(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        graph = load_file(model, BATCH_OF_TWO)
        oracle = open_reference(model, lambda g=graph: g, shapes=BATCH_OF_TWO)
        assert oracle_version() == f"{oracle.name} {oracle.version}"
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert peer_versions() == {}


def test_a_file_that_onnxruntime_cannot_run_is_checked_by_numpy(tmp_path: Path) -> None:
    even = helper.make_node("LRN", ["x"], ["y"], size=4)
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 6, 2, 2]) for n in "xy"]
    made = helper.make_model(helper.make_graph([even], "net", kinds[:1], kinds[1:]))
    made.ir_version = 8
    path = tmp_path / "even.onnx"
    path.write_bytes(made.SerializeToString())
    oracle = open_reference(path, lambda: load_file(path))
    assert oracle.name == "numpy" and oracle.note.startswith("onnxruntime cannot load it: ")
    assert "does not find errors of the import" in oracle.note
    assert oracle({"x": np.ones((1, 6, 2, 2), np.float32)})["y"].shape == (1, 6, 2, 2)


def test_what_onnxruntime_refuses_at_run_time_is_an_error_with_a_remedy(model: Path) -> None:
    peer = open_peer("onnxruntime", model, shapes=BATCH_OF_TWO)
    with pytest.raises(InputError, match=r"onnxruntime refuses the inputs: .*--samples data.npz"):
        peer({"x": np.zeros((2, 7), np.float32)})


@pytest.mark.process
def test_versions_are_known_of_what_is_installed_without_importing_it() -> None:
    code = (
        "import sys; from retune.bundle.verify.peers import oracle_version, peer_versions\n"
        "print(oracle_version(), peer_versions(), peer_versions(['openvino', 'no_such']))\n"
        "print([name for name in ('onnxruntime', 'openvino') if name in sys.modules])\n"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    versions, imported = done.stdout.splitlines()
    assert versions == f"{oracle_version()} {peer_versions()} {peer_versions(['openvino'])}"
    assert imported == "[]"
    assert peer_versions()["onnxruntime"] == importlib.metadata.version("onnxruntime")


def test_a_peer_that_a_package_of_another_name_brought_has_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"onnxruntime-gpu": "9.8.7"}

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(peers, "_packages", lambda: {"onnxruntime": [*installed]})
    assert oracle_version() == "onnxruntime onnxruntime-gpu 9.8.7"


@pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None,
    reason="openvino is an optional peer that the test environment does not install",
)
def test_openvino_runs_the_model(model: Path) -> None:
    peer = open_peer("openvino", model, shapes=BATCH_OF_TWO, threads=1)
    assert (peer.inputs, peer.outputs) == ({"x": TensorType((2, 3))}, ("y", "z"))
    reference = open_peer("onnxruntime", model, shapes=BATCH_OF_TWO)
    assert verify(peer, reference, partial(random_inputs, peer.inputs)).passed


@pytest.mark.parametrize(("name", "remedy"), [("onnxruntime", r".\[peers\]"), ("openvino", "")])
def test_a_peer_that_is_not_installed_says_what_to_install(
    model: Path, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    def missing(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=f"{name} is not installed here .*pip install .*{remedy}"):
        open_peer(name, model)


def test_an_unknown_peer_is_refused(model: Path) -> None:
    with pytest.raises(InputError, match="'tvm' is not known; choose one of onnxruntime, openvino"):
        open_peer("tvm", model)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.onnx: expected an ONNX file; got nothing"):
        open_peer("onnxruntime", tmp_path / "none.onnx")


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x07not a model")
    with pytest.raises(ModelError, match=r"bad.onnx: not a readable ONNX file"):
        open_peer("onnxruntime", tmp_path / "bad.onnx")


@pytest.mark.parametrize("shapes", [{}, {"x": (2,)}, {"x": (-1, 3)}])
def test_open_dimensions_have_to_be_bound(model: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(InputError, match=r"input x: expected 2 known extents; .*--shape x="):
        open_peer("onnxruntime", model, shapes=shapes)


@pytest.mark.parametrize("peer", ["onnxruntime", "numpy"])
def test_inputs_may_have_no_elements(tmp_path: Path, peer: str) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    ends = [helper.make_tensor_value_info(v, TensorProto.FLOAT, (0, 3)) for v in "xy"]
    made = helper.make_model(helper.make_graph(nodes, "none", ends[:1], ends[1:]))
    onnx.save(made, tmp_path / "none.onnx")
    path = tmp_path / "none.onnx"
    opened = numpy_peer(load_file(path)) if peer == "numpy" else open_peer(peer, path)
    assert opened.inputs == {"x": TensorType((0, 3))}
    assert opened({"x": np.zeros((0, 3), np.float32)})["y"].shape == (0, 3)


def test_shapes_of_another_network_are_refused(model: Path) -> None:
    shapes = {**BATCH_OF_TWO, "data": (1, 784)}
    with pytest.raises(
        InputError, match=r"model.onnx: expected the input 'data'; its inputs are x"
    ):
        open_peer("onnxruntime", model, shapes=shapes)


def test_an_element_type_that_retune_does_not_know_is_refused(tmp_path: Path) -> None:
    path = _save(tmp_path / "model.onnx", TensorProto.STRING)
    with pytest.raises(ModelError, match=r"input x: expected an element type among .* got string"):
        open_peer("onnxruntime", path, shapes=BATCH_OF_TWO)


def _save(path: Path, kind: int) -> Path:
    values = [helper.make_tensor_value_info(name, kind, ["n", 3]) for name in "xyz"]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Add", ["x", "x"], ["z"])]
    if kind != TensorProto.FLOAT:
        nodes = [helper.make_node("Identity", ["x"], [name]) for name in "yz"]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path
