"""A model that cannot be imported gives one clear error: where, expected, got, what to do."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper

from retune.core.errors import LookupFailed, ModelError
from retune.frontend.models import load_model
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.evaluate import run_graph
from tests.support.networks import model, node

RELU = node("Relu", ["x"], ["y"])
INDEX = np.asarray(1)


def test_a_cycle_names_its_nodes():
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    with pytest.raises(ModelError, match=r"'Add_a' -> 'Relu_b' -> 'Add_a' form a cycle"):
        import_model(model(nodes, {"x": [2]}))


def test_nodes_in_any_order_are_sorted():
    nodes = [node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])]
    graph = import_model(model(nodes, {"x": [2]}))
    assert [n.op for n in graph.nodes] == ["negative", "relu"]


@pytest.mark.parametrize("keep", [0, 10, 200, -20])
def test_a_truncated_file_is_one_error(tmp_path: Path, keep: int):
    path = tmp_path / "cut.onnx"
    weights = {"w": np.ones((64, 3, 3, 3), np.float32)}
    whole = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 3, 8, 8]}, weights=weights)
    path.write_bytes(whole.SerializeToString()[:keep])
    with pytest.raises(ModelError, match=r"cut.*(truncated|incomplete|damaged)"):
        load_file(path)


def test_bytes_of_another_format_are_one_error(tmp_path: Path):
    path = tmp_path / "text.onnx"
    path.write_text("this is not a network\n" * 50)
    with pytest.raises(ModelError, match=r"text\.onnx.*(not a readable|no network)"):
        load_file(path)


def test_a_missing_file_is_one_error(tmp_path: Path):
    with pytest.raises(ModelError, match=r"no such file; expected an ONNX file, zoo:NAME"):
        load_model(str(tmp_path / "absent.onnx"))


def test_an_undefined_input_is_named():
    with pytest.raises(ModelError, match=r"'Add_y' \(Add\) reads 'ghost'"):
        import_model(model([node("Add", ["x", "ghost"], ["y"])], {"x": [2]}))


def test_an_output_that_nothing_computes_is_named():
    with pytest.raises(ModelError, match="nothing computes the output 'z'"):
        import_model(model([RELU], {"x": [2]}, outputs=["z"]))


def test_a_value_made_twice_is_named():
    with pytest.raises(ModelError, match="'y' is made more than once"):
        import_model(model([RELU, node("Neg", ["x"], ["y"])], {"x": [2]}))


@pytest.mark.parametrize("kind", ["FLOAT8E5M2", "FLOAT8E4M3FN", "COMPLEX64"])
def test_an_unknown_element_type_is_named(kind: str):
    message = rf"input 'x': element type {kind.lower()} is not supported; expected"
    with pytest.raises(ModelError, match=message):
        import_model(model([RELU], {"x": [2]}, element=TensorProto.DataType.Value(kind)))


def test_unsupported_ops_are_reported_once_in_full():
    def own(op: str, source: str, output: str) -> onnx.NodeProto:
        return helper.make_node(op, [source], [output], name=f"{op}_{output}", domain="com.example")

    nodes = [
        own("Gelu", "x", "a"),
        node("RandomNormalLike", ["a"], ["b"]),
        own("Gelu", "b", "c"),
        node("Relu", ["c"], ["d"]),
        own("Warp", "d", "y"),
    ]
    with pytest.raises(ModelError) as caught:
        import_model(model(nodes, {"x": [2, 2]}))
    assert str(caught.value).splitlines() == [
        "net: 3 ops of opset 13 are not supported (4 nodes); replace them in the model, or cut it "
        "before them:",
        "  RandomNormalLike: 1 x, first 'RandomNormalLike_b'",
        "  com.example::Gelu: 2 x, first 'Gelu_a'",
        "  com.example::Warp: 1 x, first 'Warp_y'",
    ]


def test_an_old_opset_is_refused():
    with pytest.raises(ModelError, match="operator set 6; expected 7 or newer"):
        import_model(model([RELU], {"x": [2]}, opset=6))


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [
        ([node("Reshape", ["x", "x"], ["y"])], [4], r"the shape \(input 'x'\) depends on"),
        ([node("Add", ["x", "c"], ["y"])], [3], "do not broadcast"),
        ([node("Add", ["x"], ["y"])], [3], "add: expected 2 inputs, got 1"),
        ([node("Conv", ["x", "k"], ["y"])], [1, 5, 8, 8], "expected a kernel over 5 channels"),
        ([node("Conv", ["x", "k"], ["y"], pads=[1])], [1, 3, 8, 8], "expected 4 for data with 2"),
        ([node("Conv", ["x", "k"], ["y"], auto_pad="SOME")], [1, 3, 8, 8], "auto_pad 'SOME'"),
        ([node("Conv", ["x", "k"], ["y"])], [1, 3, 2, 2], "larger than the padded data"),
        ([node("Concat", ["x", "c"], ["y"], axis=3)], [1, 3], "axis 3 is out of range"),
        ([node("Relu", [], ["y"])], [4], "relu: expected 1 inputs, got 0"),
    ],
)
def test_a_node_that_makes_no_sense_is_named(nodes, shape, message):
    weights = {
        "c": np.ones((5,), np.float32),
        "k": np.ones((4, 3, 3, 3), np.float32),
    }
    with pytest.raises(ModelError, match=message) as caught:
        import_model(model(nodes, {"x": shape}, weights=weights))
    assert f"net: node '{nodes[0].name}'" in str(caught.value)


def test_an_initializer_of_the_wrong_size_is_named():
    damaged = model([node("Add", ["x", "w"], ["y"])], {"x": [4]})
    damaged.graph.initializer.append(
        TensorProto(name="w", data_type=1, dims=[4], raw_data=b"\0" * 7)
    )
    with pytest.raises(ModelError, match="initializer 'w': its data does not fill the shape"):
        import_model(damaged)


def external_model(folder: Path, location: str, length: int = 16, offset: int = 0) -> Path:
    """A model whose weight [4] claims to lie at `location`."""
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [4]})
    tensor = TensorProto(name="w", data_type=1, dims=[4], raw_data=b"")
    external_data_helper.set_external_data(tensor, location, offset=offset, length=length)
    tensor.ClearField("raw_data")
    made.graph.initializer.append(tensor)
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def test_external_data_beside_the_model_is_read(tmp_path: Path):
    values = np.arange(6, dtype=np.float32)
    (tmp_path / "data.bin").write_bytes(values.tobytes())
    graph = load_file(external_model(tmp_path, "data.bin", offset=8))
    result = run_graph(graph, {"x": np.zeros(4, np.float32)})
    np.testing.assert_array_equal(result["y"], values[2:])


@pytest.mark.parametrize("how", ["parent", "absolute", "link", "linked folder"])
def test_external_data_may_not_leave_the_folder(tmp_path: Path, how: str):
    secret, folder = tmp_path / "secret.bin", tmp_path / "model"
    secret.write_bytes(b"\0" * 16)
    folder.mkdir()
    location = {"parent": "../secret.bin", "absolute": str(secret), "link": "link.bin"}.get(how, "")
    if how == "link":
        (folder / "link.bin").symlink_to(secret)
    if how == "linked folder":
        (folder / "sub").symlink_to(tmp_path)
        location = "sub/secret.bin"
    with pytest.raises(ModelError, match=r"initializer 'w': external data .* leaves the model's"):
        load_file(external_model(folder, location))


def test_external_data_that_is_missing_or_short_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"data\.bin is missing"):
        load_file(external_model(tmp_path, "data.bin"))
    (tmp_path / "data.bin").write_bytes(b"\0" * 12)
    with pytest.raises(ModelError, match="expected 16 bytes from offset 0"):
        load_file(external_model(tmp_path, "data.bin"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zoo:mobilnet", "did you mean zoo:mobilenet"),
        ("light:resnet", "did you mean light:resnet50"),
        ("zoo:", "known; names: dcgan"),
    ],
)
def test_an_unknown_name_lists_the_known_ones(spec, message):
    with pytest.raises(LookupFailed, match=message):
        load_model(spec)


def test_a_zoo_model_refuses_a_shape_that_does_not_fit():
    with pytest.raises(ModelError, match=r"one input, data=N,3,H,W .*got data=1,1,8,8"):
        load_model("zoo:mobilenet", {"data": (1, 1, 8, 8)})


def test_dropping_at_random_is_refused():
    nodes = [node("Dropout", ["x", "ratio", "training"], ["y"])]
    weights = {"ratio": np.asarray(0.5, np.float32), "training": np.asarray(True)}
    with pytest.raises(ModelError, match="training mode is not supported; export the model"):
        import_model(model(nodes, {"x": [1, 2]}, weights=weights))


def test_an_attribute_without_a_value_is_named():
    made = node("Shape", ["x"], ["y"], end=1)
    made.attribute[0].ClearField("i")
    made.attribute[0].type = onnx.AttributeProto.UNDEFINED
    with pytest.raises(ModelError, match=r"'Shape_y' \(Shape\): malformed"):
        import_model(model([made], {"x": [2]}))


def test_an_input_that_may_not_be_omitted_is_named():
    with pytest.raises(ModelError, match=r"'Concat_y' \(Concat\): input 1 is missing"):
        import_model(model([node("Concat", ["x", ""], ["y"], axis=0)], {"x": [2]}))


def test_a_range_that_does_not_move_is_named():
    weights = {name: np.asarray(value) for name, value in zip("abd", (0, 5, 0), strict=True)}
    with pytest.raises(ModelError, match=r"'Range_y' \(Range\): malformed"):
        import_model(model([node("Range", ["a", "b", "d"], ["y"])], {}, weights=weights))


def test_an_array_that_no_memory_holds_is_named():
    weights = {"s": np.asarray([1 << 40, 1 << 20])}
    with pytest.raises(ModelError, match="do not fit into memory"):
        import_model(model([node("ConstantOfShape", ["s"], ["y"])], {}, weights=weights))


def test_a_name_of_other_bytes_is_one_error(tmp_path: Path):
    """Of an attribute, too: whoever lists the attributes prints their names."""
    made = node("Shape", ["x"], ["y"], start=1)
    data = model([made], {"x": [2]}).SerializeToString().replace(b"start", b"st\xff\xfet")
    path = tmp_path / "bent.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"is not text; expected UTF-8|not a readable ONNX file"):
        load_file(path)


def test_an_input_that_the_specification_asks_for_is_named():
    with pytest.raises(ModelError, match=r"'Less_y' \(Less\): input 0 is missing; ONNX opset"):
        import_model(model([node("Less", ["", "x"], ["y"])], {"x": [2]}))


def test_a_scalar_has_no_slices():
    with pytest.raises(ModelError, match=r"gather from float32\[\] along 0"):
        import_model(model([node("Gather", ["x", "i"], ["y"])], {"x": []}, weights={"i": INDEX}))


def test_an_opset_that_nobody_counts_to_is_one_error(tmp_path: Path):
    made = model([RELU], {"x": [2]})
    made.opset_import[0].version = (1 << 63) - 1
    path = tmp_path / "late.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(ModelError, match="operator set 9223372036854775807 of ''; expected"):
        load_file(path)


def test_a_loop_without_a_body_is_named():
    made = node("Loop", ["n", "", "x"], ["y"], body=1)
    with pytest.raises(ModelError, match="attribute 'body': expected a graph"):
        import_model(model([made], {"x": [2]}, weights={"n": INDEX}))


def test_a_call_with_more_inputs_than_its_function_has_is_named():
    weights = {"t": np.zeros(3, np.int64), "w": np.ones(5, np.float32)}
    loss = node("NegativeLogLikelihoodLoss", ["x", "t", "w", "w"], ["y"])
    with pytest.raises(ModelError, match="4 inputs, of which there are at most 3; ONNX opset"):
        import_model(model([loss], {"x": [3, 5]}, weights=weights))


def test_products_of_other_types_are_named():
    weights = {"w": np.ones((5, 4), np.uint8)}
    with pytest.raises(ModelError, match=r"products of float32\[3, 5\] and uint8\[4, 5\]"):
        import_model(model([node("MatMul", ["x", "w"], ["y"])], {"x": [3, 5]}, weights=weights))
