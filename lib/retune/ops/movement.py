"""Ops that move elements and compute nothing: each output element is one input element."""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dims import always_empty, always_equal, always_same
from retune.core.dtypes import Array, TensorType
from retune.ir import te
from retune.ir.expr import Expr, const
from retune.ir.te import Tensor
from retune.ops.convolution import padded
from retune.ops.indexing import INDEX_TYPES, slot_of
from retune.ops.registry import Attrs, OpCall, integer, ints, literal, op, present
from retune.ops.shapes import require, same_but_ones


def _infer_transpose(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, perm = present(types), ints(attrs, "perm")
    require(
        sorted(perm) == list(range(len(data.shape))),
        lambda: f"transpose of {data}: {perm} is not a permutation of its dimensions",
    )
    return (TensorType(tuple(data.shape[d] for d in perm), data.dtype),)


def _transposed(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """A view: a large weight that is mapped from a file is not copied to be transposed."""
    return (np.transpose(present(arrays), ints(attrs, "perm")),)


@op("transpose", kind="injective", infer=_infer_transpose, numpy=_transposed)
def transpose(c: OpCall) -> Tensor:
    """T_transpose(i...) = x[i in the input's order]."""
    (x,) = c.inputs
    perm = ints(c.attrs, "perm")
    return c.stage(lambda *i: x[tuple(i[perm.index(d)] for d in range(len(perm)))])


def _infer_reshape(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, shape = present(types), ints(attrs, "shape")
    require(
        prod(shape) == data.elements and all(extent >= 0 for extent in shape),
        lambda: (
            f"reshape of {data} ({data.elements} elements) to {list(shape)}: "
            f"expected as many elements"
        ),
    )
    return (TensorType(shape, data.dtype),)


def _reshaped(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    return (present(arrays).reshape(ints(attrs, "shape")),)


@op("reshape", kind="injective", infer=_infer_reshape, numpy=_reshaped)
def reshape(c: OpCall) -> Tensor:
    """T_reshape(i...) = x at the same flat position."""
    (x,) = c.inputs
    made = c.output.shape

    def body(*i: Expr) -> Expr:
        if same_but_ones(x.shape, made):
            own = iter([a for a, n in zip(i, made, strict=True) if not always_equal(n, 1)])
            return x[tuple(const(0) if always_equal(n, 1) else next(own) for n in x.shape)]
        return x[_unflatten(_flatten(i, made), x.shape)]

    return c.stage(body)


def _flatten(axes: Sequence[Expr], shape: Sequence[int]) -> Expr:
    flat: Expr = const(0)
    for axis, extent in zip(axes, shape, strict=True):
        flat = flat * extent + (const(0) if always_equal(extent, 1) else axis)
    return flat


def _unflatten(flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    index: list[Expr] = []
    stride = 1
    for position in reversed(range(len(shape))):
        extent = shape[position]
        whole = flat // stride
        outermost = all(always_equal(e, 1) for e in shape[:position])
        own = whole if outermost else whole % extent
        index.append(const(0) if always_equal(extent, 1) else own)
        stride *= extent
    return tuple(reversed(index))


def _infer_concat(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    axis, first = integer(attrs, "axis"), present(types)
    entries = [present(types, index) for index in range(len(types))]
    for entry in entries:
        require(
            len(entry.shape) == len(first.shape)
            and all(
                a == b
                for d, (a, b) in enumerate(zip(entry.shape, first.shape, strict=True))
                if d != axis
            ),
            lambda entry=entry: f"concat along axis {axis}: {entry} does not fit beside {first}",
        )
    shape = list(first.shape)
    shape[axis] = sum(entry.shape[axis] for entry in entries)
    return (TensorType(tuple(shape), first.dtype),)


def _joined(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    parts = [present(arrays, index) for index in range(len(arrays))]
    return (np.concatenate(parts, integer(attrs, "axis")),)


@op("concat", kind="injective", infer=_infer_concat, numpy=_joined)
def concat(c: OpCall) -> Tensor:
    """The inputs side by side; an input that is there twice is copied first."""
    parts: list[Tensor] = []
    for part in c.inputs:
        parts.append(_copy(c, part) if part in parts else part)
    return te.concat(c.name("T_concat"), parts, integer(c.attrs, "axis"))


def _infer_append(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    past, new = present(types), present(types, 1)
    fits = past.dtype == new.dtype and len(past.shape) == len(new.shape) > 0
    require(
        fits and always_same(past.shape[1:], new.shape[1:]),
        lambda: f"append to {past}: {new} does not fit behind it",
    )
    return (TensorType((past.shape[0] + new.shape[0], *past.shape[1:]), past.dtype),)


def _appended(arrays: Sequence[Array | None], _: Attrs) -> tuple[Array, ...]:
    return (np.concatenate([present(arrays), present(arrays, 1)], 0),)


@op("append", kind="injective", infer=_infer_append, numpy=_appended)
def append(c: OpCall) -> Tensor:
    """What is new behind a state that grows along its first axis.

    No kernel does so in a network: both lie in the memory of the result.
    """
    return te.concat(c.name("T_append"), c.inputs, 0)


def _copy(c: OpCall, x: Tensor) -> Tensor:
    return c.stage(lambda *i: x[i], [x], stem="T_copy", shape=x.shape)


def _infer_pad(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, pads = present(types), ints(attrs, "pads")
    rank = len(data.shape)
    shape = tuple(extent + pads[d] + pads[d + rank] for d, extent in enumerate(data.shape))
    require(
        all(extent >= 0 for extent in shape),
        lambda: f"pad of {data} by {pads}: more is cropped than there is",
    )
    return (TensorType(shape, data.dtype),)


@op("pad", kind="injective", infer=_infer_pad)
def pad(c: OpCall) -> Tensor:
    """T_pad(i...) = x where there is data, else the value."""
    (x,) = c.inputs
    return padded(x, ints(c.attrs, "pads"), c.name, literal(c.attrs, "value"), "T_pad")


def _infer_slice(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, extents = present(types), ints(attrs, "extents")
    begins, steps = ints(attrs, "begins"), ints(attrs, "steps")
    for d, extent in enumerate(data.shape):
        ends = begins[d], begins[d] + (extents[d] - 1) * steps[d]
        low, high = ends if steps[d] >= 0 else ends[::-1]
        require(
            always_empty(extents[d : d + 1]) or (low >= 0 and high < extent),
            lambda d=d: (
                f"slice of {data}: begin {begins[d]}, extent {extents[d]}, step {steps[d]} "
                f"leaves dimension {d}"
            ),
        )
    return (TensorType(extents, data.dtype),)


def _sliced(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    data, parts = present(arrays), list[slice]()
    for begin, step, extent in zip(*(ints(attrs, k) for k in _CUT), strict=True):
        end = begin + extent * step
        parts.append(slice(begin, end if end >= 0 else None, step) if extent else slice(0))
    return (np.array(data[tuple(parts)], order="C"),)


_CUT = ("begins", "steps", "extents")


@op("slice", kind="injective", infer=_infer_slice, numpy=_sliced)
def strided_slice(c: OpCall) -> Tensor:
    """T_slice(i...) = x[begins + i * steps]."""
    (x,) = c.inputs
    begins, steps = ints(c.attrs, "begins"), ints(c.attrs, "steps")

    def body(*i: Expr) -> Expr:
        return x[tuple(a * s + b for a, b, s in zip(i, begins, steps, strict=True))]

    return c.stage(body)


def _infer_gather(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, indices, axis = present(types), present(types, 1), integer(attrs, "axis")
    require(
        indices.dtype in INDEX_TYPES and axis < len(data.shape),
        lambda: f"gather from {data} along {axis}: expected integer indices, got {indices}",
    )
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    return (TensorType(shape, data.dtype),)


def _taken(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    return (np.take(present(arrays), present(arrays, 1), axis=integer(attrs, "axis")),)


@op("gather", kind="injective", infer=_infer_gather, numpy=_taken)
def gather(c: OpCall) -> Tensor:
    """T_gather(a..., i..., b...) = x[a..., indices[i...], b...]; negative ones from the end."""
    x, indices = c.inputs
    axis, rank = integer(c.attrs, "axis"), len(indices.shape)

    def body(*i: Expr) -> Expr:
        slot = slot_of(indices[i[axis : axis + rank]], indices, x.shape[axis])
        return x[(*i[:axis], slot, *i[axis + rank :])]

    return c.stage(body)


def _infer_broadcast(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, shape = present(types), ints(attrs, "shape")
    fits = len(data.shape) <= len(shape) and all(
        always_equal(extent, 1) or extent in (wanted, 1)
        for extent, wanted in zip(data.shape[::-1], shape[::-1], strict=False)
    )
    require(fits, lambda: f"broadcast of {data} to {list(shape)}: the extents do not fit")
    return (TensorType(shape, data.dtype),)


def _broadcast(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    return (np.array(np.broadcast_to(present(arrays), ints(attrs, "shape")), order="C"),)


@op("broadcast_to", kind="injective", infer=_infer_broadcast, numpy=_broadcast)
def broadcast_to(c: OpCall) -> Tensor:
    """T_broadcast(i...) = x[i...], dimensions of extent 1 read at 0."""
    (x,) = c.inputs
    return c.stage(lambda *i: c.read(x, i))
