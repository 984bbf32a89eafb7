"""Types of inputs: shapes bind symbols, and what is missing is asked for once."""

from collections.abc import Mapping, Sequence

import pytest
from onnx import TensorProto, helper

from retune.core.dtypes import TensorType
from retune.core.errors import ModelError, ShapesMissing
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.inputs import input_types
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


def test_symbols_may_not_take_two_values():
    with pytest.raises(
        ModelError, match="'z': the shape given is 3,4; the model fixes n,4, where n is 5; give"
    ):
        types({"x": ["n", 4], "z": ["n", 4]}, x=(5, 4), z=(3, 4))


def test_what_is_open_is_asked_for_once_with_an_example():
    error = missing({"x": ["batch", 3, None, "w"], "fixed": [2], "z": ["batch", "length"]})
    assert str(error) == (
        "2 inputs have open dimensions: 'x' is batch,3,?,w; 'z' is batch,length; expected extents, "
        "or ranges such as 1..8; bind them with --shape x=1,3,224,224 --shape z=1,128"
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
