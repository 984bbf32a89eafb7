"""Quantized operators as float ones between pairs of QuantizeLinear and DequantizeLinear.

onnxruntime's quantizer writes models in two forms: float operators between pairs, and operators
that read and make integers (its QOperator form). Here the second form becomes the first, so that
there is one way from there on: `onnx_pairs`. Read `in_pairs` and `RULES`.

    y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
 -> y = QuantizeLinear(Conv(DequantizeLinear(x, xs, xz), DequantizeLinear(w, ws, wz)), ys, yz)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.core.errors import ModelError
from retune.frontend.onnx.functions import functions_of, local_function
from retune.frontend.onnx.order import sorted_nodes
from retune.ops import Array
from retune.proto.file import initializers, integer_attribute
from retune.proto.scope import MICROSOFT, bodies_of, label_of, opsets_of, standard

MOVES = (
    *("MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Resize", "Split"),
    *("Gather", "Slice", "Pad", "Expand", "Tile", "Identity", "DepthToSpace", "SpaceToDepth"),
)
"""Operators whose results have the scale of their quantized inputs."""
_CHOICES = ("ArgMax", "ArgMin")
"""Operators that may read quantized values as they are."""
_NEW_SOFTMAX = 13
"""The opset from which Softmax is along one axis; before, of all axes from one on."""

_LEAST_READ: Mapping[str, int] = {
    "QLinearConv": 8, "QLinearMatMul": 8, "QLinearWhere": 8, "QLinearAdd": 7, "QLinearMul": 7,
    "QGemm": 6, "QLinearConcat": 4, "QLinearSigmoid": 4, "QLinearLeakyRelu": 4,
    "QLinearAveragePool": 4, "QLinearGlobalAveragePool": 4, "QLinearReduceMean": 4,
    "QLinearSoftmax": 4,
}  # fmt: skip
"""Inputs up to the last one that may not be left out; of others data and a scale."""
_AXES_ARE_INPUTS = 18
"""The opset from which ReduceMean reads its axes."""

_Quantized = tuple[str, str, str]
"""The names of quantized values, of their scale and of their zero point ('' for none)."""


def in_pairs(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The model with its quantized operators as float ones between pairs.

    The same object if it has none. Operators with scales that no pair can have stay, and so do
    those inside bodies of nodes. Raises: ModelError for a graph without an order.
    """
    kinds = {(standard(n.domain), n.op_type) for n in model.graph.node}
    if not kinds & RULES.keys():
        return model
    functions = functions_of(model)
    to = _Writer(model, folder)
    name = model.graph.name or "network"
    for node in sorted_nodes(model.graph, name):
        rule = RULES.get((standard(node.domain), node.op_type))
        to.label = label_of(node)
        if rule is not None and len(node.input) < (least := _LEAST_READ.get(node.op_type, 2)):
            raise ModelError(
                f"{name}: node {to.label!r} ({node.op_type}): expected at least {least} inputs, "
                f"got {len(node.input)}; export the model again"
            )
        if rule is None or local_function(node, functions) or not rule(node, to):
            to.copy(node)
    return to.model()


