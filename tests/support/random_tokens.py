"""Steps of random networks of texts: [batch, length, features], as transformers write them.

Read `TOKENS` and `TokenNet`. `random_sizes` leaves batch and length open.
"""

from typing import Any

import numpy as np
from onnx import TensorProto

from retune.core.dims import always_same, least
from tests.support.random_networks import RandomNet, Shape, Step

WORDS = 11
"""Words that a text may have."""


class TokenNet(RandomNet):
    """A network of texts as it grows."""

    ids = ""
    """The words of the text: int64 [batch, length]; empty where it begins with features."""

    def begun(self, batch: int, length: int, features: int) -> str:
        """Features of that shape, or what is looked up for words."""
        shape = (batch, length, features)
        if self.chance(0.5):
            return self.made(self.input(*shape), shape)
        given = self.input(batch, length, element=TensorProto.INT64)
        self.ids = self.made(self("Mod", given, self.ints(WORDS)), (batch, length))
        return self.put("Gather", self.weight(WORDS, features), self.ids, shape=shape)

    def source(self) -> str:
        return self.x


def dense(n: RandomNet, x: str) -> str:
    *before, features = n.shapes[x]
    made = n.pick(4, 5, 8, 16, features)
    shape = (*before, made)
    if n.chance(0.3):  # as one product of all rows
        flat = n.reshaped(x, -1, features)
        product = n("Gemm", flat, n.weight(made, features), n.weight(made), transB=1)
        value = n.made(n.reshaped(product, *shape), shape)
    else:
        value = n("MatMul", x, n.weight(features, made))
        value = n.made(n("Add", value, n.weight(made)), shape)
    return function(n, value) if n.chance(0.5) else value


def function(n: RandomNet, x: str) -> str:
    match n.pick("Relu", "Tanh", "Sigmoid", "gelu", "silu", "clip"):
        case "gelu":
            erf = n("Erf", n("Mul", x, n.number(0.7071)))
            half = n("Mul", x, n("Add", erf, n.number(1)))
            return n.put("Mul", half, n.number(0.5), shape=n.shapes[x])
        case "silu":
            return n.put("Mul", x, n("Sigmoid", x), shape=n.shapes[x])
        case "clip":
            return n.put("Clip", x, *(n.number(v) for v in (-0.5, 1.5)))
        case op:
            return n.put(op, x)


def norm(n: RandomNet, x: str) -> str:
    features = n.shapes[x][-1]
    if n.chance(0.5):
        sides = n.positive(features), n.weight(features)
        return n.put("LayerNormalization", x, *sides, axis=-1, epsilon=1e-3)
    axis = n.pick(-1, -1, 1)
    less = n("Sub", x, n("ReduceMean", x, n.ints(axis), keepdims=1))
    spread = n("ReduceMean", n("Mul", less, less), n.ints(axis), keepdims=1)
    root = n("Sqrt", n("Add", spread, n.number(1e-2)))
    return n.put("Div", less, root, shape=n.shapes[x])


def attention(n: RandomNet, x: str) -> str:
    """Of several heads, at times of what comes before each position only."""
    batch, length, features = n.shapes[x]
    heads = next(h for h in (n.pick(1, 2, 4), 2, 1) if features % h == 0)
    each = features // heads

    def part() -> str:
        value = n("MatMul", x, n.weight(features, features))
        shape = n.pick((0, 0, heads, each), (batch, length, heads, each), (0, -1, heads, each))
        return n("Transpose", n.reshaped(value, *shape), perm=[0, 2, 1, 3])

    query, key, value = part(), n("Transpose", part(), perm=[0, 1, 3, 2]), part()
    scores = n("Mul", n("MatMul", query, key), n.number(each**-0.5))
    if n.chance(0.4):
        scores = n("Add", scores, _later(n, length))
    mixed = n("MatMul", n("Softmax", scores, axis=-1), value)
    turned = n("Transpose", mixed, perm=[0, 2, 1, 3])
    found = n.made(n.reshaped(turned, *n.pick((0, 0, -1), (batch, length, features))), n.shapes[x])
    return n.put("Add", x, found) if n.chance(0.6) else found


def _positions(n: RandomNet, length: int) -> str:
    """0, 1, ...: int64 [length]."""
    zero, one = (n.stored(np.asarray(v, np.int64)) for v in (0, 1))
    return n("Range", zero, n("Squeeze", n.ints(length), n.ints(0)), one)


def _later(n: RandomNet, length: int) -> str:
    """A large negative number for each position that is later: [length, length]."""
    if n.chance(0.5):
        there = _positions(n, length)
        own = n("Unsqueeze", there, n.ints(1))
        low, none = (n.number(v) for v in (-1e4, 0))
        return n("Where", n("Greater", there, own), low, none)
    ones = n("Expand", n.number(-1e4), n.ints(length, length))
    return n("Trilu", ones, n.stored(np.asarray(1, np.int64)), upper=1)


def placed(n: RandomNet, x: str) -> str:
    """With what says where each position is: a table's beginning, or its number."""
    _, length, features = n.shapes[x]
    if n.chance(0.5):
        table = n.weight(64, features)
        part = n("Slice", table, n.ints(0), n.ints(length), n.ints(0))
    else:
        number = n("Cast", _positions(n, length), to=TensorProto.FLOAT)
        part = n("Sin", n("Unsqueeze", number, n.ints(1)))
    return n.put("Add", x, part)


