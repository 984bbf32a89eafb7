"""The process that tries the ways of intrinsics on a device, see `probing`."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from retune.codegen.network.resident import WAYS
from retune.codegen.opencl.intrinsics import function_name
from retune.codegen.target import ONE_BASE
from retune.core.dtypes import INT32, DType, TensorType
from retune.core.errors import DeviceError
from retune.device.opencl import catalogue
from retune.device.opencl.probing import (
    BASED_PROGRAM,
    operand_shapes,
    program_of,
    tile_kernel,
    ways,
)
from retune.device.opencl.runtime import Device
from retune.device.opencl.staying import groups_stay
from retune.intrinsics import Intrinsic, Shape, Way

_LOG = logging.getLogger(__name__)
_WORDS = 256
"""Of each operand, for a shape."""


def main(device: str, names: Sequence[str]) -> None:
    """The process that tries: a line for each of the ways, in order, as soon as it is known."""
    spec, handle = catalogue.find_bare(device)
    opened = Device(handle, spec)
    trials = {name: partial(_has_way, opened, entry, way) for name, entry, way in ways()}
    trials |= {ONE_BASE: partial(has_one_base, opened)}
    trials |= {name: partial(groups_stay, opened, name) for name in WAYS}
    for name, trial in trials.items():
        if name in names:
            sys.stdout.write(f"{'works' if _works(name, trial) else 'fails'} {name}\n")
            sys.stdout.flush()


def _works(name: str, trial: Callable[[], bool]) -> bool:
    try:
        return trial()
    except DeviceError as error:
        _LOG.debug("%s: %s", name, error)
        return False


def has_one_base(device: Device) -> bool:
    """Whether a kernel reaches all of its buffers from the lowest of their addresses."""
    x, y, z = np.arange(_WORDS, dtype=np.int32), np.full(_WORDS, 7, np.int32), np.zeros(_WORDS)
    buffers = [device.upload(array) for array in (x, y, z.astype(np.int32))]
    program = device.build(BASED_PROGRAM)
    found: list[np.ndarray] = []
    for order in (buffers, [buffers[1], buffers[0], buffers[2]]):  # whichever is the lowest
        device.enqueue([device.prepare(program, "probe", order, (_WORDS, 1, 1), (1, 1, 1))])
        found.append(device.read(buffers[2], TensorType((_WORDS,), INT32)))
    return bool(np.array_equal(found, [x - y, y - x]))


def _has_way(device: Device, entry: Intrinsic, way: Way) -> bool:
    """Whether the way's functions can be built, and give what the pattern means."""
    right = has_tile if entry.op.axes else _right
    return all(right(device, entry, way, shape) for shape in entry.shapes(way))


def has_tile(device: Device, entry: Intrinsic, way: Way, shape: Shape) -> bool:
    """Whether the way's product of two tiles can be built, and is what the pattern means."""
    rng = np.random.default_rng(0)
    kernel = tile_kernel(entry, way, shape)
    sizes = operand_shapes(entry)
    a, b = (
        _bytes(dtype, prod(size), rng).reshape(size)
        for dtype, size in zip(shape.dtypes, sizes, strict=True)
    )
    rows, columns = len(a), b.size // a.shape[1]
    made = device.upload(np.zeros((rows, columns), np.int32))
    buffers = [device.upload(a), device.upload(b), made]
    program = device.build(kernel.text, options=way.options)
    device.enqueue(
        [device.prepare(program, kernel.name, buffers, kernel.global_size, kernel.local_size)]
    )
    device.finish()
    by_row = b.reshape(len(b), columns, -1).transpose(0, 2, 1).reshape(-1, columns)
    expected = a.astype(np.int64) @ by_row.astype(np.int64)
    return bool(np.array_equal(device.read(made, TensorType((rows, columns), INT32)), expected))


def _right(device: Device, entry: Intrinsic, way: Way, shape: Shape) -> bool:
    rng = np.random.default_rng(0)
    size = _WORDS * shape.lanes
    operands = [
        _bytes(dtype, size * operand.word, rng)
        for dtype, operand in zip(shape.dtypes, entry.operands, strict=True)
    ]
    total = rng.integers(-(2**20), 2**20, size, np.int32)
    products = np.prod([o.astype(np.int64) for o in operands], axis=0)
    expected = total + products.reshape(size, -1).sum(axis=1)
    arrays = [*operands, total, np.zeros(size, np.int32)]
    buffers = [device.upload(array) for array in arrays]
    program = device.build(program_of(entry, way), options=way.options)
    name = f"probe_{function_name(entry.name, shape)}"
    launch = device.prepare(program, name, buffers, (_WORDS, 1, 1), (1, 1, 1))
    device.enqueue([launch])
    device.finish()
    return bool(np.array_equal(device.read(buffers[-1], TensorType((size,), INT32)), expected))


def _bytes(dtype: DType, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes, every second one the least or the largest of its type."""
    least, most = dtype.limits
    found = rng.integers(least, most, count, dtype.numpy, endpoint=True)
    ends = rng.choice(np.asarray([least, most], dtype.numpy), count)
    return np.where(rng.random(count) < 0.5, ends, found)
