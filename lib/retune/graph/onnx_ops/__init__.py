"""ONNX ops by family: importing this package registers every handler."""

from retune.graph.onnx_ops import (
    control,
    elementwise,
    indexing,
    linear,
    logic,
    movement,
    normalisation,
    ranking,
    reductions,
    scatter,
    sequences,
    windows,
)
from retune.graph.onnx_ops.registry import (
    HANDLERS,
    Emitter,
    NotConstant,
    OnnxNode,
    handler_of,
    onnx_op,
)
from retune.graph.onnx_ops.values import Values

__all__ = [
    "HANDLERS",
    "Emitter",
    "NotConstant",
    "OnnxNode",
    "Values",
    "control",
    "elementwise",
    "handler_of",
    "indexing",
    "linear",
    "logic",
    "movement",
    "normalisation",
    "onnx_op",
    "ranking",
    "reductions",
    "scatter",
    "sequences",
    "windows",
]
