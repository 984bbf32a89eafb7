"""Linear models: one product with the coefficients."""

import numpy as np

from retune.core.dtypes import INT64, Array
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.ml.scores import (
    TRANSFORMS,
    as_rows,
    best,
    labels_of,
    pair,
    put_label,
    transformed,
)
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op


@onnx_op("ai.onnx.ml::LinearRegressor")
def regressor(node: OnnxNode, emit: Emitter) -> None:
    """Coefficients times the data, plus intercepts; a transform is one of several targets."""
    total = _products(node, emit, node.integer("targets", 1))
    transform = node.choice("post_transform", TRANSFORMS)
    if emit.shape(total)[1] > 1 or transform == "PROBIT":
        total = transformed(emit, total, transform)
    emit.out("identity", total)


@onnx_op("ai.onnx.ml::LinearClassifier")
def classifier(node: OnnxNode, emit: Emitter) -> None:
    """The label of the greatest score, and all scores; one score is that of the second label."""
    labels = labels_of(node, "classlabels_ints")
    count = len(node.attrs.get("intercepts", ())) or len(labels)
    total, transform = _products(node, emit, count), node.choice("post_transform", TRANSFORMS)
    if count > 1:
        index, scores = best(emit, total), transformed(emit, total, transform)
    else:
        above = emit.temp("less", emit.scalar(0.0, total, "zero"), total, label="above")
        index = emit.reshaped(emit.cast(above, INT64), emit.shape(total)[:1])
        two = len(labels) == 2
        scores = pair(emit, total, transform, positive=True) if two else total
        labels = labels if two else [0, 1]
    if node.has_output(0):
        put_label(emit, labels, index)
    if node.has_output(1):
        emit.out("identity", scores, index=1)


def _products(node: OnnxNode, emit: Emitter, targets: int) -> str:
    """The data's products with all targets' coefficients, plus intercepts. [rows, targets]"""
    data = as_rows(emit, node.inputs[0])
    made = dense(emit, data, floats(node, "coefficients"), targets)
    intercepts = floats(node, "intercepts")
    if not intercepts.size:
        return made
    if intercepts.size != targets:
        raise ModelError(f"expected {targets} intercepts, got {intercepts.size}")
    return emit.temp("add", made, emit.stored("intercepts", intercepts))


def dense(emit: Emitter, data: str, weight: Array, rows: int) -> str:
    """The products of the data with that many rows of a weight. Raises: ModelError."""
    width = emit.shape(data)[1]
    if weight.size != rows * width:
        raise ModelError(
            f"data of {width} features for {weight.size} coefficients of {rows} targets: expected "
            "the data that the model was trained with"
        )
    return emit.temp("dense", data, emit.stored("weight", weight.reshape(rows, width)))


def floats(node: OnnxNode, key: str) -> Array:
    """The numbers of an attribute. float32"""
    return np.asarray(node.attrs.get(key, ()), np.float32)
