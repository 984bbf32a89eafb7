"""Images whose channels lie in blocks, and what an accelerator makes of them: NCHWnc, OIHWoi.

Data is [N/b, C/c, H, W, b, c] and a weight [O/c, C/c, KH, KW, c, c]: `b` images and `c` channels
lie together, as a tensor core takes them. `pack_blocks` and `unpack_blocks` lead there and back;
channels that are missing in the last block are zero. What is between them computes with int8 and
sums in int32, and has one scale for all channels, so that shifts alone rescale.

Source: TVM's graph pack for VTA, in other words.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import INT8, INT32, TensorType
from retune.ops.convolution import conv2d, conv_transpose, transposed_extents
from retune.ops.registry import Array, Attrs, integer, ints, op, present
from retune.ops.shapes import channels, data_shape, require, spatial, window_extent
from retune.ops.windows import from_channels_first, to_channels_first

OFFLOADED = "offload"
"""The kind of ops that an accelerator runs by itself, each with all that follows its sums."""
BLOCKED_CONV = "blocked_conv2d"
"""The op of that kind."""
_PLAIN: Attrs = {"dilations": (1, 1), "groups": 1, "layout": "NCHW"}
"""What all of them have, as attributes of a convolution."""


def blocks(extent: int, block: int) -> int:
    """Blocks that the elements fill; the last one may have some to spare."""
    return -(-extent // block)


def _infer_pack(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, layout = present(types), str(attrs["layout"])
    batch, block = integer(attrs, "batch"), integer(attrs, "block")
    require(
        len(data.shape) == 4 and data.shape[0] % batch == 0,
        lambda: f"blocks of {data}: expected images whose number is a multiple of {batch}",
    )
    count = blocks(channels(data.shape, layout), block)
    shape = (data.shape[0] // batch, count, *spatial(data.shape, layout), batch, block)
    return (TensorType(shape, data.dtype),)


@op("pack_blocks", kind="injective", infer=_infer_pack)
def pack_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """Images in the layout of the attribute, in blocks of `batch` images and `block` channels."""
    data = to_channels_first(present(arrays), str(attrs["layout"]))
    return (in_blocks(data, integer(attrs, "batch"), integer(attrs, "block")),)


def in_blocks(data: Array, batch: int, block: int) -> Array:
    """[N, C, H, W] as [N/batch, C/block, H, W, batch, block]; missing channels are zero."""
    missing = -data.shape[1] % block
    whole = np.pad(data, ((0, 0), (0, missing), (0, 0), (0, 0)))
    n, c, h, w = whole.shape
    parts = whole.reshape(n // batch, batch, c // block, block, h, w)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 1, 3))


def weight_in_blocks(weight: Array, block: int) -> Array:
    """[O, I, KH, KW] as [O/block, I/block, KH, KW, block, block]; missing channels are zero."""
    o, i, *_ = weight.shape
    whole = np.pad(weight, ((0, -o % block), (0, -i % block), (0, 0), (0, 0)))
    o, i, h, w = whole.shape
    parts = whole.reshape(o // block, block, i // block, block, h, w)
    return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 1, 3))


def bias_in_blocks(bias: Array, batch: int) -> Array:
    """[O/block, block] as an accelerator adds it to sums: of several images the same for each,
    [O/block, batch, block]."""
    if batch == 1:
        return bias
    return np.ascontiguousarray(np.broadcast_to(bias[:, None], (len(bias), batch, bias.shape[1])))


def _infer_unpack(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, count = present(types), integer(attrs, "channels")
    require(
        len(data.shape) == 6 and blocks(count, data.shape[-1]) == data.shape[1],
        lambda: f"{count} channels of {data}: expected images in blocks of channels, that many",
    )
    images = data.shape[0] * data.shape[4]
    shape = data_shape(images, count, data.shape[2:4], str(attrs["layout"]))
    return (TensorType(shape, data.dtype),)


@op("unpack_blocks", kind="injective", infer=_infer_unpack)
def unpack_blocks(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """The first `channels` channels of images in blocks, in the layout of the attribute."""
    data, count = present(arrays), integer(attrs, "channels")
    return (from_channels_first(out_of_blocks(data)[:, :count], str(attrs["layout"])),)


def out_of_blocks(data: Array) -> Array:
    """[N/b, C/c, H, W, b, c] as [N, C, H, W], and a weight as [O, I, KH, KW]."""
    n, c, h, w, batch, block = data.shape
    return data.transpose(0, 4, 1, 5, 2, 3).reshape(n * batch, c * block, h, w)


def _infer_conv(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, weight, bias, *rest = (present(types, i) for i in range(len(types)))
    require(
        len(data.shape) == len(weight.shape) == 6
        and weight.shape[1] == data.shape[1]
        and weight.shape[4] == weight.shape[5] == data.shape[5]
        and (data.dtype, weight.dtype, bias.dtype) == (INT8, INT8, INT32)
        and bias.shape
        == (weight.shape[0], *(data.shape[4:] if data.shape[4] > 1 else data.shape[5:])),
        lambda: (
            f"blocked convolution of {data} with {weight} and bias {bias}: expected int8 in equal "
            "blocks, and an int32 for each output channel, of each image of a block"
        ),
    )
    extents = _extents(data.shape[2:4], weight.shape[2:4], attrs)
    made = TensorType((data.shape[0], weight.shape[0], *extents, *data.shape[4:]), INT8)
    require(
        min(extents) > 0 and all(other == made for other in rest),
        lambda: (
            f"blocked convolution of {data} with {weight} to {made}: expected a kernel no larger "
            f"than the data, and as many in what is added; got {', '.join(map(str, rest))}"
        ),
    )
    return (made,)


def is_transposed(attrs: Attrs) -> bool:
    """Whether it is the transpose of a convolution, whose pads are cut off its result."""
    return bool(attrs.get("transposed", False))


def _extents(extents: Sequence[int], taps: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
    if is_transposed(attrs):
        return transposed_extents(extents, taps, {**attrs, **_PLAIN})
    strides, pads = ints(attrs, "strides"), ints(attrs, "pads")
    return tuple(
        window_extent(extents[d], taps[d], strides[d], 1, pads[d] + pads[d + 2]) for d in range(2)
    )


@op(BLOCKED_CONV, kind=OFFLOADED, infer=_infer_conv)
def blocked_conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """int8(clip((convolution + bias) >> shift)), and the sum with another image, if there is one.

    The sum is clip(((a << lefts[0]) + (b << lefts[1]) + offset) >> sum_shift). With `transposed`
    it is the transpose of a convolution.
    """
    data, weight, bias, *rest = (present(arrays, i) for i in range(len(arrays)))
    batch, block = data.shape[4:]
    plain = out_of_blocks(data), out_of_blocks(weight)
    call = conv_transpose if is_transposed(attrs) else conv2d
    (total,) = call(plain, {**attrs, **_PLAIN})
    sums = in_blocks(total, batch, block) + bias.reshape(len(bias), 1, 1, -1, block)
    found = np.clip(sums >> integer(attrs, "shift"), integer(attrs, "min"), integer(attrs, "max"))
    for other in rest:
        left, right = ints(attrs, "lefts")
        both = (found << left) + (other.astype(np.int32) << right) + integer(attrs, "offset")
        low, high = integer(attrs, "sum_min"), integer(attrs, "sum_max")
        found = np.clip(both >> integer(attrs, "sum_shift"), low, high)
    return (found.astype(np.int8),)
