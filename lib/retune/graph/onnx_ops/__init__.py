"""ONNX ops by family: importing this package registers every handler."""

from retune.graph.onnx_ops import elementwise, linear, movement, normalisation, windows
from retune.graph.onnx_ops.registry import HANDLERS, Emitter, OnnxNode, handler_of, onnx_op

__all__ = [
    "HANDLERS",
    "Emitter",
    "OnnxNode",
    "elementwise",
    "handler_of",
    "linear",
    "movement",
    "normalisation",
    "onnx_op",
    "windows",
]
