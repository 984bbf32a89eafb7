"""Graph pack: the integer part of a network over blocks of channels, for an accelerator.

Read `pack`. Between two ops of a network whose scales are powers of two, each convolution, or its
transpose, with its bias, shift and limits becomes one `blocked_conv2d`, see `graph.ops.blocked`,
which also takes in the sum with another value, if one follows. So does each dense layer: a window
of one by one.
Weights, biases and shifts are packed here, once. Other ops between them read and make images as
they were, through `unpack_blocks` and `pack_blocks`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from retune.core.dtypes import INT7, INT8, TensorType
from retune.core.errors import InputError
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops import Array, Attrs
from retune.ops.blocked import BLOCKED_CONV, bias_in_blocks, in_blocks
from retune.ops.quantized import LIMIT
from retune.ops.registry import integer, ints

_ACC = 2**31
"""Sums stay below this in magnitude."""
_START, _STOP = "max_pool2d", "global_avg_pool"
"""What the packed part is between where nobody says otherwise."""
_LAYERS = ("conv2d", "conv_transpose", "dense")
"""Ops whose sums of products an accelerator computes."""
_ONE_BY_ONE: Attrs = {"strides": (1, 1), "pads": (0, 0, 0, 0)}
"""A dense layer as a convolution."""
_MOST_PAD = 15
"""Rows or columns of zeros around the data: four bits of an instruction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """What is packed, and into which blocks."""

    batch: int = 1
    """Images of a block."""
    block: int = 16
    """Channels of a block, of inputs and of outputs."""
    start_name: str = ""
    """The op after whose first occurrence the packed part begins. Empty: max_pool2d, if there is
    one, else the network's begin."""
    stop_name: str = ""
    """The op before whose next occurrence it ends. Empty: global_avg_pool, if there is one, else
    the network's end."""
    takes: Callable[[Sequence[TensorType], Attrs], bool] = lambda *_: True
    """Whether the accelerator computes a `blocked_conv2d` of inputs of these types."""


def pack(graph: Graph, options: PackOptions | None = None) -> Graph:
    """The channels-first quantized network with its packed part; nothing else has changed.

    What it computes is the same, bit for bit. Raises: InputError where the network has no such
    part, or nothing in it can be packed.
    """
    options = options or PackOptions()
    first, end = _part(graph, options)
    packer = _Packer(graph, options)
    for number, node in enumerate(graph.nodes):
        packer.take(node, inside=first <= number < end)
    if not packer.stages:
        several = f", of images in multiples of {options.batch}" if options.batch > 1 else ""
        raise InputError(
            f"{graph.name}: expected layers of integers between {options.start_name or _START} and "
            f"{options.stop_name or _STOP}, rescaled by shifts alone{several}; got none; quantize "
            "it with power2"
        )
    return packer.finish()


def _part(graph: Graph, options: PackOptions) -> tuple[int, int]:
    """The number of the first node of the packed part, and that of the first one behind it."""
    start, stop = options.start_name or _START, options.stop_name or _STOP
    nodes = list(enumerate(graph.nodes))
    first = next((i + 1 for i, node in nodes if _is(node, start, graph)), None)
    if first is None and not options.start_name:
        first = 0
    end = next((i for i, node in nodes[first:] if _is(node, stop, graph)), None)
    if end is None and not options.stop_name:
        end = len(nodes)
    if first is None or end is None:
        missing = start if first is None else stop
        raise InputError(
            f"{graph.name}: expected a part from {start} to {stop} to pack for the accelerator; "
            f"there is no {missing}; name other ops"
        )
    return first, end


def _is(node: Node, name: str, graph: Graph) -> bool:
    """Whether it is the op of that name, or what quantization makes of a mean over an image."""
    if node.op == name:
        return True
    rank = len(graph.types[node.inputs[0]].shape) if node.inputs else 0
    mean = node.op == "reduce_sum" and ints(node.attrs, "axes") == tuple(range(2, rank))
    return name == "global_avg_pool" and mean and rank > 2


def _surrounding(node: Node, weight: TensorType) -> tuple[int, ...]:
    """Rows and columns of zeros around the data; less than none where it cannot be done."""
    pads = ints(node.attrs, "pads")
    if node.op != "conv_transpose" or min(pads) < 0:
        return pads
    return tuple(k - 1 - pad for k, pad in zip(2 * weight.shape[2:], pads, strict=True))


@dataclass(frozen=True, slots=True)
class _Rescaling:
    """A sum with its bias, shifted and limited, as one shift says it."""

    offset: int
    shift: int
    attrs: Attrs


