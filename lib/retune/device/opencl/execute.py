"""Running a program once on arrays: for looking at results, not for speed."""

from collections.abc import Mapping

import numpy as np

from retune.codegen.source import GIVEN, Packing, ProgramBuffer, ProgramSource
from retune.core.dtypes import TensorType, as_dtype, numpy_dtype
from retune.core.errors import InputError
from retune.device.opencl.runtime import Device, DeviceMemory
from retune.device.opening import open_device


def execute(
    source: ProgramSource, arrays: Mapping[str, np.ndarray], device: Device | str
) -> dict[str, np.ndarray]:
    """Every output by name, flat: [elements], computed from every input and constant by name.

    Constants are given as the task has them; they are packed here. The value of a size is an array
    of one integer. A device that is named is opened for this run.

    Raises: InputError for an array that is missing, unknown, or of another number of elements.
    """
    read = [b for b in source.buffers if b.role in GIVEN]
    wanted = {name for b in read for name in source.packing(b.name).sources}
    if set(arrays) != wanted:
        raise InputError(f"expected the inputs {sorted(wanted)}, got {sorted(arrays)}")
    source = source.at({name: int(arrays[name].item()) for name in source.sizes})
    opened = open_device(device) if isinstance(device, str) else device
    program = opened.build(*(k.text for k in source.kernels), options=source.options)
    buffers = {b.name: _fill(opened, b, source.packing(b.name), arrays) for b in source.buffers}
    opened.enqueue(opened.prepare_all(program, source.launches, buffers))
    return {
        b.name: opened.read(buffers[b.name], TensorType((b.elements,), as_dtype(b.dtype)))
        for b in source.buffers
        if b.role == "output"
    }


def _fill(
    device: Device, spec: ProgramBuffer, packing: Packing, arrays: Mapping[str, np.ndarray]
) -> DeviceMemory:
    """The given arrays as the kernels read them; zeros where they write."""
    if spec.role not in GIVEN:
        return device.allocate(spec.bytes)
    given = [np.asarray(arrays[name], numpy_dtype(spec.dtype)) for name in packing.sources]
    array = given[0] if packing.pack is None else packing.pack.apply(*given)
    if array.size != spec.elements:
        raise InputError(
            f"input {spec.name!r}: expected {spec.elements} elements, got {array.size}"
        )
    return device.upload(array, spec.image)
