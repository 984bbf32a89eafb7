"""Elements read at other places: repeated, continued past the edges, resampled, sampled, unpacked.

Read `resample` first. The kind of these ops is that of reductions, for what it says of fusion:
element-wise ops that follow are computed together with them. Places are int32 indices that lie
inside of the data.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.core.dtypes import INT32, TensorType
from retune.ops.registry import Array, Attrs, integer, ints, op, present
from retune.ops.shapes import channels, data_shape, require, spatial
from retune.ops.windows import from_channels_first, to_channels_first


def _infer_repeat(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, repeats = present(types), ints(attrs, "repeats")
    require(
        len(repeats) == len(data.shape) and min(repeats, default=1) > 0,
        lambda: f"repeat of {data} {repeats} times: expected a positive number each dimension",
    )
    made = tuple(extent * times for extent, times in zip(data.shape, repeats, strict=True))
    return (TensorType(made, data.dtype),)


@op("repeat", kind="reduction", infer=_infer_repeat)
def repeat(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Each element as often as `repeats` says of the dimension, one beside the other."""
    data = present(arrays)
    for axis, times in enumerate(ints(attrs, "repeats")):
        data = np.repeat(data, times, axis) if times > 1 else data
    return (data,)


def _infer_extend(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, pads, mode = present(types), ints(attrs, "pads"), str(attrs["mode"])
    rank = len(data.shape)
    for d, extent in enumerate(data.shape):
        reach = extent_reach(extent, mode)
        require(
            all(
                pads[side] >= 0 and (reach is None or pads[side] <= reach) for side in (d, d + rank)
            ),
            lambda d=d, reach=reach: (
                f"extend ({mode}) of {data} by {pads}: expected at most {reach} elements on each "
                f"side of dimension {d}, and none cropped"
            ),
        )
    shape = tuple(extent + pads[d] + pads[d + rank] for d, extent in enumerate(data.shape))
    return (TensorType(shape, data.dtype),)


def extent_reach(extent: int, mode: str) -> int | None:
    """How far `extend` goes past an edge of so many elements; None: as far as one likes."""
    if mode == "edge":
        return None if extent else 0
    return max(0, extent - 1) if mode == "reflect" else extent


@op("extend", kind="reduction", infer=_infer_extend)
def extend(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The data and, past its edges, the same again; pads = (begins..., ends...), `mode` says how.

    edge: the last element. reflect: mirrored at it. wrap: from the other side.
    """
    data, pads = present(arrays), ints(attrs, "pads")
    widths = list(zip(pads[: data.ndim], pads[data.ndim :], strict=True))
    mode = str(attrs["mode"])
    assert mode in ("edge", "reflect", "wrap")
    return (np.pad(data, widths, mode=mode),)


def _infer_resample(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, axes = present(types), ints(attrs, "axes")
    shape = list(data.shape)
    for position, axis in enumerate(axes):
        places, weights = present(types, 1 + 2 * position), present(types, 2 + 2 * position)
        _check_tables(data, places, weights)
        require(
            len(places.shape) == 2,
            lambda places=places: f"resample of {data}: expected places [n, taps], got {places}",
        )
        shape[axis] = places.shape[0]
    return (TensorType(tuple(shape), data.dtype),)


def _check_tables(data: TensorType, places: TensorType, weights: TensorType) -> None:
    fits = places.dtype == INT32 and weights.dtype == data.dtype
    require(
        fits and places.shape == weights.shape,
        lambda: (
            f"sampling {data}: expected places of type int32 and as many weights of type "
            f"{data.dtype}, got {places} and {weights}"
        ),
    )


@op("resample", kind="reduction", infer=_infer_resample)
def resample(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Along each of `axes`, weighted sums of a few elements.

    Inputs: the data, then for each axis places int32 [n, taps] and weights [n, taps]; element i of
    the result is the sum over k of weights[i, k] * data[places[i, k]].
    """
    data = present(arrays)
    for position, axis in enumerate(ints(attrs, "axes")):
        places, weights = present(arrays, 1 + 2 * position), present(arrays, 2 + 2 * position)
        sides = [-1 if d == axis else 1 for d in range(data.ndim)]
        shape = (*data.shape[:axis], len(places), *data.shape[axis + 1 :])
        total = np.zeros(shape, data.dtype)
        for k in range(places.shape[1]):
            total += np.take(data, places[:, k], axis, mode="clip") * weights[:, k].reshape(sides)
        data = total
    return (data,)


def _infer_sample(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, places, weights = (present(types, index) for index in range(3))
    axis = integer(attrs, "axis")
    _check_tables(data, places, weights)
    require(
        len(data.shape) == 3 and len(places.shape) == 3 and places.shape[0] in (1, data.shape[0]),
        lambda: (
            f"sample of {data}: expected three dimensions, and places [batch or 1, points, taps]; "
            f"got {places}"
        ),
    )
    shape = tuple(places.shape[1] if d == axis else e for d, e in enumerate(data.shape))
    return (TensorType(shape, data.dtype),)


@op("sample", kind="reduction", infer=_infer_sample)
def sample(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """For each point, and in all channels, a weighted sum of a few positions.

    Inputs: data [n, c, positions] (axis 2) or [n, positions, c] (axis 1), places int32 and weights
    [n or 1, points, taps]. The points take the place of the positions.
    """
    data, places, weights = (present(arrays, index) for index in range(3))
    axis = integer(attrs, "axis")
    places = np.clip(places, 0, data.shape[axis] - 1)
    other = 3 - axis
    shape = [*data.shape]
    shape[axis] = places.shape[1]
    total = np.zeros(shape, data.dtype)
    for k in range(places.shape[2]):
        at = np.broadcast_to(np.expand_dims(places[:, :, k], other), shape)
        values = np.take_along_axis(data, at, axis)
        total += values * np.expand_dims(weights[:, :, k], other)
    return (total,)


def _infer_unpack(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    blocks, groups = ints(attrs, "blocks"), integer(attrs, "groups")
    begins, extents = ints(attrs, "begins"), ints(attrs, "extents")
    packed = channels(data.shape, layout)
    made = packed // prod(blocks)
    within = all(
        begin >= 0 and begin + count <= extent * block
        for begin, count, extent, block in zip(
            begins, extents, spatial(data.shape, layout), blocks, strict=True
        )
    )
    require(
        packed == made * prod(blocks) and made % groups == 0 and within,
        lambda: (
            f"depth_to_space of {data} ({layout}) in {groups} groups and blocks {blocks}, from "
            f"{begins} to {extents}: the shapes do not fit"
        ),
    )
    return (TensorType(data_shape(data.shape[0], made, extents, layout), data.dtype),)


@op("depth_to_space", kind="reduction", infer=_infer_unpack)
def depth_to_space(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Channels become blocks of positions, of which `extents` are left from `begins` on.

    Channels are (group, position in the block, channel of the group): one group is the order that
    ONNX calls DCR, a group for each resulting channel is CRD.
    """
    layout, blocks, groups = str(attrs["layout"]), ints(attrs, "blocks"), integer(attrs, "groups")
    data = to_channels_first(present(arrays), layout)
    batch, packed, *extents = data.shape
    rank, each = len(blocks), packed // (prod(blocks) * groups)
    parts = data.reshape(batch, groups, *blocks, each, *extents)
    pairs = [axis for d in range(rank) for axis in (3 + rank + d, 2 + d)]
    moved = parts.transpose(0, 1, 2 + rank, *pairs)
    whole = moved.reshape(
        batch, groups * each, *(e * b for e, b in zip(extents, blocks, strict=True))
    )
    kept = tuple(
        slice(begin, begin + count)
        for begin, count in zip(ints(attrs, "begins"), ints(attrs, "extents"), strict=True)
    )
    result = np.ascontiguousarray(whole[(slice(None), slice(None), *kept)])
    return (from_channels_first(result, layout),)