class _Writer:
    """The new graph's nodes, and which of its values are quantized, and how."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self._model = model
        self.label = ""
        """What the node is called that is written now: nodes that the file does not have say so."""
        graph = model.graph
        self.opset = opsets_of(model).get("", 1)
        self.shapes = {
            entry.name: tuple(dim.dim_value for dim in entry.type.tensor_type.shape.dim)
            for entry in graph.input
            if entry.type.tensor_type.HasField("shape")
        }
        self.shapes |= {t.name: tuple(t.dims) for t in graph.initializer}
        small = {t.name for t in graph.initializer if len(t.dims) <= 1}
        self.known: dict[str, Array] = dict(initializers(graph, folder, small.__contains__))
        """Stored scalars and lists, and those that nodes hold."""
        self._taken = {v for n in graph.node for v in (*n.input, *n.output)}
        self._taken |= {entry.name for entry in (*graph.input, *graph.initializer)}
        self._nodes: list[onnx.NodeProto] = []
        self._stored: list[onnx.TensorProto] = []
        self._quantized: dict[str, tuple[str, str]] = {}
        self._read: dict[tuple[str, ...], str] = {}

    def copy(self, node: onnx.NodeProto) -> None:
        """The node as it is; one that moves quantized values moves their floats."""
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            self.known[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        if node.op_type == "QuantizeLinear":
            self._quantized_value(
                node.output[0], node.input[1], node.input[2] if node.input[2:] else ""
            )
        quantized = self._quantized.get(node.input[0]) if node.input and not node.domain else None
        if quantized is None or any(bodies_of(node)):
            self._nodes.append(node)
        elif node.op_type in MOVES:
            self._moved(node, *quantized)
        elif node.op_type in _CHOICES:
            data = self.read((node.input[0], *quantized))
            self.add(node.op_type, [data], node.output, node.attribute, node.name)
        else:
            self._nodes.append(node)

    def read(self, quantized: _Quantized, axis: int | None = None) -> str:
        """The value, dequantized; scales may be those of an axis."""
        key = (*quantized, str(axis))
        if key not in self._read:
            values, scale, zero = quantized
            made = self._fresh(f"{values}.read")
            node = helper.make_node(
                "DequantizeLinear",
                [values, scale, *([zero] if zero else [])],
                [made],
                f"{self.label}.read",
            )
            if axis is not None:
                node.attribute.append(helper.make_attribute("axis", axis))
            self._nodes.append(node)
            self._read[key] = made
        return self._read[key]

    def write(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Iterable[onnx.AttributeProto],
        made: _Quantized,
        name: str,
    ) -> None:
        """The operator, and its quantized result."""
        value = self._fresh(f"{made[0]}.value")
        self.add(op, inputs, [value], attributes, name)
        self._quantize(value, made)

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Iterable[onnx.AttributeProto] = (),
        name: str = "",
    ) -> None:
        """The operator, which reads and makes floats."""
        node = helper.make_node(op, list(inputs), list(outputs), name)
        node.attribute.extend(attributes)
        self._nodes.append(node)

    def transposed(self, quantized: _Quantized, perm: Sequence[int]) -> _Quantized:
        """The quantized values with their dimensions in that order."""
        made = self._fresh(f"{quantized[0]}.transposed")
        self.transpose(quantized[0], made, perm)
        return made, *quantized[1:]

    def transpose(self, source: str, made: str, perm: Sequence[int]) -> None:
        """One value is the other with its dimensions in that order."""
        name = f"{self.label}.transpose"
        self.copy(helper.make_node("Transpose", [source], [made], name, perm=list(perm)))

    def fresh_output(self, made: _Quantized) -> _Quantized:
        """Quantized values of the same scale and zero point under another name."""
        return self._fresh(f"{made[0]}.first"), *made[1:]

    def plain(self, node: onnx.NodeProto) -> None:
        """The node under the same name in the default domain."""
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.domain = ""
        self.copy(made)

    def stored(self, name: str, array: Array) -> str:
        """A new constant's name."""
        name = self._fresh(name)
        self._stored.append(numpy_helper.from_array(array, name))
        self.known[name], self.shapes[name] = array, array.shape
        return name

    def is_single(self, *values: str) -> bool:
        """Whether all are known to have one element; '' has the one that it stands for."""
        return all(not v or (v in self.known and self.known[v].size == 1) for v in values)

    def model(self) -> onnx.ModelProto:
        """The model with the new nodes."""
        made = onnx.ModelProto()
        made.CopyFrom(self._model)
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in self._nodes]
        del made.graph.node[:]
        made.graph.node.extend(copies)
        made.graph.initializer.extend(self._stored)
        return made

    def _moved(self, node: onnx.NodeProto, scale: str, zero: str) -> None:
        """The move between pairs of the same parameters."""
        inputs = [self.read((node.input[0], scale, zero)), *node.input[1:]]
        if node.op_type == "Pad" and not any(a.s not in (b"", b"constant") for a in node.attribute):
            inputs += [""] * (3 - len(inputs))  # there is no such Pad before opset 11
            around = inputs[2] or self._zero_value(zero)
            inputs[2] = self.read((around, scale, zero))
        first = 1 if node.op_type == "MaxPool" else len(node.output)
        quantized = [v for v in node.output[:first] if v]
        values = {v: self._fresh(f"{v}.value") for v in quantized}
        outputs = [values.get(v, v) for v in node.output]
        self.add(node.op_type, inputs, outputs, node.attribute, node.name)
        for output, value in values.items():
            self._quantize(value, (output, scale, zero))

    def _zero_value(self, zero: str) -> str:
        """The quantized value 0, which an operator on integers takes where none is stated."""
        dtype = self.known[zero].dtype if zero in self.known else np.dtype(np.uint8)
        return self.stored("zero code", np.zeros((), dtype))

    def _quantize(self, value: str, made: _Quantized) -> None:
        output, scale, zero = made
        inputs = [value, scale, *([zero] if zero else [])]
        self.add("QuantizeLinear", inputs, [output], name=f"{self.label}.write")
        self._quantized_value(output, scale, zero)

    def _quantized_value(self, output: str, scale: str, zero: str) -> None:
        if self.is_single(scale, zero):
            self._quantized[output] = (scale, zero)

    def _fresh(self, name: str) -> str:
        found, count = name, 0
        while found in self._taken:
            count += 1
            found = f"{name}.{count}"
        self._taken.add(found)
        return found


