"""Operators of onnxruntime's own domain, com.microsoft: importing this package registers them.

onnxruntime's optimisers, Olive and the GenAI builder write them. Each maps onto operators of ONNX
(`emit.onnx`) or of the graph: none has a meaning of its own that one of these states already.
Source: onnxruntime's docs/ContribOperators.md. Quantized operators are in `frontend.quantized`.
"""

from retune.frontend.onnx.ops.contrib import (
    attention,
    blocks,
    fused,
    grouped,
    hashes,
    layouts,
    normalisation,
    quantized,
    refused,
    standard,
)

__all__ = [
    "attention",
    "blocks",
    "fused",
    "grouped",
    "hashes",
    "layouts",
    "normalisation",
    "quantized",
    "refused",
    "standard",
]
