"""Support vector machines: a kernel of the data and each support vector, then linear models."""

from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import FLOAT32, Array
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.ml.coupling import coupled
from retune.frontend.onnx.ops.ml.linear import dense, floats
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

_LEAST_CHANCE = 1e-7
"""Chances of one class against another stay so far from 0 and from 1."""


@onnx_op("ai.onnx.ml::SVMRegressor")
def regressor(node: OnnxNode, emit: Emitter) -> None:
    """The support vectors' kernels times the coefficients, plus rho; its sign for one class."""
    data, count = as_rows(emit, node.inputs[0]), node.integer("n_supports", 0)
    coefficients, rho = floats(node, "coefficients"), floats(node, "rho")
    if count:
        data = _kernels(node, emit, data, count)
    total = dense(emit, data, coefficients, 1)
    total = emit.temp("add", total, emit.stored("rho", rho[:1]))
    if node.integer("one_class", 0):
        above = emit.temp("less", emit.scalar(0.0, total, "zero"), total, label="above")
        one, less = emit.scalar(1.0, total, "one"), emit.scalar(-1.0, total, "less")
        total = emit.temp("where", above, one, less)
    emit.out("identity", total)


@onnx_op("ai.onnx.ml::SVMClassifier")
def classifier(node: OnnxNode, emit: Emitter) -> None:
    """The label with the most votes of pairs of classes, and scores of pairs, or chances."""
    labels = labels_of(node, "classlabels_ints")
    data, transform = as_rows(emit, node.inputs[0]), node.choice("post_transform", TRANSFORMS)
    if not node.ints("vectors_per_class", ()):
        index, scores = _linear(node, emit, data, len(labels))
        made = transformed(emit, scores, transform)
    else:
        pairs = _Pairs(node, len(labels))
        scores = pairs.scores(emit, _kernels(node, emit, data, pairs.vectors))
        index, made = pairs.index(emit, scores), ""
        if node.attrs.get("prob_a"):
            made = transformed(emit, pairs.chances(emit, scores), transform)
        elif len(labels) == 2:
            made = pair(emit, scores, transform, positive=transform != "NONE")
        else:
            made = transformed(emit, scores, transform)
    if node.has_output(0):
        put_label(emit, labels, index)
    if node.has_output(1):
        emit.out("identity", made, index=1)


def _linear(node: OnnxNode, emit: Emitter, data: str, count: int) -> tuple[str, str]:
    """Without support vectors: one linear model for each class."""
    scores = dense(emit, data, floats(node, "coefficients"), count)
    scores = emit.temp("add", scores, emit.stored("rho", floats(node, "rho")[:1]))
    index = best(emit, scores)
    if count == 2:
        limit = 0.5 if np.all(floats(node, "coefficients") >= 0) else 0.0
        largest = emit.temp("reduce_max", scores, axes=(1,), keepdims=False)
        low = emit.scalar(limit, scores, "limit")
        op = "less_equal" if limit else "less"
        second = emit.temp(op, low, largest, label="second")
        index = emit.temp("where", second, emit.scalar(1, index, "one"), index)
    return index, scores


