"""Ops that read where an index says, or are made of positions. Scattering is in `scatter`."""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dims import is_fixed, least
from retune.core.dtypes import INT64
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.elementwise import stated_type
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis


def from_the_front(emit: Emitter, indices: str, extents: Sequence[int]) -> str:
    """int64 indices with negative ones counted from the end; extents for the last dimension.

    Raises: ModelError for a constant index that is outside.
    """
    known = emit.known(indices)
    fixed = all(map(is_fixed, extents))
    sizes = np.asarray(extents if fixed else list(map(least, extents)), np.int64)
    if known is not None and known.size and np.any((known < -sizes) | (known >= sizes)):
        raise ModelError(
            f"the indices reach from {known.min()} to {known.max()}; expected them inside the "
            f"extents {list(extents)}, or negative from the end"
        )
    slots = emit.cast(indices, INT64)
    below = emit.temp("less", slots, emit.stored("zero", np.zeros((), np.int64)))
    lifted = emit.temp("add", slots, emit.numbers("extents", extents))
    return emit.temp("where", below, lifted, slots)


def positions(emit: Emitter, tuples: str, extents: Sequence[int]) -> str:
    """Index tuples [..., dimensions] as row-major positions [...] within these extents."""
    *outer, depth = emit.shape(tuples)
    if depth != len(extents):
        raise ModelError(f"index tuples of {depth}; expected {len(extents)} or fewer")
    found = from_the_front(emit, tuples, extents)
    if depth == 1:
        return emit.reshaped(found, tuple(outer))
    strides = [prod(extents[d + 1 :]) for d in range(depth)]
    steps = emit.temp("multiply", found, emit.numbers("strides", strides))
    return emit.temp("reduce_sum", steps, axes=(len(outer),), keepdims=False)


@onnx_op("GatherElements", since=11)
def gather_elements(node: OnnxNode, emit: Emitter) -> None:
    """One element for each index."""
    axis = positive_axis(node.integer("axis", 0), len(emit.shape(node.inputs[0])))
    emit.out("gather_elements", *node.inputs, axis=axis)


@onnx_op("GatherND", since=11)
def gather_nd(node: OnnxNode, emit: Emitter) -> None:
    """Slices by index tuples, apart for each of `batch_dims` leading dimensions."""
    data, tuples = node.inputs
    shape, batches = emit.shape(data), node.integer("batch_dims", 0)
    *outer, depth = emit.shape(tuples)
    slots, rest = shape[batches : batches + depth], shape[batches + depth :]
    if not batches and depth == 1:
        return emit.out("gather", data, emit.reshaped(tuples, tuple(outer)), axis=0)
    found = positions(emit, tuples, slots)
    if batches:
        ones = (1,) * (len(outer) - batches)
        steps = tuple(prod(shape[d + 1 : batches + depth]) for d in range(batches))
        starts = emit.counted("starts", (*shape[:batches], *ones), (*steps, *(0 for _ in ones)))
        found = emit.temp("add", found, starts)
    rows = emit.reshaped(data, (prod(shape[: batches + depth]), *rest))
    return emit.out("gather", rows, found, axis=0)


@onnx_op("OneHot", since=9, limits="depth known while importing, or a size")
def one_hot(node: OnnxNode, emit: Emitter) -> None:
    """`on` where the index (negative from the end) is the slot along a new axis, else `off`."""
    indices, _, values = node.inputs
    depth = emit.whole_number(1, "the depth")
    shape = emit.shape(indices)
    axis = positive_axis(node.integer("axis", -1), len(shape) + 1)
    column = emit.reshaped(emit.cast(indices, INT64), (*shape[:axis], 1, *shape[axis:]))
    rest = len(shape) - axis
    line, steps = (depth, *(1,) * rest), (1, *(0,) * rest)
    ahead = emit.temp("equal", column, emit.counted("places", line, steps))
    behind = emit.temp("equal", column, emit.counted("places_from_end", line, steps, -depth))
    off, on = (
        emit.reshaped(emit.part(values, 0, at, 1, label), ())
        for at, label in enumerate(("off", "on"))
    )
    emit.out("where", emit.temp("logical_or", ahead, behind), on, off)


@onnx_op("Trilu", since=14)
def trilu(node: OnnxNode, emit: Emitter) -> None:
    """What lies on and above (or below) the diagonal k, zero elsewhere."""
    data = node.inputs[0]
    rows, columns = emit.shape(data)[-2:]
    if node.has_input(1):
        k = emit.reshaped(node.inputs[1], ())
    else:
        k = emit.stored("k", np.zeros((), np.int64))
    diagonals = emit.counted("diagonals", (rows, columns), (-1, 1))
    order = "greater_equal" if node.integer("upper", 1) else "less_equal"
    kept = emit.temp(order, diagonals, k, label="kept")
    emit.out("where", kept, data, emit.scalar(0, data, "zero"))


@onnx_op("EyeLike", since=9)
def eye_like(node: OnnxNode, emit: Emitter) -> None:
    """Ones on a diagonal, in the shape of a matrix."""
    shape, own = emit.shape(node.inputs[0]), emit.type(node.inputs[0]).dtype
    if len(shape) != 2:
        raise ModelError(f"expected a matrix, got the shape {list(shape)}")
    dtype = stated_type(node, "dtype") if "dtype" in node.attrs else own
    emit.build.constant(node.outputs[0], np.eye(*shape, k=node.integer("k", 0), dtype=dtype))


@onnx_op("Compress", since=9)
def compress(node: OnnxNode, emit: Emitter) -> None:
    """The slices along an axis (or elements) for which a constant condition holds."""
    data = node.inputs[0]
    condition = emit.known(node.inputs[1])
    if condition is None:
        return emit.host()
    axis = 0
    if "axis" in node.attrs:
        axis = positive_axis(node.integer("axis", 0), len(emit.shape(data)))
    else:
        data = emit.reshaped(data, (prod(emit.shape(data)),))
    chosen = np.flatnonzero(condition)
    chosen = chosen[chosen < emit.shape(data)[axis]].astype(np.int64)
    return emit.out("gather", data, emit.stored("chosen", chosen), axis=axis)


@onnx_op("ReverseSequence", since=10)
def reverse_sequence(node: OnnxNode, emit: Emitter) -> None:
    """The first `length` steps of each sequence in reverse, the others as they are."""
    data, lengths = node.inputs
    axes = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    if sorted(axes) != [0, 1]:
        raise ModelError(f"batch and time axis are {axes}; expected 0 and 1")
    swap = (1, 0, *range(2, len(emit.shape(data))))
    moved = axes == (1, 0)
    source = emit.temp("transpose", data, perm=swap) if moved else data
    batch, steps, *rest = emit.shape(source)
    step = emit.counted("step", (1, steps), (0, 1))
    length = emit.reshaped(emit.cast(lengths, INT64), (batch, 1))
    last = emit.temp("subtract", length, emit.stored("one", np.ones((), np.int64)), label="last")
    mirrored = emit.temp("subtract", last, step, label="mirrored")
    slots = emit.temp("where", emit.temp("less", step, length), mirrored, step)
    starts = emit.counted("starts", (batch, 1), (steps, 0))
    rows = emit.reshaped(source, (batch * steps, *rest))
    found = emit.temp("gather", rows, emit.temp("add", slots, starts), axis=0)
    if moved:
        return emit.out("transpose", found, perm=swap)
    return emit.out("identity", found)
