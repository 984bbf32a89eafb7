"""Types of inputs: shapes bind symbols, and what is missing is asked for once."""

from collections.abc import Mapping, Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from retune.core.dims import Size, at
from retune.core.dtypes import TensorType
from retune.core.errors import ModelError, ShapesMissing
from retune.core.ranges import Stated
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.inputs import OpenInputs, input_types, open_inputs
from tests.support.networks import model, node

RELU = node("Relu", ["x"], ["y"])
ADD = node("Add", ["x", "z"], ["y"])
Dims = Mapping[str, Sequence[int | str | None]]


def types(inputs: Dims, **shapes: Sequence[int]) -> dict[str, TensorType]:
    return input_types(model([RELU], inputs).graph, shapes, ())


def missing(inputs: Dims, **shapes: Sequence[int]) -> ShapesMissing:
    with pytest.raises(ShapesMissing) as caught:
        types(inputs, **shapes)
    return caught.value


def test_a_shape_binds_the_same_symbol_everywhere():
    graph = import_model(model([ADD], {"x": ["n", 4], "z": ["n", 4]}), {"x": (5, 4)})
    assert graph.types["y"].shape == (5, 4)


def test_a_symbol_is_bound_by_its_own_name():
    found = types({"x": ["n", 4], "z": ["n", "m"]}, n=(5,), m=(2,))
    assert [entry.shape for entry in found.values()] == [(5, 4), (5, 2)]


def test_a_symbol_that_is_an_input_too_is_bound_by_an_extent_alone():
    found = types({"past": [1, "past", 8], "x": [2, "past"]}, past=(0,))
    assert [entry.shape for entry in found.values()] == [(1, 0, 8), (2, 0)]
    found = types({"past": ["past"], "x": ["past", 2]}, past=(3,))
    assert [entry.shape for entry in found.values()] == [(3,), (3, 2)]


def test_an_extent_may_be_zero():
    found = types({"x": ["n", 3, 8], "z": ["n"]}, x=(0, 3, 8))
    assert [entry.shape for entry in found.values()] == [(0, 3, 8), (0,)]


def test_an_input_goes_before_a_symbol_of_its_name():
    found = types({"n": [], "x": ["n"]}, n=(), x=(3,))
    assert [entry.shape for entry in found.values()] == [(), (3,)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {"x": (1, 4, 8)},
            r"'x': the shape given is 1,4,8; the model fixes n,3,8, where n is 1; give",
        ),
        ({"x": (1, 3)}, r"'x': the shape given is 1,3; the model fixes n,3,8"),
        ({"x": (-1, 3, 8)}, r"give extents that agree"),
        ({"n": (-1,)}, "a shape is given for 'n', which is not an input"),
        ({"z": (1, 3, 8)}, r"a shape is given for 'z', which is not an input .* its inputs are x"),
        ({"x": (1, 3, 8), "n": (2,)}, "where n is 2"),
        ({"n": (2, 2)}, "a shape is given for 'n', which is not an input"),
    ],
)
def test_a_contradicting_shape_is_refused(shapes: dict[str, tuple[int, ...]], message: str):
    with pytest.raises(ModelError, match=message):
        types({"x": ["n", 3, 8]}, **shapes)


def test_symbols_may_be_written_as_sizes_are_printed():
    """In letters, digits and underscores, unless an input or another symbol is called so."""
    assert types({"x": ["a.n", 3]}, a_n=(5,))["x"].shape == (5, 3)
    assert types({"x": ["a.n", "a_n"]}, a_n=(5,), **{"a.n": (2,)})["x"].shape == (2, 5)
    with pytest.raises(ModelError, match=r"inputs are x, and their open dimensions are a.n, m"):
        types({"x": ["a.n", "m"]}, a_m=(5,))


def test_symbols_may_not_take_two_values():
    with pytest.raises(
        ModelError, match="'z': the shape given is 3,4; the model fixes n,4, where n is 5; give"
    ):
        types({"x": ["n", 4], "z": ["n", 4]}, x=(5, 4), z=(3, 4))


def test_what_is_open_is_asked_for_once_with_an_example():
    error = missing({"x": ["batch", 3, None, "w"], "fixed": [2], "z": ["batch", "length"]})
    assert str(error) == (
        "2 inputs have open dimensions: 'x' is batch,3,?,w; 'z' is batch,length; expected extents, "
        "or ranges such as --shape batch=1..8; bind them with --shape x=1,3,224,224 --shape z=1,128"
    )
    assert error.options == ("--shape", "x=1,3,224,224", "--shape", "z=1,128")


def test_inputs_that_others_bind_are_not_asked_for():
    inputs = {"ids": ["batch", "length"], "mask": ["batch", "length"], "kind": ["length"]}
    assert missing(inputs).options == ("--shape", "ids=1,128")
    assert missing(inputs, length=(7,)).options == ("--shape", "ids=1,7")


def test_the_example_is_what_the_model_takes():
    inputs: Dims = {"x": ["n", 3, None], "z": ["m", "n"], "s": []}
    options = missing(inputs).options
    shapes = dict(option.split("=") for option in options[1::2])
    found = types(inputs, **{n: [int(d) for d in text.split(",")] for n, text in shapes.items()})
    assert found["x"].shape == (1, 3, 128)
    assert found["s"].shape == ()


def test_an_input_without_a_rank_takes_any_shape():
    made = model([RELU], {"x": [2]})
    made.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ShapesMissing, match=r"an input has .* 'x' is of unknown rank; .*x=1,3,224"):
        import_model(made)
    assert import_model(made, {"x": (7, 2)}).types["y"].shape == (7, 2)


