"""Files as exporters really write them: every odd form is read, or refused in one sentence."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.storage import in_compute_types
from retune.proto.file import external_files, read_onnx
from tests.support.networks import model, node
from tests.support.onnx_files import NAMES

RELU = node("Relu", ["x"], ["y"])
ADD = node("Add", ["x", "w"], ["y"])
ONES = np.ones(2, np.float32)


def result(made: onnx.ModelProto | Graph, **inputs: np.ndarray) -> np.ndarray:
    """The output y."""
    graph = import_model(made) if isinstance(made, onnx.ModelProto) else made
    return run_graph(graph, inputs)["y"]


def external(
    name: str, location: str, shape: Sequence[int], kind: int = TensorProto.FLOAT, **place: int
) -> TensorProto:
    tensor = TensorProto(name=name, data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **place}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def owner(array: np.ndarray) -> object:
    """What holds the memory of an array."""
    held: object = array
    while isinstance(held, np.ndarray):
        held = held.base
    return held


def sparse(values: np.ndarray, places: np.ndarray, shape: Sequence[int]) -> SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(places, "places"), shape
    )


# -- what is in the file and not in the network ------------------------------------------------


def test_operator_sets_of_other_domains_may_be_stated_and_not_used():
    made = model([RELU], {"x": [2]})
    made.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("b", 7)])
    assert [n.op for n in import_model(made).nodes] == ["relu"]


@pytest.mark.parametrize(
    "unused",
    [
        node("NoSuchOperator", ["x"], ["a"]),
        helper.make_node("Gelu", ["x"], ["a"], domain="com.example"),
        helper.make_node("Constant", [], ["a"], value_string="text"),
    ],
    ids=["unknown", "domain", "text"],
)
def test_nodes_that_no_output_needs_are_not_looked_at(unused: onnx.NodeProto):
    made = model([unused, node("Relu", ["a"], ["b"]), RELU], {"x": [2]})
    assert [n.op for n in import_model(made).nodes] == ["relu"]


def test_weights_that_nobody_reads_are_not_looked_at():
    made = model([RELU], {"x": [2]}, weights={"w": ONES})
    made.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [1], [b"text"]))
    made.graph.initializer.append(external("e", "gone.bin", [4]))
    assert not import_model(made).constants


def test_a_weight_that_is_an_output_is_read():
    graph = import_model(model([RELU], {"x": [2]}, outputs=["y", "w"], weights={"w": ONES}))
    np.testing.assert_array_equal(run_graph(graph, {"x": ONES})["w"], ONES)


@pytest.mark.parametrize("read", [True, False])
def test_weights_may_be_listed_among_the_inputs(read: bool):
    """As files of before version 4 of the format had to."""
    made = model([ADD if read else RELU], {"x": [2], "w": [2]}, weights={"w": ONES})
    made.ir_version = 3
    graph = import_model(made)
    assert graph.inputs == ("x",)
    assert result(graph, x=ONES).tolist() == ([2, 2] if read else [1, 1])


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_name_may_have_any_characters(name: str):
    nodes = [
        node("Add", [f"{name}in", name], [f"{name}sum"]),
        helper.make_node("Relu", [f"{name}sum"], [f"{name}out"], name=name),
    ]
    made = model(nodes, {f"{name}in": [2]}, outputs=[f"{name}out"], weights={name: ONES})
    graph = import_model(made)
    assert run_graph(graph, {f"{name}in": ONES})[f"{name}out"].tolist() == [2, 2]


def test_nodes_may_share_a_name():
    weights = {name: np.ones(3, np.float32) for name in "sbmv"}
    norm = [
        helper.make_node("BatchNormalization", [source, *"sbmv"], [made], name="n")
        for source, made in (("x", "a"), ("a", "y"))
    ]
    found = result(model(norm, {"x": [1, 3]}, weights=weights), x=np.ones((1, 3), np.float32))
    np.testing.assert_allclose(found, 1.0)


def test_values_may_have_the_names_that_the_import_would_make():
    """A Conv with a bias makes `y.conv` before `y`; here another node makes that name later."""
    weights = {"w": np.ones((1, 1, 1, 1), np.float32), "b": np.ones(1, np.float32)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Neg", ["c"], ["c.conv"]),
        node("Add", ["c", "c.conv"], ["y"]),
    ]
    found = result(
        model(nodes, {"x": [1, 1, 2, 2]}, weights=weights), x=np.ones((1, 1, 2, 2), np.float32)
    )
    assert not found.any()


def test_optional_outputs_may_be_left_unnamed():
    nodes = [
        node("Split", ["x"], ["", "a"], axis=0),
        helper.make_node("Dropout", ["a"], ["y", ""], name="d"),
    ]
    assert result(model(nodes, {"x": [4]}), x=np.arange(4, dtype=np.float32)).tolist() == [2, 3]


# -- constants ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(np.float32([1, 2]))}, np.float32([1, 2])),
        ({"value_float": 2.5}, np.float32(2.5)),
        ({"value_floats": [1.5, 2.0]}, np.float32([1.5, 2])),
        ({"value_int": -3}, np.int64(-3)),
        ({"value_ints": [1, 2]}, np.int64([1, 2])),
        (
            {"sparse_value": sparse(np.float32([5, 6]), np.int64([1, 4]), [2, 3])},
            np.float32([[0, 5, 0], [0, 6, 0]]),
        ),
    ],
    ids=["tensor", "float", "floats", "int", "ints", "sparse"],
)
def test_a_constant_of_every_form_is_read(attribute: dict[str, object], expected: np.ndarray):
    made = model([helper.make_node("Constant", [], ["y"], **attribute)], {"x": [1]})
    found = result(made, x=np.zeros(1, np.float32))
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "attribute", [{"value_string": "text"}, {"value_strings": ["a", "b"]}], ids=["one", "many"]
)
def test_a_constant_of_text_is_refused(attribute: dict[str, object]):
    made = model([helper.make_node("Constant", [], ["y"], name="c", **attribute)], {"x": [1]})
    with pytest.raises(ModelError, match=r"node 'c' \(Constant\): .*text"):
        import_model(made)


@pytest.mark.parametrize(
    "places", [np.int64([1, 5]), np.int64([[0, 1], [1, 2]])], ids=["flat", "by axis"]
)
def test_a_sparse_weight_is_read_with_its_zeros(places: np.ndarray):
    made = model([ADD], {"x": [2, 3]})
    made.graph.sparse_initializer.append(sparse(np.float32([7, 8]), places, [2, 3]))
    found = result(made, x=np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(found, [[0, 7, 0], [0, 0, 8]])


@pytest.mark.parametrize(
    "places",
    [np.int64([1, 6]), np.int64([-1, 2]), np.int64([1]), np.int64([[0, 1], [2, 0]])],
    ids=["behind", "before", "too few", "beside"],
)
def test_a_sparse_weight_that_does_not_fit_is_named(places: np.ndarray):
    made = model([ADD], {"x": [2, 3]})
    values = numpy_helper.from_array(np.float32([7, 8, 9]), "w")
    made.graph.sparse_initializer.append(
        SparseTensorProto(values=values, indices=numpy_helper.from_array(places, "i"), dims=[2, 3])
    )
    with pytest.raises(ModelError, match=r"sparse initializer 'w': .* do not fit into the shape"):
        import_model(made)


def test_weights_of_bfloat16_keep_their_type():
    values = np.array([1, -2.5, 3e38, 1e-30], ml_dtypes.bfloat16)
    nodes = [node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT), node("Add", ["x", "wide"], ["y"])]
    made = model(nodes, {"x": [4]}, weights={"w": values})
    found = result(made, x=np.zeros(4, np.float32))
    np.testing.assert_array_equal(found, values.astype(np.float32))


def test_a_network_of_bfloat16_is_imported_and_computed_in_float32():
    nodes = [node("Mul", ["x", "w"], ["t"]), node("Relu", ["t"], ["y"])]
    weights = {"w": np.array([2, -3], ml_dtypes.bfloat16)}
    made = model(nodes, {"x": [2]}, weights=weights, element=TensorProto.BFLOAT16)
    graph = import_model(made)
    assert {entry.dtype for entry in graph.types.values()} == {"bfloat16"}
    x = np.array([1.5, -0.5], ml_dtypes.bfloat16)
    found = run_graph(graph, {"x": x})["y"]
    assert (found.dtype, found.tolist()) == (ml_dtypes.bfloat16, [3, 1.5])
    wide = in_compute_types(graph).verify()
    inner = {wide.types[value].dtype for n in wide.nodes[:-1] for value in n.outputs}
    assert inner == {"float32"}
    assert run_graph(wide, {"x": x})["y"].tolist() == [3, 1.5]


def test_computing_in_bfloat16_is_done_in_float32():
    nodes = [
        node("Cast", ["x"], ["brief"], to=TensorProto.BFLOAT16),
        node("Mul", ["brief", "w"], ["scaled"]),
        node("Cast", ["scaled"], ["y"], to=TensorProto.FLOAT),
    ]
    made = model(nodes, {"x": [2]}, weights={"w": np.array([2, 3], ml_dtypes.bfloat16)})
    assert result(made, x=np.float32([1.5, 2])).tolist() == [3, 6]


# -- external data -----------------------------------------------------------------------------


def saved(folder: Path, made: onnx.ModelProto, *tensors: TensorProto) -> Path:
    made.graph.initializer.extend(tensors)
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("offset", [0, 3, 4096])
def test_external_weights_may_lie_anywhere_in_their_file(tmp_path: Path, offset: int):
    (tmp_path / "w.bin").write_bytes(bytes(offset) + np.float32([1, 2]).tobytes() + b"rest")
    place = {"offset": offset, "length": 8}
    graph = load_file(
        saved(tmp_path, model([ADD], {"x": [2]}), external("w", "w.bin", [2], **place))
    )
    assert result(graph, x=ONES).tolist() == [2, 3]


def test_matrices_of_a_large_file_are_transposed_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retune.proto.file._MAPPED_BYTES", 1)
    matrices = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    matrices.tofile(tmp_path / "w.bin")
    nodes = [node("MatMul", ["x", name], [made]) for name, made in (("v", "a"), ("w", "b"))]
    tensors = [external(name, "w.bin", [2, 3], offset=24 * i) for i, name in enumerate("vw")]
    made = model([*nodes, node("Add", ["a", "b"], ["y"])], {"x": [1, 2]})
    graph = load_file(saved(tmp_path, made, *tensors))
    owners = [owner(array) for array in graph.constants.values()]
    assert len(owners) == 2 and isinstance(owners[0], mmap.mmap) and owners[0] is owners[1]
    expected = np.float32([[1, 1]]) @ matrices.sum(axis=0)
    np.testing.assert_array_equal(result(graph, x=np.ones((1, 2), np.float32)), expected)


def test_external_weights_without_elements_are_read(tmp_path: Path):
    (tmp_path / "w.bin").write_bytes(b"")
    concat = node("Concat", ["x", "w"], ["y"], axis=0)
    path = saved(tmp_path, model([concat], {"x": [2]}), external("w", "w.bin", [0]))
    assert result(load_file(path), x=ONES).tolist() == [1, 1]


def test_external_bfloat16_is_read(tmp_path: Path):
    values = np.array([1, -2.5], ml_dtypes.bfloat16)
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    tensor = external("w", "w.bin", [2], TensorProto.BFLOAT16)
    graph = load_file(saved(tmp_path, model([ADD], {"x": [2]}), tensor))
    assert result(graph, x=np.zeros(2, np.float32)).tolist() == [1, -2.5]


def test_every_external_file_is_known_wherever_its_tensor_stands(tmp_path: Path):
    for name in ("a.bin", "b.bin", "c.bin"):
        (tmp_path / name).write_bytes(ONES.tobytes())
    constant = helper.make_node("Constant", [], ["b"], value=external("", "b.bin", [2]))
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=external("", "c.bin", [2]))],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, [2])],
    )
    test = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.array(True)))
    choice = node("If", ["t"], ["d"], then_branch=branch, else_branch=branch)
    nodes = [constant, test, choice, node("Sum", ["x", "w", "b", "d"], ["y"])]
    path = saved(tmp_path, model(nodes, {"x": [2]}), external("w", "a.bin", [2]))
    assert {file.name for file in external_files(path)} == {"a.bin", "b.bin", "c.bin"}


def test_a_location_that_is_not_a_number_is_named(tmp_path: Path):
    (tmp_path / "w.bin").write_bytes(ONES.tobytes())
    tensor = external("w", "w.bin", [2], offset="far")  # type: ignore[arg-type]
    path = saved(tmp_path, model([ADD], {"x": [2]}), tensor)
    with pytest.raises(ModelError, match="its location in an external file is malformed"):
        external_files(path)


def test_weights_of_more_than_2_gib_are_read_where_they_are_used(tmp_path: Path):
    """The file is sparse; reading all of it would take its size in memory."""
    rows, width = 600, 1 << 20
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(rows * width * 4)
        stream.seek(599 * width * 4)
        stream.write(np.full(4, 7, np.float32).tobytes())
    nodes = [node("Gather", ["w", "i"], ["row"], axis=0), node("Add", ["row", "x"], ["y"])]
    weights = {"i": np.array([599])}
    made = model(nodes, {"x": [1, 1]}, weights=weights)
    path = saved(tmp_path, made, external("w", "w.bin", [rows, width]))
    graph = load_file(path)
    found = result(graph, x=np.ones((1, 1), np.float32))
    assert found.shape == (1, width)
    assert found[0, :5].tolist() == [8, 8, 8, 8, 1]


def test_a_file_that_is_too_large_to_be_a_model_is_not_read(tmp_path: Path):
    path = tmp_path / "net.onnx"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
    with pytest.raises(ModelError, match=r"less than 2 GiB: larger weights lie in files beside"):
        read_onnx(path)


# -- damaged -----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["name", "input", "op_type"])
def test_a_name_that_is_no_text_is_one_error(what: str, tmp_path: Path):
    names = {"name": "n", "input": "x", "op_type": "Relu"} | {what: "MARK"}
    relu = helper.make_node(names["op_type"], [names["input"]], ["y"], name=names["name"])
    path = tmp_path / "net.onnx"
    made = model([relu], {"x": [2]}).SerializeToString()
    path.write_bytes(made.replace(b"MARK", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ModelError, match=r"net\.onnx: the name b'.*' is not text; expected UTF-8"):
        load_file(path)
