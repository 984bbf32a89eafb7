"""Scores of classes and regressors: transforms, the label of the best class, and data as rows.

The arithmetic is that of onnxruntime's CPU, where the specification leaves it open.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import FLOAT32, FLOAT64, INT64
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""As TreeEnsemble numbers them."""
_NOTHING = 1e-7
"""Scores up to this magnitude are zeros for SOFTMAX_ZERO."""
_ERF_INVERSE = 0.147
"""Of Winitzki's approximation."""
_PI = 3.14159
"""As onnxruntime's approximation has it."""


def as_rows(emit: Emitter, data: str, *, wide: bool = False) -> str:
    """The data as float32 rows; float64 stays if `wide`. One dimension is one row."""
    shape, dtype = emit.shape(data), emit.type(data).dtype
    if len(shape) not in (1, 2):
        raise ModelError(f"data {emit.type(data)}: expected rows of features [rows, features]")
    data = data if wide and dtype == FLOAT64 else emit.cast(data, FLOAT32)
    return emit.reshaped(data, (1, *shape)[-2:])


def transformed(emit: Emitter, scores: str, transform: str) -> str:
    """The scores [rows, classes] after the transform."""
    match transform:
        case "LOGISTIC":
            return emit.temp("sigmoid", scores)
        case "SOFTMAX":
            return emit.temp("softmax", scores, axis=1)
        case "SOFTMAX_ZERO":
            return _softmax_zero(emit, scores)
        case "PROBIT":
            return _probit(emit, scores)
        case _:
            return scores


def _softmax_zero(emit: Emitter, scores: str) -> str:
    """Softmax of the scores that are not zero; zeros stay."""
    zero = emit.scalar(0.0, scores, "zero")
    largest = emit.temp("reduce_max", scores, axes=(1,), keepdims=True)
    size = emit.temp("abs", scores)
    counted = emit.temp("less", emit.scalar(_NOTHING, scores, "least"), size, label="counted")
    powers = emit.temp("exp", emit.temp("subtract", scores, largest), label="powers")
    powers = emit.temp("where", counted, powers, zero)
    total = emit.temp("reduce_sum", powers, axes=(1,), keepdims=True)
    return emit.temp("divide", powers, total)


def _probit(emit: Emitter, scores: str) -> str:
    """sqrt(2) times the inverse error function of 2 score - 1, as onnxruntime approximates it."""

    def number(value: float, label: str) -> str:
        return emit.scalar(value, scores, label)

    double = emit.temp("multiply", scores, number(2.0, "two"))
    x = emit.temp("subtract", double, number(1.0, "one"))
    one = number(1.0, "one")
    log = emit.temp(
        "log", emit.temp("multiply", emit.temp("subtract", one, x), emit.temp("add", one, x))
    )
    half = emit.temp("multiply", log, number(0.5, "half"))
    v = emit.temp("add", half, number(2.0 / (_PI * _ERF_INVERSE), "start"))
    inner = emit.temp("multiply", log, number(1.0 / _ERF_INVERSE, "slope"))
    root = emit.temp("sqrt", emit.temp("subtract", emit.temp("multiply", v, v), inner))
    size = emit.temp("sqrt", emit.temp("subtract", root, v), label="size")
    signed = emit.temp(
        "where", emit.temp("less", x, number(0.0, "zero")), emit.temp("negative", size), size
    )
    return emit.temp("multiply", signed, number(1.41421356, "root of two"))


def labels_of(node: OnnxNode, key: str) -> list[int]:
    """The labels of the classes, which attribute `key` lists. Raises: ModelError for text."""
    if node.attrs.get("classlabels_strings"):
        raise ModelError(
            "labels that are text, inside of a function or a branch; expected numbers: export the "
            "model with integer labels"
        )
    return [int(label) for label in node.attrs.get(key, ())]


def put_label(emit: Emitter, labels: Sequence[int], index: str) -> None:
    """The first output is the label at each row's index. int64 [rows]"""
    table = emit.stored("labels", np.asarray(labels, np.int64))
    if list(labels) == list(range(len(labels))):
        return emit.out("cast", index, to=INT64)
    return emit.out("gather", table, index, axis=0)


def best(emit: Emitter, scores: str) -> str:
    """The index of the greatest score of each row, the first of equal ones. [rows]"""
    return emit.temp("argmax", scores, axis=1, keepdims=False, last=False)


def pair(emit: Emitter, score: str, transform: str, *, positive: bool) -> str:
    """The scores of two classes [rows, 2] of one score [rows, 1], that of the second class.

    `positive` scores are probabilities; others have the same distance from zero on both sides.
    Raises: ModelError for PROBIT, for which onnxruntime leaves the second score open.
    """
    if transform == "PROBIT":
        raise emit.refuse("PROBIT of one score for two classes", "export with post_transform NONE")
    if transform == "LOGISTIC":
        second = emit.temp("sigmoid", score)
        first = emit.temp("sigmoid", emit.temp("negative", score))
    elif positive:
        first, second = emit.temp("subtract", emit.scalar(1.0, score, "one"), score), score
    else:
        first, second = emit.temp("negative", score), score
    return emit.temp("concat", first, second, axis=1)
