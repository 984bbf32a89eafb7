"""Winograd kernels for GPUs give right results on a device that runs work-items and barriers."""

from dataclasses import replace

import pytest

from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.device.opencl.runtime import Device, open_device
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.space import Space
from retune.targets.gpu.winograd import gpu_winograd_families
from tests.support.dags import conv2d, strip
from tests.support.oracle import assert_sketches_agree
from tests.support.sampling import one_of_each
from tests.support.winograd import nchw

pytestmark = pytest.mark.device

WITHOUT_LOCAL_MEMORY = replace(
    GENERIC_GPU, name="mali", vector_bits=128, compute_units=4, local_memory_bytes=0,
    max_work_group=256,
)  # fmt: skip

SHAPES: dict[str, Dag] = {
    "gated": conv2d(1, 7, 9, 32, 16, gated=True),
    "odd": conv2d(1, 7, 9, 32, 16),
    "residual, slices": conv2d(1, 10, 13, 128, 20, residual=True),
    "prime channels": conv2d(1, 6, 5, 17, 19, residual=True),
    "batch, no padding": conv2d(2, 7, 6, 16, 33, pad=0),
    "vectors in the transforms": conv2d(1, 40, 44, 32, 64),
    "channels first": nchw(2, 16, 8, 7, 20),
    "5x5": conv2d(1, 9, 7, 16, 20, 5, pad=2, residual=True),
    "1x7, slices": strip(1, 6, 9, 128, 16, (1, 7), residual=True),
    "7x1": strip(2, 9, 6, 16, 17, (7, 1), same=False),
    "3x1, channels first": strip(2, 8, 5, 16, 20, (3, 1), channels_first=True),
}


GATE = ("odd", "1x7, slices", "channels first")
"""Those that the quick suite runs, each on one device; all are interpreted in unit/schedule."""
SPECS = (GENERIC_GPU, WITHOUT_LOCAL_MEMORY)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *one_of_each(GATE, SPECS),
        *(
            pytest.param(n, s, marks=pytest.mark.slow)
            for n in SHAPES
            if n not in GATE
            for s in SPECS
        ),
    ],
)
def test_every_sketch(name: str, spec: DeviceSpec, device: Device):
    dag = merge_axes(SHAPES[name])
    sketches = Space(gpu_winograd_families(from_dag(dag), spec)).sketches
    assert sketches
    assert_sketches_agree(device, dag, sketches)
