"""Activation layouts of tasks: those that a kernel can read and write.

A layout is a storage map with a name. No kernel is written for one: whatever reads or writes a
buffer does so where the storage map says. Read `layout_storage`, then `io_storages`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from retune.core.dtypes import FLOAT32, TensorType
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.core.layouts import NHWC, ActivationLayout, IOLayouts
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
"""Pixels of a multiple of it begin in one or two sets of an L1 cache whose ways are pages.

Depthwise layers read a window of pixels at once. With pixels padded by a cache line they take, by
`benchmarks.pitch` (AMD EPYC of 32 KiB first caches, PoCL, medians of paired ratios): 1024 channels
0.71 of the time at 14x14 and 0.66 at 7x7, 512 channels 0.85 and 0.97; other convolutions 1.00."""
GPU_BLOCK = 4
"""Channels of a block on GPUs: an item loads four floats at once."""
IMAGE_RANK = 4
"""Batch, height, width, channels."""
TRANSFORM = "layout_transform"
"""Operator of the tasks that copy an activation from one layout to another."""

Shapes = Mapping[str, tuple[int, ...]]
"""Of values of a network, by the names that a task has for them."""

_NAME = re.compile(r"(?P<nhwc>NHWC)(\+(?P<padding>[1-9]\d*))?|NCHW((?P<block>[1-9]\d*)c)?")


@lru_cache(maxsize=256)
def _parsed(layout: ActivationLayout) -> tuple[bool, int, int]:
    """Whether channels are innermost, a pixel's padding, and channels of a block; 0: none."""
    match = _NAME.fullmatch(layout)
    if match is None:
        raise InputError(
            f"layout {layout!r}: expected NHWC, NHWC+16, NCHW or blocks such as NCHW16c"
        )
    return match["nhwc"] is not None, int(match["padding"] or 0), int(match["block"] or 0)


def layout_storage(layout: ActivationLayout, shape: tuple[int, ...]) -> Storage:
    """Where the elements of an activation of shape [batch, height, width, channels] lie.

    The last block is filled up. Raises: InputError for another name.
    """
    nhwc, padding, block = _parsed(layout)
    storage = row_major(shape)
    if nhwc:
        return storage.within(3, 0, shape[3] + padding) if padding else storage
    if block:
        return storage.tiled(3, block).ordered((0, 3, 1, 2, 4))
    return storage.ordered((0, 3, 1, 2))


def channels_of(storage: Storage, first: int, count: int) -> Storage | None:
    """Where these of its channels, the last axis, lie; None where blocks tear them apart."""
    try:
        return storage.section(len(storage.shape) - 1, first, count)
    except ValueError:
        return None


def block_of(layout: ActivationLayout, channels: int) -> int | None:
    """Channels that lie side by side: all of them in NHWC, one in NCHW, those of a block.

    None where blocks are not whole.
    """
    nhwc, _, block = _parsed(layout)
    side_by_side = channels if nhwc else block or 1
    return None if channels % side_by_side else side_by_side


def may_be_blocked(kind: TensorType, layout: ActivationLayout = NHWC) -> bool:
    """Whether an activation may have another layout than NHWC, and fills a block of this one.

    Floats alone: products of bytes read packed values of four channels, which blocks may tear
    apart.
    """
    return kind.dtype == FLOAT32 and kind.shape[-1] >= _parsed(layout)[2]