Rule = Callable[[onnx.NodeProto, _Writer], bool]
"""Writes the node otherwise; False for one that has to stay."""

RULES: dict[tuple[str, str], Rule] = {}
"""Domain and operator -> how it is written."""


def _rule(op: str, *domains: str) -> Callable[[Rule], Rule]:
    def wrap(rule: Rule) -> Rule:
        RULES.update({(domain, op): rule for domain in domains})
        return rule

    return wrap


def _quantized(node: onnx.NodeProto, first: int) -> _Quantized:
    """Quantized value, scale and zero point, three inputs from the first on."""
    names = [*node.input, *[""] * 3][first : first + 3]
    return names[0], names[1], names[2]


def _made(node: onnx.NodeProto, first: int) -> _Quantized:
    """The quantized result; scale and zero point are two inputs from the first on."""
    scale, zero = [*node.input, *[""] * 3][first : first + 2]
    return node.output[0], scale, zero


def _attributes(node: onnx.NodeProto, *without: str) -> list[onnx.AttributeProto]:
    return [a for a in node.attribute if a.name not in without]


@_rule("QLinearConv", "", MICROSOFT)
def _conv(node: onnx.NodeProto, to: _Writer) -> bool:
    """The scale of the kernel is one, or one for each output channel."""
    data, kernel = _quantized(node, 0), _quantized(node, 3)
    scale = _product(to, data[1], kernel[1], label_of(node))
    rank = len(to.shapes.get(kernel[0], ()))
    if scale is None or (integer_attribute(node, "channels_last", 0) and not rank):
        return False
    more = [to.read(kernel, 0)]
    if len(node.input) > 8 and node.input[8]:
        more.append(to.read((node.input[8], scale, ""), 0))
    _over_channels(node, to, ("Conv", more), _made(node, 6), rank)
    return True


def _over_channels(
    node: onnx.NodeProto, to: _Writer, call: tuple[str, list[str]], made: _Quantized, rank: int
) -> None:
    """The operator with inputs after its data; with channels_last both are transposed."""
    (op, more), data = call, _quantized(node, 0)
    attributes = _attributes(node, "channels_last")
    if not integer_attribute(node, "channels_last", 0):
        to.write(op, [to.read(data), *more], attributes, made, node.name)
        return
    first = to.transposed(data, (0, rank - 1, *range(1, rank - 1)))
    inner = to.fresh_output(made)
    to.write(op, [to.read(first), *more], attributes, inner, node.name)
    to.transpose(inner[0], made[0], (0, *range(2, rank), 1))


@_rule("QLinearMatMul", "", MICROSOFT)
def _matmul(node: onnx.NodeProto, to: _Writer) -> bool:
    """The scale of the right matrix is one, or one for each of its columns."""
    left, right = _quantized(node, 0), _quantized(node, 3)
    axis = _axis(to, right, -1)
    if axis is None or not to.is_single(*left[1:]):
        return False
    to.write("MatMul", [to.read(left), to.read(right, axis)], (), _made(node, 6), node.name)
    return True


@_rule("QGemm", MICROSOFT)
def _gemm(node: onnx.NodeProto, to: _Writer) -> bool:
    """alpha (A B + C), the sum in integers; without a scale for the output it is in floats."""
    left, right = _quantized(node, 0), _quantized(node, 3)
    alpha = next((a.f for a in node.attribute if a.name == "alpha"), 1.0)
    scale = _product(to, left[1], right[1], label_of(node), alpha)
    axis = _axis(to, right, 0 if integer_attribute(node, "transB", 0) else -1)
    bias, made = _quantized(node, 6)[0], _made(node, 7)
    columns = to.shapes.get(bias, ())
    spread = scale is not None and columns[-1:] == (1,) and to.known[scale].size > 1
    if scale is None or axis is None or spread:  # no pair has one element for all columns' scales
        return False
    inputs = [to.read(left), to.read(right, axis)]
    if bias:
        inputs.append(to.read((bias, scale, ""), max(0, len(columns) - 1)))
    if made[1]:
        to.write("Gemm", inputs, node.attribute, made, node.name)
    else:
        to.add("Gemm", inputs, node.output, node.attribute, node.name)
    return True


