"""Shape rules that several op families share."""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from retune.core.dtypes import BOOL, TensorType
from retune.core.errors import ModelError
from retune.ops.registry import Attrs, present

CHANNELS_LAST = ("NHWC", "NDHWC", "NWC")
"""Data layouts whose last dimension is the channel."""


def same_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """One output of the first input's type."""
    return (present(types),)


def broadcast_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """One output of the inputs' common shape, by numpy's rules. Raises: ModelError."""
    return (TensorType(common_shape(types), present(types).dtype),)


def compare_type(types: Sequence[TensorType | None], _: Attrs) -> tuple[TensorType, ...]:
    """As `broadcast_type`, with truth values."""
    return (TensorType(common_shape(types), BOOL),)


def common_shape(types: Sequence[TensorType | None]) -> tuple[int, ...]:
    """The shape that all inputs broadcast to. Raises: ModelError naming the shapes."""
    shapes = [entry.shape for entry in types if entry is not None]
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise ModelError(
            f"shapes {' and '.join(map(str, shapes))} do not broadcast; expected equal extents, or "
            "1, counted from the last dimension"
        ) from None


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


def same_blocks(left: Sequence[int], right: Sequence[int]) -> list[tuple[range, range]]:
    """Neighbouring dimensions of two shapes with as many elements, in the smallest parts."""
    found: list[tuple[range, range]] = []
    a = b = 0
    while a < len(left) or b < len(right):
        i, j = a, b
        a, b = min(a + 1, len(left)), min(b + 1, len(right))
        while prod(left[i:a]) != prod(right[j:b]):
            if prod(left[i:a]) < prod(right[j:b]):
                a += 1
            else:
                b += 1
        found.append((range(i, a), range(j, b)))
    return found
