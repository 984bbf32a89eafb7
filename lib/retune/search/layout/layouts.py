"""How the images between kernels may lie, by name: rows of pixels, planes, blocks of channels.

A layout is a storage map with a name. `Ends` says how a task finds its images and how it leaves
them; no kernel is written for it: whoever reads or writes a buffer does so where it lies.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from retune.core.dtypes import FLOAT32, DType, TensorType
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.core.layouts import ROWS
from retune.core.target import DeviceSpec
from retune.device.measure.workload import Workload
from retune.graph.fuse import partition
from retune.graph.graph import Graph, Node
from retune.graph.lower import group_tensors
from retune.ir.expr import loads
from retune.ir.storage import Storage, row_major
from retune.ir.te import Compute
from retune.search.extract import PlacedGroup, make_task
from retune.search.task import Task

CROWDED_BYTES = 2048
"""Rows of a multiple of it begin in one or two sets of a first-level cache whose ways are pages.

Depthwise layers read a window of them at once. With rows a line longer they take, by
`benchmarks.pitch` (AMD EPYC of 32 KiB first caches, PoCL, medians of paired ratios): 1024 channels
0.71 of the time at 14x14 and 0.66 at 7x7, 512 channels 0.85 and 0.97; other convolutions 1.00."""
GPU_BLOCK = 4
"""Channels of a block on GPUs: an item loads four floats at once."""
IMAGE_RANK = 4
"""Batch, height, width, channels."""
TRANSFORM = "layout_transform"
"""Operator of the tasks that copy an image from one layout to another."""

Shapes = Mapping[str, tuple[int, ...]]
"""Of values of a network, by the names that a task has for them."""

_BLOCKS = re.compile(r"NCHW([1-9]\d*)c")
_LONGER = re.compile(r"rows\+([1-9]\d*)")


@dataclass(frozen=True, slots=True, order=True)
class Ends:
    """How the images at a task's ends lie, by the names of layouts."""

    read: str = ROWS
    """Of its first image."""
    made: str = ROWS
    """Of what it makes, and of all other images that it reads: residual sums, say."""

    @property
    def by_rows(self) -> bool:
        """Whether both are rows, of any pitch."""
        return all(layout.partition("+")[0] == ROWS for layout in (self.read, self.made))

    def __str__(self) -> str:
        return f"{self.read} -> {self.made}"


IN_ROWS = Ends()


def image_storage(layout: str, shape: tuple[int, ...]) -> Storage:
    """How an image of shape [batch, height, width, channels] lies in a layout.

    `rows`: all channels of a pixel side by side; `rows+16`: and room for 16 more behind them;
    `NCHW`: planes of a channel; `NCHW16c`: planes of pixels of 16 channels, the last block filled
    up. Raises: InputError for another name.
    """
    rows = row_major(shape)
    if layout == ROWS:
        return rows
    if layout == "NCHW":
        return rows.ordered((0, 3, 1, 2))
    if match := _BLOCKS.fullmatch(layout):
        return rows.tiled(3, int(match[1])).ordered((0, 3, 1, 2, 4))
    if match := _LONGER.fullmatch(layout):
        return rows.within(3, 0, shape[3] + int(match[1]))
    raise InputError(f"layout {layout!r}: expected rows, rows+16, NCHW or blocks such as NCHW16c")


def channels_of(storage: Storage, first: int, count: int) -> Storage | None:
    """Where these of its channels, the last axis, lie; None where blocks tear them apart."""
    try:
        return storage.section(len(storage.shape) - 1, first, count)
    except ValueError:
        return None


def least_channels(layout: str) -> int:
    """Channels that an image has to have to fill one block."""
    match = _BLOCKS.fullmatch(layout)
    return int(match[1]) if match else 1


def block_of(layout: str, channels: int) -> int | None:
    """Channels that lie side by side in whole blocks: all of them in rows, one in planes.

    None where blocks are not whole.
    """
    match = _BLOCKS.fullmatch(layout)
    whole = 1 if layout == "NCHW" else channels
    block = int(match[1]) if match else whole
    return block if channels % block == 0 else None


def may_lie_in_blocks(dtype: DType) -> bool:
    """Whether images of that type are put into blocks: floats alone.

    Products of bytes read words of four channels in a row, which blocks may tear apart.
    """
    return dtype == FLOAT32


def layouts_for(spec: DeviceSpec, kind: TensorType) -> tuple[str, ...]:
    """The layouts that are worth trying for an image on a device; rows come first.

    On CPUs blocks have as many channels as a vector has floats, and rows that crowd a few sets of
    the first cache may be a cache line longer. On GPUs blocks have the channels that one item loads
    at once, and neighbouring items may read neighbouring pixels of a plane. Images of one pixel, or
    of fewer channels than a block has, have rows alone.
    """
    _, height, width, channels = kind.shape
    lanes = spec.lanes_f32 if spec.device_class == "cpu" else GPU_BLOCK
    if lanes == 1 or height * width == 1 or channels < lanes:
        return (ROWS,)
    found = [ROWS]
    if may_lie_in_blocks(kind.dtype):
        found += [f"NCHW{lanes}c"] if spec.device_class == "cpu" else [f"NCHW{lanes}c", "NCHW"]
    if spec.device_class == "cpu" and channels * kind.dtype.itemsize % CROWDED_BYTES == 0:
        found.append(f"{ROWS}+{spec.cache_line_bytes // kind.dtype.itemsize}")
    return tuple(found)


def bound_values(placed: PlacedGroup, task: Task) -> dict[str, str]:
    """Names of the task's inputs and outputs -> the group's values."""
    group = placed.group
    bound = dict(zip(task.inputs, (*group.inputs, *group.params), strict=True))
    return bound | dict(zip(task.outputs, group.outputs, strict=True))