def _product(to: _Writer, left: str, right: str, label: str, alpha: float = 1.0) -> str | None:
    """The scale of products of quantized values, in which biases are; None where it is not
    known."""
    if left not in to.known or right not in to.known or to.known[left].size != 1:
        return None
    scale = to.known[left].reshape(()) * to.known[right] * np.float32(alpha)
    return to.stored(f"{label}.bias scale", scale.reshape(-1) if scale.size > 1 else scale)


def _axis(to: _Writer, quantized: _Quantized, axis: int) -> int | None:
    """Where a matrix's scales are along, from the front; None for scales that no pair can have."""
    values, scale, zero = quantized
    if to.is_single(scale, zero):
        return 0
    shape = to.shapes.get(values)
    return None if shape is None or scale not in to.known else axis % len(shape)


def _plain(op: str) -> Rule:
    """Operators of one value: data, its scale and zero point, those of what it makes."""

    def rule(node: onnx.NodeProto, to: _Writer) -> bool:
        sides = next((len(a.ints) for a in node.attribute if a.name == "kernel_shape"), 0)
        rank = sides + 2 if sides else len(to.shapes.get(node.input[0], ()))
        if integer_attribute(node, "channels_last", 0) and not rank:
            return False
        _over_channels(node, to, (op, []), _made(node, 3), rank)
        return True

    return rule


def _binary(op: str) -> Rule:
    """Operators of two values: those, each with scale and zero point, those of what it makes."""

    def rule(node: onnx.NodeProto, to: _Writer) -> bool:
        inputs = [to.read(_quantized(node, 0)), to.read(_quantized(node, 3))]
        to.write(op, inputs, (), _made(node, 6), node.name)
        return True

    return rule


_ONE = ("Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool")
"""Operators of one value."""
RULES.update({(MICROSOFT, f"QLinear{op}"): _plain(op) for op in _ONE})
RULES.update({(MICROSOFT, f"QLinear{op}"): _binary(op) for op in ("Add", "Mul")})


@_rule("QLinearReduceMean", MICROSOFT)
def _mean(node: onnx.NodeProto, to: _Writer) -> bool:
    """Axes are an attribute there, and an input of ReduceMean from opset 18 on."""
    inputs, attributes = [to.read(_quantized(node, 0))], _attributes(node)
    axes = next((a.ints for a in node.attribute if a.name == "axes"), None)
    if axes is not None and to.opset >= _AXES_ARE_INPUTS:
        attributes = _attributes(node, "axes")
        inputs.append(to.stored(f"{label_of(node)}.axes", np.asarray(axes, np.int64)))
    to.write("ReduceMean", inputs, attributes, _made(node, 3), node.name)
    return True


@_rule("QLinearSoftmax", MICROSOFT)
def _softmax(node: onnx.NodeProto, to: _Writer) -> bool:
    """As Softmax of the opset that the node states, which has to mean the same in the model's."""
    stated = integer_attribute(node, "opset", to.opset)
    if (stated < _NEW_SOFTMAX) != (to.opset < _NEW_SOFTMAX):
        return False
    inputs = [to.read(_quantized(node, 0))]
    to.write("Softmax", inputs, _attributes(node, "opset"), _made(node, 3), node.name)
    return True


@_rule("QLinearConcat", MICROSOFT)
def _concat(node: onnx.NodeProto, to: _Writer) -> bool:
    """The scale and zero point of what it makes come first."""
    inputs = [to.read(_quantized(node, first)) for first in range(2, len(node.input), 3)]
    to.write("Concat", inputs, node.attribute, _made(node, 0), node.name)
    return True


@_rule("QLinearWhere", MICROSOFT)
def _where(node: onnx.NodeProto, to: _Writer) -> bool:
    inputs = [node.input[0], to.read(_quantized(node, 1)), to.read(_quantized(node, 4))]
    to.write("Where", inputs, (), _made(node, 7), node.name)
    return True


@_rule("QuantizeLinear", MICROSOFT)
@_rule("DequantizeLinear", MICROSOFT)
def _standard(node: onnx.NodeProto, to: _Writer) -> bool:
    """As those of the default domain."""
    to.plain(node)
    return True
