"""Pad, in all modes: a border of one value, or what the data itself shows past its edges."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.frontend.onnx.ops.windows import from_image, to_image
from retune.ops.images import extent_reach

Mode = Literal["edge", "reflect", "wrap"]
"""How data goes on past its edges."""


@onnx_op("Pad")
@onnx_op("Pad", since=11, limits="pads and value known while importing")
def pad(node: OnnxNode, emit: Emitter) -> None:
    """A border of a value or of the data; pads and value are inputs from opset 11 on."""
    stated, value = emit.listed("pads", 1, "the pads"), node.number("value", 0.0)
    if node.has_input(2):
        value = emit.contents(2, "the value").reshape(()).item()
    rank = len(emit.shape(node.inputs[0]))
    axes = tuple(range(rank))
    if node.has_input(3):
        axes = tuple(positive_axis(axis, rank) for axis in emit.index_list(3, "the axes"))
    if len(stated) != 2 * len(axes):
        raise ModelError(f"{len(stated)} pads for {len(axes)} axes; expected two for each axis")
    pads = [0] * (2 * rank)
    for position, axis in enumerate(axes):
        pads[axis] = stated[position]
        pads[axis + rank] = stated[position + len(axes)]
    _pad(node, emit, pads, value)


def _pad(node: OnnxNode, emit: Emitter, pads: Sequence[int], value: float) -> None:
    data, rank = node.inputs[0], len(emit.shape(node.inputs[0]))
    if rank == 3:  # as the layers beside it
        data, pads = to_image(emit, data), (*pads[:2], 0, *pads[2:5], 0, pads[5])
    mode = node.text("mode", "constant")
    if mode == "constant":
        made = emit.temp("pad", data, pads=tuple(pads), value=value)
    elif mode in ("edge", "reflect", "wrap"):
        made = _extend(emit, data, pads, mode)
    else:
        raise ModelError(f"mode '{mode}' is not known; expected constant, edge, reflect or wrap")
    emit.out("identity", from_image(emit, made, rank - 2))


def _extend(emit: Emitter, data: str, pads: Sequence[int], mode: Mode) -> str:
    """The data, cropped where pads are negative, and continued where they are positive."""
    cropped = tuple(min(0, item) for item in pads)
    if any(cropped):
        data = emit.temp("pad", data, label="cropped", pads=cropped, value=0.0)
    left = [max(0, item) for item in pads]
    shape = emit.shape(data)
    rank = len(shape)
    for d, extent in enumerate(shape):
        widths = (left[d], left[d + rank])
        if not any(widths):
            continue
        reach = extent_reach(extent, mode)
        if reach is None or max(widths) <= reach:
            continue
        if not extent:
            raise ModelError(f"mode '{mode}' of {list(shape)}: dimension {d} has no elements")
        indices = np.pad(np.arange(int(extent), dtype=np.int32), widths, mode=mode)
        data = emit.temp("gather", data, emit.stored("indices", indices), axis=d)
        left[d] = left[d + rank] = 0
    return emit.temp("extend", data, pads=tuple(left), mode=mode)
