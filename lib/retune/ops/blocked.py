"""Images whose channels lie in blocks, and what an accelerator makes of them: NCHWnc, OIHWoi.

Data is [N/b, C/c, H, W, b, c] and a weight [O/c, C/c, KH, KW, c, c]: `b` images and `c` channels
lie together, as a tensor core takes them. `pack_blocks` and `unpack_blocks` lead there and back;
channels that are missing in the last block are zero. What is between them computes with int8 and
sums in int32, and has one scale for all channels, so that shifts alone rescale.

Source: TVM's graph pack for VTA, in other words.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.dtypes import INT8, INT32, Array, TensorType
from retune.ir.expr import Expr, const, select
from retune.ir.te import Tensor
from retune.ops.convolution import data_index, split_axes, transposed_extents
from retune.ops.registry import Attrs, OpCall, OpDef, integer, ints, lookup, op, present, register
from retune.ops.shapes import channels, data_shape, require, spatial, window_extent

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
def pack_blocks(c: OpCall) -> Tensor:
    """T_pack_blocks(bo, co, yy, xx, bi, ci) = data[bo*b + bi, yy, xx, co*c + ci]."""
    (data,) = c.inputs
    layout, batch, block = (
        str(c.attrs["layout"]),
        integer(c.attrs, "batch"),
        integer(c.attrs, "block"),
    )
    count = channels(data.shape, layout)

    def body(*i: Expr) -> Expr:
        bo, co, yy, xx, bi, ci = i
        image, channel = bo * batch + bi, co * block + ci
        inside = data[data_index(image, (yy, xx), channel, layout)]
        if count == blocks(count, block) * block:
            return inside
        return select(channel < count, inside, const(0, data.dtype))

    return c.stage(body, axes=("bo", "co", "yy", "xx", "bi", "ci"))


def in_blocks(data: Array, batch: int, block: int) -> Array:
    """[N, C, H, W] as [N/batch, C/block, H, W, batch, block]; what is missing is zero.

    So is a weight, whose blocks of outputs stand for those of images.
    """
    missing = -data.shape[0] % batch, -data.shape[1] % block
    whole = np.pad(data, ((0, missing[0]), (0, missing[1]), (0, 0), (0, 0)))
    n, c, h, w = whole.shape
    parts = whole.reshape(n // batch, batch, c // block, block, h, w)
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
def unpack_blocks(c: OpCall) -> Tensor:
    """T_unpack_blocks(nn, yy, xx, cc) = data[nn // b, cc // c, yy, xx, nn % b, cc % c]."""
    (data,) = c.inputs
    layout, (batch, block) = str(c.attrs["layout"]), data.shape[4:]

    def body(*i: Expr) -> Expr:
        image, (yy, xx), channel = split_axes(i, layout)
        return data[image // batch, channel // block, yy, xx, image % batch, channel % block]

    return c.stage(body)


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


def blocked_conv2d(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """int8(clip((convolution + bias) >> shift)), and the sum with another image, if there is one.

    The sum is clip(((a << lefts[0]) + (b << lefts[1]) + offset) >> sum_shift). With `transposed`
    it is the transpose of a convolution.
    """
    data, weight, bias, *rest = (present(arrays, i) for i in range(len(arrays)))
    batch, block = data.shape[4:]
    plain = out_of_blocks(data), out_of_blocks(weight)
    convolution = lookup("conv_transpose" if is_transposed(attrs) else "conv2d")
    (total,) = convolution.reference(plain, {**attrs, **_PLAIN})
    sums = in_blocks(total, batch, block) + bias.reshape(len(bias), 1, 1, -1, block)
    found = np.clip(sums >> integer(attrs, "shift"), integer(attrs, "min"), integer(attrs, "max"))
    for other in rest:
        left, right = ints(attrs, "lefts")
        both = (found << left) + (other.astype(np.int32) << right) + integer(attrs, "offset")
        low, high = integer(attrs, "sum_min"), integer(attrs, "sum_max")
        found = np.clip(both >> integer(attrs, "sum_shift"), low, high)
    return (found.astype(np.int8),)


register(
    OpDef(
        name=BLOCKED_CONV,
        kind=OFFLOADED,
        infer=_infer_conv,
        numpy=blocked_conv2d,
        doc=blocked_conv2d.__doc__ or "",
    )
)
