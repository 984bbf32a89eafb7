"""Packed layers as tasks: what an accelerator is asked to compute, of a node or for tuning.

Read `packed_network`, then `work_of` and `canonical`. In the network each of them has a bias, a
shift and limits of its own, and some take in a sum with another image. What is tuned is one for all
that have the same data, weights, strides and pads: shift 8, limits 0 and 127, and the other image
if one of them has it, so that whatever fits the memories for the task does so for all of them.

Source: the tasks of TVM's tutorial on VTA, shift and limits included.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.dtypes import TensorType
from retune.core.errors import InputError, ScheduleError
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops.blocked import BLOCKED_CONV, is_transposed
from retune.ops.registry import Attrs, integer, ints
from retune.targets.vta.blocks import PackOptions, pack
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.space import space_of
from retune.targets.vta.workload import DATA, OUTPUT, WEIGHT, Convolution, Operand, Step

BIAS, OTHER = "bias", "residual"
"""Operands of the epilogue."""
INPUTS = (DATA, WEIGHT, BIAS, OTHER)
"""Names of what a node reads, in its order; the last one may be missing."""

_TASK: Attrs = {
    "shift": 8, "min": 0, "max": 127,
    "lefts": (0, 0), "offset": 0, "sum_shift": 0, "sum_min": 0, "sum_max": 127,
}  # fmt: skip
MAGNITUDES = {WEIGHT: 8, BIAS: 1 << 12}
"""Of random operands, by name: sums of most layers then lie within the limits after the shift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What makes a task an accelerator's."""

    work: Convolution
    config: VtaConfig

    def to_json(self) -> dict[str, object]:
        """The window and the layout, as AutoTVM names them."""
        return {
            "strides": list(self.work.strides),
            "padding": list(self.work.padding[:2]),
            "dilation": [1, 1],
            "layout": f"NCHW{self.config.batch}n{self.config.block}c",
        }


def packed_network(
    graph: Graph, config: VtaConfig, *, start_name: str = "", stop_name: str = ""
) -> Graph:
    """The quantized network with all packed that the accelerator has tiles for.

    Between the op `start_name` and the op `stop_name`, see `PackOptions`.

    Raises: InputError as `blocks.pack`.
    """

    def takes(types: Sequence[TensorType], attrs: Attrs) -> bool:
        return _has_tiles(types, attrs, config)

    options = PackOptions(
        batch=config.batch,
        block=config.block,
        start_name=start_name,
        stop_name=stop_name,
        takes=takes,
    )
    return pack(graph, options)


def _has_tiles(types: Sequence[TensorType], attrs: Attrs, config: VtaConfig) -> bool:
    """Whether some tiles of such a node fit the memories, and its window is one of VTA."""
    try:
        space_of(_work(types, attrs, BLOCKED_CONV), config)
    except (InputError, ScheduleError):
        return False
    return True


def work_of(graph: Graph, node: Node) -> Convolution:
    """The node as the accelerator is asked for it."""
    types = [graph.types[value] for value in node.inputs]
    return _work(types, node.attrs, node.name.replace(".", "_"))


def _work(types: Sequence[TensorType], attrs: Attrs, name: str) -> Convolution:
    data, weight, *_ = types
    n, c, h, w, *_ = data.shape
    top, left, bottom, right = ints(attrs, "pads")
    sh, sw = ints(attrs, "strides")
    summed = len(types) == len(INPUTS)
    operands = [Operand(name=BIAS, reach="channel")]
    if summed:
        operands.append(Operand(name=OTHER, reach="image", dtype="int8"))
    return Convolution(
        n=n,
        c=c,
        h=h,
        w=w,
        o=weight.shape[0],
        kernel=(weight.shape[2], weight.shape[3]),
        strides=(sh, sw),
        padding=(top, left, bottom, right),
        transposed=is_transposed(attrs),
        steps=(*_rescaled(attrs), *(_added(attrs) if summed else ())),
        operands=tuple(operands),
        name=name,
    )


def _rescaled(attrs: Attrs) -> tuple[Step, ...]:
    """(sum + bias) >> shift, within the limits."""
    return (
        Step(op="add", operand=BIAS),
        *_limited(integer(attrs, "shift"), integer(attrs, "min"), integer(attrs, "max")),
    )


def _added(attrs: Attrs) -> tuple[Step, ...]:
    """((sum << left) + (other << right) + offset) >> shift, within the limits."""
    left, right = ints(attrs, "lefts")
    offset = integer(attrs, "offset")
    return (
        *((Step(op="shr", imm=-left),) if left else ()),
        *((Step(op="shr", imm=-right, to=OTHER),) if right else ()),
        Step(op="add", operand=OTHER),
        *((Step(op="add", imm=offset),) if offset else ()),
        *_limited(
            integer(attrs, "sum_shift"), integer(attrs, "sum_min"), integer(attrs, "sum_max")
        ),
    )


def _limited(shift: int, low: int, high: int) -> tuple[Step, ...]:
    right = (Step(op="shr", imm=shift),) if shift else ()
    return (*right, Step(op="min", imm=high), Step(op="max", imm=low))


# -- the task of some nodes ------------------------------------------------------------------------


def shape_of(graph: Graph, node: Node) -> tuple[object, ...]:
    """What nodes of one task have in common."""
    data, weight = (graph.types[value].shape for value in node.inputs[:2])
    window = ints(node.attrs, "strides"), ints(node.attrs, "pads"), is_transposed(node.attrs)
    return data, weight, *window


def canonical(graph: Graph, node: Node, *, summed: bool) -> Graph:
    """The node as a network of its own, with the shift and limits that stand for all of its task.

    Its inputs are INPUTS, the last one where it is `summed`.
    """
    made = graph.types[node.outputs[0]]
    types = [*(graph.types[value] for value in node.inputs[: len(INPUTS) - 1]), made]
    names = INPUTS if summed else INPUTS[:-1]
    build = GraphBuilder(BLOCKED_CONV)
    for name, kind in zip(names, types, strict=False):
        build.input(name, kind)
    own = ("strides", "pads", "transposed")
    attrs = {name: node.attrs[name] for name in own if name in node.attrs} | dict(_TASK)
    build.add(BLOCKED_CONV, names, attrs, outputs=(OUTPUT,), name=BLOCKED_CONV)
    return build.finish((OUTPUT,))
