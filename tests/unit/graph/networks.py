"""Small networks for the tests: ONNX models of a few nodes, and random graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.core.dtypes import TensorType
from retune.graph.fuse import Group, group_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.lower import group_tensors
from retune.ir.te import Dag


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 13,
    element: int = onnx.TensorProto.FLOAT,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(n, element, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, element, None) for n in outputs],
        initializer=[numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    return made


def dag_of(graph: Graph, group: Group) -> Dag:
    """The group as tensor expressions; its params are constant placeholders."""
    return group_tensors(group_graph(graph, group), group.params).dag


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


class RandomNet:
    """Grows a random image network, one layer a call of `step`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.build = GraphBuilder(f"random{seed}")
        shape = (self.pick(1, 2), self.pick(3, 4, 6), self.pick(7, 9, 11), self.pick(5, 8, 9))
        self.x = self.build.input("data", TensorType(shape))
        self.older = [self.x]

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.build.types[self.x].shape

    def weight(self, *shape: int) -> str:
        return self.build.constant("w", normal(self.rng, *shape))

    def put(self, op: str, *inputs: str, **attrs: Any) -> None:
        self.x = self.build.add(op, inputs, attrs, name=self.build.fresh(op))
        self.older.append(self.x)

    def conv(self) -> None:
        taps = self.pick((1, 1), (3, 3), (1, 3), (3, 1))
        channels = self.shape[1]
        groups = self.pick(1, 1, channels if channels in (4, 6) else 1, 2 - channels % 2)
        attrs = {
            "strides": self.pick((1, 1), (1, 1), (2, 1)),
            "pads": self.pick((1, 1, 1, 1), (1, 1, 1, 1), (0, 1, 1, 1)),
            "dilations": (1, 1),
            "layout": "NCHW",
        }
        if groups == channels > 1:
            weight = self.weight(channels * self.pick(1, 2), 1, *taps)
            return self.put("depthwise_conv2d", self.x, weight, **attrs)
        made = groups * self.pick(2, 3)
        weight = self.weight(made, channels // groups, *taps)
        return self.put("conv2d", self.x, weight, groups=groups, **attrs)

    def batch_norm(self) -> None:
        count = self.shape[1]
        statistics = [self.weight(count) for _ in range(3)]
        spread = self.build.constant("v", self.rng.random(count).astype(np.float32) + 0.5)
        self.put("batch_norm", self.x, *statistics, spread, axis=1, epsilon=1e-3)

    def scale(self) -> None:
        shape = self.pick((self.shape[1], 1, 1), (1,), (), (1, *self.shape[1:2], 1, 1))
        self.put(self.pick("add", "multiply", "subtract"), self.x, self.weight(*shape))

    def left_constant(self) -> None:
        self.put(self.pick("add", "subtract", "multiply"), self.weight(1, 1, 1), self.x)

    def activation(self) -> None:
        self.put(self.pick("relu", "sigmoid", "tanh", "identity", "abs"), self.x)

    def pool(self) -> None:
        attrs = {
            "kernel": (3, 2),
            "strides": (1, self.pick(1, 2)),
            "dilations": (1, 1),
            "pads": (1, 0, 1, 1),
            "layout": "NCHW",
        }
        if self.pick(True, False):
            return self.put("max_pool2d", self.x, **attrs)
        counted = self.pick((0,) * 4, attrs["pads"])
        return self.put("avg_pool2d", self.x, counted=counted, **attrs)

    def residual(self) -> None:
        same = [v for v in self.older if self.build.types[v].shape == self.shape]
        self.put("add", self.x, self.pick(*same))

    def concat(self) -> None:
        fits = [
            v
            for v in self.older
            if len(self.build.types[v].shape) == 4
            and self.build.types[v].shape[2:] == self.shape[2:]
        ]
        self.put("concat", self.x, self.pick(*fits), axis=1)

    def shuffle(self) -> None:
        n, c, h, w = self.shape
        parts = next(p for p in (3, 2, 1) if c % p == 0)
        self.put("reshape", self.x, shape=(n, parts, c // parts, h, w))
        self.put("transpose", self.x, perm=(0, 2, 1, 3, 4))
        self.put("reshape", self.x, shape=(n, c, h, w))

    def move(self) -> None:
        n, c, h, w = self.shape
        match self.pick("pad", "slice", "turn", "there and back"):
            case "pad":
                self.put("pad", self.x, pads=(0, 0, 1, 0, 0, 0, 0, 2), value=0.0)
            case "slice":
                self.put(
                    "slice", self.x, begins=(0, 0, 1, 0), steps=(1,) * 4, extents=(n, c, h - 1, w)
                )
            case "turn":
                self.put("transpose", self.x, perm=(0, 1, 3, 2))
            case _:
                self.put("transpose", self.x, perm=(0, 2, 3, 1))
                self.put("relu", self.x)
                self.put("transpose", self.x, perm=(0, 3, 1, 2))

    def across_channels(self) -> None:
        match self.pick("lrn", "softmax", "gate"):
            case "lrn":
                self.put("lrn", self.x, axis=1, size=3, alpha=1e-2, beta=0.75, bias=1.0)
            case "softmax":
                self.put("softmax", self.x, axis=1)
            case _:
                image = self.x
                self.put("reduce_mean", self.x, axes=(2, 3), keepdims=True)
                self.put("sigmoid", self.x)
                self.put("multiply", image, self.x)

    def head(self) -> None:
        n, c, h, w = self.shape
        match self.pick("flatten", "mean", "none", "global"):
            case "flatten":
                self.put("reshape", self.x, shape=(n, c * h * w))
                self.put("dense", self.x, self.weight(5, c * h * w))
                self.put("add", self.x, self.weight(1, 5))
                self.put("softmax", self.x, axis=1)
            case "mean":
                self.put("reduce_mean", self.x, axes=self.pick((2, 3), (1,), (0,)), keepdims=False)
            case "global":
                self.put("global_avg_pool", self.x, layout="NCHW")
                self.put("reshape", self.x, shape=(n, c))
                self.put("dense", self.x, self.weight(5, c))
            case _:
                pass

    def step(self) -> None:
        self.pick(
            self.conv,
            self.conv,
            self.batch_norm,
            self.batch_norm,
            self.activation,
            self.activation,
            self.scale,
            self.left_constant,
            self.pool,
            self.residual,
            self.concat,
            self.shuffle,
            self.move,
            self.across_channels,
        )()


def random_network(seed: int, steps: int = 9) -> Graph:
    """A verified network; two outputs where that is possible. The same seed gives the same."""
    net = RandomNet(seed)
    for _ in range(steps):
        net.step()
        if min(net.shape) < 3 and net.shape[0] > 2:
            break
    middle = net.pick(*net.older)
    net.head()
    outputs = dict.fromkeys((net.x, middle))
    return net.build.finish(tuple(v for v in outputs if v != "data") or (net.x,)).verify()
