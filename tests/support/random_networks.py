"""Random small image networks as ONNX: what today's networks are made of, and odd cases of it.

Read `random_model`. A network grows step by step: each step of `STEPS` reads values that are there,
old ones too, so that branches, residuals and shared values come of themselves. Extents may depend
on sizes, see `random_sizes`: steps ask no more of them than what holds for all sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from retune.core.dims import always_same, is_fixed, is_multiple, least
from tests.support.device_networks import Net

OPSET = 18
SMALLEST = 3
"""Rows and columns below which images are not made smaller."""
LARGEST = 4000
"""Elements of an image beyond which nothing makes them more."""

Shape = tuple[int, ...]


class RandomNet(Net):
    """A network as it grows; every value's shape is known."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"random{seed}", OPSET)
        self.rng = np.random.default_rng(seed)
        self.shapes: dict[str, Shape] = {}
        self.x = self.first()

    def first(self) -> str:
        """The input that the network begins with."""
        shape = (
            self.pick(1, 1, 1, 2, 3),
            self.pick(3, 4, 6, 8, 12, 16),
            self.pick(5, 7, 8),
            self.pick(5, 6, 8),
        )
        return self.made(self.input(*shape), shape)

    def pick(self, *options: Any) -> Any:
        """One of them."""
        return options[int(self.rng.integers(len(options)))]

    def chance(self, part: float) -> bool:
        return bool(self.rng.random() < part)

    def made(self, value: str, shape: Shape) -> str:
        """The value, of which the shape is known now."""
        self.shapes[value] = shape
        return value

    def put(self, op: str, *inputs: str, shape: Shape | None = None, **attrs: Any) -> str:
        """An op's output; of its first input's shape where none is given."""
        return self.made(self(op, *inputs, **attrs), shape or self.shapes[inputs[0]])

    def reshaped(self, x: str, *shape: int) -> str:
        """The value in that shape; 0 and -1 in it mean what they mean to ONNX."""
        return self("Reshape", x, self.ints(*shape))

    def side(self, *shapes: Shape) -> Shape:
        """One of these shapes of constants, whose extents do not depend on sizes."""
        return self.pick(*(shape for shape in shapes if all(map(is_fixed, shape))))

    def number(self, value: float) -> str:
        """A float of no axes."""
        return self.stored(np.asarray(value, np.float32))

    def alike(self, x: str) -> list[str]:
        """The values of x's shape."""
        return [v for v, shape in self.shapes.items() if always_same(shape, self.shapes[x])]

    def images(self, fits: Callable[[Shape], bool] = lambda shape: True) -> list[str]:
        """The images that were made so far, of shapes that fit."""
        return [v for v, shape in self.shapes.items() if len(shape) == 4 and fits(shape)]

    def source(self) -> str:
        """The newest value mostly, at times an older image."""
        return self.pick(*self.images()) if self.chance(0.15) else self.x

    def step(self, among: Sequence["Step"]) -> None:
        """One more layer or block, of the newest value or an older one."""
        self.x = self.pick(*among)(self, self.source())


Step = Callable[[RandomNet, str], str]


def random_model(seed: int, steps: int = 8, among: Sequence[Step] | None = None) -> onnx.ModelProto:
    """A network with one to three outputs; the same seed gives the same.

    It grows by steps of `STEPS`, or such as are asked for.
    """
    return grown(RandomNet(seed), steps, among or STEPS)


def grown(net: RandomNet, steps: int, among: Sequence[Step]) -> onnx.ModelProto:
    """The network after so many more steps, with one to three outputs."""
    for _ in range(steps):
        net.step(among)
    last = head(net, net.x)
    inputs = [entry.name for entry in net.inputs]
    older = [value for value in net.shapes if value not in inputs]
    outputs = dict.fromkeys((last, *(net.pick(*older) for _ in range(net.pick(0, 0, 1, 2)))))
    return net.model(*(outputs if last not in inputs else (net("Relu", last),)))


# -- layers ----------------------------------------------------------------------------------------


