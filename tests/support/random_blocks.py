"""More steps of random networks: what exporters and today's blocks write around convolutions.

Read `BLOCKS` and `random_blocks`.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from retune.core.dims import always_same, is_fixed, least
from tests.support.random_networks import (
    LARGEST,
    SMALLEST,
    STEPS,
    RandomNet,
    Shape,
    Step,
    activation,
    batch_norm,
    convolved,
    random_model,
    scale,
)

_NOT_ZERO_AT_ZERO = ("Sigmoid", "HardSigmoid", "Softplus", "Exp", "Cos")
"""Functions that padding shows: a convolution reads zeros there, not what these make of zero."""


def before(n: RandomNet, x: str) -> str:
    """A few element-wise ops of x, of numbers of each channel, of another image."""
    for _ in range(n.pick(1, 1, 2, 3)):
        match n.pick("function", "function", "norm", "scale", "gate", "other", "itself"):
            case "function":
                x = n.put(n.pick(*_NOT_ZERO_AT_ZERO), n.put("Tanh", x))
            case "norm":
                x = batch_norm(n, x)
            case "scale":
                x = scale(n, x)
            case "gate":
                batch, channels, *_ = n.shapes[x]
                mean = n.put("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
                x = n.put("Mul", x, n.put("Sigmoid", mean))
            case "other":
                shape = n.shapes[x]
                other = n.pick(*n.images(lambda found, shape=shape: always_same(found, shape)))
                x = n.put(n.pick("Add", "Sub", "Mul", "Max"), *n.pick((x, other), (other, x)))
            case _:
                x = n.put("Mul", x, activation(n, x))
    return x


def window(n: RandomNet, extents: tuple[int, ...]) -> tuple[Shape, dict[str, Any]]:
    """A kernel that fits, and strides, dilations and pads that are seldom the same at all ends."""
    kernel = tuple(n.pick(1, 2, 3, 3, 5) for _ in extents)
    dilations = [n.pick(1, 1, 2) for _ in extents]
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    begins = [n.pick(*range(r + 1)) for r in reach]
    ends = [max(r - b, 0) + n.pick(0, 0, 1) for r, b in zip(reach, begins, strict=True)]
    small = min(extents) <= SMALLEST
    strides = [1 if small else n.pick(1, 1, 1, 2) for _ in extents]
    return kernel, {"strides": strides, "dilations": dilations, "pads": [*begins, *ends]}


def groups(n: RandomNet, depth: int) -> tuple[int, int]:
    """Groups of a convolution of so many channels, and what it makes."""
    found = n.pick(1, 1, 1, *(g for g in (2, 3, 4, depth, depth) if depth % g == 0))
    return found, found * (n.pick(1, 1, 2) if found == depth else n.pick(1, 2, 4, 5, 8))


def computing(n: RandomNet, x: str) -> str:
    """A convolution of what is computed before it; at times others read that, too."""
    known = set(n.shapes)
    value = before(n, x)
    inner = [v for v in n.shapes if v not in known]
    kernel, attrs = window(n, n.shapes[value][2:])
    attrs["group"], made = groups(n, n.shapes[value][1])
    found = convolved(n, value, made, kernel, bias=n.chance(0.7), **attrs)
    if n.chance(0.2):
        return branch(n, value, found)
    if n.chance(0.8):
        for v in inner:  # nobody else reads them
            del n.shapes[v]
    return found


def branch(n: RandomNet, value: str, found: str) -> str:
    """What was made of the value, with the value itself or another layer of it."""
    if always_same(n.shapes[value], n.shapes[found]):
        return n.put("Add", found, value)
    return n.put("Relu", found)


def on_one_pixel(n: RandomNet, x: str) -> str:
    """Layers of means, whose padding is most of what they read."""
    batch, channels, *_ = n.shapes[x]
    mean = n.put("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
    value = before(n, mean)
    kernel = n.pick((1, 1), (3, 3), (1, 2))
    group, made = groups(n, channels)
    pads = [n.pick(1, k // 2) if k > 1 else 0 for k in kernel] + [k // 2 for k in kernel]
    inner = convolved(n, value, made, kernel, group=group, pads=pads)
    inner = convolved(n, activation(n, inner), channels, (1, 1))
    if n.shapes[inner][2:] != (1, 1):
        return inner
    return n.put(n.pick("Mul", "Add"), x, n.put("Sigmoid", inner), shape=n.shapes[x])


def volume(n: RandomNet, x: str) -> str:
    """Channels as the depth of a volume, through a convolution of three axes, and back."""
    batch, channels, h, w = n.shapes[x]
    depth = next(d for d in (n.pick(2, 3, 4), 3, 2, 1) if channels % d == 0)
    shape = (batch, channels // depth, depth, h, w)
    made = n.made(n.reshaped(x, *shape), shape)
    value = n.put(n.pick(*_NOT_ZERO_AT_ZERO), made) if n.chance(0.7) else made
    if n.chance(0.4):
        value = n.put("Mul", value, n.positive(shape[1], 1, 1, 1))
    kernel, attrs = window(n, shape[2:])
    attrs["group"], count = groups(n, shape[1])
    found = convolved(n, value, count, kernel, **attrs)
    if n.chance(0.6):
        pads = n.pick([1] * 6, [0, 2, 1, 2, 0, 1], [2, 1, 0, 0, 1, 2])
        inner = n.put("Sigmoid", n.put("Mul", found, n.positive(count, 1, 1, 1)))
        found = n.put("Add", convolved(n, inner, count, (3, 3, 3), pads=pads), found)
    found = n.put("Relu", found) if n.chance(0.5) else found
    whole = n.shapes[found]
    back = n.reshaped(found, batch, -1, *whole[3:])
    return n.made(back, (batch, whole[1] * whole[2], *whole[3:]))


def gathered(n: RandomNet, x: str) -> str:
    """Some indices of one axis, in any order and more than once; at times one alone."""
    shape = [*n.shapes[x]]
    axis = n.pick(1, 1, 2, 3)
    extent = least(shape[axis])
    if n.chance(0.2):
        one = n("Gather", x, n.stored(np.asarray(n.pick(0, -1, extent // 2))), axis=axis)
        return n.put("Add", x, n("Unsqueeze", one, n.ints(axis)))
    count = n.pick(extent, max(1, extent - 1), min(extent + 2, 2 * extent))
    shape[axis] = count
    if np.prod(shape) > LARGEST:
        return activation(n, x)
    places = n.rng.integers(-extent, extent, count)
    places = np.sort(places % extent) if n.chance(0.3) else places
    return n.put("Gather", x, n.ints(*places), axis=axis, shape=tuple(shape))


def norm_of_groups(n: RandomNet, x: str) -> str:
    """A norm over several axes, in parts, with a gain and a shift of each channel."""
    batch, c, h, w = n.shapes[x]
    count = n.pick(*(g for g in range(1, c + 1) if c % g == 0))
    axes = n.pick((2, 3, 4), (3, 4), (2,))
    apart = n.reshaped(x, batch, count, c // count, h, w)
    less = n("Sub", apart, n("ReduceMean", apart, n.ints(*axes), keepdims=1))
    square = n("Mul", less, less) if n.chance(0.5) else n("Pow", less, n.stored(np.float32(2)))
    spread = n("ReduceMean", square, n.ints(*axes), keepdims=1)
    root = n("Sqrt", n("Add", spread, n.stored(np.float32(1e-2))))
    normal = n("Div", less, root) if n.chance(0.5) else n("Mul", less, n("Reciprocal", root))
    value = n.made(n.reshaped(normal, 0, -1, h, w), n.shapes[x])
    return n.put("Add", n.put("Mul", value, n.positive(c, 1, 1)), n.weight(c, 1, 1))


def stages(n: RandomNet, x: str) -> str:
    """Parts of the channels, each through a layer of what the one before made, all joined."""
    batch, channels, *extents = n.shapes[x]
    count = n.pick(2, 3, 4)
    if channels < count:
        return activation(n, x)
    each = channels // count
    sizes = [each] * (count - 1) + [channels - each * (count - 1)]
    parts = n.parts("Split", count, x, n.ints(*sizes), axis=1)
    for part, size in zip(parts, sizes, strict=True):
        n.made(part, (batch, size, *extents))
    made = [parts[0]]
    for part in parts[1:]:
        last = made[-1]
        same = always_same(n.shapes[last], n.shapes[part])
        read = n.put("Add", part, last) if same and n.chance(0.6) else part
        if n.chance(0.4):
            total = n.shapes[last][1] + n.shapes[read][1]
            read = n.put("Concat", last, read, axis=1, shape=(batch, total, *extents))
        made.append(n.put("Relu", convolved(n, read, n.pick(each, 4), (3, 3))))
    n.rng.shuffle(made)
    total = sum(n.shapes[part][1] for part in made)
    found = n.put("Concat", *made, axis=1, shape=(batch, total, *extents))
    return convolved(n, before(n, found), n.pick(4, 8), (1, 1)) if n.chance(0.6) else found


def halved(n: RandomNet, x: str) -> str:
    """Constants of float16 beside float32: as files of half the size have them."""
    channels = n.shapes[x][1]
    if not is_fixed(channels):
        return x
    half = n.rng.uniform(0.5, 1.5, (channels, 1, 1)).astype(np.float16)
    factor = n("Cast", n.stored(half), to=TensorProto.FLOAT)
    made = n.pick(4, 8)
    weight = (n.rng.standard_normal((made, channels, 3, 3)) / (3 * channels)).astype(np.float16)
    wide = n("Cast", n.stored(weight), to=TensorProto.FLOAT)
    return convolved(n, n.put("Mul", x, factor), made, (3, 3), weight=wide)


def attended(n: RandomNet, x: str) -> str:
    """Weights of positions by what they hold, as attention has it."""
    batch, c, h, w = n.shapes[x]
    flat = n.reshaped(x, 0, 0, -1)
    keys = n("Transpose", flat, perm=[0, 2, 1])
    scores = n("Mul", n("MatMul", keys, flat), n.stored(np.float32(0.2)))
    mixed = n("MatMul", n("Softmax", scores, axis=-1), keys)
    back = n("Transpose", mixed, perm=[0, 2, 1])
    found = n.made(n.reshaped(back, batch, c, h, w), n.shapes[x])
    return n.put("Add", found, x) if n.chance(0.5) else found


def recurrent(n: RandomNet, x: str) -> str:
    """A layer that goes through an image's rows, or its columns, one after the other.

    Layers are of few sizes, so that several of one network have states or rows of one size.
    """
    batch, c, *extents = n.shapes[x]
    along = n.pick(0, 1)
    steps, inner = extents[along], c * extents[1 - along]
    turned = n("Transpose", x, perm=[2, 0, 1, 3] if along == 0 else [3, 0, 1, 2])
    rows = n.reshaped(turned, steps, batch, inner)
    op, gates = n.pick(("LSTM", 4), ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    direction, count = n.pick(("forward", 1), ("reverse", 1), ("bidirectional", 2))
    hidden, states = n.pick(4, 8), 2 if op == "LSTM" else 1
    weights = [
        n.weight(count, gates * hidden, inner),
        n.weight(count, gates * hidden, hidden),
        n.weight(count, 2 * gates * hidden) if n.chance(0.7) else "",
    ]
    zeros = n.stored(np.zeros((count, batch, hidden), np.float32))
    starts = ["", *[zeros] * states] if n.chance(0.6) else []
    attrs = {"linear_before_reset": n.pick(0, 1)} if op == "GRU" else {}
    every, last, *_ = n.parts(
        op, 1 + states, rows, *weights, *starts, hidden_size=hidden, direction=direction, **attrs
    )
    if n.chance(0.2):
        return n.made(n.reshaped(last, batch, count * hidden, 1, 1), (batch, count * hidden, 1, 1))
    shape = (batch, count, hidden, steps)
    return n.put("Transpose", every, perm=[2, 1, 3, 0], shape=shape)


BLOCKS: tuple[Step, ...] = (
    *(computing,) * 6,
    *(volume, stages, on_one_pixel) * 2,
    *(gathered, norm_of_groups, halved, attended),
)
"""What a network grows by here; the more often the likelier."""


def random_blocks(seed: int, steps: int = 8) -> onnx.ModelProto:
    """A network of these steps, among those of `random_networks` for odd seeds."""
    return random_model(seed, steps, among=(*STEPS, *BLOCKS * 2) if seed % 2 else BLOCKS)


def random_recurrent(seed: int, steps: int = 6) -> onnx.ModelProto:
    """A network of recurrent layers among others."""
    return random_model(seed, steps, among=(recurrent, recurrent, *STEPS[:3], gathered, attended))
