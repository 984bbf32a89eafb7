"""Shape rules that several op families share."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from retune.core.dims import always_equal, always_same, example, is_fixed
from retune.core.dtypes import BOOL, DType, TensorType
from retune.core.errors import ModelError
from retune.ops.registry import Attrs, present

CHANNELS_LAST = ("NHWC", "NDHWC", "NWC")
"""Data layouts whose last dimension is the channel."""


def same_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """One output of the first input's type."""
    return (present(types),)


def broadcast_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """One output of the inputs' common shape, by numpy's rules. Raises: ModelError."""
    return (TensorType(common_shape(types), mixed_type(types)),)


def mixed_type(types: Sequence[TensorType | None]) -> DType:
    """The element type of what is made of such values: the first one's.

    Floats of one compute type may be mixed: the result is stored as the one of fewest bits, so that
    a bias of float32 leaves a feature map of bfloat16 as it is. A cast says otherwise.
    """
    first: DType = present(types).dtype
    alike = [t.dtype for t in types if t is not None and t.dtype.compute is first.compute]
    return min(alike, key=lambda dtype: dtype.bits) if first.is_float else first


def compare_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """As `broadcast_type`, with truth values."""
    return (TensorType(common_shape(types), BOOL),)


def common_shape(types: Sequence[TensorType | None]) -> tuple[int, ...]:
    """The shape that all inputs broadcast to. Raises: ModelError naming the shapes."""
    shapes = [entry.shape for entry in types if entry is not None]
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        raise ModelError(
            f"shapes {' and '.join(map(str, shapes))} do not broadcast; expected equal extents, or "
            "1, counted from the last dimension"
        ) from None


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all of them broadcast to, by numpy's rules. Raises: ValueError."""
    if all(is_fixed(extent) for shape in shapes for extent in shape):
        return tuple(np.broadcast_shapes(*shapes))
    made = [1] * max(map(len, shapes))
    for shape in shapes:
        for d in range(-len(shape), 0):
            made[d] = _broadcast(made[d], shape[d])
    return tuple(made)


def _broadcast(a: int, b: int) -> int:
    """The extent of both. What is fixed is asked about first, so that few conditions are noted."""
    if always_equal(a, b) or always_equal(b, 1):
        return a
    if always_equal(a, 1):
        return b
    if is_fixed(a) and is_fixed(b):
        raise ValueError("different extents")
    wide, narrow = (a, b) if is_fixed(a) else (b, a)
    if is_fixed(wide) and narrow == 1:
        return wide
    if a == b:
        return wide
    if b == 1 or a == 1:
        return a if b == 1 else b
    raise ValueError("different extents")


def require(condition: bool, message: Callable[[], str]) -> None:
    """Nothing, when the condition holds. Raises: ModelError with the message."""
    if not condition:
        raise ModelError(message())


def window_extent(extent: int, kernel: int, stride: int, dilation: int, pads: int) -> int:
    """Positions of a dilated window over `extent` elements padded by `pads` in all.

    Zero or less where not even one window fits.
    """
    return (extent + pads - (kernel - 1) * dilation - 1) // stride + 1


def spatial(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """The spatial extents of a data shape."""
    return tuple(shape[1:-1]) if layout in CHANNELS_LAST else tuple(shape[2:])


def channels(shape: Sequence[int], layout: str) -> int:
    """The channel extent of a data shape."""
    return shape[-1] if layout in CHANNELS_LAST else shape[1]


def data_shape(batch: int, channel: int, extents: Sequence[int], layout: str) -> tuple[int, ...]:
    """The shape of data in that layout: (batch, *extents, channel), or the channel second."""
    if layout in CHANNELS_LAST:
        return (batch, *extents, channel)
    return (batch, channel, *extents)


def without_ones(shape: Sequence[int]) -> list[int]:
    """The extents but those that are 1 for all sizes."""
    return [extent for extent in shape if not always_equal(extent, 1)]


def same_but_ones(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether the shapes have the same extents, ones left out, for all sizes."""
    return always_same(without_ones(a), without_ones(b))


def same_blocks(left: Sequence[int], right: Sequence[int]) -> list[tuple[range, range]]:
    """Neighbouring dimensions of two shapes with as many elements, in small parts.

    In the smallest ones, but where extents depend on sizes in ways that do not show it.
    """
    found: list[tuple[range, range]] = []
    a = b = 0
    while a < len(left) or b < len(right):
        i, j = a, b
        a, b = min(a + 1, len(left)), min(b + 1, len(right))
        while not always_equal(one := prod(left[i:a]), other := prod(right[j:b])):
            if a == len(left) and b == len(right):
                break
            if b == len(right) or (a < len(left) and _is_part(one, other)):
                a += 1
            else:
                b += 1
        found.append((range(i, a), range(j, b)))
    return found


def _is_part(one: int, other: int) -> bool:
    """Whether the first number of elements is the smaller one; by the sizes at hand if that depends
    on them, as no more than the size of the parts does."""
    if is_fixed(one) and is_fixed(other):
        return one < other
    return example(one) < example(other)
