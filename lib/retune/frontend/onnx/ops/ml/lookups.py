"""Tables of numbers: LabelEncoder; and what reads text or maps. Read `looked_up`."""

from typing import Any

import numpy as np

from retune.core.dtypes import INT64, Array
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, refuse_op

_KINDS: dict[str, tuple[type[Any], float]] = {
    "int64s": (np.int64, -1),
    "floats": (np.float32, -0.0),
}
"""Ending of an attribute of keys or values -> its element type, and the usual default."""

_ML = "ai.onnx.ml"
_ENCODED = "encode text as numbers before the model (OrdinalEncoder), and train with integer labels"
"""What to do about text."""
_NAN_IS_A_KEY = 4
"""The version from which data that are NaN may be found."""


@onnx_op("ai.onnx.ml::LabelEncoder", since=2, limits="keys and values that are numbers")
def label_encoder(node: OnnxNode, emit: Emitter) -> None:
    """The value of each key; the default where the data is none of the keys."""
    keys, _ = _numbers(node, "keys")
    values, usual = _numbers(node, "values")
    stated = node.attrs.get("default_tensor")
    if stated is not None:
        usual = np.asarray(stated).reshape(-1)[0]
    if len(keys) != len(values) or not len(keys):
        raise ModelError(f"expected as many keys as values, got {len(keys)} and {len(values)}")
    if keys.dtype.kind == "f" and node.opset < _NAN_IS_A_KEY:
        keys, values = keys[~np.isnan(keys)], values[~np.isnan(keys)]
    looked_up(emit, node.inputs[0], keys, values, usual)


@onnx_op("ai.onnx.ml::LabelEncoder")
def of_text(node: OnnxNode, _: Emitter) -> None:
    """From text to numbers, or back: the importer has no text."""
    raise _of_text(node)


@onnx_op("ai.onnx.ml::ZipMap", limits="at a network's end, whose output becomes a tensor")
def zip_map(_: OnnxNode, emit: Emitter) -> None:
    """Dictionaries of probabilities: `proto.labels` has taken those that networks return."""
    raise emit.refuse(
        "a map inside of the network",
        "export without it (scikit-learn: options={'zipmap': False}, LightGBM and XGBoost: "
        "zipmap=False)",
    )


refuse_op("CategoryMapper", domain=_ML, advice=f"it maps text: {_ENCODED}")
refuse_op(
    *("DictVectorizer", "CastMap"),
    domain=_ML,
    advice="it reads maps: pass the features as a tensor",
)


def _of_text(node: OnnxNode) -> ModelError:
    return ModelError(f"{node.op_type} of text is not supported; {_ENCODED}")


def _numbers(node: OnnxNode, key: str) -> tuple[Array, float]:
    """Keys or values, and the default of such values. Raises: ModelError for text."""
    if f"{key}_tensor" in node.attrs:
        found = np.asarray(node.attrs[f"{key}_tensor"]).reshape(-1)
        return found, -1 if found.dtype.kind == "i" else -0.0
    for kind, (dtype, usual) in _KINDS.items():
        if f"{key}_{kind}" in node.attrs:
            default = node.attrs.get(f"default_{kind[:-1]}", usual)
            return np.asarray(node.attrs[f"{key}_{kind}"], dtype), default
    raise _of_text(node)


def looked_up(emit: Emitter, data: str, keys: Array, values: Array, usual: float) -> None:
    """The node's output: `values` where the data is a key, `usual` elsewhere.

    Keys that are 0, 1, 2, ... are indices in the table; others are compared with one by one.
    """
    table = emit.stored("values", np.append(values, np.asarray(usual, values.dtype)))
    count = len(keys)
    if keys.dtype.kind == "i" and np.array_equal(keys, np.arange(count)):
        data = emit.cast(data, INT64)
        zero, end = emit.scalar(0, data, "zero"), emit.scalar(count, data, "end")
        inside = emit.temp("less", data, end, label="inside")
        index = emit.temp("where", inside, data, end)
        index = emit.temp("where", emit.temp("less", data, zero), end, index)
        return emit.out("gather", table, index, axis=0)
    column = emit.reshaped(data, (*emit.shape(data), 1))
    same = emit.temp("equal", column, emit.stored("keys", keys.astype(emit.type(data).dtype)))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        missing = emit.stored("missing key", np.isnan(keys))
        both = emit.temp("logical_and", emit.temp("is_nan", column), missing)
        same = emit.temp("logical_or", same, both)
    numbers = emit.stored("places", np.arange(count, dtype=np.int64))
    chosen = emit.temp("where", same, numbers, emit.scalar(count, numbers, "none"))
    index = emit.temp("reduce_min", chosen, axes=(len(emit.shape(data)),), keepdims=False)
    return emit.out("gather", table, index, axis=0)