def convolved(
    n: RandomNet,
    x: str,
    made: int,
    kernel: Shape,
    *,
    bias: bool = True,
    weight: str = "",
    **attrs: Any,
) -> str:
    """A convolution by a kernel, whose weight may be given."""
    batch, depth, *extents = n.shapes[x]
    groups = attrs.setdefault("group", 1)
    ones = [1] * len(kernel)
    strides, dilations = attrs.setdefault("strides", ones), attrs.setdefault("dilations", ones)
    pads = attrs.setdefault(
        "pads", [d * (k // 2) for k, d in zip(kernel, dilations, strict=True)] * 2
    )
    shape = tuple(
        (e + pads[d] + pads[d + len(kernel)] - dilations[d] * (kernel[d] - 1) - 1) // strides[d] + 1
        for d, e in enumerate(extents)
    )
    assert min(shape) > 0
    weight = weight or n.weight(made, depth // groups, *kernel)
    inputs = (x, weight, n.weight(made)) if bias else (x, weight)
    return n.put("Conv", *inputs, shape=(batch, made, *shape), **attrs)


def convolution(n: RandomNet, x: str) -> str:
    _, depth, *extents = n.shapes[x]
    kernel = n.pick((1, 1), (3, 3), (3, 3), (1, 3), (3, 2), (5, 1))
    attrs: dict[str, Any] = {}
    roomy = min(extents) > SMALLEST
    if roomy and n.chance(0.25):
        attrs["strides"] = n.pick([2, 2], [1, 2], [2, 1])
    if roomy and n.chance(0.2):
        attrs["dilations"] = n.pick([2, 1], [1, 2], [2, 2])
    if n.chance(0.25):  # at least as large as before: kernels always fit
        reach = [d * (k - 1) for k, d in zip(kernel, attrs.get("dilations", (1, 1)), strict=True)]
        begins = [n.pick(*range(r + 1)) for r in reach]
        more = n.pick(0, 0, 1)
        attrs["pads"] = [*begins, *(r - b + more for r, b in zip(reach, begins, strict=True))]
    kinds = [1, 1, 1, *(g for g in (2, 3, depth) if depth % g == 0)]
    groups = attrs["group"] = n.pick(*kinds)
    made = groups * n.pick(1, 2) if groups == depth else groups * n.pick(2, 4, 5, 8, 16 // groups)
    return convolved(n, x, made, kernel, bias=n.chance(0.7), **attrs)


def transposed(n: RandomNet, x: str) -> str:
    batch, depth, *extents = n.shapes[x]
    if batch * depth * np.prod(extents) > LARGEST // 4:
        return activation(n, x)
    kernel, strides = n.pick((2, 2), (3, 3), (4, 4), (3, 2)), n.pick([2, 2], [1, 2], [3, 1], [1, 1])
    groups = n.pick(*(g for g in (1, 1, 2, depth) if depth % g == 0))
    each = n.pick(1, 3, 4)
    dilations = n.pick([1, 1], [1, 1], [2, 1])
    extra = [n.pick(*range(s)) for s in strides]
    pads = [n.pick(*range(k)) for k in kernel * 2] if n.chance(0.6) else [0] * 4
    shape = tuple(
        s * (e - 1) + extra[d] + (kernel[d] - 1) * dilations[d] + 1 - pads[d] - pads[d + 2]
        for d, (e, s) in enumerate(zip(extents, strides, strict=True))
    )
    if min(shape) < 1:
        return activation(n, x)
    inputs = (x, n.weight(depth, each, *kernel), *([n.weight(groups * each)] * n.pick(0, 1)))
    return n.put(
        "ConvTranspose",
        *inputs,
        shape=(batch, groups * each, *shape),
        group=groups,
        strides=strides,
        pads=pads,
        dilations=dilations,
        output_padding=extra,
    )


def activation(n: RandomNet, x: str) -> str:
    match n.pick("Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "Clip", "silu", "PRelu", "Elu"):
        case "silu":
            return n.put("Mul", x, n.put("Sigmoid", x))
        case "Clip":
            return n.put("Clip", x, *(n.stored(np.asarray(v, np.float32)) for v in (-0.5, 1.5)))
        case "PRelu":
            return n.put("PRelu", x, n.positive(n.shapes[x][1], 1, 1))
        case op:
            return n.put(op, x)


def batch_norm(n: RandomNet, x: str) -> str:
    return n.made(n.norm(x, n.shapes[x][1]), n.shapes[x])


def scale(n: RandomNet, x: str) -> str:
    """A sum or product with a constant, of channels or of anything else, on either side."""
    channels, *rest = n.shapes[x][1:]
    shape = n.side((channels, 1, 1), (1, channels, 1, 1), (1,), (), (1, 1, rest[1]), (rest[0], 1))
    constant = n.positive(*shape) if n.chance(0.5) else n.weight(*shape)
    operands = [x, constant] if n.chance(0.7) else [constant, x]
    return n.put(n.pick("Add", "Mul", "Sub"), *operands, shape=n.shapes[x])


# -- branches --------------------------------------------------------------------------------------


def parallel(n: RandomNet, x: str) -> str:
    """Layers of one value whose results are added: alike, or in a way that keeps them apart."""
    _, depth, *_ = n.shapes[x]
    group = n.pick(*(g for g in (1, 1, 2, depth) if depth % g == 0))
    made = depth if n.chance(0.7) else group * n.pick(2, 3, 4)
    strides, dilations = n.pick([1, 1], [1, 1], [2, 1]), n.pick([1, 1], [1, 1], [2, 2])
    shared = n.weight(made, depth // group, 3, 3)
    total = ""
    for _ in range(n.pick(2, 2, 3, 4)):
        branch = _branch(n, x, made, shared, group=group, strides=strides, dilations=dilations)
        if total and not always_same(n.shapes[total], n.shapes[branch]):
            continue
        operands = [total, branch] if n.chance(0.5) else [branch, total]
        total = n.put(n.pick("Add", "Add", "Sub"), *operands) if total else branch
    return n.put("Relu", total) if n.chance(0.5) else total


def _branch(n: RandomNet, x: str, made: int, shared: str, **attrs: Any) -> str:
    whole = n.shapes[x][1] == made and attrs["strides"] == [1, 1]
    match n.pick("conv", "conv", "conv", "norm", "scale", "self", "shared", "computed"):
        case "norm" if whole:
            found = batch_norm(n, x)
        case "scale" if whole:
            found = n.put("Mul", x, n.weight(made, 1, 1))
        case "self" if whole:
            return x
        case "shared":
            found = convolved(n, x, made, (3, 3), weight=shared, **attrs)
        case "computed" if n.chance(0.3):  # a weight that is no constant
            depth = n.shapes[x][1] // attrs["group"]
            name = n.input(made, depth, 3, 3)
            found = convolved(n, x, made, (3, 3), weight=name, **attrs)
        case _:
            kernel = n.pick((3, 3), (1, 1), (3, 1), (5, 5), (2, 2))
            attrs = dict(attrs)
            attrs["dilations"] = n.pick(attrs["dilations"], attrs["dilations"], [1, 1])
            if n.chance(0.15) and attrs["group"] == 2:
                attrs["group"] = 1
            reach = [d * (k - 1) for k, d in zip(kernel, attrs["dilations"], strict=True)]
            begins = [r // 2 if n.chance(0.7) else n.pick(*range(r + 1)) for r in reach]
            attrs["pads"] = [*begins, *(r - b for r, b in zip(reach, begins, strict=True))]
            found = convolved(n, x, made, kernel, bias=n.chance(0.6), **attrs)
    for _ in range(n.pick(0, 0, 1, 2)):
        found = n.pick(batch_norm, scale)(n, found)
    return found


def residual(n: RandomNet, x: str) -> str:
    shape = n.shapes[x]
    other = n.pick(*n.images(lambda found: always_same(found, shape)))
    op = n.pick("Add", "Add", "Mul") if other == x else n.pick("Add", "Add", "Sub", "Mul")
    return n.put(op, *n.pick((x, other), (other, x)))


def gate(n: RandomNet, x: str) -> str:
    batch, channels, *_ = n.shapes[x]
    mean = n.put("GlobalAveragePool", x, shape=(batch, channels, 1, 1))
    inner = n.put("Relu", convolved(n, mean, n.pick(3, 4), (1, 1)))
    return n.put("Mul", x, n.put("Sigmoid", convolved(n, inner, channels, (1, 1))))


# -- movements -------------------------------------------------------------------------------------


def concat(n: RandomNet, x: str) -> str:
    """With others along the channels, or another axis; at times with itself or a constant."""
    axis = n.pick(1, 1, 1, 2, 3, 0)
    shape = n.shapes[x]
    if np.prod(shape) > LARGEST // 2:
        return activation(n, x)

    def fits(other: Shape) -> bool:
        return always_same(*((*s[:axis], *s[axis + 1 :]) for s in (shape, other)))

    parts = [x, *(n.pick(*n.images(fits)) for _ in range(n.pick(1, 1, 2)))]
    if n.chance(0.1) and all(map(is_fixed, shape)):
        constant = n.stored(n.rng.standard_normal(shape).astype(np.float32))
        parts.append(n.made(constant, shape))
    n.rng.shuffle(parts)
    if axis == 1 and n.chance(0.5):  # a layer that has nothing else to do than to be a part
        parts[0] = convolved(n, parts[0], n.pick(4, 8, 16), (1, 1))
    total = sum(n.shapes[part][axis] for part in parts)
    made = n.put("Concat", *parts, shape=(*shape[:axis], total, *shape[axis + 1 :]), axis=axis)
    for constant in [v for v in n.shapes if v.startswith("w")]:
        del n.shapes[constant]
    return made


def cut(n: RandomNet, x: str) -> str:
    """A slice along one axis, at times backwards or with steps, or over two axes."""
    shape = list(n.shapes[x])
    axes, begins, ends, steps = [], [], [], []
    for axis in n.pick((1,), (1,), (1,), (2,), (1, 3), (0,)):
        extent = shape[axis]
        if not is_fixed(extent):
            begin, end, step, shape[axis] = _open_cut(n, extent)
            axes, begins, ends, steps = (
                [*axes, axis],
                [*begins, begin],
                [*ends, end],
                [*steps, step],
            )
            continue
        step = n.pick(1, 1, 1, 2, -1)
        length = n.pick(*range(max(1, extent // 2), extent + 1))
        if step == -1:
            begin, end = length - 1, -(1 << 40)
            count = length
        else:
            begin = n.pick(*range(extent - length + 1))
            end, count = begin + length, -(-length // step)
        axes, begins, ends, steps = [*axes, axis], [*begins, begin], [*ends, end], [*steps, step]
        shape[axis] = count
    names = (n.ints(*entry) for entry in (begins, ends, axes, steps))
    return n.put("Slice", x, *names, shape=tuple(shape))


def _open_cut(n: RandomNet, extent: int) -> tuple[int, int, int, int]:
    """Begin, end, step and length of a slice of an extent that depends on sizes."""
    few = least(extent)
    match n.pick("front", "back", "both", "steps", "backwards", "half", "fixed"):
        case "front" if few > 1:
            return 1, 1 << 40, 1, extent - 1
        case "back" if few > 1:
            return 0, -1, 1, extent - 1
        case "both" if few > 2:
            return 1, n.pick(-1, extent - 1), 1, extent - 2
        case "steps":
            return 0, 1 << 40, 2, (extent + 1) // 2
        case "half" if few > 1:
            return 0, extent // 2, 1, extent // 2
        case "fixed":
            count = n.pick(*range(1, few + 1))
            return (-count, 1 << 40, 1, count) if n.chance(0.5) else (0, count, 1, count)
        case _:
            return -1, -(1 << 40), -1, extent


def split(n: RandomNet, x: str) -> str:
    """Parts of the channels, one of which goes through a layer; all or some are joined again."""
    batch, channels, *extents = n.shapes[x]
    if channels < 2:
        return activation(n, x)
    first = n.pick(*range(1, channels), *(k for k in (4, 8, 16) if k < channels))
    sizes = (first, channels - first)
    left, right = n.parts("Split", 2, x, n.ints(*sizes), axis=1)
    for part, size in zip((left, right), sizes, strict=True):
        n.made(part, (batch, size, *extents))
    more = convolved(n, right, n.pick(sizes[1], 4, 8), (3, 3))
    more = n.put("Relu", more) if n.chance(0.5) else more
    if n.shapes[more] == n.shapes[right] and n.chance(0.5):
        more = n.put("Add", more, right)
    parts = n.pick(
        (left, right, more), (left, more), (more, left), (right, left), (left, more, left)
    )
    total = sum(n.shapes[part][1] for part in parts)
    return n.put("Concat", *parts, shape=(batch, total, *extents), axis=1)


def shuffle(n: RandomNet, x: str) -> str:
    batch, c, h, w = n.shapes[x]
    parts = next(p for p in (n.pick(2, 4), 3, 2, 1) if c % p == 0)
    apart = n.reshaped(x, batch, parts, c // parts, h, w)
    turned = n("Transpose", apart, perm=[0, 2, 1, 3, 4])
    return n.made(n.reshaped(turned, n.pick(batch, -1), c, h, w), n.shapes[x])


def turn(n: RandomNet, x: str) -> str:
    """There and back with something between, or rows for columns."""
    batch, c, h, w = n.shapes[x]
    if n.chance(0.3):
        return n.put("Transpose", x, perm=[0, 1, 3, 2], shape=(batch, c, w, h))
    last = n.made(n("Transpose", x, perm=[0, 2, 3, 1]), (batch, h, w, c))
    match n.pick("norm", "product", "softmax"):
        case "norm":
            last = n("LayerNormalization", last, n.positive(c), n.weight(c), axis=-1)
        case "product":
            last = n("Add", n("MatMul", last, n.weight(c, c)), n.weight(c))
        case _:
            last = n("Softmax", last, axis=-1)
    return n.put("Transpose", last, perm=[0, 3, 1, 2], shape=(batch, c, h, w))


def depth_to_space(n: RandomNet, x: str) -> str:
    batch, c, h, w = n.shapes[x]
    if n.chance(0.5) and c % 4 == 0:
        mode = n.pick("DCR", "CRD")
        return n.put("DepthToSpace", x, blocksize=2, mode=mode, shape=(batch, c // 4, 2 * h, 2 * w))
    if is_multiple(h, 2) and is_multiple(w, 2) and min(h, w) > SMALLEST:
        return n.put("SpaceToDepth", x, blocksize=2, shape=(batch, 4 * c, h // 2, w // 2))
    return activation(n, x)


def padded(n: RandomNet, x: str) -> str:
    batch, c, h, w = n.shapes[x]
    mode = n.pick("constant", "constant", *(("reflect", "edge") if min(h, w) > 2 else ()))
    more = n.pick(0, 0, 0, 2) if mode == "constant" else 0
    pads = (0, more, n.pick(0, 1), n.pick(0, 1), 0, 0, n.pick(0, 2), n.pick(0, 1))
    shape = (batch, c + more, h + pads[2] + pads[6], w + pads[3] + pads[7])
    value = [n.stored(np.asarray(n.pick(0.0, 0.0, 0.7), np.float32))] if mode == "constant" else []
    return n.put("Pad", x, n.ints(*pads), *value, mode=mode, shape=shape)


def resize(n: RandomNet, x: str) -> str:
    batch, c, h, w = n.shapes[x]
    if batch * c * h * w > LARGEST // 4:
        return activation(n, x)
    up, mode = n.pick((2, 2), (2, 1), (1, 3)), n.pick("nearest", "linear")
    shape = (batch, c, h * up[0], w * up[1])
    way = n.pick("half_pixel", "asymmetric", "align_corners")
    inputs = (x, "", "", n.ints(*shape))
    if not all(map(is_fixed, shape)) and n.chance(0.6):
        inputs = (x, "", n.stored(np.asarray((1, 1, *up), np.float32)))
    return n.put(
        "Resize", *inputs, mode=mode, shape=shape,
        coordinate_transformation_mode=way,
    )  # fmt: skip


# -- pooling and norms -----------------------------------------------------------------------------


def pool(n: RandomNet, x: str) -> str:
    batch, c, *extents = n.shapes[x]
    if min(extents) < SMALLEST:
        return activation(n, x)
    kernel, strides = n.pick((3, 3), (2, 2), (3, 2)), n.pick([1, 1], [2, 2], [1, 2])
    pads = [n.pick(*range((k + 1) // 2)) for k in kernel * 2] if n.chance(0.6) else [0] * 4
    shape = tuple(
        (e + pads[d] + pads[d + 2] - kernel[d]) // strides[d] + 1 for d, e in enumerate(extents)
    )
    op = n.pick("MaxPool", "AveragePool")
    more = {"count_include_pad": n.pick(0, 1)} if op == "AveragePool" else {}
    return n.put(
        op, x, kernel_shape=kernel, strides=strides, pads=pads, shape=(batch, c, *shape), **more
    )


def group_norm(n: RandomNet, x: str) -> str:
    """As exporters write it, in one node or in parts; or over each channel, or each image."""
    batch, c, h, w = n.shapes[x]
    groups = n.pick(*(g for g in range(1, c + 1) if c % g == 0))
    plain = n.chance(0.6)
    gain = n.stored(np.ones(groups, np.float32)) if plain else n.positive(groups)
    shift = n.stored(np.zeros(groups, np.float32)) if plain else n.weight(groups)
    if n.chance(0.2):
        whole = n.positive(c), n.weight(c)
        return n.put("InstanceNormalization", x, *whole, epsilon=1e-4)
    rows = n.pick((0, groups, -1), (batch, groups, -1), (0, groups, h, -1))
    flat = n.reshaped(x, *rows)
    normal = n("InstanceNormalization", flat, gain, shift, epsilon=1e-4)
    normal = n.made(n.reshaped(normal, batch, c, h, w), n.shapes[x])
    if n.chance(0.3):
        return normal
    side = n.side((c, 1, 1), (1, c, 1, 1), (1,), (c, h, w))
    return n.put("Add", n.put("Mul", normal, n.positive(*side)), n.weight(*side))


def across_channels(n: RandomNet, x: str) -> str:
    match n.pick("lrn", "softmax", "mean"):
        case "lrn":
            return n.put("LRN", x, size=3, alpha=0.02, beta=0.75, bias=1.0)
        case "softmax":
            return n.put("Softmax", x, axis=n.pick(1, 2, 3))
        case _:
            batch, c, h, w = n.shapes[x]
            axes, shape = n.pick(((1,), (batch, 1, h, w)), ((2, 3), (batch, c, 1, 1)))
            mean = n("ReduceMean", x, n.ints(*axes), keepdims=1)
            return n.put("Sub", x, n.made(mean, shape))


def head(n: RandomNet, x: str) -> str:
    _, *image = n.shapes[x]
    match n.pick("none", "none", "product", "mean"):
        case "product" if all(map(is_fixed, image)):
            flat = n("Flatten", x, axis=1)
            return n("Gemm", flat, n.weight(5, int(np.prod(image))), n.weight(5), transB=1)
        case "mean":
            return n("Flatten", n("GlobalAveragePool", x), axis=1)
        case _:
            return x


STEPS: tuple[Step, ...] = (
    *(convolution,) * 4,
    *(parallel,) * 3,
    *(concat,) * 3,
    *(cut,) * 2,
    *(split,) * 2,
    *(activation,) * 3,
    *(batch_norm, scale) * 2,
    *(group_norm,) * 2,
    *(transposed, residual, pool, shuffle, turn, depth_to_space, padded, resize, gate),
    across_channels,
)
"""What a network grows by; the more often the likelier."""