def _kernels(node: OnnxNode, emit: Emitter, data: str, count: int) -> str:
    """The kernel of each row and each support vector. [rows, vectors]"""
    vectors = floats(node, "support_vectors")
    gamma, offset, degree = (*floats(node, "kernel_params"), 0.0, 0.0, 0.0)[:3]

    def number(value: float, label: str) -> str:
        return emit.scalar(float(value), data, label)

    kind = node.choice("kernel_type", ("LINEAR", "POLY", "RBF", "SIGMOID"))
    if kind == "RBF":
        rows, width = emit.shape(data)
        if vectors.size != count * width:
            raise ModelError(
                f"data of {width} features for {vectors.size} numbers of {count} vectors"
            )
        stored = emit.stored("vectors", vectors.reshape(1, count, width))
        apart = emit.temp("subtract", emit.reshaped(data, (rows, 1, width)), stored)
        square = emit.temp("multiply", apart, apart, label="square")
        distance = emit.temp("reduce_sum", square, axes=(2,), keepdims=False)
        return emit.temp("exp", emit.temp("multiply", distance, number(-gamma, "gamma")))
    made = dense(emit, data, vectors, count)
    if kind == "LINEAR":
        return made
    made = emit.temp("multiply", made, number(gamma, "gamma"))
    made = emit.temp("add", made, number(offset, "offset"))
    if kind == "POLY":
        return emit.temp("power", made, number(degree, "degree"))
    return emit.temp("tanh", made)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """One linear model of the kernels for each two of the classes."""

    node: OnnxNode
    classes: int

    @property
    def vectors(self) -> int:
        """Support vectors of all classes."""
        return sum(self.node.ints("vectors_per_class", ()))

    @property
    def every(self) -> list[tuple[int, int]]:
        """Each two classes, in order."""
        return [(i, j) for i in range(self.classes) for j in range(i + 1, self.classes)]

    def scores(self, emit: Emitter, kernels: str) -> str:
        """Positive for the first class of each pair. [rows, pairs]"""
        counts = self.node.ints("vectors_per_class", ())
        if len(counts) != self.classes:
            raise ModelError(
                f"vectors_per_class: expected {self.classes} numbers, got {len(counts)}"
            )
        ends = np.cumsum((0, *counts))
        given = floats(self.node, "coefficients").reshape(self.classes - 1, self.vectors)
        weight = np.zeros((len(self.every), self.vectors), np.float32)
        for row, (i, j) in enumerate(self.every):
            weight[row, ends[i] : ends[i + 1]] = given[j - 1, ends[i] : ends[i + 1]]
            weight[row, ends[j] : ends[j + 1]] = given[i, ends[j] : ends[j + 1]]
        made = dense(emit, kernels, weight, len(self.every))
        rho = floats(self.node, "rho")[: len(self.every)]
        return emit.temp("add", made, emit.stored("rho", rho))

    def index(self, emit: Emitter, scores: str) -> str:
        """The class that wins most of its pairs, the first of several."""
        first = emit.temp("less", emit.scalar(0.0, scores, "zero"), scores, label="first")
        change = np.zeros((self.classes, len(self.every)), np.float32)
        start = np.zeros(self.classes, np.float32)
        for column, (i, j) in enumerate(self.every):
            change[i, column], change[j, column] = 1, -1
            start[j] += 1
        votes = emit.temp("dense", emit.cast(first, FLOAT32), emit.stored("change", change))
        return best(emit, emit.temp("add", votes, emit.stored("start", start), label="votes"))

    def chances(self, emit: Emitter, scores: str) -> str:
        """The chance of each class, of those of pairs. [rows, classes]"""
        slope, start = (emit.stored(key, floats(self.node, key)) for key in ("prob_a", "prob_b"))
        against = emit.temp(
            "negative", emit.temp("add", emit.temp("multiply", scores, slope), start)
        )
        first = emit.temp("sigmoid", against)
        first = emit.temp("clip", first, min=_LEAST_CHANCE, max=1 - _LEAST_CHANCE)
        return coupled(emit, _of_pairs(emit, first, self.every, self.classes))


def _of_pairs(emit: Emitter, first: str, pairs: list[tuple[int, int]], classes: int) -> str:
    """r[i, j], the chance of class i against j, 0 on the diagonal. [rows, classes, classes]"""
    rows, count = emit.shape(first)
    second = emit.temp("subtract", emit.scalar(1.0, first, "one"), first)
    nothing = emit.stored("nothing", np.zeros((rows, 1), np.float32))
    all_of_them = emit.temp("concat", first, second, nothing, axis=1)
    index: Array = np.full((classes, classes), 2 * count, np.int64)
    for column, (i, j) in enumerate(pairs):
        index[i, j], index[j, i] = column, count + column
    table = emit.temp("gather", all_of_them, emit.stored("order", index.reshape(-1)), axis=1)
    return emit.reshaped(table, (rows, classes, classes))
