"""Operators over channels-last data, as ONNX's over channels-first data between transposes."""

from collections.abc import Callable

from retune.frontend.onnx.ops.contrib.fused import listed_activation, without_activation
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.scope import MICROSOFT


@onnx_op("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(node: OnnxNode, emit: Emitter) -> None:
    """Convolution of NHWC data by a kernel as Conv has it, plus a sum, then an activation."""

    def convolved(images: str) -> str:
        return emit.onnx("Conv", images, *node.inputs[1:3], **without_activation(node))

    made = channels_first(emit, node.inputs[0], convolved)
    if node.has_input(3):
        made = emit.temp("add", made, node.inputs[3], label="sum")
    emit.same(listed_activation(node, emit, made))


@onnx_op("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: OnnxNode, emit: Emitter) -> None:
    """MaxPool of NHWC data."""
    emit.same(channels_first(emit, node.inputs[0], lambda x: emit.onnx("MaxPool", x, **node.attrs)))


def channels_first(emit: Emitter, data: str, make: Callable[[str], str]) -> str:
    """What `make` makes of NHWC data, if it reads and makes NCHW: transposed before and after."""
    rank = len(emit.shape(data))
    first = (0, rank - 1, *range(1, rank - 1))
    last = (0, *range(2, rank), 1)
    made = make(emit.temp("transpose", data, label="first", perm=first))
    return emit.temp("transpose", made, label="last", perm=last)