class _Packer:
    """The packed network under construction: values have up to two forms, made when read."""

    def __init__(self, graph: Graph, options: PackOptions) -> None:
        self._graph = graph
        self._options = options
        self._uses = graph.uses()
        self._makers = {value: node for node in graph.nodes for value in node.outputs}
        self._build = GraphBuilder(graph.name, reserved=graph.types)
        self._plain: set[str] = {""}
        self._blocked: dict[str, str] = {}
        self._stages: dict[str, Node] = {}
        """What makes a value in blocks."""
        for name in graph.inputs:
            self._plain.add(self._build.input(name, graph.types[name]))
        for name, array in graph.constants.items():
            self._plain.add(self._build.constant(name, array, graph.types[name].dtype))

    def take(self, node: Node, *, inside: bool) -> None:
        """The node's value can be had, in one form or the other."""
        made = self._stage(node) if inside else None
        if made is not None:
            self._blocked[node.outputs[0]] = made
        else:  # a sum that only stages read is left out at the end
            inputs = [self._as_it_was(value) for value in node.inputs]
            self._build.add(node.op, inputs, node.attrs, outputs=node.outputs, name=node.name)
            self._plain.update(node.outputs)

    @property
    def stages(self) -> int:
        """Values that are made in blocks."""
        return len(self._stages)

    def finish(self) -> Graph:
        """The packed network."""
        outputs = [self._as_it_was(value) for value in self._graph.outputs]
        return self._build.finish(outputs).verify()

    # -- forms of a value --------------------------------------------------------------------

    def _as_it_was(self, value: str) -> str:
        if value not in self._plain:
            shape = self._graph.types[value].shape
            attrs = {"channels": shape[1], "layout": "NCHW"}
            if len(shape) == 4:
                self._build.add("unpack_blocks", (self._blocked[value],), attrs, outputs=(value,))
            else:  # rows of a dense layer
                image = self._build.add("unpack_blocks", (self._blocked[value],), attrs)
                self._build.add("reshape", (image,), {"shape": shape}, outputs=(value,))
            self._plain.add(value)
        return value

    def _in_blocks(self, value: str) -> str:
        if value not in self._blocked:
            options, plain = self._options, self._as_it_was(value)
            shape = self._graph.types[value].shape
            if len(shape) == 2:
                attrs: Attrs = {"shape": (*shape, 1, 1)}
                plain = self._build.add("reshape", (plain,), attrs, name=f"{value}.image")
            attrs = {"batch": options.batch, "block": options.block, "layout": "NCHW"}
            self._blocked[value] = self._build.add(
                "pack_blocks", (plain,), attrs, name=f"{value}.blocks"
            )
        return self._blocked[value]

    # -- stages ------------------------------------------------------------------------------

    def _stage(self, node: Node) -> str | None:
        """The node's value in blocks, if the accelerator can make it."""
        if node.op == "add_codes":
            return self._added(node)
        found = self._sum_of(node) if node.op == "requantize" else None
        return None if found is None else self._convolved(node, *found)

    def _sum_of(self, node: Node) -> tuple[Node, Array, _Rescaling] | None:
        """The convolution or dense layer that a rescaling is of, its bias by channel, and the
        shift.

        None for what an accelerator cannot do.
        """
        graph, total = self._graph, self._makers.get(node.inputs[0])
        bias = np.zeros(1, np.int64)
        if total is not None and total.op == "add" and total.inputs[1] in graph.constants:
            bias = graph.constants[total.inputs[1]].astype(np.int64).reshape(-1)
            total = self._makers.get(total.inputs[0])
        if total is None or not self._has_products(total):
            return None
        scaling = self._rescaling(node)
        weight = graph.constants[total.inputs[1]].astype(np.int64)
        if scaling is None or bias.size not in (1, len(weight)):
            return None
        bias = np.broadcast_to(bias, len(weight)) + scaling.offset
        reach = 128 * np.abs(weight.reshape(len(weight), -1)).sum(axis=1) + np.abs(bias)
        return (total, bias, scaling) if int(reach.max()) < _ACC else None

    def _has_products(self, node: Node) -> bool:
        """Whether its sums of products are those of an accelerator."""
        graph = self._graph
        if node.op not in _LAYERS or node.inputs[1] not in graph.constants:
            return False
        data, weight = (graph.types[value] for value in node.inputs)
        bytes_only = data.dtype == INT8 and weight.dtype in (INT8, INT7)
        fits = data.shape[0] % self._options.batch == 0
        if node.op == "dense":
            return bytes_only and fits and len(data.shape) == len(weight.shape) == 2
        if len(data.shape) != 4:
            return False
        pads = _surrounding(node, weight)
        plain = integer(node.attrs, "groups") == 1 and ints(node.attrs, "dilations") == (1, 1)
        small = "border" not in node.attrs and min(pads) >= 0 and max(pads) <= _MOST_PAD
        return plain and bytes_only and fits and small

    def _rescaling(self, node: Node) -> _Rescaling | None:
        """`requantize` as one shift of a sum with its offset; None for one that multiplies.

        (clip(x >> pre) + offset) >> shift is (x + (offset << pre)) >> (pre + shift), unless the
        inner limits, of 16 bits, are within the outer ones.
        """
        if len(node.inputs) > 3 or any(v not in self._graph.constants for v in node.inputs[1:]):
            return None
        pre, offset = (self._graph.constants[value].reshape(-1) for value in node.inputs[1:])
        if pre.size != 1 or offset.size != 1 or node.attrs["to"] != INT8:
            return None
        before, added, shift = int(pre[0]), int(offset[0]), integer(node.attrs, "shift")
        low, high = (-LIMIT + added) >> shift, (LIMIT - 1 + added) >> shift
        least, most = (int(cast("int", node.attrs[name])) for name in ("min", "max"))
        if low > least or high < most or before + shift > 31:
            return None
        attrs: Attrs = {"shift": before + shift, "min": least, "max": most}
        return _Rescaling(added << before, before + shift, attrs)

    def _convolved(self, node: Node, total: Node, bias: Array, scaling: _Rescaling) -> str | None:
        batch, block, stem = self._options.batch, self._options.block, total.inputs[1]
        weight = self._graph.constants[stem].astype(np.int8)
        window = _ONE_BY_ONE if total.op == "dense" else total.attrs
        weight = weight.reshape(*weight.shape[:2], *(weight.shape[2:] or (1, 1)))
        whole = np.pad(bias.astype(np.int32), (0, -len(bias) % block)).reshape(-1, block)
        operands = (
            self._in_blocks(total.inputs[0]),
            self._build.constant(f"{stem}.blocks", in_blocks(weight, block, block)),
            self._build.constant(f"{stem}.bias", bias_in_blocks(whole, batch)),
        )
        attrs = {name: window[name] for name in ("strides", "pads")}
        if total.op == "conv_transpose":
            attrs["transposed"] = True
        return self._emit(node.outputs[0], operands, {**attrs, **scaling.attrs})

    def _added(self, node: Node) -> str | None:
        """The sum of two values, one of which is a stage that nobody else reads: it takes the other
        in. None without such a stage, or where multipliers are not powers of two.
        """
        a, b, *operands = node.inputs
        graph, own = self._graph, [v for v in node.inputs[:2] if self._is_free(v)]
        if any(value not in graph.constants for value in operands) or not own or a == b:
            return None
        factors = [graph.constants[value].reshape(-1) for value in operands]
        if any(factor.size != 1 for factor in factors) or node.attrs["to"] != INT8:
            return None
        left, right, offset = (int(factor[0]) for factor in factors)
        if left & (left - 1) or right & (right - 1) or min(left, right) < 1:
            return None
        first = max(own, key=self._work)  # beside which the other value is fetched
        second = b if first == a else a
        lefts = [factor.bit_length() - 1 for factor in (left, right)]
        attrs: Attrs = {
            "lefts": tuple(lefts if first == a else reversed(lefts)),
            "offset": offset,
            **{f"sum_{name}": integer(node.attrs, name) for name in ("shift", "min", "max")},
        }
        stage = self._stages[first]
        inputs = (*stage.inputs, self._in_blocks(second))
        return self._emit(node.outputs[0], inputs, {**stage.attrs, **attrs})

    def _is_free(self, value: str) -> bool:
        """Whether a stage makes it, takes in no other sum, and has one reader."""
        stage = self._stages.get(value)
        if stage is None or "lefts" in stage.attrs or value in self._graph.ends:
            return False
        return len(self._uses[value]) == 1

    def _work(self, value: str) -> int:
        """Products for one pixel of a stage."""
        return self._build.types[self._stages[value].inputs[1]].elements

    def _emit(self, value: str, inputs: tuple[str, ...], attrs: Attrs) -> str | None:
        """The stage that makes the value; None if the accelerator does not take it."""
        if not self._options.takes([self._build.types[name] for name in inputs], attrs):
            return None
        made = self._build.add(BLOCKED_CONV, inputs, attrs, name=f"{value}.blocks")
        self._stages[value] = Node(
            op=BLOCKED_CONV, name=made, inputs=inputs, outputs=(made,), attrs=attrs
        )
        return made
