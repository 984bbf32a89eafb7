"""Kernels of the rules for GPUs give right results on a device that runs work-items and barriers.

PoCL is one: it knows local memory, and runs the items of a work-group up to each barrier in turn.
"""

from dataclasses import replace

import pytest

from retune.core.target import GENERIC_GPU
from retune.device.opencl.runtime import Device, open_device
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.targets.gpu.space import gpu_space
from tests.support.dags import (
    batched_product,
    conv2d,
    dense,
    depthwise,
    packed_product,
    pool,
    reduction,
    softmax,
    total,
)
from tests.support.oracle import assert_sketches_agree
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device

SHAPES: dict[str, Dag] = {
    "window": conv2d(1, 8, 7, 32, 16, residual=True),
    "dense batch": dense(5, 32, 24),
    "dense row": dense(1, 67, 31),
    "prime depth": batched_product(2, 19, 37, 16),
    "short slices": conv2d(1, 3, 4, 136, 8, 1, pad=0),
    "gated": conv2d(2, 4, 5, 24, 12, 1, pad=0, gated=True),
    "gated window": conv2d(1, 5, 4, 16, 8, gated=True),
    "gated depthwise": depthwise(1, 5, 6, 12, gated=True),
    "depthwise": depthwise(1, 7, 11, 36),
    "depthwise 5x5": depthwise(1, 7, 9, 8, window=5),
    "depthwise by two": depthwise(1, 9, 8, 12, stride=2),
    "mean of all pixels": pool(1, 7, 7, 40, 7, 7, average=True),
    "squeezed": conv2d(1, 1, 1, 96, 27, 1, pad=0),
    "mean of a map": pool(1, 14, 15, 12, 14, 15, average=True),
    "long rows": reduction(2, 301, "max", first=False),
    "one number": total(30, 40),
    "softmax": softmax(3, 67),
    "wide row": dense(1, 128, 31),
    "blocks of a row": packed_product(1, 40, 1, 24, 4),
}


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(("name", "first"), one_of_each(SHAPES, (0, 1)))
def test_every_sketch(name: str, first: int, device: Device):
    """All are interpreted in tests/unit/targets; every second one of a shape runs in the gate."""
    dag = merge_axes(SHAPES[name])
    sketches = gpu_space(from_dag(dag), GENERIC_GPU).sketches
    assert len(sketches) > 1
    assert_sketches_agree(device, dag, sketches[first::2])


def test_kernels_of_a_device_that_outruns_the_host_are_timed_behind_a_holding_one():
    """No launch counts less than holding.LEAST_LAUNCH_S there, however the clock reads."""
    device = open_device("pocl")
    device.spec = replace(device.spec, device_class="gpu")
    program = device.build("__kernel void k(__global int* x) { x[get_global_id(0)] += 1; }")
    launch = device.prepare(program, "k", [device.allocate(256)], (64,), (64,))
    assert device.time_kernels([launch], 300) >= 300e-6
    assert min(device.profile([launch, launch])) >= 1e-6
