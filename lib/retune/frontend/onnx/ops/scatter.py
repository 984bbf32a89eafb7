"""Writing where an index says; read `scattered` first.

Where the indices are constants (slices that are assigned to, say) the writer of each target is
known at import, and a kernel reads instead of searching.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dims import always_empty, most
from retune.core.dtypes import INT32, INT64
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.indexing import from_the_front, positions
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.ops import Array
from retune.ops.indexing import COMBINE

SEARCHED_PAIRS = 1 << 24
"""Targets times updates for which each target looks through all updates, at run time."""

REPEATS = 8
"""Updates of one target that are combined one after the other, their targets being known."""


def scattered(emit: Emitter, data: str, targets: str, updates: str, reduction: str) -> str | None:
    """`data` [batch, targets, row] with `updates` [batch, updates, row] at their `targets`.

    Of several updates of a target the last one counts, or all do by the reduction. None where that
    takes a search that is too long.

    Shapes: targets is [batch, updates].
    """
    batch, extent, row = emit.shape(data)
    known, pairs = emit.known(targets), batch * extent * emit.shape(targets)[1]
    if reduction == "none":
        if known is None and pairs > SEARCHED_PAIRS:
            return None
        by = emit.temp("last_writers", targets, label="writers", places=extent)
        return emit.temp("write_rows", data, updates, by, reduction=reduction)
    rounds = [] if known is None else _rounds(known, extent)
    if 0 < len(rounds) <= REPEATS:
        for writers in rounds:
            by = emit.stored("writers", writers)
            data = emit.temp("write_rows", data, updates, by, reduction=reduction)
        return data
    if pairs * row > SEARCHED_PAIRS:
        return None
    return emit.temp("fold_rows", data, targets, updates, reduction=reduction)


def _rounds(targets: Array, extent: int) -> list[Array]:
    """Writers [batch, extent], -1 for none: the n-th array has the n-th update of each target."""
    batch, count = targets.shape
    keys = (np.arange(batch)[:, None] * extent + targets).reshape(-1)
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    turn = np.arange(len(keys)) - np.searchsorted(ordered, ordered, side="left")
    made: list[Array] = []
    for number in range(int(turn.max()) + 1):
        writers = np.full(batch * extent, -1, np.int32)
        chosen = turn == number
        writers[ordered[chosen]] = order[chosen] % count
        made.append(writers.reshape(batch, extent))
    return made


@onnx_op("ScatterND", since=11)
def scatter_nd(node: OnnxNode, emit: Emitter) -> None:
    """Slices written at index tuples."""
    data, tuples, updates = node.inputs
    shape, (*outer, depth) = emit.shape(data), emit.shape(tuples)
    count, extent, row = prod(outer), prod(shape[:depth]), prod(shape[depth:])
    if not count:
        return emit.out("identity", data)
    targets = emit.reshaped(positions(emit, tuples, shape[:depth]), (1, count))
    return _put(node, emit, (1, extent, row), targets, updates)


def _put(
    node: OnnxNode, emit: Emitter, lines: tuple[int, int, int], targets: str, updates: str
) -> None:
    """The output is the data with the updates at these targets, both cut as `scattered` has
    them."""
    data, (batch, _, row) = node.inputs[0], lines
    _, count = emit.shape(targets)
    made = scattered(
        emit,
        emit.reshaped(data, lines),
        targets,
        emit.reshaped(updates, (batch, count, row)),
        node.choice("reduction", COMBINE),
    )
    return emit.host() if made is None else emit.out("reshape", made, shape=emit.shape(data))


@onnx_op("Scatter", since=9)
@onnx_op("ScatterElements", since=11)
def scatter_elements(node: OnnxNode, emit: Emitter) -> None:
    """Elements written at an index along one axis."""
    data, indices, updates = node.inputs
    shape, own = emit.shape(data), emit.shape(indices)
    axis = positive_axis(node.integer("axis", 0), len(shape))
    if always_empty(own):
        return emit.out("identity", data)
    if (rows := _indices_of_rows(emit, indices, shape, axis)) is not None:
        return _scatter_rows(node, emit, rows, axis)
    targets = from_the_front(emit, indices, [shape[axis]])
    known = emit.known(targets)
    if known is None:
        return _scatter_along(node, emit, targets, axis)
    grid = list(np.indices(own))
    grid[axis] = known
    flat = np.ravel_multi_index(tuple(grid), shape).reshape(1, -1)
    stored = emit.stored("places", flat.astype(np.int64))
    return _put(node, emit, (1, prod(shape), 1), stored, updates)


def _indices_of_rows(emit: Emitter, indices: str, shape: Sequence[int], axis: int) -> str | None:
    """What the indices were broadcast from, where all elements of a row of the data have the same.

    So exporters write sums over the edges of a graph. None where they may differ within a row, or
    some rows have indices for a part only.
    """
    made, own = emit.build.producer(indices), emit.shape(indices)
    if made is None or made.op != "broadcast_to":
        return None
    source = emit.shape(made.inputs[0])
    wide = (*(1,) * (len(own) - len(source)), *source)
    others = [d for d in range(len(own)) if d != axis]
    whole = all(own[d] == shape[d] and wide[d] == 1 for d in others) and wide[axis] == own[axis]
    return made.inputs[0] if whole else None


def _scatter_rows(node: OnnxNode, emit: Emitter, indices: str, axis: int) -> None:
    """Whole rows of the data behind the axis, by one index each."""
    data, spread, updates = node.inputs
    shape, count = emit.shape(data), emit.shape(spread)[axis]
    outer, extent, row = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    targets = emit.reshaped(from_the_front(emit, indices, [extent]), (1, count))
    if outer != 1:
        targets = emit.temp("broadcast_to", targets, label="places", shape=(outer, count))
    return _put(node, emit, (outer, extent, row), targets, updates)


def _scatter_along(node: OnnxNode, emit: Emitter, targets: str, axis: int) -> None:
    """Each line along the axis by itself; lines without updates get some that are at no target."""
    data, _, updates = node.inputs
    shape, own = emit.shape(data), emit.shape(targets)
    rank = len(shape)
    missing = tuple(0 if d == axis else shape[d] - own[d] for d in range(rank))
    pads, outside = (*(0,) * rank, *missing), float(most(shape[axis]))
    if any(missing):
        targets = emit.temp("pad", targets, label="places", pads=pads, value=outside)
        updates = emit.temp("pad", updates, label="updates", pads=pads, value=0.0)
    perm = (*(d for d in range(rank) if d != axis), axis)
    data, targets, updates = (
        value if axis == rank - 1 else emit.temp("transpose", value, perm=perm)
        for value in (data, targets, updates)
    )
    lines = prod(shape) // shape[axis]
    made = scattered(
        emit,
        emit.reshaped(data, (lines, shape[axis], 1)),
        emit.reshaped(targets, (lines, own[axis])),
        emit.reshaped(updates, (lines, own[axis], 1)),
        node.choice("reduction", COMBINE),
    )
    if made is None:
        return emit.host()
    moved = emit.reshaped(made, emit.shape(data))
    back = tuple(perm.index(d) for d in range(rank))
    return emit.out("transpose", moved, perm=back)


@onnx_op("TensorScatter", since=24)
def tensor_scatter(node: OnnxNode, emit: Emitter) -> None:
    """A run of updates from `write_indices` on along one axis, for each of a batch."""
    data, updates = node.inputs[:2]
    shape, count = emit.shape(data), emit.shape(updates)
    axis = positive_axis(node.integer("axis", -2), len(shape))
    batch, steps, length = shape[0], shape[axis], count[axis]
    if not axis:
        raise ModelError("axis 0 is that of the batch; expected another one")
    step = emit.counted("step", (1, steps), (0, 1))
    start = emit.filled("start", (batch, 1), np.zeros((), np.int64))
    if node.has_input(2):
        start = emit.reshaped(emit.cast(node.inputs[2], INT64), (batch, 1))
    since = emit.temp("subtract", step, start, label="since")
    if node.text("mode", "linear") == "circular":
        since = emit.temp("mod", since, emit.stored("steps", np.asarray(steps, np.int64)))
    inside = emit.temp("less", since, emit.stored("length", np.asarray(length, np.int64)))
    none = emit.stored("none", np.asarray(-1, np.int64))
    writers = emit.temp("cast", emit.temp("where", inside, since, none), to=INT32)
    lines, row = prod(shape[1:axis]), prod(shape[axis + 1 :])
    apart = emit.reshaped(writers, (batch, 1, steps))
    spread = emit.temp("broadcast_to", apart, shape=(batch, lines, steps)) if lines > 1 else apart
    made = emit.temp(
        "write_rows",
        emit.reshaped(data, (batch * lines, steps, row)),
        emit.reshaped(updates, (batch * lines, length, row)),
        emit.reshaped(spread, (batch * lines, steps)),
        reduction="none",
    )
    emit.out("reshape", made, shape=shape)
