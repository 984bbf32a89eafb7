"""Small networks that nobody tuned for, as ONNX: odd sizes, odd shapes, odd combinations.

Each entry of NETWORKS writes one onto a `Net`; `write` gives the file that every peer reads.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


class Net:
    """Collects nodes; a call adds one and gives its output's name."""

    def __init__(self, name: str, opset: int = 13) -> None:
        self.name = name
        self.opset = opset
        self.rng = np.random.default_rng(sum(map(ord, name)))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []

    def input(self, *shape: int, element: int = TensorProto.FLOAT) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def stored(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, *shape: int) -> str:
        """Normal weights that keep the variance of what they multiply."""
        scale = np.sqrt(1.0 / max(1, int(np.prod(shape[1:]))))
        return self.stored((scale * self.rng.standard_normal(shape)).astype(np.float32))

    def positive(self, *shape: int) -> str:
        return self.stored(self.rng.uniform(0.5, 1.5, shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.stored(np.asarray(values, np.int64))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attrs))
        return name

    def parts(self, op: str, count: int, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """The outputs of a node that has several."""
        name = f"{op}_{len(self.nodes)}"
        made = tuple(f"{name}.{number}" for number in range(count))
        self.nodes.append(helper.make_node(op, list(inputs), list(made), name, **attrs))
        return made

    def conv(
        self, x: str, depth: int, made: int, kernel: tuple[int, ...] = (3, 3), **attrs: Any
    ) -> str:
        """With bias; pads keep the size unless they are given."""
        pads = [k // 2 for k in kernel] * 2
        weight = self.weight(made, depth // attrs.get("group", 1), *kernel)
        if "auto_pad" not in attrs:
            attrs = {"pads": pads, **attrs}
        return self("Conv", x, weight, self.weight(made), **attrs)

    def transposed(
        self, x: str, depth: int, made: int, kernel: tuple[int, ...] = (4, 4), **attrs: Any
    ) -> str:
        """With bias; twice as large unless strides and pads are given."""
        groups = attrs.get("group", 1)
        weight = self.weight(depth, made // groups, *kernel)
        attrs = {"strides": [2] * len(kernel), "pads": [1] * 2 * len(kernel), **attrs}
        return self("ConvTranspose", x, weight, self.weight(made), **attrs)

    def norm(self, x: str, count: int) -> str:
        values = self.positive(count), self.weight(count), self.weight(count), self.positive(count)
        return self("BatchNormalization", x, *values)

    def model(self, *outputs: str) -> onnx.ModelProto:
        made = [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, made, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        model.ir_version = 8
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)


Build = Callable[[Net], tuple[str, ...]]

Networks = dict[str, tuple[Build, int]]
"""Name -> what writes the network, and its operator set."""

NETWORKS: Networks = {}


def network(build: Build | None = None, *, opset: int = 13, among: Networks = NETWORKS) -> Any:
    """Decorator: the function is an entry of `among`."""

    def wrap(function: Build) -> Build:
        among[function.__name__] = function, opset
        return function

    return wrap(build) if build else wrap


def write(name: str, folder: Path, among: Networks = NETWORKS) -> Path:
    """The network's file in the folder."""
    build, opset = among[name]
    net = Net(name, opset)
    outputs = build(net)
    path = folder / f"{name}.onnx"
    onnx.save(net.model(*outputs), path)
    return path


# -- convolutions ----------------------------------------------------------------------------------


@network
def odd_image(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.norm(n.conv(n.input(1, 3, 37, 53), 3, 17, strides=[2, 2]), 17))
    x = n("Relu", n.conv(x, 17, 67, (1, 1)))
    x = n("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    x = n("Flatten", n("GlobalAveragePool", n.conv(x, 67, 13)))
    return (n("Softmax", n("Gemm", x, n.weight(7, 13), n.weight(7), transB=1)),)


@network
def element_by_element(n: Net) -> tuple[str, ...]:
    """What goes along two images, each as one row, between convolutions."""
    x = n.conv(n.input(2, 3, 6, 6), 3, 16)
    y = n.conv(x, 16, 16)
    z = n("Tanh", n("Sub", x, y))
    return (n.conv(z, 16, 5), n.conv(y, 16, 4), n.conv(n("Relu", z), 16, 3))


@network
def batch_of_two_thin_kernels(n: Net) -> tuple[str, ...]:
    x = n.input(2, 5, 19, 23)
    y = n("Relu", n.conv(n.conv(x, 5, 17, (1, 3)), 17, 5, (3, 1)))
    return (n("Add", y, x), n.conv(y, 5, 3, (1, 7), strides=[1, 3]))


@network
def batch_of_three(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.conv(n.input(3, 4, 11, 13), 4, 16))
    x = n("Relu", n.conv(x, 16, 24, (5, 5), strides=[2, 2], pads=[2, 2, 2, 2]))
    return (n("Gemm", n("Flatten", x), n.weight(24 * 6 * 7, 19), n.weight(19)),)


@network
def prime_channels(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.conv(n.input(1, 67, 13, 11), 67, 71))
    return (n.conv(x, 71, 61, (1, 1)),)


@network
def square_windows(n: Net) -> tuple[str, ...]:
    """3x3 layers of stride 1: odd sizes, with and without pads, residual, prime channels."""
    x = n("Relu", n.conv(n.input(2, 17, 11, 9), 17, 33))
    y = n("Add", n("Relu", n.conv(x, 33, 33)), x)
    return (n.conv(y, 33, 16, pads=[0, 0, 0, 0]),)


@network
def long_windows(n: Net) -> tuple[str, ...]:
    """5x5 layers, and windows of one row or column: odd sizes, with and without pads, residual."""
    x = n("Relu", n.conv(n.input(2, 17, 11, 9), 17, 33, (5, 5), pads=[2, 2, 2, 2]))
    y = n("Add", n("Relu", n.conv(x, 33, 33, (1, 7), pads=[0, 3, 0, 3])), x)
    return (n.conv(y, 33, 16, (7, 1), pads=[0, 0, 0, 0]),)


@network
def dilated(n: Net) -> tuple[str, ...]:
    x = n.input(1, 6, 23, 17)
    a = n.conv(x, 6, 17, dilations=[2, 2], pads=[2, 2, 2, 2])
    b = n.conv(x, 6, 17, dilations=[1, 3], pads=[1, 3, 1, 3])
    return (n.conv(n("Add", a, b), 17, 8, dilations=[4, 2], strides=[2, 1], pads=[4, 2, 4, 2]),)


@network
def asymmetric_pads(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 3, 14, 15), 3, 8, (4, 2), pads=[0, 1, 3, 2])
    x = n("MaxPool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1])
    return (n.conv(x, 8, 17, (2, 5), pads=[1, 0, 0, 4], strides=[1, 2]),)


@network
def automatic_pads(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 3, 15, 18), 3, 8, strides=[2, 2], auto_pad="SAME_UPPER")
    y = n.conv(x, 8, 8, (4, 4), auto_pad="SAME_LOWER")
    return (n.conv(n("Relu", y), 8, 5, auto_pad="VALID"),)


@network
def grouped(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.conv(n.input(2, 12, 9, 11), 12, 33, group=3))
    x = n.conv(x, 33, 22, (1, 1), group=11)
    return (n.conv(x, 22, 44, group=2, strides=[2, 2]),)


@network
def depthwise(n: Net) -> tuple[str, ...]:
    x = n.norm(n.conv(n.input(1, 17, 15, 13), 17, 17, group=17), 17)
    x = n.conv(n("Clip", x, n.positive(), ""), 17, 34, (5, 5), group=17, strides=[2, 2])
    x = n.conv(n("Relu", x), 34, 34, group=34, dilations=[2, 2], pads=[2, 2, 2, 2])
    return (n.conv(x, 34, 11, (1, 1)),)


@network
def strides_beyond_kernels(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 7, 29, 31), 7, 13, (1, 1), strides=[2, 3])
    return (n.conv(x, 13, 6, (2, 2), strides=[3, 4], pads=[0, 0, 0, 0]),)


@network
def whole_image_kernel(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(2, 5, 7, 6), 5, 9, (7, 6), pads=[0, 0, 0, 0])
    return (n("Relu", n.conv(x, 9, 4, (1, 1))),)


@network
def single_pixel(n: Net) -> tuple[str, ...]:
    return (n("Sigmoid", n.conv(n.conv(n.input(1, 1, 1, 1), 1, 1), 1, 3, (1, 1))),)


@network
def signals_and_volumes(n: Net) -> tuple[str, ...]:
    a = n("Relu", n.conv(n.input(2, 3, 41), 3, 7, (5,), strides=[2]))
    a = n("MaxPool", a, kernel_shape=[3], strides=[2])
    b = n("Relu", n.conv(n.input(1, 2, 5, 6, 7), 2, 5, (3, 3, 3)))
    return (a, n("AveragePool", b, kernel_shape=[2, 3, 2], pads=[0, 1, 0, 1, 1, 0]))


# -- blocks ----------------------------------------------------------------------------------------


@network
def pre_activation(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 3, 20, 20), 3, 16)
    for _ in range(2):
        y = n.conv(n("Relu", n.norm(x, 16)), 16, 16)
        x = n("Add", n.conv(n("Relu", n.norm(y, 16)), 16, 16), x)
    return (n("GlobalAveragePool", n("Relu", n.norm(x, 16))),)


@network
def bottleneck(n: Net) -> tuple[str, ...]:
    x = n.input(1, 32, 14, 14)
    y = n("Relu", n.norm(n.conv(x, 32, 19, (1, 1)), 19))
    y = n("Relu", n.norm(n.conv(y, 19, 19, strides=[2, 2]), 19))
    y = n.norm(n.conv(y, 19, 48, (1, 1)), 48)
    side = n.norm(n.conv(x, 32, 48, (1, 1), strides=[2, 2]), 48)
    return (n("Relu", n("Add", y, side)),)


@network
def odd_concatenations(n: Net) -> tuple[str, ...]:
    x = n.input(1, 5, 12, 12)
    a = n("Relu", n.conv(x, 5, 17, (1, 1)))
    b = n("Relu", n.conv(a, 17, 13))
    c = n("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    joined = n("Concat", a, b, c, x, axis=1)
    again = n("Concat", joined, n.norm(joined, 40), axis=1)
    return (n.conv(again, 80, 7), n("Concat", a, a, axis=2), b)


@network
def dense_block(n: Net) -> tuple[str, ...]:
    """Layers that read all before them, by concatenations that are written out again and again."""
    found = [n.conv(n.input(1, 3, 10, 12), 3, 12)]
    for layer in range(3):
        wide = 12 + 5 * layer
        x = found[0] if layer == 0 else n("Concat", *found, axis=1)
        x = n("Relu", n.norm(n.conv(n("Relu", n.norm(x, wide)), wide, 8, (1, 1)), 8))
        found.append(n.conv(x, 8, 5))
    x = n("Relu", n.norm(n("Concat", *found, axis=1), 27))
    return (n("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]),)


@network(opset=13)
def split_and_joined(n: Net) -> tuple[str, ...]:
    """Parts of a layer go through more layers, and join the others: as today's detectors do."""
    x = n("Relu", n.conv(n.input(2, 3, 9, 8), 3, 14))
    left, right = n.parts("Split", 2, x, n.ints(6, 8), axis=1)
    more = n("Relu", n.conv(right, 8, 8))
    again = n("Add", right, n("Relu", n.conv(more, 8, 8)))
    joined = n("Concat", left, right, more, again, axis=1)
    return (n.conv(joined, 30, 5, (1, 1)), n.conv(left, 6, 3))


@network
def columns_added(n: Net) -> tuple[str, ...]:
    """Each branch adds its columns to what the one before made, as in Res2Net."""
    x = n.conv(n.input(1, 3, 8, 8), 3, 9)
    left, middle, right = (
        n("Slice", x, n.ints(k), n.ints(k + 3), n.ints(1)) for k in range(0, 9, 3)
    )
    one = n("Relu", n.conv(left, 3, 3))
    two = n("Relu", n.conv(n("Add", one, middle), 3, 3))
    three = n("Relu", n.conv(n("Add", two, right), 3, 3))
    return (n.conv(n("Concat", one, two, three, axis=1), 9, 2),)


@network
def blocks_joined(n: Net) -> tuple[str, ...]:
    """Blocks beside blocks, twice over, and half of them."""
    x = n("Relu", n.conv(n.input(1, 3, 8, 6), 3, 32))
    y = n("Concat", x, n.conv(x, 32, 16), axis=1)
    z = n("Concat", x, n.conv(y, 48, 16), n.conv(y, 48, 48), axis=1)
    half = n("Slice", z, n.ints(32), n.ints(96), n.ints(1))
    return (n.conv(half, 64, 4),)


@network
def beside_a_constant(n: Net) -> tuple[str, ...]:
    """Channels that are known beside some that are computed."""
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 16))
    both = n("Concat", n.weight(1, 16, 8, 8), x, axis=1)
    return (n.conv(both, 32, 16),)


@network
def long_rows(n: Net) -> tuple[str, ...]:
    """Pixels of 512 channels around depthwise layers: a part of one value, all of others."""
    x = n("Relu", n.conv(n.input(1, 24, 6, 5), 24, 512, (1, 1)))
    y = n("Relu", n.conv(x, 512, 512, group=512))
    left, right = n.conv(y, 512, 200, (1, 1)), n.conv(y, 512, 312, (1, 1))
    z = n.conv(n("Concat", left, right, axis=1), 512, 512, group=512, strides=[2, 2])
    return (n.conv(n("Relu", z), 512, 9, (1, 1)), n("GlobalAveragePool", x))


@network(opset=14)
def gated(n: Net) -> tuple[str, ...]:
    x = n("HardSwish", n.conv(n.input(2, 3, 9, 9), 3, 18))
    s = n("Relu", n.conv(n("GlobalAveragePool", x), 18, 5, (1, 1)))
    return (n("Mul", x, n("HardSigmoid", n.conv(s, 5, 18, (1, 1)))),)


@network
def shuffled(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 3, 10, 9), 3, 12)
    x = n("Reshape", x, n.ints(0, 3, 4, 10, 9))
    x = n("Reshape", n("Transpose", x, perm=[0, 2, 1, 3, 4]), n.ints(0, -1, 10, 9))
    left = n("Slice", x, n.ints(0), n.ints(5), n.ints(1))
    right = n("Slice", x, n.ints(5), n.ints(1 << 40), n.ints(1))
    return (n.conv(right, 7, 5), n("Relu", left))


# -- pooling and normalisation -------------------------------------------------------------------


@network
def pools(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.conv(n.input(2, 3, 17, 16), 3, 17, (1, 1)))
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
    return (
        n("AveragePool", x, ceil_mode=1, **window),
        n("AveragePool", x, ceil_mode=1, pads=[1, 1, 0, 1], count_include_pad=1, **window),
        n("AveragePool", x, pads=[0, 1, 1, 0], **window),
        n("AveragePool", x, auto_pad="SAME_UPPER", **window),
        n("MaxPool", x, ceil_mode=1, pads=[1, 0, 1, 0], **window),
        n("MaxPool", x, kernel_shape=[2, 3], dilations=[2, 2]),
        n("GlobalMaxPool", x),
    )


@network
def neighbours(n: Net) -> tuple[str, ...]:
    x = n("LRN", n.conv(n.input(1, 3, 9, 8), 3, 17), size=5, alpha=0.02, beta=0.75, bias=1.0)
    return (n("LRN", n("MaxPool", x, kernel_shape=[2, 2]), size=3, alpha=0.5, beta=0.6, bias=2.0),)


@network
def softmax_axes(n: Net) -> tuple[str, ...]:
    x = n("Relu", n.conv(n.input(2, 3, 5, 7), 3, 11, (1, 1)))
    outer, inner = n("Softmax", x, axis=1), n("Softmax", x, axis=-1)
    return (outer, n("Softmax", x, axis=2), inner, n("LogSoftmax", x, axis=0))


@network(opset=11)
def softmax_of_flattened(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(2, 3, 5, 7), 3, 4, (1, 1))
    return n("Softmax", x), n("Softmax", x, axis=2), n("LogSoftmax", x, axis=3)


@network
def layer_norm(n: Net) -> tuple[str, ...]:
    x = n.input(3, 13, 67)
    centred = n("Sub", x, n("ReduceMean", x, axes=[-1]))
    spread = n("ReduceMean", n("Mul", centred, centred), axes=[-1])
    scaled = n("Div", centred, n("Sqrt", n("Add", spread, n.positive())))
    x = n("Add", n("Mul", scaled, n.positive(67)), n.weight(67))
    y = n("ReduceSum", x, n.ints(1), keepdims=0)
    return y, n("ReduceMax", x, axes=[0, 2]), n("ReduceMin", x, axes=[1])


# -- products and movement -----------------------------------------------------------------------


@network
def gemms(n: Net) -> tuple[str, ...]:
    a, b = n.input(7, 19), n.input(13, 19)
    x = n("Gemm", a, b, n.input(1, 13), transB=1, alpha=0.5, beta=2.0)
    y = n("Gemm", a, n.weight(7, 23), n.weight(23), transA=1)
    z = n("Gemm", y, n.weight(11, 23), n.weight(19, 1), transB=1, beta=0.25)
    return n("Relu", x), n("Gemm", z, n.weight(11, 17)), n("MatMul", x, n.weight(13, 5))


@network
def attention(n: Net) -> tuple[str, ...]:
    x = n.input(2, 13, 34)
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        p = n("Add", n("MatMul", x, n.weight(34, 34)), n.weight(34))
        parts.append(n("Transpose", n("Reshape", p, n.ints(0, 0, 2, 17)), perm=perm))
    scores = n("Softmax", n("Mul", n("MatMul", parts[0], parts[1]), n.positive(1)), axis=-1)
    y = n("Transpose", n("MatMul", scores, parts[2]), perm=[0, 2, 1, 3])
    return (n("Add", n("Reshape", y, n.ints(0, 0, -1)), x),)


@network
def broadcasts(n: Net) -> tuple[str, ...]:
    x, y = n.input(2, 1, 7), n.input(5, 1)
    z = n("Mul", n("Add", x, y), n("Exp", y))
    return n("Sub", z, n.input()), n("Max", z, x, n.weight(1)), n("Mean", x, y)


@network
def activations(n: Net) -> tuple[str, ...]:
    x = n.conv(n.input(1, 4, 6, 5), 4, 17, (1, 1))
    x = n("PRelu", n("LeakyRelu", x, alpha=0.3), n.weight(17, 1, 1))
    a, b = n("Elu", x), n("Selu", x)
    c = n("Div", n("Softplus", n("Erf", x)), n("Exp", n("Tanh", x)))
    return n("Add", a, b), c, n("Clip", x, "", n.positive())


@network
def moved(n: Net) -> tuple[str, ...]:
    x = n.input(2, 3, 5, 7)
    y = n("Relu", n("Transpose", x, perm=[3, 0, 2, 1]))
    z = n("Pad", y, n.ints(0, 1, 0, 2, 1, 0, 0, 3), n.weight())
    s = n("Slice", x, n.ints(-1, 6), n.ints(-10, 0), n.ints(1, 3), n.ints(-1, -2))
    t = n("Tile", n("Unsqueeze", s, n.ints(0)), n.ints(2, 1, 1, 2, 1))
    return z, t, n("Flatten", y, axis=3)


@network
def embedded_words(n: Net) -> tuple[str, ...]:
    words, flags = n.input(3, 11, element=TensorProto.INT64), n.input(3, 11, element=9)
    rows = n("Gather", n.weight(67, 17), words, axis=0)
    mask = n("Unsqueeze", n("Cast", flags, to=1), n.ints(2))
    total = n("ReduceSum", n("Mul", rows, mask), n.ints(1), keepdims=0)
    some = n("Where", flags, words, n("Mul", words, n.ints(3)))
    return n("MatMul", total, n.weight(17, 6)), n("Equal", some, words), n("Cast", some, to=6)


@network
def unread_and_repeated(n: Net) -> tuple[str, ...]:
    n.input(4)
    x = n.input(2, 3)
    y = n("Identity", x)
    return y, n("Add", x, x), n("Reshape", x, n.ints(6)), n("Reshape", y, n.ints(3, 2))
