"""Outputs that are strings or maps: the numbers and columns are those that their tables say."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from retune.bundle.plan import LABELS_NOTE
from retune.bundle.verify.peers import open_peer
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.pipeline.delivery import labels_note
from retune.pipeline.manifest import OutputLabels
from retune.pipeline.network import import_network
from retune.pipeline.summary import labels_text
from retune.proto.labels import with_numbers

ML = "ai.onnx.ml"
NAMES = ["setosa", "versicolor", "virginica"]
X = np.random.default_rng(40).standard_normal((12, 2)).astype(np.float32)


def linear(name: str = "label", **labels: Any) -> onnx.NodeProto:
    return helper.make_node(
        "LinearClassifier", ["x"], [name, "scores"], domain=ML, intercepts=[0.1, 0.0, -0.1],
        coefficients=[1.0, 0.5, -1.0, 0.25, 0.5, -1.0], **labels,
    )  # fmt: skip


def zip_map(**labels: Any) -> onnx.NodeProto:
    return helper.make_node("ZipMap", ["scores"], ["maps"], domain=ML, **labels)


def model_of(
    nodes: list[onnx.NodeProto], outputs: dict[str, str], stored: Sequence[onnx.TensorProto] = ()
) -> onnx.ModelProto:
    """A model with outputs of kind `string`, `float`, or `maps` with keys of a type."""
    tensor = helper.make_tensor_type_proto
    kinds = {"string": onnx.TensorProto.STRING, "float": onnx.TensorProto.FLOAT}
    kinds |= {"int64": onnx.TensorProto.INT64}

    def type_of(kind: str) -> onnx.TypeProto:
        if kind in kinds:
            return tensor(kinds[kind], None)
        key = kinds[kind.removeprefix("maps of ")]
        of_floats = helper.make_map_type_proto(key, tensor(onnx.TensorProto.FLOAT, []))
        return helper.make_sequence_type_proto(of_floats)

    made = [helper.make_value_info(name, type_of(kind)) for name, kind in outputs.items()]
    entry = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, X.shape)
    graph = helper.make_graph(nodes, "net", [entry], made, stored)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=sets)
    model.ir_version = 8
    return model


def words(*items: str, name: str = "words") -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(items, object), name)


def through(*ops: tuple[str, list[str], dict[str, Any]]) -> list[onnx.NodeProto]:
    """A classifier's label through operators, of which the last makes `label`."""
    nodes, value = [linear("number", classlabels_ints=[0, 1, 2])], "number"
    for place, (op, more, attrs) in enumerate(ops, 1):
        output = "label" if place == len(ops) else f"v{place}"
        first = [value] if op != "ArrayFeatureExtractor" else []
        domain = ML if op in ("LabelEncoder", "ArrayFeatureExtractor") else ""
        inputs = [*first, *more] if first else [*more, value]
        nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attrs))
        value = output
    return nodes


ENCODED: dict[str, Any] = {"keys_int64s": [0, 2], "values_strings": ["first", "third"]}
MODELS: dict[str, onnx.ModelProto] = {
    "a classifier": model_of([linear(classlabels_strings=NAMES)], {"label": "string"}),
    "moved labels": model_of(
        [
            linear("inner", classlabels_strings=NAMES),
            helper.make_node("Reshape", ["inner", "shape"], ["label"]),
        ],
        {"label": "string"},
        [numpy_helper.from_array(np.array([3, 4]), "shape")],
    ),
    "a stored table": model_of(
        through(("ArrayFeatureExtractor", ["words"], {})),
        {"label": "string"},
        [words("no", "yes", "no")],
    ),
    "an encoder": model_of(
        through(("LabelEncoder", [], ENCODED | {"default_string": "second"})), {"label": "string"}
    ),
    "an encoder of strings": model_of(
        through(
            ("LabelEncoder", [], ENCODED | {"default_string": "second"}),
            ("LabelEncoder", [], {"keys_strings": ["second", "other", "third"],
                                  "values_strings": ["b", "o", "c"], "default_string": "a"}),
        ),
        {"label": "string"},
    ),
}  # fmt: skip


def original(model: onnx.ModelProto) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": X}), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_strings_are_numbers_of_a_table(name: str) -> None:
    model = MODELS[name]
    expected = original(model)["label"]
    found = run_graph(import_model(model), {"x": X})["label"]
    table = np.array(with_numbers(model).tables["label"], object)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(table[found], expected)


@pytest.mark.parametrize("key", ["classlabels_strings", "classlabels_int64s"])
def test_maps_are_columns(key: str) -> None:
    labels: list[Any] = NAMES if key == "classlabels_strings" else [4, 5, 6]
    kind = "string" if key == "classlabels_strings" else "int64"
    node = linear(classlabels_ints=[4, 5, 6])
    model = model_of([node, zip_map(**{key: labels})], {"maps": f"maps of {kind}"})
    expected = original(model)["maps"]
    found = run_graph(import_model(model), {"x": X})["maps"]
    numbered = with_numbers(model)
    assert numbered.maps == ("maps",)
    assert numbered.tables["maps"] == tuple(map(str, labels))
    for row, of_labels in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, [of_labels[label] for label in labels], rtol=1e-5)


def both() -> onnx.ModelProto:
    nodes = [linear(classlabels_strings=NAMES), zip_map(classlabels_strings=NAMES)]
    return model_of(nodes, {"label": "string", "maps": "maps of string"})


def test_the_oracle_returns_the_same_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(both().SerializeToString())
    expected = open_peer("onnxruntime", path)({"x": X})
    found = run_graph(import_model(both()), {"x": X})
    np.testing.assert_array_equal(found["label"], expected["label"])
    np.testing.assert_allclose(found["maps"], expected["maps"], rtol=1e-5)


def test_users_are_told(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(both().SerializeToString())
    label, maps = import_network(path).labels
    assert labels_text(label) == (
        "output 'label' is a number of setosa, versicolor, virginica, counted from 0, not a string"
    )
    assert labels_text(maps) == (
        "output 'maps' is a tensor with the columns setosa, versicolor, virginica, not a list of "
        "maps"
    )
    note = labels_note((label, maps))
    assert json.loads(note[LABELS_NOTE]) == {"label": NAMES, "maps": NAMES}


def test_many_labels_are_cut_short() -> None:
    many = OutputLabels(output="y", labels=tuple("abcdefgh"), columns=False)
    assert "a, b, c, d, e, f, ..., counted" in labels_text(many)
    assert labels_note(()) == {}


def test_a_model_of_numbers_stays_as_it_is() -> None:
    model = model_of([linear(classlabels_ints=[0, 1, 2])], {"scores": "float"})
    assert with_numbers(model).model is model


def test_strings_that_are_inputs_are_refused() -> None:
    model = both()
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    with pytest.raises(ModelError, match="input 'x': expected numbers, got strings; encode them"):
        import_model(model)


def test_maps_in_the_middle_are_refused() -> None:
    nodes = [linear(classlabels_ints=[0, 1, 2]), zip_map(classlabels_int64s=[0, 1, 2])]
    nodes[1].output[0] = "inner"
    nodes.append(helper.make_node("Identity", ["inner"], ["maps"]))
    with pytest.raises(ModelError, match="a map inside of the network is not supported; export"):
        import_model(model_of(nodes, {"maps": "maps of int64"}))
