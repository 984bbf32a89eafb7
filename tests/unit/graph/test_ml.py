"""Operators of ai.onnx.ml but trees: features, tables, linear models, support vectors."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from tests.support.ml_models import ml_model
from tests.support.peer import Arrays, assert_as_peer, assert_computes
from tests.support.sampling import one_of_each

RNG = np.random.default_rng(39)
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


def data(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (RNG.integers(-8, 9, shape) / (1 if dtype.startswith("int") else 4)).astype(dtype)


def numbers(*shape: int) -> list[float]:
    return RNG.standard_normal(shape).astype(np.float32).reshape(-1).tolist()


def assert_same(op: str, inputs: Arrays, tolerance: float = 1e-5, **attrs: Any) -> None:
    assert_as_peer(ml_model(op, inputs, **attrs), inputs, tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize(("shape", "wide"), [((5, 3), 3), ((5, 3), 1), ((3,), 3), ((2, 4, 3), 1)])
def test_scaler(dtype: str, shape: tuple[int, ...], wide: int) -> None:
    inputs = {"x": data(*shape, dtype=dtype)}
    assert_same("Scaler", inputs, 1e-6, scale=numbers(wide), offset=numbers(wide))


def test_a_scaler_of_float64_subtracts_in_float64() -> None:
    inputs = {"x": np.array([[1e6 + 0.001, 1e6 + 0.002]])}
    assert_same("Scaler", inputs, 1e-6, scale=[1000.0], offset=[1e6])


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_normalizer(norm: str, dtype: str) -> None:
    rows = data(6, 4, dtype=dtype)
    rows[2] = 0
    rows[3] = -np.abs(rows[3]) - 1
    assert_same("Normalizer", {"x": rows}, norm=norm)


@pytest.mark.parametrize("wide", [1, 3])
@pytest.mark.parametrize("replaced", [float("nan"), 0.25])
def test_imputer_of_floats(wide: int, replaced: float) -> None:
    rows = data(6, 3)
    rows[RNG.random(rows.shape) < 0.3] = replaced
    assert_same(
        "Imputer", {"x": rows}, 0, imputed_value_floats=numbers(wide), replaced_value_float=replaced
    )


def test_imputer_of_integers() -> None:
    rows = data(6, 3, dtype="int64")
    assert_same("Imputer", {"x": rows}, 0, imputed_value_int64s=[7, 8, 9], replaced_value_int64=2)


def test_imputer_of_float64() -> None:
    """onnxruntime does not have it."""
    rows = data(4, 2, dtype="float64")
    made = ml_model("Imputer", {"x": rows}, imputed_value_floats=[7.0], replaced_value_float=0.25)
    assert_computes(made, {"x": rows}, {"y": np.where(rows == 0.25, 7.0, rows)}, 0)


@pytest.mark.parametrize("wide", [[2, 3], [1, 2], [3, 4]])
def test_feature_vectorizer(wide: list[int]) -> None:
    inputs = {"a": data(4, 2), "b": data(4, 3)}
    assert_same("FeatureVectorizer", inputs, 0, inputdimensions=wide)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_columns_of_other_types_become_floats(dtype: str) -> None:
    inputs = {name: data(4, 1, dtype=dtype) for name in "abc"}
    assert_same("FeatureVectorizer", inputs, 0, inputdimensions=[1, 1, 1])


def test_binarizer() -> None:
    assert_same("Binarizer", {"x": data(5, 4)}, 0, threshold=0.25)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 3, 4)])
def test_array_feature_extractor(dtype: str, shape: tuple[int, ...]) -> None:
    inputs = {"x": data(*shape, dtype=dtype), "i": np.array([[3, 0, 0]], np.int64)}
    assert_same("ArrayFeatureExtractor", inputs, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("shape", [(5, 1), (4,), (3, 2)])
def test_one_hot_encoder(dtype: str, shape: tuple[int, ...]) -> None:
    assert_same("OneHotEncoder", {"x": data(*shape, dtype=dtype)}, 0, cats_int64s=[3, -2, 0, 1])


TABLES: list[dict[str, Any]] = [
    {"keys_int64s": [0, 1, 2, 3], "values_int64s": [9, 8, 7, 6], "default_int64": -5},
    {"keys_int64s": [4, -1, 2], "values_floats": [0.5, 1.5, 2.5]},
    {"keys_int64s": [0, 1, 2], "values_floats": [0.5, 1.5, 2.5], "default_float": 9.0},
    {"keys_floats": [0.25, float("nan"), 1.5], "values_floats": [0.5, 1.5, 2.5]},
    {"keys_floats": [0.25, -0.5, 1.5], "values_int64s": [1, 2, 3]},
]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("shape", [(12,), (6, 2)])
@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(table: dict[str, Any], shape: tuple[int, ...], version: int) -> None:
    dtype = "int64" if "keys_int64s" in table else "float32"
    rows = data(*shape, dtype=dtype)
    if dtype == "float32":
        rows.reshape(-1)[0] = np.nan
    assert_same("LabelEncoder", {"x": rows}, 0, version=version, **table)


def test_label_encoder_of_tensors() -> None:
    inputs = {"x": data(9, dtype="float64")}
    table = {
        "keys_tensor": numpy_helper.from_array(np.array([0.25, -1.0, 1.5])),
        "values_tensor": numpy_helper.from_array(np.array([1.5, 2.5, 3.5])),
        "default_tensor": numpy_helper.from_array(np.array([7.5])),
    }
    assert_same("LabelEncoder", inputs, 0, version=4, **table)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("intercepts", [False, True])
def test_linear_regressor(transform: str, targets: int, intercepts: bool) -> None:
    attrs: dict[str, Any] = {"coefficients": [x / 8 for x in numbers(targets, 4)]}
    if intercepts:
        attrs["intercepts"] = [0.5] * targets
    inputs = {"x": data(7, 4)}
    assert_same("LinearRegressor", inputs, 3e-5, targets=targets, post_transform=transform, **attrs)


@pytest.mark.parametrize(
    ("transform", "dtype"), one_of_each(TRANSFORMS[:4], ["float32", "float64", "int64"])
)
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_linear_classifier(transform: str, classes: int, dtype: str) -> None:
    inputs = {"x": data(9, 4, dtype=dtype)}
    made = ml_model(
        "LinearClassifier", inputs, ("label", "scores"), coefficients=numbers(classes, 4),
        intercepts=numbers(classes), classlabels_ints=[3, 5, 4][: max(2, classes)],
        post_transform=transform,
    )  # fmt: skip
    assert_as_peer(made, inputs)


KERNELS = {
    "LINEAR": [1.0, 0, 0],
    "POLY": [0.25, 0.5, 3.0],
    "RBF": [0.25, 0, 0],
    "SIGMOID": [0.25, 0.5, 0],
}

BARE: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [1.0, 0.0, 0.0]}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, one_class: int) -> None:
    inputs = {"x": data(9, 4)}
    assert_same(
        "SVMRegressor", inputs, 2e-5, kernel_type=kernel, kernel_params=KERNELS[kernel],
        coefficients=numbers(6), support_vectors=numbers(6, 4), n_supports=6, rho=[0.25],
        one_class=one_class,
    )  # fmt: skip


def test_svm_regressor_without_support_vectors() -> None:
    assert_same("SVMRegressor", {"x": data(9, 4)}, **BARE, coefficients=numbers(4), rho=[0.25])


def svm(kernel: str, counts: list[int], *, chances: bool, **attrs: Any) -> dict[str, Any]:
    classes, vectors = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    attrs |= {
        "classlabels_ints": [4, 2, 7, 5][:classes], "vectors_per_class": counts,
        "coefficients": numbers(classes - 1, vectors), "support_vectors": numbers(vectors, 4),
        "rho": numbers(pairs), "kernel_type": kernel, "kernel_params": KERNELS[kernel],
    }  # fmt: skip
    if chances:
        attrs |= {"prob_a": [-abs(x) - 0.1 for x in numbers(pairs)], "prob_b": numbers(pairs)}
    return attrs


COUNTS = {"two": [3, 4], "three": [2, 3, 2], "four": [2, 1, 3, 2]}
"""Classes -> support vectors of each."""


@pytest.mark.parametrize(("kernel", "classes"), one_of_each(KERNELS, list(COUNTS)))
@pytest.mark.parametrize("chances", [False, True])
def test_svm_classifier(kernel: str, classes: str, chances: bool) -> None:
    inputs = {"x": data(9, 4)}
    attrs = svm(kernel, COUNTS[classes], chances=chances)
    assert_as_peer(ml_model("SVMClassifier", inputs, ("label", "scores"), **attrs), inputs, 5e-5)


@pytest.mark.parametrize(("transform", "classes"), one_of_each(TRANSFORMS[1:4], ["two", "three"]))
@pytest.mark.parametrize("chances", [False, True])
def test_transforms_of_svm_classifiers(transform: str, classes: str, chances: bool) -> None:
    inputs = {"x": data(9, 4, dtype="float64")}
    attrs = svm("RBF", COUNTS[classes], chances=chances, post_transform=transform)
    assert_as_peer(ml_model("SVMClassifier", inputs, ("label", "scores"), **attrs), inputs, 5e-5)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("sign", [-1, 1])
def test_svm_classifier_without_support_vectors(classes: int, sign: int) -> None:
    inputs = {"x": data(9, 4)}
    coefficients = numbers(classes, 4)
    if sign > 0:
        coefficients = [abs(x) for x in coefficients]
    made = ml_model(
        "SVMClassifier", inputs, ("label", "scores"), **BARE, coefficients=coefficients, rho=[0.25],
        classlabels_ints=[4, 2, 7][:classes],
    )  # fmt: skip
    assert_as_peer(made, inputs)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("Scaler", {"scale": [1.0], "offset": [1.0, 2.0]}, "expected 1 or 3 numbers"),
    ("Normalizer", {"norm": "L3"}, "expected MAX, L1 or L2"),
    ("Imputer", {}, "imputed_value_floats"),
    ("FeatureVectorizer", {"inputdimensions": [1, 2]}, "one for each input"),
    ("LinearRegressor", {"coefficients": [1.0, 2.0]}, "that the model was trained with"),
    ("LinearRegressor", {"coefficients": [1.0] * 3, "post_transform": "TANH"}, "expected one of"),
    ("SVMRegressor", {"coefficients": [1.0] * 2, "rho": [0.0]}, "that the model was trained with"),
    ("OneHotEncoder", {"cats_strings": ["a", "b"]}, "OrdinalEncoder"),
    ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "OrdinalEncoder"),
    ("LabelEncoder", {"keys_floats": [1.0, 2.0], "values_int64s": [1]}, "as many keys as values"),
]


@pytest.mark.parametrize(("op", "attrs", "message"), WRONG)
def test_wrong_attributes_are_refused(op: str, attrs: dict[str, Any], message: str) -> None:
    made: onnx.ModelProto = ml_model(op, {"x": data(5, 3)}, **attrs)
    with pytest.raises(ModelError, match=message):
        import_model(made)
