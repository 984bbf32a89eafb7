"""Operators on the host whose sizes, or whose work, depend on the data.

What they compute is in `ops.host_numpy`; here are ONNX's attributes, by operator set. Gathering and
scattering are here because their kernels search where numpy just writes.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from math import prod
from typing import Any

import numpy as np

from retune.frontend.host.ops.registry import HostFunction, NodeCall, Value, host_op
from retune.frontend.onnx.ops.pooling import unpooled_shape
from retune.frontend.onnx.ops.registry import full_name
from retune.ops import host_numpy
from retune.proto.scope import MICROSOFT

_AXIS_IS_INPUT = 20
"""The opset from which DFT reads its axis; before it was an attribute, 1 by default."""


def _by_name(function: Callable[..., Any], **fixed: Any) -> HostFunction:
    """The function, whose inputs and attributes are the operator's, by ONNX's names.

    It says what the operator does, too. `fixed` are parameters that no attribute states.
    """
    taken = signature(function).parameters
    needed = sum(parameter.default is parameter.empty for parameter in taken.values())

    def run(call: NodeCall) -> Sequence[Value]:
        inputs = [(call.array if i < needed else call.given)(i) for i in range(len(call.args))]
        attrs = {key: value for key, value in call.node.attrs.items() if key in taken}
        made = function(*inputs, **attrs, **fixed)
        return made if isinstance(made, tuple) else (made,)

    run.__doc__ = function.__doc__
    return run


_of_pixels = _by_name(host_numpy.roi_align, half_pixel=False)
_of_half_pixels = _by_name(host_numpy.roi_align, half_pixel=True)
BY_NAME: Sequence[tuple[str, int, HostFunction]] = (
    ("NonZero", 9, _by_name(host_numpy.non_zero)),
    ("Unique", 11, _by_name(host_numpy.unique)),
    ("NonMaxSuppression", 10, _by_name(host_numpy.non_max_suppression)),
    ("TopK", 1, _by_name(host_numpy.top_k)),
    ("GatherElements", 11, _by_name(host_numpy.gather_elements)),
    ("GatherND", 11, _by_name(host_numpy.gather_nd)),
    ("Scatter", 9, _by_name(host_numpy.scatter_elements)),
    ("ScatterElements", 11, _by_name(host_numpy.scatter_elements)),
    ("ScatterND", 11, _by_name(host_numpy.scatter_nd)),
    ("RoiAlign", 10, _of_pixels),
)
"""Operator, its first opset of that meaning, and what runs it."""

for _name, _since, _function in BY_NAME:
    host_op(_name, since=_since)(_function)


@host_op("RoiAlign", since=16)
def roi_align(call: NodeCall) -> Sequence[Value]:
    """From opset 16 on: regions half a pixel further, unless stated otherwise."""
    form = call.node.text("coordinate_transformation_mode", "half_pixel")
    return (_of_half_pixels if form == "half_pixel" else _of_pixels)(call)


@host_op("Compress", since=9)
def compress(call: NodeCall) -> Sequence[Value]:
    """The slices along an axis, or the elements, for which the condition holds."""
    chosen = np.flatnonzero(call.array(1))
    data, axis = call.array(0), call.node.attrs.get("axis")
    if axis is None:
        data, axis = data.reshape(-1), 0
    return (np.take(data, chosen[chosen < data.shape[axis]], axis),)


@host_op("MaxUnpool", since=9)
def max_unpool(call: NodeCall) -> Sequence[Value]:
    """Zeros, but for elements at their positions in the whole output."""
    data, positions = call.array(0), call.array(1)
    shape = unpooled_shape(call.node, data.shape)
    if call.given(2) is not None:
        shape = tuple(call.array(2).tolist())
    made = np.zeros(prod(shape), data.dtype)
    made[positions.reshape(-1)] = data.reshape(-1)
    return (made.reshape(shape),)


@host_op("Det", since=11)
def determinant(call: NodeCall) -> Sequence[Value]:
    """The determinant of each matrix, which lies in the last two dimensions."""
    data = call.array(0)
    wide = data.astype(np.float64) if data.dtype.itemsize < 4 else data
    return (np.asarray(np.linalg.det(wide), data.dtype),)


@host_op(full_name(MICROSOFT, "Inverse"))
def inverse(call: NodeCall) -> Sequence[Value]:
    """The inverse of each matrix, which lies in the last two dimensions."""
    data = call.array(0)
    return (np.asarray(np.linalg.inv(data.astype(np.float64)), data.dtype),)


@host_op("TfIdfVectorizer", since=9)
def tf_idf(call: NodeCall) -> Sequence[Value]:
    """How often each n-gram of the attributes is in each row."""
    node = call.node
    counted = host_numpy.n_gram_counts(
        call.array(0),
        pool=node.attrs.get("pool_int64s") or node.attrs.get("pool_strings") or [],
        starts=node.ints("ngram_counts", ()),
        columns=node.ints("ngram_indexes", ()),
        lengths=range(node.integer("min_gram_length", 1), node.integer("max_gram_length", 1) + 1),
        skips=node.integer("max_skip_count", 0),
    )
    mode, weights = node.text("mode", "TF"), np.ones(counted.shape[-1], np.float32)
    weights[list(node.ints("ngram_indexes", ()))] = node.attrs.get("weights") or 1.0
    if mode == "TF":
        return (counted,)
    return (weights * (np.minimum(counted, 1) if mode == "IDF" else counted),)


@host_op("DFT", since=17)
def dft(call: NodeCall) -> Sequence[Value]:
    """Along an axis, which is an input from opset 20 on; by default the last but the components."""
    node = call.node
    axis = node.integer("axis", -2 if node.opset >= _AXIS_IS_INPUT else 1)
    if call.given(2) is not None:
        axis = int(call.array(2).reshape(()))
    length = None if call.given(1) is None else int(call.array(1).reshape(()))
    made = host_numpy.spectrum(
        call.array(0),
        axis,
        length,
        inverse=bool(node.integer("inverse", 0)),
        onesided=bool(node.integer("onesided", 0)),
    )
    return (made,)


@host_op("STFT", since=17)
def stft(call: NodeCall) -> Sequence[Value]:
    """Transforms of the windows that start every frame_step samples: [batch, frames, bins, 2]."""
    data, step = call.array(0), int(call.array(1).reshape(()))
    window = None if call.given(2) is None else call.array(2)
    length = data.shape[1] if window is None else len(window)
    if call.given(3) is not None:
        length = int(call.array(3).reshape(()))
    starts = np.arange(0, data.shape[1] - length + 1, step)
    frames = data[:, starts[:, None] + np.arange(length)]
    if window is not None:
        frames = frames * window[:, None]
    onesided = bool(call.node.integer("onesided", 1))
    return (host_numpy.spectrum(frames, 2, None, onesided=onesided),)
