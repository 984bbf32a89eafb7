"""Nodes of a graph as those of ONNX: one table, for images and volumes with their channels first.

Read `write_node` and `RULES`; `NodeWriter` collects. An op that is not in the table is refused by
its name: what other programs read should be what the graph means.
"""

from collections.abc import Callable, Mapping, Sequence
from math import isinf
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.core.errors import ModelError
from retune.graph.graph import Graph, Node
from retune.ops import OPS, Array, lookup
from retune.ops.registry import integer, ints, number
from retune.proto.file import value_info

OPSET, IR_VERSION = 14, 8
"""What the written files state: programs of 2021 and later read them."""


class NodeWriter:
    """The nodes and the stored arrays of a graph's model under construction."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[onnx.NodeProto] = []
        self.kernels: dict[str, str] = {}
        """Kernels of transposed convolutions as the graph has them -> as ONNX has them."""
        self._stored: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, inputs: Sequence[str], output: str, **attrs: Any) -> str:
        """The output's name, which the node makes."""
        self.nodes.append(helper.make_node(op, list(inputs), [output], output, **attrs))
        return output

    def store(self, name: str, array: Array) -> str:
        """The array's name; one that is there stays."""
        if name not in self._stored:
            self._stored[name] = numpy_helper.from_array(np.asarray(array, order="C"), name)
        return name

    def model(self) -> onnx.ModelProto:
        """The model, with the graph's inputs and outputs."""
        graph = self.graph
        made = helper.make_graph(
            self.nodes,
            graph.name,
            [value_info(value, graph.types[value]) for value in graph.inputs],
            [value_info(value, graph.types[value]) for value in graph.outputs],
            list(self._stored.values()),
        )
        model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version, model.producer_name = IR_VERSION, "retune"
        return model


Rule = Callable[[Node, Sequence[str], str, NodeWriter], object]


