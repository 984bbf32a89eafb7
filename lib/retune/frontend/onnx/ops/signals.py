"""Spectra of signals: Fourier transforms as products with a table of cosines and sines.

Read `fourier_table` first. A transform along an axis is one dense layer, the short-time transform
one convolution whose kernels are the table times the window. That takes length ** 2 operations for
each signal instead of length * log(length), but runs at the speed of matrix products; audio front
ends use lengths of some hundreds. Transforms whose table would be too large run on the host.
"""

from math import prod

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.ops import Array
from retune.proto.file import element_type

_AXIS_IS_INPUT = 20
"""The opset from which DFT reads its axis; before it was an attribute, 1 by default."""
LARGEST_TABLE = 1 << 25
"""Elements that a table may have: enough for a complex transform of length 2896."""


@onnx_op("DFT")
@onnx_op("DFT", since=20)
def dft(node: OnnxNode, emit: Emitter) -> None:
    """Along an axis, which is an input from opset 20 on; by default the last but the components."""
    data, axis = node.inputs[0], node.integer("axis", -2 if node.opset >= _AXIS_IS_INPUT else 1)
    if node.has_input(2):
        axis = int(emit.contents(2, "the axis").reshape(()))
    shape = emit.shape(data)
    axis, last = positive_axis(axis, len(shape)), len(shape) - 1
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    length = 2 * (shape[axis] - 1) if inverse and onesided else shape[axis]
    if node.has_input(1):
        length = int(emit.contents(1, "the DFT's length").reshape(()))
    components = _components(shape)
    if _is_too_large(shape[axis], length, components):
        return emit.host()
    table = fourier_table(shape[axis], length, components, inverse=inverse, onesided=onesided)
    made = table.shape[:2]
    matrix = table.reshape(prod(made), -1).astype(emit.type(data).dtype)
    weight = emit.stored("table", matrix)
    outer = [d for d in range(last) if d != axis]
    perm = (*outer, axis, last)
    moved = emit.temp("transpose", data, label="moved", perm=perm)
    rows = emit.reshaped(moved, (prod(shape[d] for d in outer), matrix.shape[1]))
    spectra = emit.temp("dense", rows, weight)
    apart = emit.reshaped(spectra, (*(shape[d] for d in outer), *made))
    return emit.out("transpose", apart, perm=tuple(perm.index(d) for d in range(len(perm))))


@onnx_op("STFT")
def stft(node: OnnxNode, emit: Emitter) -> None:
    """Transforms of the windows that start every frame_step samples: [batch, frames, bins, 2]."""
    data = node.inputs[0]
    batch, samples, components = emit.shape(data)
    window = node.inputs[2] if node.has_input(2) else ""
    length = emit.shape(window)[0] if window else samples
    if node.has_input(3):
        length = int(emit.contents(3, "the frame's length").reshape(()))
    if window and emit.shape(window) != (length,):
        raise ModelError(f"window {emit.type(window)}: expected [{length}], the frame's length")
    step = int(emit.contents(1, "the frame's step").reshape(()))
    onesided = bool(node.integer("onesided", 1))
    if _is_too_large(length, length, _components((components,))):
        return emit.host()
    table = fourier_table(length, length, components, onesided=onesided)
    bins, dtype = table.shape[0], emit.type(data).dtype
    taps = table.reshape(bins * 2, length, components).transpose(0, 2, 1)[:, :, None]
    kernel = emit.stored("table", taps.astype(dtype))
    if window:
        kernel = emit.temp("multiply", kernel, window, label="kernel")
    moved = emit.temp("transpose", data, label="moved", perm=(0, 2, 1))
    made = emit.temp(
        "conv2d",
        emit.reshaped(moved, (batch, components, 1, samples)),
        kernel,
        strides=(1, step),
        pads=(0, 0, 0, 0),
        dilations=(1, 1),
        groups=1,
        layout="NCHW",
    )
    frames = emit.shape(made)[3]
    spectra = emit.temp("transpose", emit.reshaped(made, (batch, bins * 2, frames)), perm=(0, 2, 1))
    return emit.out("reshape", spectra, shape=(batch, frames, bins, 2))


def fourier_table(
    count: int, length: int, components: int, *, inverse: bool = False, onesided: bool = False
) -> Array:
    """The transform of `count` numbers of 1 (real) or 2 components, cut or padded to `length`.

    Element [k, i, t, j] is what component j of number t contributes to component i of result k.
    One-sided: of the spectrum only its length // 2 + 1 first elements are made, or, with `inverse`,
    given; what that inverse makes is real. float64.
    """
    half = length // 2 + 1
    made = half if onesided and not inverse else length
    results = 1 if onesided and inverse else 2
    k, t = np.arange(made)[:, None], np.arange(count)
    angle = 2 * np.pi * (k * t % length) / length
    weight = np.where(t < length, 1.0, 0.0)
    if onesided and inverse:  # the other half is the conjugate of the elements inside this one
        weight = np.where((t == 0) | (2 * t == length), 1.0, 2.0) * (t < half)
    real = np.cos(angle) * weight
    imaginary = np.sin(angle) * weight * (1 if inverse else -1)
    table = np.stack([np.stack([real, -imaginary], -1), np.stack([imaginary, real], -1)], axis=1)
    table = table[:, :results, :, :components]
    return table / length if inverse else table


def _is_too_large(count: int, length: int, components: int) -> bool:
    return count * length * 2 * components > LARGEST_TABLE


def _components(shape: tuple[int, ...]) -> int:
    if shape[-1] not in (1, 2):
        raise ModelError(
            f"a signal of shape {list(shape)}: expected real numbers [..., 1] or complex [..., 2]"
        )
    return shape[-1]


@onnx_op("MelWeightMatrix")
def mel_weights(node: OnnxNode, emit: Emitter) -> None:
    """Triangular filters of a spectrum, evenly spaced in mel: [bins of the spectrum, filters]."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    known = [float(emit.contents(i, name).reshape(())) for i, name in enumerate(names)]
    count, length = int(known[0]), int(known[1])
    low, high = (2595 * np.log10(1 + edge / 700) for edge in known[3:])
    mel = np.arange(count + 2) * (high - low) / (count + 2) + low
    corners = ((length + 1) * 700 * (10 ** (mel / 2595) - 1) // known[2]).astype(np.int64)
    lower, centre, upper = corners[:-2], corners[1:-1], corners[2:]
    position = np.arange(length // 2 + 1)[:, None]
    rising = np.where(lower < centre, (position - lower) / np.maximum(centre - lower, 1), 1.0)
    falling = (upper - position) / np.maximum(upper - centre, 1)
    weights = np.where((lower <= position) & (position <= centre), rising, 0.0)
    weights = np.where((centre <= position) & (position < upper), falling, weights)
    dtype = element_type(node.integer("output_datatype", 1), "output_datatype")
    emit.build.constant(node.outputs[0], weights.astype(dtype))
