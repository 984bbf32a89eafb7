"""Operators on the host whose sizes, or whose work, depend on the data.

What they compute is in `ops.host_numpy`; here are ONNX's attributes, by operator set. Gathering and
scattering are here because their kernels search where numpy just writes.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from retune.frontend.host.ops.registry import NodeCall, Value, host_op
from retune.frontend.onnx.ops.pooling import unpooled_shape
from retune.frontend.onnx.ops.registry import full_name
from retune.ops import host_numpy
from retune.proto.scope import MICROSOFT

_AXIS_IS_INPUT = 20
"""The opset from which DFT reads its axis; before it was an attribute, 1 by default."""


@host_op("NonZero", since=9)
def non_zero(call: NodeCall) -> Sequence[Value]:
    """Where elements are not zero: [dimensions, elements]."""
    return (host_numpy.non_zero(call.array(0)),)


@host_op("Unique", since=11)
def unique(call: NodeCall) -> Sequence[Value]:
    """Distinct values, and where they come from."""
    axis = call.node.attrs.get("axis")
    return host_numpy.unique(call.array(0), axis, call.node.integer("sorted", 1))


@host_op("Compress", since=9)
def compress(call: NodeCall) -> Sequence[Value]:
    """The slices along an axis, or the elements, for which the condition holds."""
    chosen = np.flatnonzero(call.array(1))
    data, axis = call.array(0), call.node.attrs.get("axis")
    if axis is None:
        data, axis = data.reshape(-1), 0
    return (np.take(data, chosen[chosen < data.shape[axis]], axis),)


@host_op("NonMaxSuppression", since=10)
def non_max_suppression(call: NodeCall) -> Sequence[Value]:
    """The boxes that are kept."""
    center = call.node.integer("center_point_box", 0)
    return (host_numpy.non_max_suppression(*call.args, center_point_box=center),)


@host_op("TopK")
@host_op("TopK", since=10)
def top_k(call: NodeCall) -> Sequence[Value]:
    """The first elements in order, and where they are; how many is an input from opset 10 on."""
    node = call.node
    count = node.integer("k", 0) if call.given(1) is None else call.array(1)
    axis, largest = node.integer("axis", -1), node.integer("largest", 1)
    return host_numpy.top_k(call.array(0), count, axis, largest)


@host_op("GatherElements", since=11)
def gather_elements(call: NodeCall) -> Sequence[Value]:
    """One element for each index."""
    axis = call.node.integer("axis", 0)
    return (host_numpy.gather_elements(call.array(0), call.array(1), axis),)


@host_op("GatherND", since=11)
def gather_nd(call: NodeCall) -> Sequence[Value]:
    """Slices by index tuples."""
    batch = call.node.integer("batch_dims", 0)
    return (host_numpy.gather_nd(call.array(0), call.array(1), batch),)


@host_op("Scatter", since=9)
@host_op("ScatterElements", since=11)
def scatter_elements(call: NodeCall) -> Sequence[Value]:
    """Elements written at an index along one axis."""
    arrays = [call.array(index) for index in range(3)]
    axis, reduction = call.node.integer("axis", 0), call.node.text("reduction", "none")
    return (host_numpy.scatter_elements(*arrays, axis=axis, reduction=reduction),)


@host_op("ScatterND", since=11)
def scatter_nd(call: NodeCall) -> Sequence[Value]:
    """Slices written at index tuples."""
    arrays = [call.array(index) for index in range(3)]
    return (host_numpy.scatter_nd(*arrays, reduction=call.node.text("reduction", "none")),)


@host_op("RoiAlign", since=10)
def roi_align_of_pixels(call: NodeCall) -> Sequence[Value]:
    """Until opset 15: regions as they are."""
    return (_roi_align(call, half_pixel=False),)


@host_op("RoiAlign", since=16)
def roi_align(call: NodeCall) -> Sequence[Value]:
    """From opset 16 on: regions half a pixel further, unless stated otherwise."""
    form = call.node.text("coordinate_transformation_mode", "half_pixel")
    return (_roi_align(call, half_pixel=form == "half_pixel"),)


def _roi_align(call: NodeCall, *, half_pixel: bool) -> Value:
    node = call.node
    return host_numpy.roi_align(
        *(call.array(index) for index in range(3)),
        mode=node.text("mode", "avg"),
        output_height=node.integer("output_height", 1),
        output_width=node.integer("output_width", 1),
        sampling_ratio=node.integer("sampling_ratio", 0),
        spatial_scale=node.number("spatial_scale", 1.0),
        half_pixel=half_pixel,
    )


@host_op("MaxUnpool", since=9)
def max_unpool(call: NodeCall) -> Sequence[Value]:
    """Zeros, but for elements at their positions in the whole output."""
    data, places = call.array(0), call.array(1)
    shape = unpooled_shape(call.node, data.shape)
    if call.given(2) is not None:
        shape = tuple(call.array(2).tolist())
    made = np.zeros(prod(shape), data.dtype)
    made[places.reshape(-1)] = data.reshape(-1)
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
