"""To and from images in blocks of channels, as loops: see `graph.ops.blocked`.

What an accelerator computes between them has its own expressions there.
"""

from retune.ir.expr import Expr, const, select
from retune.ir.te import Tensor, compute
from retune.ops.blocked import blocks
from retune.ops.registry import integer
from retune.ops.shapes import channels
from retune.ops.tensors.convolution import split_axes
from retune.ops.tensors.registry import OpCall, tensors_of

AXES = ("bo", "co", "yy", "xx", "bi", "ci")
"""Of data in blocks."""


@tensors_of("pack_blocks")
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
        inside = data[_place(layout, image, yy, xx, channel)]
        if count == blocks(count, block) * block:
            return inside
        return select(channel < count, inside, const(0, data.dtype))

    return compute(c.name("T_pack_blocks"), c.output.shape, body, [data], axes=list(AXES))


@tensors_of("unpack_blocks")
def unpack_blocks(c: OpCall) -> Tensor:
    """T_unpack_blocks(nn, yy, xx, cc) = data[nn // b, cc // c, yy, xx, nn % b, cc % c]."""
    (data,) = c.inputs
    layout, (batch, block) = str(c.attrs["layout"]), data.shape[4:]

    def body(*i: Expr) -> Expr:
        image, (yy, xx), channel = split_axes(i, layout)
        return data[image // batch, channel // block, yy, xx, image % batch, channel % block]

    return compute(c.name("T_unpack_blocks"), c.output.shape, body, [data])


def _place(layout: str, image: Expr, yy: Expr, xx: Expr, channel: Expr) -> tuple[Expr, ...]:
    return (image, yy, xx, channel) if layout == "NHWC" else (image, channel, yy, xx)