def own_shapes(task: Task) -> Shapes:
    """Of what the task was made from, by the names of its inputs and outputs."""
    if task.graph is None:
        return {}
    values = (*task.graph.inputs, *task.graph.outputs)
    names = zip((*task.inputs, *task.outputs), values, strict=True)
    return {name: task.graph.types[value].shape for name, value in names}


def placed_shapes(placed: PlacedGroup, task: Task, graph: Graph) -> Shapes:
    """The same of another group that has the task.

    They may differ, as a task knows nothing of axes that it walks as one.
    """
    bound = bound_values(placed, task).items()
    return {name: graph.types[value].shape for name, value in bound}


def images_of(task: Task, shapes: Shapes | None = None) -> dict[str, bool]:
    """Names of the inputs and outputs of the task that are images, in its order: is it made?

    By its own shapes, or those of another group.
    """
    shapes = own_shapes(task) if shapes is None else shapes
    constants = {t.name for t in task.dag.placeholders if t.buffer.scope == "constant"}
    images = (n for n, s in shapes.items() if n not in constants and len(s) == IMAGE_RANK)
    return {name: name in task.outputs for name in images}


def storages_of(task: Task, ends: Ends, shapes: Shapes | None = None) -> dict[str, Storage] | None:
    """How the task's images lie, by the names of its inputs and outputs; those in rows are left
    out.

    None where the task cannot find them so. By its own shapes, or those of another group.
    """
    shapes = own_shapes(task) if shapes is None else shapes
    found: dict[str, Storage] = {}
    for number, (name, output) in enumerate(images_of(task, shapes).items()):
        layout = ends.made if output or number else ends.read
        if layout != ROWS:
            found[name] = image_storage(layout, shapes[name])
    return found_so(task, found)


def may_have(task: Task, ends: Ends, shapes: Shapes) -> bool:
    """Whether a group with these shapes finds its images so, and the task, which is measured for
    it, has the same ones and finds them so, too."""
    if images_of(task, shapes) != images_of(task):
        return ends == IN_ROWS
    found = storages_of(task, ends, shapes), storages_of(task, ends)
    return all(storages is not None for storages in found)


def found_so(task: Task, storages: Mapping[str, Storage]) -> dict[str, Storage] | None:
    """How a task finds what lies so, by the names of its inputs and outputs; all else is in rows.

    None where the task has axes that cut across those of one of them. What goes along everything as
    one row does not care where elements lie, as long as all images are whole and lie alike.
    """
    shapes = {t.name: t.shape for t in (*task.dag.placeholders, *task.dag.outputs)}
    if all(storage.can_be(shapes[name]) for name, storage in storages.items()):
        return {name: storage.reshaped(shapes[name]) for name, storage in storages.items()}
    constants = {t.name for t in task.dag.placeholders if t.buffer.scope == "constant"}
    moving = (name for name, shape in shapes.items() if prod(shape) > 1 and name not in constants)
    alike = {storages.get(name) for name in moving}
    (storage,) = alike if len(alike) == 1 else (None,)
    whole = storage is not None and storage.elements == prod(storage.shape)
    if not whole or not goes_along(task):
        return None
    return {name: row_major(shapes[name]) for name in storages}


def goes_along(task: Task) -> bool:
    """Whether each element that the task makes is of those at the same place in all that it reads.

    All is a single row to it, but for single numbers; constants are such.
    """
    tensors = (*task.dag.placeholders, *task.dag.stages)
    numbers = {tensor.buffer for tensor in tensors if prod(tensor.shape) == 1}
    rows = {tensor.shape for tensor in tensors if tensor.buffer not in numbers}
    constants = [t for t in task.dag.placeholders if t.buffer.scope == "constant"]
    if len(rows) != 1 or len(next(iter(rows))) != 1:
        return False
    if any(t.buffer not in numbers for t in constants):
        return False
    for stage in task.dag.stages:
        if not isinstance(stage.op, Compute) or stage.op.reducer is not None:
            return False
        axes = tuple(axis.var for axis in stage.op.axes)
        read = (load for load in loads(stage.op.body) if load.buffer not in numbers)
        if any(load.indices != axes for load in read):
            return False
    return True


def laid_workload(workload: Workload, task: Task, ends: Ends) -> Workload:
    """The task's workload in rows, with its images lying so.

    Raises: InputError where they cannot.
    """
    storages = storages_of(task, ends)
    if storages is None:
        raise InputError(f"task {task.name}: its images cannot lie as {ends}")
    inputs = {
        name: storages[name].pack(array) if name in storages else array
        for name, array in workload.inputs.items()
    }
    places = {
        name: storages[name].unpack(np.arange(storages[name].elements)).ravel()
        for name in workload.outputs
        if name in storages
    }
    return Workload(
        key=content_key(workload.key, str(ends)),
        inputs=inputs,
        outputs=workload.outputs,
        places=places,
        rtol=workload.rtol,
        atol=workload.atol,
    )


@lru_cache(maxsize=256)
def transform_task(kind: TensorType) -> Task:
    """The task that copies an image of that type; `Ends` say from which layout to which.

    Its axes are those of the image, as no layout keeps them all in one piece. The same task each
    time: its space is made once.
    """
    node = Node(op="identity", name="copy", inputs=("image",), outputs=("copy",))
    alone = Graph(
        name=TRANSFORM,
        inputs=("image",),
        outputs=("copy",),
        nodes=(node,),
        types={"image": kind, "copy": kind},
    )
    (group,) = partition(alone)
    dag = group_tensors(alone).dag
    return replace(make_task(alone, group), key=dag.key, dag=dag, name=TRANSFORM, op=TRANSFORM)
