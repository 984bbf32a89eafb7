"""One small network for each family of today's architectures, written as torch's exporters do.

Each entry of FAMILIES writes one onto a `Net`; the idioms that they share are in `idioms`.
"""

from functools import partial

import numpy as np
from onnx import TensorProto

from tests.support.device_networks import Net, Networks, network
from tests.support.idioms import (
    expanded,
    extent,
    gelu,
    gelu_by_tanh,
    index,
    layer_norm,
    layer_norm_in_steps,
    linear,
    mlp,
    number,
    reshaped,
    rms_norm,
    self_attention,
    silu,
    softmax_attention,
    squeeze_and_excite,
    vector,
)

FAMILIES: Networks = {}
"""Name -> what writes the network, and its operator set."""

family = partial(network, among=FAMILIES)


# -- images ----------------------------------------------------------------------------------------


@family(opset=17)
def vision_transformer(n: Net) -> tuple[str, ...]:
    """Patches, a class token expanded to the batch, one block, the token's classes."""
    x = n.conv(n.input(2, 3, 12, 16), 3, 24, (4, 4), strides=[4, 4], pads=[0, 0, 0, 0])
    batch = extent(n, x, 0)
    x = n("Transpose", reshaped(n, x, batch, 24, -1), perm=[0, 2, 1])
    x = n("Concat", expanded(n, n.weight(1, 1, 24), batch, -1, -1), x, axis=1)
    x = n("Add", x, n.weight(1, 13, 24))
    x = n("Add", x, self_attention(n, layer_norm(n, x, 24), 3, 8))
    x = n("Add", x, mlp(n, layer_norm(n, x, 24), 24, 40))
    token = n("Gather", layer_norm(n, x, 24), index(n, 0), axis=1)
    return (n("Gemm", token, n.weight(7, 24), n.weight(7), transB=1),)


