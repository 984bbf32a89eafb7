"""Small float networks to quantize, with samples for their ranges."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from retune.core.dtypes import FLOAT32, INT8, INT32, UINT8
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, without_dead
from retune.ops import Array
from tests.support.device_networks import Net

Samples = dict[str, np.ndarray]


def residual() -> tuple[Graph, Samples]:
    """Everything that stays in integers, its scores, and their softmax, which is in floats."""
    n = Net("residual")
    x = n("Relu", n.norm(n.conv(n.input(1, 3, 16, 16), 3, 16), 16))
    y = n("Clip", n.conv(x, 16, 16, group=16), n.stored(np.float32(0)), n.stored(np.float32(6)))
    x = n("Relu", n("Add", n.conv(y, 16, 16), x))
    pooled = n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n("Concat", pooled, n.conv(x, 16, 8, strides=[2, 2]), axis=1)
    x = n("Flatten", n("GlobalAveragePool", n("Relu", n.conv(x, 24, 32, (1, 1)))))
    y = n("Gemm", x, n.weight(10, 32), n.weight(10), transB=1)
    graph = import_model(n.model(y, n("Softmax", y)))
    return graph, samples(graph)


def samples(graph: Graph, count: int = 8) -> Samples:
    """Normal samples, one after another."""
    rng = np.random.default_rng(5)
    return {
        name: rng.standard_normal((count, *graph.types[name].shape[1:]), np.float32)
        for name in graph.inputs
    }


def integer_ends(graph: Graph) -> Graph:
    """The network up to the last integers that it computes: all behind is floats, and not exact."""
    whole = [n for n in graph.nodes if graph.types[n.outputs[0]].dtype == INT32]
    codes = [n for n in graph.nodes if graph.types[n.outputs[0]].dtype in (UINT8, INT8)]
    ends = tuple(node.outputs[0] for node in (codes[-1], whole[-1]))
    return without_dead(replace(graph, outputs=ends))


def exact_part(graph: Graph, seed: int) -> tuple[Graph, dict[str, Array]]:
    """A quantized network that begins at codes, and codes for it: those of random inputs.

    Where floats are rounded to codes, a last bit may decide which. So these codes are inputs, and
    what is rounded is an output: all integers have to be the same then, and floats nearly.
    """
    inputs = random_inputs(graph, seed)
    casts = (n for n in graph.nodes if n.op == "cast" and n.attrs["to"] in (INT8, UINT8))
    codes = [node for node in casts if graph.types[node.inputs[0]].dtype == FLOAT32]
    coded = {node.outputs[0] for node in codes}
    quotients = [n.inputs[0] for n in graph.nodes if n.op == "quotient"]
    rounded = [value for value in quotients if graph.types[value].elements > 1]
    made = {v for n in graph.nodes for v in n.outputs} - coded
    whole = replace(graph, outputs=(*coded,)) if coded else graph
    inputs |= run_graph(whole, inputs) if coded else {}
    ends = dict.fromkeys(v for v in (*graph.outputs, *rounded) if v in made)
    begun = replace(
        graph,
        inputs=(*graph.inputs, *sorted(coded)),
        outputs=tuple(ends),
        nodes=tuple(n for n in graph.nodes if n not in codes),
    )
    return without_dead(begun), inputs


def squeezing() -> tuple[Graph, Samples]:
    """Blocks of MobileNetV3 and of EfficientNet: gates by channel, hard-swish, x * sigmoid(x)."""
    n = Net("squeezing")

    def block(x: str, made: int, gate: str, active: Callable[[str], str]) -> str:
        y = active(n.conv(x, 8, 24, (1, 1)))
        y = active(n.conv(y, 24, 24, group=24))
        z = n("Relu", n.conv(n("GlobalAveragePool", y), 24, 8, (1, 1)))
        z = n(gate, n.conv(z, 8, 24, (1, 1)))
        return n.conv(n("Mul", y, z), 24, made, (1, 1))

    def swish(x: str) -> str:
        return n("Mul", x, n("Sigmoid", x))

    def hard_swish(x: str) -> str:
        clip = n("Clip", n("Add", x, n.stored(np.float32(3))), zero, six)
        return n("Div", n("Mul", x, clip), six)

    zero, six = n.stored(np.float32(0)), n.stored(np.float32(6))
    x = swish(n.conv(n.input(1, 3, 16, 16), 3, 8, strides=[2, 2]))
    x = n("Add", x, block(x, 8, "Sigmoid", swish))
    x = block(n("LeakyRelu", x, alpha=0.1), 16, "HardSigmoid", hard_swish)
    x = n("Flatten", n("GlobalAveragePool", hard_swish(n.conv(x, 16, 32, (1, 1)))))
    y = n("Gemm", x, n.weight(10, 32), n.weight(10), transB=1)
    graph = import_model(n.model(y))
    return graph, samples(graph)


def moving() -> tuple[Graph, Samples]:
    """What only moves data: parts, nearest neighbours, pads of both kinds, slices."""
    n = Net("moving")
    x = n("Relu", n.conv(n.input(1, 3, 16, 16), 3, 16, strides=[2, 2]))
    a, b = n.parts("Split", 2, x, n.ints(8, 8), axis=1)
    a = n("Resize", n.conv(a, 8, 8, strides=[2, 2]), "", doubled(n), mode="nearest")
    x = n("Pad", n("Concat", b, a, axis=1), n.ints(0, 0, 1, 1, 0, 0, 1, 1), mode="reflect")
    x = n("Pad", n.conv(x, 16, 8, pads=[0, 0, 0, 0]), n.ints(0, 0, 1, 0, 0, 0, 1, 0))
    x = n("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1])
    y = n.conv(n("Slice", x, n.ints(1), n.ints(4), n.ints(1)), 3, 4, strides=[4, 4])
    graph = import_model(n.model(y))
    return graph, samples(graph)


def resizing() -> tuple[Graph, Samples]:
    """Images twice as large: linearly, and of channels."""
    n = Net("resizing")
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 16))
    x = n("Resize", x, "", doubled(n), mode="linear")
    x = n("DepthToSpace", n.conv(x, 16, 16), blocksize=2)
    y = n.conv(x, 4, 4, strides=[4, 4])
    graph = import_model(n.model(y))
    return graph, samples(graph)


def upwards() -> tuple[Graph, Samples]:
    """Transposed convolutions: of images and rows, in groups, by channel, of kernels of all sizes.

    Strides of two and of one, phases of one size and of several, norms and activations behind them.
    """
    n = Net("upwards")
    x = n("Relu", n.conv(n.input(1, 3, 8, 6), 3, 8, strides=[2, 2]))
    x = n("Relu", n.norm(n.transposed(x, 8, 12), 12))
    y = n.transposed(x, 12, 12, (3, 3), group=3, output_padding=[1, 1])
    y = n("Clip", y, n.stored(np.float32(0)), n.stored(np.float32(6)))
    y = n("Add", n.transposed(y, 12, 12, (3, 2), strides=[1, 1], pads=[1, 0, 1, 1]), y)
    y = n.transposed(n("Sigmoid", y), 12, 12, (2, 2), group=12, pads=[0, 0, 0, 0])
    y = n.transposed(y, 12, 5, (3, 3), strides=[1, 3], pads=[0] * 4, dilations=[2, 1])
    rows = n("Reshape", y, n.ints(1, 5, -1))
    z = n.transposed(rows, 5, 2, (4,))
    graph = import_model(n.model(n("Tanh", z)))
    return graph, samples(graph)


def doubled(n: Net) -> str:
    """Scales of images twice as large."""
    return n.stored(np.asarray([1, 1, 2, 2], np.float32))