def summary(n: RandomNet, x: str) -> str:
    """A reduction over the positions, or over the features, and what it is for."""
    op = n.pick("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2")
    axes = n.pick((1,), (1,), (2,), (1, 2))
    found = n(op, x, n.ints(*axes), keepdims=1)
    return n.put(n.pick("Sub", "Mul", "Add"), x, n("Tanh", found), shape=n.shapes[x])


def cut(n: RandomNet, x: str) -> str:
    """Some of the positions."""
    batch, length, features = n.shapes[x]
    few = least(length)
    kind = n.pick("first", "rest", "steps", "back", "half", "last")
    if few < 2:
        kind = n.pick("back", "last", "steps")
    end = 1 << 40
    begin, end, step, made = {
        "first": (0, -1, 1, length - 1),
        "rest": (1, end, 1, length - 1),
        "steps": (0, end, 2, (length + 1) // 2),
        "back": (-1, -end, -1, length),
        "half": (length // 2, end, 1, length - length // 2),
        "last": (-1, end, 1, 1),
    }[kind]
    part = n("Slice", x, *(n.ints(v) for v in (begin, end, 1, step)))
    if kind == "last":  # of all positions, with each of them
        return n.put("Add", x, part, shape=n.shapes[x])
    return n.made(part, (batch, made, features))


def joined(n: RandomNet, x: str) -> str:
    """With another text behind it, or with a learned position before it."""
    batch, length, features = n.shapes[x]
    if n.chance(0.5):
        first = n("Expand", n.weight(1, 1, features), n.ints(batch, 1, features))
        return n.put("Concat", first, x, axis=1, shape=(batch, length + 1, features))
    other = n.pick(*n.alike(x))
    if n.chance(0.5) and features <= 8:
        return n.put("Concat", x, other, axis=2, shape=(batch, length, 2 * features))
    return n.put("Concat", x, other, axis=1, shape=(batch, 2 * length, features))


def along(n: RandomNet, x: str) -> str:
    """A convolution or a pooling along the positions."""
    batch, length, features = n.shapes[x]
    turned = n("Transpose", x, perm=[0, 2, 1])
    stride = n.pick(1, 1, 2)
    count = (length - 1) // stride + 1
    if n.chance(0.6):
        made = n.pick(4, 6, features)
        weight = n.weight(made, features, 3)
        attrs: dict[str, Any] = {"pads": [1, 1], "strides": [stride]}
        value = n("Conv", turned, weight, n.weight(made), **attrs)
    else:
        made, op = features, n.pick("MaxPool", "AveragePool")
        value = n(op, turned, kernel_shape=[3], strides=[stride], pads=[1, 1])
    return n.put("Transpose", value, perm=[0, 2, 1], shape=(batch, count, made))


def padded(n: RandomNet, x: str) -> str:
    batch, length, features = n.shapes[x]
    first, last = n.pick(0, 1, 2), n.pick(0, 1)
    shape = (batch, length + first + last, features)
    return n.put("Pad", x, n.ints(0, first, 0, 0, last, 0), mode="constant", shape=shape)


def residual(n: RandomNet, x: str) -> str:
    return n.put(n.pick("Add", "Sub", "Mul"), x, n.pick(*n.alike(x)))


def counted(n: RandomNet, x: str) -> str:
    """Integers: what is largest, how many are positive so far, and which words there are."""
    match n.pick("largest", "so far", "words"):
        case "largest":
            axis = n.pick(1, 2)
            index = n("ArgMax", x, axis=axis, keepdims=1)
            part = n("Cast", n("Mod", index, n.ints(3)), to=TensorProto.FLOAT)
        case "so far":
            sign = n("Cast", n("Greater", x, n.number(0)), to=TensorProto.FLOAT)
            part = n("Tanh", n("CumSum", sign, n.stored(np.asarray(1, np.int64))))
        case _:
            ids = getattr(n, "ids", "")
            if not ids or not always_same(n.shapes[ids], n.shapes[x][:2]):
                return function(n, x)
            same = n("Equal", n("Div", ids, n.ints(2)), n.ints(3))
            part = n("Unsqueeze", n("Cast", same, to=TensorProto.FLOAT), n.ints(2))
    return n.put("Add", x, part, shape=n.shapes[x])


def pairs(n: RandomNet, x: str) -> str:
    """Each position with each: [batch, length, length, features], and one of them is left."""
    batch, length, features = n.shapes[x]
    shapes: tuple[Shape, ...] = ((batch, length, 1, features), (batch, 1, length, features))
    if n.chance(0.5):
        left, right = (n.reshaped(x, *shape) for shape in shapes)
    else:
        left, right = (n("Unsqueeze", x, n.ints(axis)) for axis in (2, 1))
    every = n(n.pick("Sub", "Mul", "Add"), left, right)
    op = n.pick("ReduceMax", "ReduceMean", "ReduceSum")
    found = n(op, n("Tanh", every), n.ints(n.pick(1, 2)), keepdims=0)
    return n.made(found, n.shapes[x])


def repeated(n: RandomNet, x: str) -> str:
    """Each position, or all of them, twice."""
    batch, length, features = n.shapes[x]
    shape = (batch, 2 * length, features)
    if n.chance(0.5):
        return n.put("Tile", x, n.ints(1, 2, 1), shape=shape)
    wide = n("Expand", n("Unsqueeze", x, n.ints(2)), n.ints(1, 1, 2, 1))
    return n.made(n.reshaped(wide, *shape), shape)


TOKENS: tuple[Step, ...] = (
    *(dense, attention) * 4,
    *(norm, summary, cut) * 2,
    *(function, placed, joined, along, padded, residual, counted, pairs, repeated),
)
"""What a network of texts grows by; the more often the likelier."""
