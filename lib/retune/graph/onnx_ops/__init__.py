"""ONNX ops by family: importing this package registers every handler."""

from retune.graph.onnx_ops import (
    control,
    einsum,
    elementwise,
    linear,
    movement,
    normalisation,
    quantised,
    recurrent,
    sequences,
    standardisation,
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
    "einsum",
    "elementwise",
    "handler_of",
    "linear",
    "movement",
    "normalisation",
    "onnx_op",
    "quantised",
    "recurrent",
    "sequences",
    "standardisation",
    "windows",
]
