"""Tensor expressions of every op: importing this package registers the rules."""

from retune.ops.tensors import (
    blocked,
    convolution,
    elementwise,
    images,
    indexing,
    movement,
    normalisation,
    pooling,
    quantized,
    reduction,
)
from retune.ops.tensors.registry import RULES, Names, OpCall, rule_of

__all__ = [
    "RULES",
    "Names",
    "OpCall",
    "blocked",
    "convolution",
    "elementwise",
    "images",
    "indexing",
    "movement",
    "normalisation",
    "pooling",
    "quantized",
    "reduction",
    "rule_of",
]
