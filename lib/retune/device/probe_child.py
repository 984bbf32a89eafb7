"""The process that tries the ways of intrinsics on a device, see `probing`."""

import logging
import sys
from collections.abc import Sequence

import numpy as np

from retune.codegen.opencl_intrinsics import function_name
from retune.core.dtypes import INTEGER_LIMITS, TensorType, numpy_dtype
from retune.core.errors import DeviceError
from retune.device import catalogue
from retune.device.probing import program_of, shapes_of, ways
from retune.device.runtime import Device
from retune.instructions import Intrinsic, Shape, Way

_LOG = logging.getLogger(__name__)
_WORDS = 256
"""Of each operand, for a shape."""


def main(device: str, names: Sequence[str]) -> None:
    """The process that tries: a line for each of the ways, in order, as soon as it is known."""
    spec, handle = catalogue.find_bare(device)
    opened = Device(handle, spec)
    for name, entry, way in ways():
        if name in names:
            verdict = "works" if _works(opened, entry, way) else "fails"
            sys.stdout.write(f"{verdict} {name}\n")
            sys.stdout.flush()


def _works(device: Device, entry: Intrinsic, way: Way) -> bool:
    """Whether the way's functions can be built, and give what the pattern means."""
    try:
        return all(_right(device, entry, way, shape) for shape in shapes_of(entry, way))
    except DeviceError as error:
        _LOG.debug("%s: %s", entry.full_name(way), error)
        return False


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
    program = device.build(program_of(entry, way))
    name = f"probe_{function_name(entry.name, shape)}"
    launch = device.prepare(program, name, buffers, (_WORDS, 1, 1), (1, 1, 1))
    device.enqueue([launch])
    device.finish()
    return bool(np.array_equal(device.read(buffers[-1], TensorType((size,), "int32")), expected))


def _bytes(dtype: str, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random bytes, every second one the least or the largest of its type."""
    least, most = INTEGER_LIMITS[dtype]
    found = rng.integers(least, most, count, numpy_dtype(dtype), endpoint=True)
    ends = rng.choice(np.asarray([least, most], numpy_dtype(dtype)), count)
    return np.where(rng.random(count) < 0.5, ends, found)
