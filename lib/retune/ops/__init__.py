"""Every op of the graph IR: importing this package registers them all."""

from retune.ops import (
    blocked,
    convolution,
    elementwise,
    extents,
    images,
    indexing,
    linear,
    movement,
    normalisation,
    packed,
    pooling,
    quantized,
    reduction,
    trees,
)
from retune.ops.registry import OPS, Array, Attrs, AttrValue, OpDef, OpKind, lookup

__all__ = [
    "OPS",
    "Array",
    "AttrValue",
    "Attrs",
    "OpDef",
    "OpKind",
    "blocked",
    "convolution",
    "elementwise",
    "extents",
    "images",
    "indexing",
    "linear",
    "lookup",
    "movement",
    "normalisation",
    "packed",
    "pooling",
    "quantized",
    "reduction",
    "trees",
]
