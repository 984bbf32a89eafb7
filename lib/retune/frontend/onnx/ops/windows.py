"""Sliding windows with explicit pads, from ONNX's auto_pad and ceil_mode; and convolution.

Data of one spatial dimension becomes images of height 1 on the way: `to_image`, `from_image`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from retune.core.dims import is_fixed
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAttributes:
    """A sliding window, one entry each spatial dimension; pads are (begins..., ends...)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    stated_pads: tuple[int, ...]
    """The pads before ceil_mode extended them."""

    def flat(self) -> "WindowAttributes":
        """A one-dimensional window as a two-dimensional one of height 1."""
        if len(self.kernel) != 1:
            return self
        return WindowAttributes(
            kernel=(1, *self.kernel),
            strides=(1, *self.strides),
            dilations=(1, *self.dilations),
            pads=(0, self.pads[0], 0, self.pads[1]),
            stated_pads=(0, self.stated_pads[0], 0, self.stated_pads[1]),
        )


def window_of(node: OnnxNode, extents: Sequence[int], kernel: tuple[int, ...]) -> WindowAttributes:
    """The node's window over data of these spatial extents. Raises: ModelError."""
    rank = len(extents)
    strides = node.ints("strides", (1,) * rank)
    dilations = node.ints("dilations", (1,) * rank)
    pads = node.ints("pads", (0,) * (2 * rank))
    check_entries(rank, kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads)
    covered = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    stated = _auto_pads(node.text("auto_pad", "NOTSET"), extents, covered, strides, pads)
    ends = stated[rank:]
    if node.integer("ceil_mode", 0):
        ends = tuple(
            _ceil_end(extents[d], covered[d], strides[d], stated[d], stated[d + rank])
            for d in range(rank)
        )
    return WindowAttributes(
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=(*stated[:rank], *ends),
        stated_pads=stated,
    )


def check_entries(rank: int, **stated: Sequence[int]) -> None:
    """Raises: ModelError for a list without an entry for each dimension; pads have two."""
    for what, items in stated.items():
        count = 2 * rank if what == "pads" else rank
        if len(items) != count:
            raise ModelError(
                f"{what} {list(items)} has {len(items)} entries; expected {count} for data with "
                f"{rank} spatial dimensions"
            )


