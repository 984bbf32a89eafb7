"""What exporters write in place of a layer: shape arithmetic, norms, activations, attention.

Each function adds the nodes of one idiom to a `Net`, and returns its output's name. torch's tracing
exporter reads extents from the data (Shape, Gather, Concat), where the one over torch.export writes
numbers.
"""

from math import sqrt

import numpy as np
from onnx import numpy_helper

from tests.support.device_networks import Net


def number(n: Net, value: float) -> str:
    """A float32 scalar."""
    return n.stored(np.asarray(value, np.float32))


def index(n: Net, value: int) -> str:
    """An int64 scalar."""
    return n.stored(np.asarray(value, np.int64))


def extent(n: Net, x: str, axis: int) -> str:
    """The extent of an axis as a scalar that is read from the data."""
    return n("Gather", n("Shape", x), index(n, axis), axis=0)


def vector(n: Net, *extents: int | str) -> str:
    """A shape of numbers and of scalars that were computed."""
    parts = [n("Unsqueeze", e, n.ints(0)) if isinstance(e, str) else n.ints(e) for e in extents]
    return n("Concat", *parts, axis=0)


def reshaped(n: Net, x: str, *extents: int | str) -> str:
    """Under a shape of numbers, and of scalars that were computed."""
    if any(isinstance(entry, str) for entry in extents):
        return n("Reshape", x, vector(n, *extents))
    return n("Reshape", x, n.ints(*[e for e in extents if isinstance(e, int)]))


def expanded(n: Net, x: str, *extents: int | str) -> str:
    """Broadcast to a shape in which -1 keeps what there is, as the tracing exporter has it."""
    wanted = n("Reshape", vector(n, *extents), n.ints(-1))
    one = numpy_helper.from_array(np.ones(1, np.int64))
    ones = n("ConstantOfShape", n("Shape", wanted), value=one)
    unchanged = n("Mul", ones, n.ints(-1))
    return n("Expand", x, n("Where", n("Equal", wanted, unchanged), ones, wanted))


def linear(n: Net, x: str, depth: int, made: int) -> str:
    """A product with stored weights, and a bias in front of it."""
    weight = n("Transpose", n.weight(made, depth), perm=[1, 0])
    return n("Add", n.weight(made), n("MatMul", x, weight))


def layer_norm(n: Net, x: str, width: int) -> str:
    """Over the last dimension, as one op (from opset 17 on)."""
    return n("LayerNormalization", x, n.positive(width), n.weight(width), axis=-1, epsilon=1e-6)


def layer_norm_in_steps(n: Net, x: str, width: int) -> str:
    """Over the last dimension, as written before opset 17."""
    centred = n("Sub", x, n("ReduceMean", x, axes=[-1]))
    spread = n("ReduceMean", n("Pow", centred, number(n, 2.0)), axes=[-1])
    scaled = n("Div", centred, n("Sqrt", n("Add", spread, number(n, 1e-5))))
    return n("Add", n("Mul", scaled, n.positive(width)), n.weight(width))


def rms_norm(n: Net, x: str, width: int) -> str:
    """x / sqrt(mean of squares), scaled; axes as an input (opset 18)."""
    mean = n("ReduceMean", n("Pow", x, number(n, 2.0)), n.ints(-1), keepdims=1)
    scale = n("Reciprocal", n("Sqrt", n("Add", mean, number(n, 1e-6))))
    return n("Mul", n.positive(width), n("Mul", x, scale))


def gelu(n: Net, x: str) -> str:
    """By the error function, as written before opset 20."""
    half = n("Add", n("Erf", n("Div", x, number(n, sqrt(2.0)))), number(n, 1.0))
    return n("Mul", n("Mul", x, half), number(n, 0.5))


def gelu_by_tanh(n: Net, x: str) -> str:
    """The approximation of GPT-2."""
    inner = n("Mul", n("Pow", x, number(n, 3.0)), number(n, 0.044715))
    bent = n("Tanh", n("Mul", n("Add", x, inner), number(n, sqrt(2.0 / np.pi))))
    return n("Mul", n("Mul", x, number(n, 0.5)), n("Add", bent, number(n, 1.0)))


def silu(n: Net, x: str) -> str:
    """x * sigmoid(x)."""
    return n("Mul", x, n("Sigmoid", x))


def mlp(n: Net, x: str, width: int, inner: int) -> str:
    """Two products with a GELU between them."""
    return linear(n, gelu(n, linear(n, x, width, inner)), inner, width)


def softmax_attention(n: Net, q: str, k: str, v: str, depth: int, mask: str = "") -> str:
    """softmax(q k' / sqrt(depth) + mask) v, its factor split over both sides as torch does it."""
    root = number(n, depth**-0.25)
    turned = n("Mul", n("Transpose", k, perm=[0, 1, 3, 2]), root)
    scores = n("MatMul", n("Mul", q, root), turned)
    scores = n("Add", scores, mask) if mask else scores
    return n("MatMul", n("Softmax", scores, axis=-1), v)


def self_attention(n: Net, x: str, heads: int, depth: int) -> str:
    """Of one product for queries, keys and values, whose parts are taken by index."""
    width = heads * depth
    batch, count = extent(n, x, 0), extent(n, x, 1)
    packed = reshaped(n, linear(n, x, width, 3 * width), batch, count, 3, heads, depth)
    packed = n("Transpose", packed, perm=[2, 0, 3, 1, 4])
    q, k, v = (n("Gather", packed, index(n, part), axis=0) for part in range(3))
    seen = n("Transpose", softmax_attention(n, q, k, v, depth), perm=[0, 2, 1, 3])
    return linear(n, reshaped(n, seen, batch, count, width), width, width)


def squeeze_and_excite(n: Net, x: str, depth: int, inner: int, gate: str, **attrs: float) -> str:
    """x times a gate for each channel, from the channels' means."""
    mean = n("GlobalAveragePool", x)
    hidden = n("Relu", n.conv(mean, depth, inner, (1, 1)))
    return n("Mul", x, n(gate, n.conv(hidden, inner, depth, (1, 1)), **attrs))