def write_node(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    """The node under other names. Raises: ModelError for an op without an ONNX form here."""
    form = lookup(node.op).onnx
    plain = form is not None and form.since <= OPSET
    rule = RULES.get(node.op) or (_named(form.name, *form.attrs) if form and plain else None)
    if rule is None:
        known = sorted(
            {*RULES, *(e.name for e in OPS.values() if e.onnx and e.onnx.since <= OPSET)}
        )
        raise ModelError(
            f"node '{node.name}': '{node.op}' has no form in ONNX here; expected one of "
            f"{', '.join(known)}"
        )
    rule(node, inputs, output, to)


def _named(op: str, *keys: str) -> Rule:
    """The op of that name, with attributes of the same names."""

    def rule(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
        to.node(op, inputs, output, **{key: node.attrs[key] for key in keys})

    return rule


def _convolution(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    own = to.graph.types[node.inputs[0]].shape[1] if node.op == "depthwise_conv2d" else 1
    to.node("Conv", inputs, output, group=node.attrs.get("groups", own), **_window(node))


def _transposed(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    """Kernels have their input channels first there; what is added to the result is padding."""
    data, kernel, *bias = inputs
    groups, pads = integer(node.attrs, "groups"), ints(node.attrs, "pads")
    if kernel not in to.kernels:
        to.kernels[kernel] = _turned(to.graph.types[node.inputs[1]].shape, kernel, groups, to)
    half = len(pads) // 2
    attrs = {
        "strides": node.attrs["strides"],
        "dilations": node.attrs["dilations"],
        "pads": (*pads[:half], *(max(0, end) for end in pads[half:])),
        "output_padding": tuple(max(0, -end) for end in pads[half:]),
    }
    to.node("ConvTranspose", [data, to.kernels[kernel], *bias], output, group=groups, **attrs)


def _turned(shape: Sequence[int], kernel: str, groups: int, to: NodeWriter) -> str:
    """[made, in / groups, taps...] as [in, made / groups, taps...]."""
    made, inner, *taps = shape
    axes = [3 + d for d in range(len(taps))]
    parts = {
        "apart": (groups, made // groups, inner, *taps),
        "turned": (groups * inner, made // groups, *taps),
    }
    stored = {
        name: to.store(f"{kernel}.{name}.shape", np.asarray(extents, np.int64))
        for name, extents in parts.items()
    }
    apart = to.node("Reshape", [kernel, stored["apart"]], f"{kernel}.apart")
    moved = to.node("Transpose", [apart], f"{kernel}.moved", perm=(0, 2, 1, *axes))
    return to.node("Reshape", [moved, stored["turned"]], f"{kernel}.turned")


def _window(node: Node) -> dict[str, Any]:
    return {key: node.attrs[key] for key in ("strides", "pads", "dilations")}


def _max_pool(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    to.node("MaxPool", inputs, output, kernel_shape=node.attrs["kernel"], **_window(node))


def _mean_pool(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    attrs, counted = _window(node), ints(node.attrs, "counted")
    if any(step != 1 for step in ints(node.attrs, "dilations")):
        raise ModelError(f"node '{node.name}': means of dilated windows are of opset 19")
    if any(counted) and counted != ints(node.attrs, "pads"):
        raise ModelError(f"node '{node.name}': a mean that counts some of its pads only")
    del attrs["dilations"]
    attrs |= {"kernel_shape": node.attrs["kernel"], "count_include_pad": int(any(counted))}
    to.node("AveragePool", inputs, output, **attrs)


def _clip(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    limits = [number(node.attrs, key) for key in ("min", "max")]
    names = [
        "" if isinf(limit) else to.store(f"{output}.{key}", np.asarray(limit, np.float32))
        for key, limit in zip(("min", "max"), limits, strict=True)
    ]
    to.node("Clip", [*inputs, *names], output)


def _dense(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    del node
    to.node("Gemm", inputs, output, transB=1)


def _shape(key: str, op: str) -> Rule:
    def rule(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
        shape = to.store(f"{output}.{key}", np.asarray(ints(node.attrs, key), np.int64))
        to.node(op, [*inputs, shape], output)

    return rule


def _mean(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    axes, keep = ints(node.attrs, "axes"), int(bool(node.attrs["keepdims"]))
    to.node("ReduceMean", inputs, output, axes=axes, keepdims=keep)


def _sum(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    axes = to.store(f"{output}.axes", np.asarray(ints(node.attrs, "axes"), np.int64))
    to.node("ReduceSum", [*inputs, axes], output, keepdims=int(bool(node.attrs["keepdims"])))


def _pad(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    pads = to.store(f"{output}.pads", np.asarray(ints(node.attrs, "pads"), np.int64))
    value = to.store(f"{output}.value", np.asarray(number(node.attrs, "value"), np.float32))
    to.node("Pad", [*inputs, pads, value], output)


def _extend(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    mode = str(node.attrs["mode"])
    if mode == "wrap":
        raise ModelError(f"node '{node.name}': pads from the other side are of opset 19")
    pads = to.store(f"{output}.pads", np.asarray(ints(node.attrs, "pads"), np.int64))
    to.node("Pad", [*inputs, pads], output, mode=mode)


def _repeat(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    scales = to.store(f"{output}.scales", np.asarray(ints(node.attrs, "repeats"), np.float32))
    how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    to.node("Resize", [*inputs, "", scales], output, mode="nearest", **how)


def _slice(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    begins, extents, steps = (ints(node.attrs, k) for k in ("begins", "extents", "steps"))
    if min(steps) < 1:
        raise ModelError(f"node '{node.name}': a slice backwards has no form in ONNX here")
    ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, extents, steps, strict=True)]
    lists = {"starts": begins, "ends": ends, "axes": range(len(begins)), "steps": steps}
    names = [to.store(f"{output}.{k}", np.asarray(v, np.int64)) for k, v in lists.items()]
    to.node("Slice", [*inputs, *names], output)


def _softmax(node: Node, inputs: Sequence[str], output: str, to: NodeWriter) -> None:
    to.node("Softmax", inputs, output, axis=integer(node.attrs, "axis"))


RULES: Mapping[str, Rule] = {
    "identity": _named("Identity"),
    "quotient": _named("Div"),
    "matmul": _named("MatMul"),
    "maximum": _named("Max"),
    "minimum": _named("Min"),
    "global_avg_pool": _named("GlobalAveragePool"),
    "global_max_pool": _named("GlobalMaxPool"),
    "concat": _named("Concat", "axis"),
    "gather": _named("Gather", "axis"),
    "repeat": _repeat,
    "extend": _extend,
    "transpose": _named("Transpose", "perm"),
    "softmax": _softmax,
    "reshape": _shape("shape", "Reshape"),
    "broadcast_to": _shape("shape", "Expand"),
    "conv2d": _convolution,
    "conv3d": _convolution,
    "depthwise_conv2d": _convolution,
    "conv_transpose": _transposed,
    "dense": _dense,
    "max_pool2d": _max_pool,
    "max_pool3d": _max_pool,
    "avg_pool2d": _mean_pool,
    "avg_pool3d": _mean_pool,
    "clip": _clip,
    "reduce_mean": _mean,
    "reduce_sum": _sum,
    "pad": _pad,
    "slice": _slice,
}
"""Op -> what writes it."""
