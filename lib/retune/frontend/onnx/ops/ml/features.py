"""Features: scaled, normalised, filled in, side by side, chosen. Results are float32 rows."""

from collections.abc import Sequence
from math import isnan

import numpy as np

from retune.core.dtypes import FLOAT32, FLOAT64, INT64, Array, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op


@onnx_op("ai.onnx.ml::Scaler")
def scaler(node: OnnxNode, emit: Emitter) -> None:
    """(x - offset) * scale along the last dimension, in float64 where the data are. float32"""
    (data,) = node.inputs
    data = emit.cast(data, _computed(emit, data))
    offset, scale = (_along(node, emit, data, key) for key in ("offset", "scale"))
    centred = emit.temp("subtract", data, offset, label="centred")
    emit.out("cast", emit.temp("multiply", centred, scale), to=FLOAT32)


def _computed(emit: Emitter, data: str) -> DType:
    return FLOAT64 if emit.type(data).dtype == FLOAT64 else FLOAT32


def _along(node: OnnxNode, emit: Emitter, data: str, key: str) -> str:
    """An attribute's numbers, in the data's type."""
    numbers = np.asarray(node.attrs.get(key, ()), np.float32)
    return emit.stored(key, _checked(emit, data, key, numbers).astype(emit.type(data).dtype))


def _checked(emit: Emitter, data: str, key: str, numbers: Array) -> Array:
    """The attribute's numbers. Raises: ModelError if it is not one, or one for each feature."""
    shape = emit.shape(data)
    width = shape[-1] if 1 <= len(shape) <= 2 else 1
    if len(numbers) not in (1, width):
        raise ModelError(
            f"{key}: expected 1 or {width} numbers for data {emit.type(data)}, got {len(numbers)}"
        )
    return numbers


@onnx_op("ai.onnx.ml::Normalizer")
def normalizer(node: OnnxNode, emit: Emitter) -> None:
    """Rows over their greatest element, their sum of magnitudes or their length; zeros stay."""
    data = emit.cast(node.inputs[0], FLOAT32)

    def reduced(op: str, value: str) -> str:
        return emit.temp(op, value, axes=(len(emit.shape(data)) - 1,), keepdims=True)

    match node.text("norm", "MAX"):
        case "MAX":
            norm = reduced("reduce_max", data)
        case "L1":
            norm = reduced("reduce_sum", emit.temp("abs", data))
        case "L2":
            square = emit.temp("multiply", data, data, label="square")
            norm = emit.temp("sqrt", reduced("reduce_sum", square))
        case other:
            raise ModelError(f"norm '{other}': expected MAX, L1 or L2")
    zero = emit.temp("equal", norm, emit.scalar(0.0, data, "zero"), label="none")
    norm = emit.temp("where", zero, emit.scalar(1.0, data, "one"), norm)
    emit.out("divide", data, norm)


@onnx_op("ai.onnx.ml::Imputer")
def imputer(node: OnnxNode, emit: Emitter) -> None:
    """The data with one value, or what is NaN, replaced by a number for all or for each feature."""
    (data,) = node.inputs
    dtype = emit.type(data).dtype
    key = f"imputed_value_{'floats' if dtype.is_float else 'int64s'}"
    numbers = _checked(emit, data, key, np.asarray(node.attrs.get(key, ()), dtype))
    replaced = node.number("replaced_value_float", 0.0)
    if not dtype.is_float:
        replaced = node.integer("replaced_value_int64", 0)
    if isnan(replaced):
        found = emit.temp("is_nan", data, label="missing")
    else:
        found = emit.temp("equal", data, emit.scalar(replaced, data, "replaced"), label="missing")
    emit.out("where", found, emit.stored("imputed", numbers), data)


@onnx_op("ai.onnx.ml::FeatureVectorizer")
def feature_vectorizer(node: OnnxNode, emit: Emitter) -> None:
    """Columns side by side, each cut or filled with zeros to as many as are stated. float32"""
    wide = node.ints("inputdimensions", ())
    if len(wide) != len(node.inputs):
        raise ModelError(
            f"inputdimensions: expected {len(node.inputs)} numbers, one for each input, got "
            f"{list(wide)}"
        )
    columns = [_columns(emit, value, count) for value, count in zip(node.inputs, wide, strict=True)]
    emit.out("concat", *columns, axis=1)


def _columns(emit: Emitter, value: str, count: int) -> str:
    shape = emit.shape(value)
    rows = emit.reshaped(emit.cast(value, FLOAT32), shape if len(shape) == 2 else (1, *shape))
    missing = count - emit.shape(rows)[1]
    if missing <= 0:
        return emit.part(rows, 1, 0, count)
    return emit.temp("pad", rows, pads=(0, 0, 0, missing), value=0.0)


@onnx_op("ai.onnx.ml::Binarizer")
def binarizer(node: OnnxNode, emit: Emitter) -> None:
    """1 where the data is greater than the threshold, else 0."""
    (data,) = node.inputs
    dtype = emit.type(data).dtype
    values = data if dtype.is_float else emit.cast(data, FLOAT32)
    limit = emit.scalar(node.number("threshold", 0.0), values, "threshold")
    emit.out("cast", emit.temp("less", limit, values), to=dtype)


@onnx_op("ai.onnx.ml::ArrayFeatureExtractor")
def extractor(node: OnnxNode, emit: Emitter) -> None:
    """The features with these numbers, of each row."""
    data, indices = node.inputs
    shape = emit.shape(data)
    if len(shape) == 1:
        data, shape = emit.reshaped(data, (1, *shape)), (1, *shape)
    flat = emit.reshaped(indices, (_count(emit.shape(indices)),))
    emit.out("gather", data, flat, axis=len(shape) - 1)


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


@onnx_op("ai.onnx.ml::OneHotEncoder", limits="categories that are numbers")
def one_hot(node: OnnxNode, emit: Emitter) -> None:
    """A new last dimension: 1.0 for the category that the data is, zeros for none of them."""
    if node.attrs.get("cats_strings"):
        raise emit.refuse(
            "categories that are text", "encode them as numbers before the model (OrdinalEncoder)"
        )
    (data,) = node.inputs
    known = np.asarray(node.attrs.get("cats_int64s", ()), np.int64)
    column = emit.reshaped(emit.cast(data, INT64), (*emit.shape(data), 1))
    emit.out("cast", emit.temp("equal", column, emit.stored("categories", known)), to=FLOAT32)
