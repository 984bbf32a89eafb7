"""The process that tries the implementations of intrinsics on a device, see `probing`."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from retune.codegen.kernel import ROUNDED_LANES
from retune.codegen.network.resident import WAYS
from retune.codegen.opencl.intrinsics import implementations_in
from retune.codegen.target import ONE_BASE
from retune.core.dtypes import BFLOAT16, FLOAT32, INT32, TF32, DType, TensorType
from retune.core.errors import DeviceError
from retune.core.target import COPY_AHEAD, DECLARED_LOCAL, converting
from retune.device.opencl import catalogue
from retune.device.opencl.probing import (
    BASED_PROGRAM,
    COPY_PROGRAM,
    ROUNDED,
    Probe,
    attention_probes,
    implementations,
    local_program,
    probe_of,
    rounding_program,
)
from retune.device.opencl.runtime import Device
from retune.device.opencl.staying import groups_stay
from retune.intrinsics import Implementation, Intrinsic, Signature
from retune.intrinsics.attention import MMA
from retune.ir.interp import run_dag

_LOG = logging.getLogger(__name__)
_WORDS = 256
"""Elements of each buffer."""


def main(device: str, names: Sequence[str]) -> None:
    """The process that tries: a line for each of the names, in order, as soon as it is known."""
    spec, handle = catalogue.find_bare(device)
    opened = Device(handle, spec)
    trials = {name: partial(_has, opened, entry, one) for name, entry, one in implementations()}
    trials |= {ONE_BASE: partial(has_one_base, opened)}
    trials |= {converting(BFLOAT16): partial(rounds, opened)}
    trials |= {name: partial(groups_stay, opened, name) for name in WAYS}
    trials |= {COPY_AHEAD: partial(copies_ahead, opened)}
    trials |= {MMA: partial(attends, opened)}
    trials |= {name: partial(holds, opened, size) for name, size in DECLARED_LOCAL.items()}
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


def _numbers() -> np.ndarray:
    """Floats of all exponents, halves between two of 16 bits, and what is none."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, ROUNDED, np.uint32, endpoint=False)
    bits[: ROUNDED // 2] &= 0xFFFF8000
    found = bits.view(np.float32)
    found[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(np.float32).max]
    return found


def rounds(device: Device) -> bool:
    """Whether an instruction rounds to bfloat16; it may take the least numbers for zero."""
    x, lengths = _numbers(), len(ROUNDED_LANES[BFLOAT16])
    made = TensorType((lengths, ROUNDED), BFLOAT16)
    buffers = [device.upload(x), device.upload(np.zeros(made.shape, BFLOAT16.numpy))]
    program = device.build(rounding_program())
    device.enqueue([device.prepare(program, "probe", buffers, (1, 1, 1), (1, 1, 1))])
    found = device.read(buffers[1], made).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(BFLOAT16.numpy).astype(np.float32)
    least = np.abs(x) < np.finfo(np.float32).smallest_normal
    return all(_same(row, expected, least) for row in found)


def _same(found: np.ndarray, expected: np.ndarray, least: np.ndarray) -> bool:
    either = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return bool(np.all(either | (least & (found == 0.0))))


def copies_ahead(device: Device) -> bool:
    """Whether copies into local memory are there once they were waited for."""
    x = np.arange(1, 2 * _WORDS + 1, dtype=np.int32)
    made = TensorType((2, _WORDS // 64, 64), INT32)
    buffers = [device.upload(x), device.upload(np.zeros(made.shape, np.int32))]
    program = device.build(COPY_PROGRAM)
    device.enqueue([device.prepare(program, "probe", buffers, (64, 1, 1), (64, 1, 1))])
    kept = np.where(np.arange(_WORDS // 4) % 2, 1, 0).repeat(4)
    expected = (x.reshape(2, _WORDS) * kept).reshape(made.shape)[..., ::-1]
    return bool(np.array_equal(device.read(buffers[1], made), expected))


def holds(device: Device, size: int) -> bool:
    """Whether a group's arrays may take so many bytes of local memory."""
    made = TensorType((size // 4,), INT32)
    buffers = [
        device.upload(np.full(1, 3, np.int32)),
        device.upload(np.zeros(made.shape, np.int32)),
    ]
    program = device.build(local_program(size))
    device.enqueue([device.prepare(program, "probe", buffers, (64, 1, 1), (64, 1, 1))])
    expected = 3 * np.arange(size // 4, dtype=np.int32)[::-1]
    return bool(np.array_equal(device.read(buffers[1], made), expected))


def _has(device: Device, entry: Intrinsic, one: Implementation) -> bool:
    return all(is_right(device, entry, one, signature) for signature in entry.signatures(one))


def is_right(
    device: Device, entry: Intrinsic, implementation: Implementation, signature: Signature
) -> bool:
    """Whether the implementation can be built, and makes what the pattern means."""
    probe = probe_of(entry, implementation, signature)
    name = entry.full_name(implementation)
    assert implementation is entry.implementations[-1] or name in implementations_in(
        probe.run[0].text
    ), f"{name} is not what the kernel calls"
    return _agrees(device, probe, implementation.tolerance, implementation.options)


def attends(device: Device) -> bool:
    """Whether the device computes attention by one kernel, within the roundings of its results."""
    kinds = ((probe, probe.dag.outputs[0].dtype) for probe in attention_probes())
    return all(
        _agrees(device, probe, 2 * (TF32 if made is FLOAT32 else made).roundoff)
        for probe, made in kinds
    )


def _agrees(device: Device, probe: Probe, tolerance: float, options: Sequence[str] = ()) -> bool:
    """Whether a kernel makes what its tensor expression means, up to so much of the largest."""
    rng = np.random.default_rng(0)
    (made,) = probe.dag.outputs
    inputs = {t.name: _random(t.dtype, t.shape, rng) for t in probe.dag.placeholders}
    result = TensorType(made.shape, made.dtype)
    arrays = {**inputs, made.name: np.zeros(made.shape, made.dtype.numpy)}
    buffers = {name: device.upload(array) for name, array in arrays.items()}
    kernel, launch = probe.run
    program = device.build(kernel.text, options=(*options,))
    (launch,) = device.prepare_all(program, [launch], buffers)
    device.enqueue([launch])
    device.finish()
    expected = run_dag(probe.dag, inputs)[made.name].astype(np.float64)
    error = np.abs(device.read(buffers[made.name], result).astype(np.float64) - expected)
    return bool(error.max() <= tolerance * np.abs(expected).max())


def _random(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random values; of integers, every second one is the least or the largest of its type."""
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    least, most = dtype.limits
    found = rng.integers(least, most, shape, dtype.numpy, endpoint=True)
    ends = rng.choice(np.asarray([least, most], dtype.numpy), shape)
    return np.where(rng.random(shape) < 0.5, ends, found)