def layouts_for(spec: DeviceSpec, kind: TensorType) -> tuple[ActivationLayout, ...]:
    """The layouts that are worth trying for an activation on a device; NHWC comes first.

    On CPUs blocks have as many channels as a vector has floats, and pixels that map to a few sets
    of the L1 cache may be padded by a cache line. On GPUs blocks have the channels that one item
    loads at once, and neighbouring items may read neighbouring pixels of NCHW. Activations of one
    pixel, or of fewer channels than a block has, have NHWC alone.
    """
    _, height, width, channels = kind.shape
    cpu = spec.device_class == "cpu"
    lanes = spec.lanes_f32 if cpu else GPU_BLOCK
    if lanes == 1 or height * width == 1 or channels < lanes:
        return (NHWC,)
    found = ["NHWC"]
    if may_be_blocked(kind):
        found += [f"NCHW{lanes}c"] if cpu else [f"NCHW{lanes}c", "NCHW"]
    if cpu and channels * kind.dtype.itemsize % CROWDED_BYTES == 0:
        found.append(padded(spec.cache_line_bytes // kind.dtype.itemsize))
    return tuple(map(ActivationLayout, found))


def padded(channels: int) -> ActivationLayout:
    """NHWC with room for so many channels more behind those of each pixel."""
    return ActivationLayout(f"NHWC+{channels}" if channels else NHWC)


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


def activations_of(task: Task, shapes: Shapes | None = None) -> dict[str, bool]:
    """The task's inputs and outputs that have a layout, by name, in its order: is it made?

    By its own shapes, or those of another group.
    """
    shapes = own_shapes(task) if shapes is None else shapes
    constants = {t.name for t in task.dag.placeholders if t.buffer.scope == "constant"}
    images = (n for n, s in shapes.items() if n not in constants and len(s) == IMAGE_RANK)
    return {name: name in task.outputs for name in images}


def io_storages(
    task: Task, layouts: IOLayouts, shapes: Shapes | None = None
) -> dict[str, Storage] | None:
    """Storages of the task's activations that are not NHWC, by names of its inputs and outputs.

    None where its kernels cannot address them. By its own shapes, or those of another group.
    """
    shapes = own_shapes(task) if shapes is None else shapes
    found: dict[str, Storage] = {}
    for number, (name, output) in enumerate(activations_of(task, shapes).items()):
        layout = layouts.output if output or number else layouts.input
        if layout != NHWC:
            found[name] = layout_storage(layout, shapes[name])
    return task_storages(task, found)


def supports(task: Task, layouts: IOLayouts, shapes: Shapes) -> bool:
    """Whether the kernels of a group with these shapes can have these layouts.

    So can those of its task, which is measured for it: it has the same activations.
    """
    if activations_of(task, shapes) != activations_of(task):
        return layouts == IOLayouts()
    found = io_storages(task, layouts, shapes), io_storages(task, layouts)
    return all(storages is not None for storages in found)


def task_storages(task: Task, storages: Mapping[str, Storage]) -> dict[str, Storage] | None:
    """The storage maps in the shapes that the task has; all else is row-major.

    None where the task has axes that cut across those of one of them. An element-wise task over one
    axis does not depend on the layout, as long as all activations are whole and have the same one.
    """
    shapes = {t.name: t.shape for t in (*task.dag.placeholders, *task.dag.outputs)}
    if all(storage.can_be(shapes[name]) for name, storage in storages.items()):
        return {name: storage.reshaped(shapes[name]) for name, storage in storages.items()}
    constants = {t.name for t in task.dag.placeholders if t.buffer.scope == "constant"}
    moving = (name for name, shape in shapes.items() if prod(shape) > 1 and name not in constants)
    alike = {storages.get(name) for name in moving}
    (storage,) = alike if len(alike) == 1 else (None,)
    whole = storage is not None and storage.elements == prod(storage.shape)
    if not whole or not is_elementwise(task):
        return None
    return {name: row_major(shapes[name]) for name in storages}


def is_elementwise(task: Task) -> bool:
    """Whether the task has one axis, and each element depends on those of the same index.

    Single numbers may be read besides; constants are such.
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


def workload_in(workload: Workload, task: Task, layouts: IOLayouts) -> Workload:
    """The task's workload, its activations in these layouts.

    Raises: InputError where the task cannot have them.
    """
    storages = io_storages(task, layouts)
    if storages is None:
        raise InputError(f"task {task.name}: expected layouts that its axes allow; got {layouts}")
    inputs = {
        name: storages[name].pack(array) if name in storages else array
        for name, array in workload.inputs.items()
    }
    positions = {
        name: storages[name].unpack(np.arange(storages[name].elements)).reshape(made.shape)
        for name, made in workload.outputs.items()
        if name in storages
    }
    return Workload(
        key=content_key(workload.key, str(layouts)),
        inputs=inputs,
        outputs=workload.outputs,
        positions=positions,
        rtol=workload.rtol,
        atol=workload.atol,
    )


@lru_cache(maxsize=256)
def transform_task(kind: TensorType) -> Task:
    """The task that copies an activation of that type; `IOLayouts` say between which layouts.

    Its axes are those of the activation, as no layout keeps them all in one piece. The same task
    each time: its space is made once.
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