def _auto_pads(
    mode: str,
    extents: Sequence[int],
    covered: Sequence[int],
    strides: Sequence[int],
    pads: tuple[int, ...],
) -> tuple[int, ...]:
    match mode:
        case "NOTSET" | "":
            return pads
        case "VALID":
            return (0,) * len(pads)
        case "SAME_UPPER" | "SAME_LOWER":
            totals = [
                max(0, (-(-extent // s) - 1) * s + window - extent)
                for extent, window, s in zip(extents, covered, strides, strict=True)
            ]
            small = tuple(total // 2 for total in totals)
            large = tuple(total - total // 2 for total in totals)
            return (*small, *large) if mode == "SAME_UPPER" else (*large, *small)
        case _:
            raise ModelError(
                f"auto_pad '{mode}' is not known; expected NOTSET, VALID, SAME_UPPER or SAME_LOWER"
            )


def _ceil_end(extent: int, covered: int, stride: int, begin: int, end: int) -> int:
    """The end padding that makes rounding down give ceil_mode's extent.

    Of an extent that depends on sizes it is the most that any of them needs.
    """
    if not is_fixed(extent) and end + stride <= covered:  # no window starts in it
        return end + stride - 1
    count = -(-(extent + begin + end - covered) // stride) + 1
    if (count - 1) * stride >= extent + begin:  # a window may not start in the end padding
        count -= 1
    return max(0, (count - 1) * stride + covered - extent - begin)


def to_image(emit: Emitter, value: str) -> str:
    """[N, C, L] as [N, C, 1, L]; anything else as it is."""
    shape = emit.shape(value)
    return emit.reshaped(value, (*shape[:2], 1, shape[2])) if len(shape) == 3 else value


def from_image(emit: Emitter, value: str, rank: int) -> str:
    """The inverse of `to_image`, for data of that many spatial dimensions."""
    return emit.reshaped(value, without_height(emit.shape(value))) if rank == 1 else value


def without_height(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[N, C, 1, L] as [N, C, L]."""
    return (*shape[:2], *shape[3:])


def spatial_extents(emit: Emitter, value: str) -> tuple[int, ...]:
    """The spatial extents of data [N, C, ...]. Raises: ModelError for other than one to three."""
    shape = emit.shape(value)
    if len(shape) not in (3, 4, 5):
        raise ModelError(
            f"data '{value}' is {emit.type(value)}; expected 3, 4 or 5 dimensions (N, C, spatial)"
        )
    return shape[2:]


def data_layout(rank: int) -> str:
    """The layout of images, or of volumes."""
    return "NCDHW" if rank == 3 else "NCHW"


def convolution_of(
    emit: Emitter, data: str, kernel: str, window: WindowAttributes, groups: int
) -> "Call":
    """The graph op that convolves images or volumes with the kernel, and its attributes.

    One group for each channel is depthwise.
    """
    rank, channels = len(window.kernel), emit.shape(data)[1]
    attrs: dict[str, Any] = {
        "strides": window.strides,
        "pads": window.pads,
        "dilations": window.dilations,
        "layout": data_layout(rank),
    }
    if rank == 2 and groups == channels > 1 and emit.shape(kernel)[1] == 1:
        return "depthwise_conv2d", attrs
    return "conv3d" if rank == 3 else "conv2d", {**attrs, "groups": groups}


@onnx_op("Conv", limits="1 to 3 spatial dimensions")
def conv(node: OnnxNode, emit: Emitter) -> None:
    """Convolution, its bias as an addition."""
    bias = node.inputs[2] if node.has_input(2) else ""
    convolve(node, emit, (node.inputs[0], node.inputs[1], bias), emit.out)


T = TypeVar("T")

Call = tuple[str, dict[str, Any]]
"""A graph op and its attributes."""


def convolve(
    node: OnnxNode, emit: Emitter, inputs: tuple[str, str, str], put: Callable[..., T]
) -> T:
    """Data, kernel and bias ('' for none) convolved by the node's attributes.

    One group for each channel is depthwise. `put` (`emit.temp` or `emit.out`) makes the last op.
    """
    data, kernel, bias = inputs
    (op, attrs), sources = convolution(node, emit, data, kernel)
    rank = len(emit.shape(data)) - 2
    if not bias and rank > 1:
        return put(op, *sources, **attrs)
    result = emit.temp(op, *sources, label="conv", **attrs)
    return finished(emit, result, bias, rank, put)


def convolution(
    node: OnnxNode, emit: Emitter, data: str, kernel: str
) -> tuple[Call, tuple[str, str]]:
    """What convolves images or volumes by the node's attributes, and these: data and kernel."""
    extents = spatial_extents(emit, data)
    taps = emit.shape(kernel)[2:]
    if node.ints("kernel_shape", taps) != taps:
        raise ModelError(
            f"kernel_shape {list(node.ints('kernel_shape', taps))} contradicts the weight "
            f"'{kernel}' of shape {list(emit.shape(kernel))}"
        )
    window = window_of(node, extents, taps).flat()
    sources = to_image(emit, data), to_image(emit, kernel)
    return convolution_of(emit, *sources, window, node.integer("group", 1)), sources


def finished(emit: Emitter, result: str, bias: str, rank: int, put: Callable[..., T]) -> T:
    """Convolved images with a bias ('' for none), as data of so many spatial dimensions.

    There has to be a bias, or one dimension; `put` makes the last op.
    """
    if bias:
        made = emit.shape(bias)
        shaped = emit.reshaped(bias, (1, *made, *[1] * max(rank, 2)))
        if rank > 1:
            return put("add", result, shaped)
        result = emit.temp("add", result, shaped)
    return put("reshape", result, shape=without_height(emit.shape(result)))
