"""Parallel convolutions become one: which do, which do not, and that nothing else changes."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from tests.support.networks import model, node, normal

CHANNELS = 6
CONVOLUTIONS = ("conv2d", "depthwise_conv2d")


class Branches:
    """Branches over one input `x` of six channels, after a layer that makes it."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self("Relu", "data", to="x")

    def __call__(self, op: str, *inputs: str, to: str = "", **attrs: object) -> str:
        out = to or f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, [out], **attrs))
        return out

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = normal(self.rng, *shape)
        return name

    def conv(self, kernel: Sequence[int], *, groups: int = 1, source: str = "x", **attrs: object):
        weight = self.weight(CHANNELS, CHANNELS // groups, *kernel)
        pads = attrs.pop("pads", [n // 2 for n in kernel] * 2)
        bias = self.weight(CHANNELS)
        return self("Conv", source, weight, bias, pads=pads, group=groups, **attrs)

    def norm(self, value: str) -> str:
        names = [self.weight(CHANNELS) for _ in range(4)]
        self.weights[names[3]] = np.abs(self.weights[names[3]]) + 0.5
        return self("BatchNormalization", value, *names)

    def merged(self, *values: str, op: str = "Add") -> tuple[int, int]:
        """The sum of the values, then ReLU: convolutions, and nodes that compute, that are left."""
        total, *rest = values
        for value in rest:
            total = self(op, total, value)
        self("Relu", total, to="y")
        made = model(self.nodes, {"data": (2, CHANNELS, 9, 8)}, ["y"], self.weights)
        plain, after = import_model(made), optimise(import_model(made), "NHWC")
        data = {"data": normal(self.rng, 2, CHANNELS, 9, 8)}
        (expected,), (found,) = (run_graph(g, data).values() for g in (plain, after))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        return convolutions(after), sum(n.op != "transpose" for n in after.nodes)


def convolutions(graph: Graph) -> int:
    return sum(n.op in CONVOLUTIONS for n in graph.nodes)


@pytest.fixture
def net() -> Branches:
    return Branches()


@pytest.mark.parametrize("groups", [1, 2, CHANNELS])
def test_a_block_as_repvgg_trains_it_is_one_layer(net: Branches, groups: int):
    """3x3 and 1x1 with norms, and a norm alone: with ReLU before and after, in and out of rows."""
    branches = [net.norm(net.conv((k, k), groups=groups)) for k in (3, 1)]
    assert net.merged(*branches, net.norm("x")) == (1, 4)


@pytest.mark.parametrize(
    ("wide", "narrow"), [((3, 3), (3, 3)), ((5, 5), (3, 3)), ((5, 3), (1, 3)), ((7, 1), (1, 1))]
)
@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_kernels_within_kernels(net: Branches, wide: tuple[int, int], narrow, op: str):
    assert net.merged(net.conv(narrow), net.conv(wide), op=op)[0] == 1


def test_pads_say_where_a_kernel_lies_in_another_one(net: Branches):
    off_centre = net.conv((2, 2), pads=[0, 1, 1, 0])
    assert net.merged(net.conv((3, 3)), off_centre)[0] == 1


def test_strides_and_dilations_of_both(net: Branches):
    some = [net.conv((3, 3), strides=[2, 1], dilations=[1, 2], pads=[1, 2, 1, 2]) for _ in range(2)]
    assert net.merged(*some)[0] == 1


def test_the_value_itself_is_a_tap(net: Branches):
    """As in FastViT: x + (conv(x) - norm(x)) * c is one layer, scale and all."""
    mixed = net("Sub", net.conv((3, 3), groups=CHANNELS), net.norm("x"))
    scaled = net("Mul", mixed, net.weight(CHANNELS, 1, 1))
    assert net.merged("x", scaled) == (1, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((3, 1), {}), ((1, 3), {})),
        (((3, 3), {}), ((3, 3), {"dilations": [2, 2], "pads": [2, 2, 2, 2]})),
        (((3, 3), {}), ((3, 3), {"groups": 2})),
        (((3, 3), {}), ((3, 3), {"source": "data"})),
        (((3, 3), {"dilations": [2, 2], "pads": [2] * 4}), ((2, 2), {"pads": [0, 0, 1, 1]})),
    ],
)
def test_kernels_that_are_not_one_within_another_stay_apart(net: Branches, one, other):
    assert net.merged(*(net.conv(kernel, **attrs) for kernel, attrs in (one, other)))[0] == 2


def test_what_someone_else_reads_stays(net: Branches):
    shared = net.conv((3, 3))
    more = net("Sigmoid", shared)
    assert net.merged(shared, net.conv((1, 1)), more)[0] == 2


def test_a_residual_of_another_value_stays_a_sum(net: Branches):
    count, nodes = net.merged(net.conv((3, 3)), "data")
    assert count == 1
    assert nodes > 4  # of the layer alone