def windows(n: Net, x: str, count: int, size: int, width: int) -> str:
    """[1, count * size, count * size, width] to [count * count, size * size, width]."""
    x = reshaped(n, x, 1, count, size, count, size, width)
    x = n("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return reshaped(n, x, -1, size * size, width)


def image(n: Net, x: str, count: int, size: int, width: int) -> str:
    """The inverse of `windows`."""
    x = reshaped(n, x, -1, count, count, size, size, width)
    x = n("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return reshaped(n, x, 1, count * size, count * size, width)


def rolled(n: Net, x: str, by: int) -> str:
    """Shifted along dimensions 1 and 2, what leaves at one end coming in at the other."""
    for axis in (1, 2):
        end = n("Slice", x, n.ints(by), n.ints(np.iinfo(np.int64).max), n.ints(axis))
        x = n("Concat", end, n("Slice", x, n.ints(0), n.ints(by), n.ints(axis)), axis=axis)
    return x


@family(opset=18)
def shifted_windows(n: Net) -> tuple[str, ...]:
    """Swin: attention in shifted windows, with a bias of places and a mask; patches merged."""
    width, heads, depth, size = 16, 2, 8, 3
    data = n.input(1, 3, 12, 12)
    x = n.conv(data, 3, width, (2, 2), strides=[2, 2], pads=[0, 0, 0, 0])
    x = layer_norm(n, n("Transpose", x, perm=[0, 2, 3, 1]), width)
    parts = windows(n, rolled(n, layer_norm(n, x, width), 1), 2, size, width)
    packed = linear(n, parts, width, 3 * width)
    packed = n("Transpose", reshaped(n, packed, 4, 9, 3, heads, depth), perm=[2, 0, 3, 1, 4])
    cut = n.parts("Split", 3, packed, n.ints(1, 1, 1), axis=0)
    q, k, v = (n("Squeeze", part, n.ints(0)) for part in cut)
    table = n("Gather", n.weight(25, heads), n.stored(_relative_positions(size)), axis=0)
    bias = n("Transpose", reshaped(n, table, 9, 9, heads), perm=[2, 0, 1])
    apart = np.where(n.rng.random((4, 1, 9, 9)) < 0.3, -100.0, 0.0).astype(np.float32)
    mask = n("Add", n("Unsqueeze", bias, n.ints(0)), n.stored(apart))
    seen = n("Transpose", softmax_attention(n, q, k, v, depth, mask), perm=[0, 2, 1, 3])
    seen = image(n, linear(n, reshaped(n, seen, 4, 9, width), width, width), 2, size, width)
    x = n("Add", x, rolled(n, seen, -1))
    x = n("Add", x, mlp(n, layer_norm(n, x, width), width, 32))
    corners = [
        n("Slice", x, n.ints(a, b), n.ints(6, 6), n.ints(1, 2), n.ints(2, 2))
        for b in (0, 1)
        for a in (0, 1)
    ]
    merged = layer_norm(n, n("Concat", *corners, axis=-1), 4 * width)
    return (n("MatMul", merged, n.weight(4 * width, 20)),)


def _relative_positions(size: int) -> np.ndarray:
    """The number of the offset between any two places of a window, flattened."""
    places = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).reshape(2, -1)
    offsets = places[:, :, None] - places[:, None, :] + size - 1
    return np.ascontiguousarray(offsets[0] * (2 * size - 1) + offsets[1]).reshape(-1)


@family(opset=18)
def convnext(n: Net) -> tuple[str, ...]:
    """Depth-wise windows of 7, products over channels at the end, a response normalisation."""
    x = n.conv(n.input(1, 3, 20, 24), 3, 17, (4, 4), strides=[4, 4], pads=[0, 0, 0, 0])
    y = n("Transpose", n.conv(x, 17, 17, (7, 7), group=17), perm=[0, 2, 3, 1])
    y = gelu(n, linear(n, layer_norm(n, y, 17), 17, 34))
    norm = n("ReduceL2", y, n.ints(1, 2), keepdims=1)
    mean = n("Add", n("ReduceMean", norm, n.ints(-1), keepdims=1), number(n, 1e-6))
    y = n("Add", n("Mul", n("Mul", y, n("Div", norm, mean)), n.positive(34)), y)
    y = n("Mul", linear(n, y, 34, 17), n.positive(17))
    x = n("Add", n("Transpose", y, perm=[0, 3, 1, 2]), x)
    pooled = n("ReduceMean", x, n.ints(2, 3), keepdims=0)
    return (n("Gemm", layer_norm(n, pooled, 17), n.weight(5, 17), n.weight(5), transB=1),)


@family
def mobilenet_v3(n: Net) -> tuple[str, ...]:
    """Hard swish in steps, a depth-wise layer of stride 2, squeeze and excitation."""

    def bent(x: str) -> str:
        clipped = n("Clip", n("Add", x, number(n, 3.0)), number(n, 0.0), number(n, 6.0))
        return n("Div", n("Mul", x, clipped), number(n, 6.0))

    x = bent(n.norm(n.conv(n.input(1, 3, 17, 19), 3, 8, strides=[2, 2]), 8))
    y = bent(n.norm(n.conv(x, 8, 24, (1, 1)), 24))
    y = n.norm(n.conv(y, 24, 24, (5, 5), group=24, strides=[2, 2]), 24)
    y = squeeze_and_excite(n, bent(y), 24, 8, "HardSigmoid", alpha=1 / 6, beta=0.5)
    y = n.norm(n.conv(y, 24, 12, (1, 1)), 12)
    z = n("Add", y, n.conv(n("Relu", n.conv(y, 12, 12, group=12)), 12, 12, (1, 1)))
    pooled = n("Flatten", n("GlobalAveragePool", z))
    return (n("Gemm", bent(pooled), n.weight(6, 12), n.weight(6), transB=1),)


@family(opset=18)
def efficientnet(n: Net) -> tuple[str, ...]:
    """SiLU as a product, pads as a node, a gate from means over axes."""
    x = n("Pad", n.input(1, 3, 16, 18), n.ints(0, 0, 0, 0, 0, 0, 1, 1), number(n, 0.0))
    x = silu(n, n.norm(n.conv(x, 3, 10, strides=[2, 2], pads=[0, 0, 0, 0]), 10))
    y = silu(n, n.norm(n.conv(x, 10, 30, (1, 1)), 30))
    y = silu(n, n.norm(n.conv(y, 30, 30, (3, 3), group=30), 30))
    mean = n("ReduceMean", y, n.ints(2, 3), keepdims=1)
    gate = n.conv(silu(n, n.conv(mean, 30, 3, (1, 1))), 3, 30, (1, 1))
    y = n("Mul", y, n("Sigmoid", gate))
    x = n("Add", n.norm(n.conv(y, 30, 10, (1, 1)), 10), x)
    pooled = n("ReduceMean", x, n.ints(2, 3), keepdims=0)
    return (n("Gemm", pooled, n.weight(5, 10), n.weight(5), transB=1),)


@family
def unet(n: Net) -> tuple[str, ...]:
    """Down by pooling; up by a transposed convolution, and by an interpolation to a read size."""

    def twice(x: str, depth: int, made: int) -> str:
        return n("Relu", n.conv(n("Relu", n.norm(n.conv(x, depth, made), made)), made, made))

    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    wide = twice(n.input(1, 3, 20, 16), 3, 8)
    middle = twice(n("MaxPool", wide, **pool), 8, 12)
    low = twice(n("MaxPool", middle, **pool), 12, 16)
    low = n("ConvTranspose", low, n.weight(16, 12, 2, 2), n.weight(12), **pool)
    middle = twice(n("Concat", low, middle, axis=1), 24, 12)
    size = n("Slice", n("Shape", wide), n.ints(2), n.ints(4), n.ints(0))
    kept = n("Slice", n("Shape", middle), n.ints(0), n.ints(2), n.ints(0))
    sizes = n("Concat", kept, size, axis=0)
    high = n(
        "Resize", middle, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel"
    )
    x = twice(n("Concat", high, wide, axis=1), 20, 8)
    return (n.conv(x, 8, 3, (1, 1)),)


@family
def pyramid_detector(n: Net) -> tuple[str, ...]:
    """A feature pyramid, heads shared by its levels, boxes around anchors, the best few apart."""
    classes, anchors = 3, 2
    fine = n("Relu", n.conv(n.input(1, 3, 24, 32), 3, 12, strides=[4, 4]))
    coarse = n("Relu", n.conv(fine, 12, 16, strides=[2, 2]))
    top = n.conv(coarse, 16, 10, (1, 1))
    scales = n.stored(np.asarray([1, 1, 2, 2], np.float32))
    nearest = {"mode": "nearest", "nearest_mode": "floor"}
    raised = n("Resize", top, "", scales, coordinate_transformation_mode="asymmetric", **nearest)
    lateral = n.conv(n("Add", raised, n.conv(fine, 12, 10, (1, 1))), 10, 10)
    tower = n.weight(10, 10, 3, 3)
    filters = n.weight(anchors * classes, 10, 3, 3), n.weight(anchors * 4, 10, 3, 3)
    found: list[list[str]] = [[], []]
    for level in (lateral, top):
        x = n("Relu", n("Conv", level, tower, pads=[1, 1, 1, 1]))
        for kind, (weight, fields) in enumerate(zip(filters, (classes, 4), strict=True)):
            head = n("Conv", x, weight, pads=[1, 1, 1, 1])
            batch, high, wide = (extent(n, head, axis) for axis in (0, 2, 3))
            head = reshaped(n, head, batch, -1, fields, high, wide)
            head = n("Transpose", head, perm=[0, 3, 4, 1, 2])
            found[kind].append(reshaped(n, head, batch, -1, fields))
    logits, moves = (n("Concat", *parts, axis=1) for parts in found)
    boxes = n("Squeeze", _decoded(n, moves, anchors * 60), n.ints(0))
    scores = n("Squeeze", n("Sigmoid", logits), n.ints(0))
    best, places = n.parts("TopK", 2, n("ReduceMax", scores, axes=[1], keepdims=0), n.ints(9))
    boxes = n("Gather", boxes, places, axis=0)
    limits = n.ints(5), n.stored(np.float32([0.4])), n.stored(np.float32([0.5]))
    pairs = n("Unsqueeze", boxes, n.ints(0)), n("Unsqueeze", best, n.ints(0, 1))
    kept = n("Gather", n("NonMaxSuppression", *pairs, *limits), index(n, 2), axis=1)
    return best, n("Gather", boxes, kept, axis=0), scores


def _decoded(n: Net, moves: str, count: int) -> str:
    """Corners of boxes around `count` anchors: centres move, sizes grow by a bounded exponent."""
    corners = n.rng.uniform(0, 20, (count, 2)), n.rng.uniform(4, 9, (count, 2))
    centres, sizes = (n.stored(part.astype(np.float32)) for part in corners)
    moves = n("Mul", moves, n.stored(np.float32([0.1, 0.1, 0.2, 0.2])))
    shift, growth = n.parts("Split", 2, moves, n.ints(2, 2), axis=2)
    middle = n("Add", n("Mul", shift, sizes), centres)
    grown = n("Exp", n("Min", growth, number(n, 4.1)))
    half = n("Mul", n("Mul", grown, sizes), number(n, 0.5))
    boxes = n("Concat", n("Sub", middle, half), n("Add", middle, half), axis=-1)
    return n("Clip", boxes, number(n, 0.0), number(n, 32.0))


@family
def deeplab(n: Net) -> tuple[str, ...]:
    """Dilated branches beside a pooled one that is stretched, all stretched to the image's size."""
    data = n.input(1, 3, 33, 25)
    x = n("Relu", n.conv(n("Relu", n.conv(data, 3, 8, strides=[2, 2])), 8, 14, strides=[2, 2]))
    size = n("Slice", n("Shape", x), n.ints(2), n.ints(4), n.ints(0))
    branches = [n("Relu", n.conv(x, 14, 6, (1, 1)))]
    for rate in (2, 5):
        taps = n.conv(x, 14, 6, dilations=[rate] * 2, pads=[rate] * 4)
        branches.append(n("Relu", n.norm(taps, 6)))
    pooled = n("Relu", n.conv(n("GlobalAveragePool", x), 14, 6, (1, 1)))
    branches.append(_stretched(n, pooled, size, "half_pixel"))
    x = n("Relu", n.conv(n("Concat", *branches, axis=1), 24, 9, (1, 1)))
    x = n.conv(x, 9, 4, (1, 1))
    size = vector(n, extent(n, data, 2), extent(n, data, 3))
    return (_stretched(n, x, size, "pytorch_half_pixel"), _stretched(n, x, size, "align_corners"))


def _stretched(n: Net, x: str, size: str, mode: str) -> str:
    """Interpolated to those extents."""
    kept = n("Slice", n("Shape", x), n.ints(0), n.ints(2), n.ints(0))
    sizes = n("Concat", kept, n("Cast", size, to=TensorProto.INT64), axis=0)
    return n("Resize", x, "", "", sizes, mode="linear", coordinate_transformation_mode=mode)


@family
def super_resolution(n: Net) -> tuple[str, ...]:
    """Sub-pixels out of channels: as one op, and as the steps that torch wrote before it."""
    x = n("Tanh", n.conv(n.input(1, 1, 11, 13), 1, 16, (5, 5)))
    x = n.conv(n("Tanh", n.conv(x, 16, 12)), 12, 9)
    y = reshaped(n, x, 1, 1, 3, 3, 11, 13)
    y = reshaped(n, n("Transpose", y, perm=[0, 1, 4, 2, 5, 3]), 1, 1, 33, 39)
    return n("DepthToSpace", x, blocksize=3, mode="CRD"), n("Sigmoid", y)


@family
def dcgan_generator(n: Net) -> tuple[str, ...]:
    """Noise to an image by transposed convolutions, with and without pads."""
    x = n("ConvTranspose", n.input(1, 10, 1, 1), n.weight(10, 24, 4, 4))
    for depth, made in ((24, 12), (12, 7)):
        x = n("Relu", n.norm(x, depth))
        attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1], "kernel_shape": [4, 4]}
        x = n("ConvTranspose", x, n.weight(depth, made, 4, 4), **attrs)
    attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}
    return (n("Tanh", n("ConvTranspose", n("Relu", x), n.weight(7, 3, 3, 3), **attrs)),)


