"""Normalisation: softmax over one axis, local response over channels, own and batch statistics."""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import TensorType
from retune.ops.registry import Array, Attrs, integer, ints, number, op, present
from retune.ops.shapes import require, same_type


@op("softmax", kind="reduction", infer=same_type)
def softmax(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """exp(x - max) / sum over `axis`; NaN where all of it is -inf."""
    data, axis = present(arrays), integer(attrs, "axis")
    with np.errstate(invalid="ignore"):
        power = np.exp(data - data.max(axis=axis, keepdims=True))
        return (power / power.sum(axis=axis, keepdims=True),)


@op("log_softmax", kind="reduction", infer=same_type)
def log_softmax(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """x - max - log(sum of exp(x - max)) over `axis`; NaN where all of it is -inf."""
    data, axis = present(arrays), integer(attrs, "axis")
    with np.errstate(invalid="ignore"):
        shifted = data - data.max(axis=axis, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


@op("standardise", kind="reduction", infer=same_type)
def standardise(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """(x - mean) / sqrt(mean of squares + epsilon) over `axes`; the mean only if `centred`."""
    data, axes = present(arrays), ints(attrs, "axes")
    if attrs["centred"]:
        data = data - data.mean(axis=axes, keepdims=True, dtype=data.dtype)
    square = np.square(data).mean(axis=axes, keepdims=True, dtype=data.dtype)
    return ((data / np.sqrt(square + number(attrs, "epsilon"))).astype(data.dtype, copy=False),)


@op("lrn", kind="reduction", infer=same_type)
def lrn(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """x / (bias + alpha / size * sum of squares of `size` neighbours along `axis`) ** beta."""
    data, size, axis = present(arrays), integer(attrs, "size"), integer(attrs, "axis")
    channels = data.shape[axis]
    before = (size - 1) // 2
    squares = np.moveaxis(np.square(data), axis, 0)
    padded = np.pad(squares, [(before, size - 1 - before)] + [(0, 0)] * (data.ndim - 1))
    total = np.zeros_like(squares)
    for tap in range(size):
        total += padded[tap : tap + channels]
    scale = number(attrs, "bias") + number(attrs, "alpha") / size * np.moveaxis(total, 0, axis)
    return ((data / scale ** number(attrs, "beta")).astype(data.dtype, copy=False),)


def _infer_batch_norm(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data = present(types)
    channels = data.shape[integer(attrs, "axis")]
    for index in range(1, 5):
        entry = present(types, index)
        require(
            entry.shape == (channels,),
            lambda entry=entry: (
                f"batch_norm of {data}: expected statistics [{channels}], got {entry}"
            ),
        )
    return (data,)


@op("batch_norm", kind="broadcast", infer=_infer_batch_norm)
def batch_norm(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; inputs x, scale, bias, mean, var."""
    data, axis = present(arrays), integer(attrs, "axis")
    shape = [1] * data.ndim
    shape[axis] = data.shape[axis]
    scale, bias, mean, variance = (present(arrays, i).reshape(shape) for i in range(1, 5))
    result = (data - mean) / np.sqrt(variance + number(attrs, "epsilon")) * scale + bias
    return (result.astype(data.dtype, copy=False),)
