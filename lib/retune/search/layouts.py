"""Which values of a network lie otherwise than in rows: channels in blocks.

A value that lies so has memory of its own, and whoever makes or reads it does so where it lies:
nothing is transposed. Read `in_blocks`.
"""

from collections.abc import Iterator
from dataclasses import replace

from retune.graph.fuse import ALIAS
from retune.ir.storage import Storage, row_major
from retune.search.extract import Network, PlacedGroup
from retune.search.task import Task

LANES = 16
"""Channels of a block: the floats of a vector of 64 bytes."""

_RANK = 4
_MOVES_COLUMNS = ("concat", "slice")
"""Ops whose values lie in each other, as columns of rows, so that nobody copies them."""


def in_blocks(network: Network) -> Network:
    """The network of NHWC data whose images of floats lie as NCHW16c wherever they can.

    They can between kernels: not as inputs or outputs of the network, nor where a host step or a
    reshape reads them, nor with fewer channels than a block has. What is joined or cut stays in
    rows.
    """
    graph = network.graph
    fixed = {*graph.inputs, *graph.outputs, *graph.constants, *_in_rows(network)}
    found: dict[str, Storage] = {}
    for placed in network.groups:
        for value in placed.group.outputs:
            kind = graph.types[value]
            large = len(kind.shape) == _RANK and kind.shape[-1] >= LANES and kind.elements
            if large and kind.dtype == "float32" and value not in fixed:
                found[value] = blocked(kind.shape)
    for placed in network.groups:
        for value, shape in _shapes(network, placed):
            if value in found and not found[value].can_be(shape):
                del found[value]
    return replace(network, layouts=found)


def blocked(shape: tuple[int, ...]) -> Storage:
    """How an image [batch, height, width, channels] lies as NCHW16c; the last block is whole."""
    return row_major(shape).tiled(3, LANES).ordered((0, 3, 1, 2, 4))


def bound_values(placed: PlacedGroup, task: Task) -> dict[str, str]:
    """Names of the task's inputs and outputs -> the group's values."""
    group = placed.group
    bound = dict(zip(task.inputs, (*group.inputs, *group.params), strict=True))
    return bound | dict(zip(task.outputs, group.outputs, strict=True))


def _in_rows(network: Network) -> Iterator[str]:
    """Values around whatever is no kernel, or has values that lie in each other."""
    for placed in network.groups:
        group = placed.group
        if group.aside or group.kind == ALIAS or any(n.op in _MOVES_COLUMNS for n in group.nodes):
            yield from (*group.inputs, *group.outputs)


def _shapes(network: Network, placed: PlacedGroup) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The group's values, with the shape in which its task has them; () for what it has not."""
    if placed.task_key is None or placed.group.aside:
        return
    task = network.tasks[placed.task_key]
    tensors = {t.name: t.shape for t in (*task.dag.placeholders, *task.dag.outputs)}
    for name, value in bound_values(placed, task).items():
        yield value, tensors.get(name, ())