@family
def video(n: Net) -> tuple[str, ...]:
    """Convolutions over time and image: whole ones, and ones over either alone; a residual."""
    x = n("Relu", n.conv(n.input(1, 3, 6, 14, 12), 3, 8, (3, 7, 7), strides=[1, 2, 2]))
    x = n("MaxPool", x, kernel_shape=[1, 3, 3], strides=[1, 2, 2], pads=[0, 1, 1, 0, 1, 1])
    y = n("Relu", n.conv(x, 8, 10, (1, 3, 3)))
    y = n("Add", n.conv(y, 10, 8, (3, 1, 1)), x)
    y = n("Relu", n.conv(n("Relu", y), 8, 12, (3, 3, 3), strides=[2, 2, 2]))
    pooled = n("Flatten", n("GlobalAveragePool", y), axis=1)
    return (n("Gemm", pooled, n.weight(5, 12), n.weight(5), transB=1),)


# -- words and signals -----------------------------------------------------------------------------


def words(n: Net, count: int, batch: int = 1) -> str:
    """Their numbers; random ones are from 0 to 15."""
    return n.input(batch, count, element=TensorProto.INT64)


@family
def bert(n: Net) -> tuple[str, ...]:
    """Embeddings of words and places, padding masked by a large negative number, a pooled class."""
    width, heads, depth = 24, 3, 8
    ids = words(n, 11, batch=2)
    upto = n("Unsqueeze", extent(n, ids, 1), n.ints(0))
    place = n("Slice", n.stored(np.arange(16)[None]), n.ints(0), upto, n.ints(1))
    x = n("Add", n("Gather", n.weight(16, width), ids), n("Gather", n.weight(16, width), place))
    x = layer_norm_in_steps(n, x, width)
    real = n("Cast", n("Greater", ids, index(n, 2)), to=TensorProto.FLOAT)
    hidden = n("Sub", number(n, 1.0), n("Unsqueeze", real, n.ints(1, 2)))
    mask = n("Mul", hidden, number(n, float(np.finfo(np.float32).min)))
    batch, count = extent(n, x, 0), extent(n, x, 1)
    parts = [linear(n, x, width, width) for _ in range(3)]
    parts = [reshaped(n, part, batch, count, heads, depth) for part in parts]
    q, k, v = (n("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    seen = n("Transpose", softmax_attention(n, q, k, v, depth, mask), perm=[0, 2, 1, 3])
    seen = linear(n, reshaped(n, seen, batch, count, width), width, width)
    x = layer_norm_in_steps(n, n("Add", seen, x), width)
    x = layer_norm_in_steps(n, n("Add", mlp(n, x, width, 40), x), width)
    first = n("Gather", x, index(n, 0), axis=1)
    pooled = n("Tanh", n("Gemm", first, n.weight(width, width), n.weight(width), transB=1))
    return x, n("Gemm", pooled, n.weight(2, width), n.weight(2), transB=1)


@family
def gpt_block(n: Net) -> tuple[str, ...]:
    """Packed projections by Gemm, a causal mask cut out of a stored one, tied embeddings."""
    width, heads, depth, count = 24, 3, 8, 9
    ids, table = words(n, count), n.weight(16, width)
    places = n("Range", index(n, 0), extent(n, ids, 1), index(n, 1))
    x = n("Add", n("Gather", table, ids), n("Gather", n.weight(32, width), places))
    y = reshaped(n, layer_norm_in_steps(n, x, width), -1, width)
    y = n("Gemm", y, n.weight(width, 3 * width), n.weight(3 * width))
    parts = n.parts("Split", 3, reshaped(n, y, 1, count, 3 * width), n.ints(*[width] * 3), axis=2)
    q, k, v = (
        n("Transpose", reshaped(n, part, 1, count, heads, depth), perm=[0, 2, 1, 3])
        for part in parts
    )
    scores = n("MatMul", q, n("Transpose", k, perm=[0, 1, 3, 2]))
    scores = n("Div", scores, n("Sqrt", number(n, depth)))
    stored = n.stored(np.tril(np.ones((1, 1, 32, 32), np.bool_)))
    upto = n("Unsqueeze", extent(n, ids, 1), n.ints(0))
    causal = n("Slice", n("Slice", stored, n.ints(0), upto, n.ints(2)), n.ints(0), upto, n.ints(3))
    scores = n("Where", causal, scores, number(n, float(np.finfo(np.float32).min)))
    seen = n("Transpose", n("MatMul", n("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    x = n("Add", linear(n, reshaped(n, seen, 1, count, width), width, width), x)
    y = gelu_by_tanh(n, linear(n, layer_norm_in_steps(n, x, width), width, 40))
    x = layer_norm_in_steps(n, n("Add", linear(n, y, 40, width), x), width)
    return (n("MatMul", x, n("Transpose", table, perm=[1, 0])),)


def rotated(n: Net, x: str, cosine: str, sine: str, depth: int) -> str:
    """Rotary places: pairs of a head's halves turned by their angles."""
    half, end = n.ints(depth // 2), n.ints(np.iinfo(np.int64).max)
    left, right = n("Slice", x, n.ints(0), half, n.ints(3)), n("Slice", x, half, end, n.ints(3))
    turned = n("Concat", n("Neg", right), left, axis=-1)
    return n("Add", n("Mul", x, cosine), n("Mul", turned, sine))


@family(opset=18)
def llama_block(n: Net) -> tuple[str, ...]:
    """Root-mean-square norms, rotary places, keys shared by two heads, a gated product."""
    width, heads, shared, depth, count = 32, 4, 2, 8, 10
    x = n("Gather", n.weight(16, width), words(n, count))
    rates = n.stored((10.0 ** -np.arange(0, 1, 2 / depth)).astype(np.float32)[None, :, None])
    places = n("Cast", n("Range", index(n, 0), index(n, count), index(n, 1)), to=TensorProto.FLOAT)
    angles = n("MatMul", rates, n("Unsqueeze", places, n.ints(0, 1)))
    angles = n("Transpose", angles, perm=[0, 2, 1])
    angles = n("Unsqueeze", n("Concat", angles, angles, axis=-1), n.ints(1))
    cosine, sine = n("Cos", angles), n("Sin", angles)
    y = rms_norm(n, x, width)
    numbers = heads, shared, shared
    parts = [n("MatMul", y, n.weight(width, h * depth)) for h in numbers]
    parts = [reshaped(n, p, 1, count, h, depth) for p, h in zip(parts, numbers, strict=True)]
    q, k, v = (n("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    q, k = (rotated(n, part, cosine, sine, depth) for part in (q, k))
    sides = n.ints(1, shared, heads // shared, count, depth)
    wide = [n("Expand", n("Unsqueeze", part, n.ints(2)), sides) for part in (k, v)]
    k, v = (reshaped(n, part, 1, heads, count, depth) for part in wide)
    future = n("Trilu", n.stored(np.full((count, count), -1e9, np.float32)), index(n, 1), upper=1)
    seen = n("Transpose", softmax_attention(n, q, k, v, depth, future), perm=[0, 2, 1, 3])
    x = n("Add", x, n("MatMul", reshaped(n, seen, 1, count, width), n.weight(width, width)))
    y = rms_norm(n, x, width)
    gate = silu(n, n("MatMul", y, n.weight(width, 44)))
    y = n("MatMul", n("Mul", gate, n("MatMul", y, n.weight(width, 44))), n.weight(44, width))
    return (n("MatMul", rms_norm(n, n("Add", x, y), width), n.weight(width, 16)),)


def zeros(n: Net, count: int, batch: str, width: int) -> str:
    """[count, batch, width] of zeros, for a batch that is read from the data."""
    return expanded(n, n.stored(np.zeros((count, 1, width), np.float32)), count, batch, width)


@family
def lstm_tagger(n: Net) -> tuple[str, ...]:
    """Words to tags by an LSTM in both directions, the batch in front outside of it."""
    width, hidden, tags = 10, 7, 5
    x = n("Gather", n.weight(16, width), words(n, 9, batch=2))
    batch = extent(n, x, 0)
    weights = n.weight(2, 4 * hidden, width), n.weight(2, 4 * hidden, hidden)
    start = zeros(n, 2, batch, hidden)
    made, last, _ = n.parts(
        "LSTM", 3, n("Transpose", x, perm=[1, 0, 2]), *weights, n.weight(2, 8 * hidden), "",
        start, start, hidden_size=hidden, direction="bidirectional",
    )  # fmt: skip
    made = reshaped(n, n("Transpose", made, perm=[0, 2, 1, 3]), 0, 0, -1)
    made = linear(n, n("Transpose", made, perm=[1, 0, 2]), 2 * hidden, tags)
    return n("LogSoftmax", made, axis=-1), last


@family
def gru_tagger(n: Net) -> tuple[str, ...]:
    """Two GRUs, one on the other; tags of words, and a class from the last state."""
    width, hidden = 10, 6
    x = n("Gather", n.weight(16, width), words(n, 8))
    x = n("Transpose", x, perm=[1, 0, 2])
    last = ""
    for depth in (width, hidden):
        weights = n.weight(1, 3 * hidden, depth), n.weight(1, 3 * hidden, hidden)
        start = zeros(n, 1, extent(n, x, 1), hidden)
        made, last = n.parts(
            "GRU", 2, x, *weights, n.weight(1, 6 * hidden), "", start, hidden_size=hidden,
            linear_before_reset=1,
        )  # fmt: skip
        x = n("Squeeze", made, n.ints(1))
    tags = n("Softmax", linear(n, n("Transpose", x, perm=[1, 0, 2]), hidden, 4), axis=-1)
    state = n("Gather", last, index(n, -1), axis=0)
    return tags, n("Gemm", state, n.weight(3, hidden), n.weight(3), transB=1)


@family
def keyword_spotting(n: Net) -> tuple[str, ...]:
    """A spoken word by convolutions over its signal: long strides, pools, a depth-wise layer."""
    x = n.conv(n.input(1, 1, 320), 1, 12, (40,), strides=[4], pads=[0, 0])
    x = n("MaxPool", n("Relu", n.norm(x, 12)), kernel_shape=[4], strides=[4])
    x = n("Relu", n.norm(n.conv(x, 12, 12, (3,), group=12), 12))
    x = n("Relu", n.norm(n.conv(x, 12, 20, (1,)), 20))
    x = n("AveragePool", x, kernel_shape=[2], strides=[2])
    x = n("Flatten", n("ReduceMean", x, axes=[2], keepdims=1))
    return (n("LogSoftmax", n("Gemm", x, n.weight(6, 20), n.weight(6), transB=1), axis=-1),)
