"""Chances of classes from the chances of pairs of them (Wu, Lin, Weng: pairwise coupling).

They minimise p' Q p, where Q[i, i] is the sum of r[j, i]^2 over j, and Q[i, j] = -r[j, i] r[i, j].
LIBSVM and onnxruntime stop at an error of 0.005 over the number of classes, which results show.
"""

from dataclasses import dataclass

import numpy as np

from retune.frontend.onnx.ops.registry import Emitter

_ROUNDS = 6
"""onnxruntime's 100 stop after 4 at most, for 10 classes and chances near 0 and 1 too."""
_ENOUGH = 0.005
"""An error over the number of classes that ends them."""


def coupled(emit: Emitter, chances: str) -> str:
    """The chance of each class. [rows, classes], of r [rows, classes, classes]"""
    rows, classes, _ = emit.shape(chances)
    system = _system(emit, chances)
    found = emit.stored("start", np.full((rows, classes), 1 / classes, np.float32))
    for _ in range(_ROUNDS):
        found = _round(emit, system, found)
    return found


@dataclass(frozen=True, slots=True)
class _System:
    """Q, and its rows [rows, classes] and diagonal elements [rows, 1] one by one."""

    matrix: str
    row: tuple[str, ...]
    corner: tuple[str, ...]


def _system(emit: Emitter, chances: str) -> _System:
    _, classes, _ = emit.shape(chances)
    turned = emit.temp("transpose", chances, perm=(0, 2, 1))
    apart = emit.temp("negative", emit.temp("multiply", turned, chances))
    squares = emit.temp("multiply", chances, chances, label="squares")
    sums = emit.temp("reduce_sum", squares, axes=(1,), keepdims=True)
    diagonal = emit.temp("multiply", sums, emit.stored("eye", np.eye(classes, dtype=np.float32)))
    matrix = emit.temp("add", apart, diagonal, label="system")
    row = tuple(emit.single(matrix, 1, i) for i in range(classes))
    corner = tuple(emit.part(value, 1, i, 1) for i, value in enumerate(row))
    return _System(matrix, row, corner)


def _round(emit: Emitter, system: _System, before: str) -> str:
    """All chances once adapted, one after the other; those that are good enough stay."""
    rows, classes = emit.shape(before)
    wide = emit.reshaped(before, (rows, 1, classes))
    slopes = _sum(emit, emit.temp("multiply", system.matrix, wide), 2)
    value = emit.temp("reduce_sum", emit.temp("multiply", before, slopes), axes=(1,), keepdims=True)
    error = emit.temp("abs", emit.temp("subtract", slopes, value), label="error")
    largest = emit.temp("reduce_max", error, axes=(1,), keepdims=True)
    open_ = emit.temp("less_equal", emit.scalar(_ENOUGH / classes, error, "enough"), largest)
    after, one = before, emit.scalar(1.0, before, "one")
    for i in range(classes):
        slope, corner = emit.part(slopes, 1, i, 1), system.corner[i]
        step = emit.temp("divide", emit.temp("subtract", value, slope), corner, label="step")
        whole = emit.temp("add", step, one, label="whole")
        unit = emit.stored(f"unit{i}", np.eye(classes, dtype=np.float32)[i : i + 1])
        after = emit.temp("add", after, emit.temp("multiply", step, unit))
        after = emit.temp("divide", after, whole)
        double = emit.temp("add", slope, slope, label="double")
        grown = emit.temp("add", emit.temp("multiply", step, corner), double)
        value = emit.temp("add", value, emit.temp("multiply", step, grown))
        value = emit.temp("divide", emit.temp("divide", value, whole), whole)
        moved = emit.temp("multiply", step, system.row[i])
        slopes = emit.temp("divide", emit.temp("add", slopes, moved), whole, label="slopes")
    return emit.temp("where", open_, after, before)


def _sum(emit: Emitter, value: str, axis: int) -> str:
    return emit.temp("reduce_sum", value, axes=(axis,), keepdims=False)