@pytest.mark.parametrize("element", ["INT64", "INT32", "BOOL", "UINT8", "FLOAT16", "DOUBLE"])
def test_inputs_of_every_type_may_be_scalars(element: str):
    made = model([RELU], {"s": []}, element=TensorProto.DataType.Value(element))
    assert input_types(made.graph, {"s": ()}, ())["s"].shape == ()


def test_a_stored_weight_is_no_input():
    """Before version 4 of the format every weight was listed among the inputs as well."""
    graph = model([ADD], {"x": [2], "z": [2]}).graph
    assert list(input_types(graph, {}, {"z"})) == ["x"]


def test_a_sequence_is_refused_before_shapes_are_asked_for():
    made = model([RELU], {"x": ["n"]})
    made.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]))
    with pytest.raises(ModelError, match="input 's': expected a tensor") as caught:
        import_model(made)
    assert not isinstance(caught.value, ShapesMissing)


@pytest.mark.parametrize("kind", ["FLOAT8E5M2"])
def test_an_output_that_numpy_has_no_type_for_is_refused(kind: str):
    made = model([node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(kind))], {"x": [2]})
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.DataType.Value(kind)
    with pytest.raises(ModelError, match=f"output 'y': element type {kind.lower()} is not"):
        import_model(made)


def opened(shapes: Mapping[str, Sequence[Stated]], **values: Sequence[Stated]) -> OpenInputs:
    graph = helper.make_graph([], "net", INPUTS, [])
    return open_inputs(graph, shapes, values)


def stated_input(name: str, dtype: int, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


INPUTS = [
    stated_input("x", TensorProto.FLOAT, ["n", 8]),
    stated_input("end", TensorProto.INT64, [1]),
    stated_input("hw", TensorProto.INT64, [2]),
    stated_input("sr", TensorProto.INT32, []),
    stated_input("ids", TensorProto.INT64, ["n"]),
    stated_input("cached", TensorProto.BOOL, [1]),
]


def test_values_of_inputs_are_sizes_or_numbers():
    """One range is for each element; a single element may have a list."""
    found = opened({"n": ["1..4"]}, end=["1..64"], hw=["8..16"], sr=[8000, 16000], cached=[1])
    assert [each.size for each in found.extents] == [
        Size("end", 1, 64), Size("hw_0", 8, 16), Size("hw_1", 8, 16), Size("n", 1, 4),
        Size("sr", 8000, 16000, 8000),
    ]  # fmt: skip
    sizes = {"end": 5, "hw_0": 8, "hw_1": 9, "n": 3, "sr": 16000}
    own = found.at(sizes)
    assert (own.shapes, own.extents) == ({"n": (3,)}, ())
    assert own.values == {"end": (5,), "hw": (8, 9), "sr": (16000,), "cached": (1,)}
    assert opened({}, hw=[8, 9], end=[-3]).values == {"hw": (8, 9), "end": (-3,)}


def test_a_negative_value_is_a_size_with_a_sign():
    found = opened({}, hw=["-6..-1", 4])
    assert [each.size for each in found.extents] == [Size("minus_hw_0", 1, 6)]
    assert [at(e, {"minus_hw_0": 5}) for e in found.values["hw"]] == [-5, 4]


def test_a_value_and_a_symbol_of_one_name_are_two_sizes():
    graph = helper.make_graph([], "net", [*INPUTS, stated_input("n", TensorProto.INT64, [])], [])
    found = open_inputs(graph, {"x": ["1..4", 8]}, {"n": ["2..9"]})
    assert [each.size for each in found.extents] == [Size("n", 1, 4), Size("n_", 2, 9)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"x": ["1..4"]},
            r"--value x: expected an input of integers, got .* float32; these are end",
        ),
        (
            {"z": [1]},
            "--value z: expected an input of integers; these are end, hw, sr, ids, cached",
        ),
        ({"n": [1]}, "--value n: expected an input, got the dimension 'n' .* write --shape n=1..8"),
        ({"ids": [1]}, r"--value ids: .* fixed number of elements, got .*; write --shape ids=1"),
        ({"hw": [1, 2, 3]}, "--value hw=1,2,3: expected one range, or one for each of 2 elements"),
        ({"end": ["0..4294967296"]}, "--value end=.*: expected sizes of at most 2147483647"),
        ({"end": ["-1..4"]}, r"--value end=-1..4: expected numbers on one side of 0"),
    ],
)
def test_other_values_are_refused(values: dict[str, list[Stated]], message: str):
    with pytest.raises(ModelError, match=message):
        opened({}, **values)


def test_an_input_with_a_value_is_a_constant_to_nodes():
    """It stays an input, and its value is checked when the network runs."""
    net = model([node("Slice", ["x", "a", "e"], ["y"])], {"x": [8, 2]})
    net.graph.input.append(stated_input("e", TensorProto.INT64, [1]))
    net.graph.initializer.append(helper.make_tensor("a", TensorProto.INT64, [1], [1]))
    graph = import_model(net, values={"e": (5,)})
    assert (graph.inputs, graph.values) == (("x", "e"), {"e": (5,)})
    assert graph.types["y"].shape == (4, 2)
    with pytest.raises(ModelError, match=r"which is int64.* from -9223.*; got 9223372036854775808"):
        import_model(net, values={"e": (1 << 63,)})
