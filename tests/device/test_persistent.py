"""Persistent workers: the same results as launches, with any number of workers in any order."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.network import persistent
from retune.codegen.network.persistent import Callee, CalleeLaunch, persistent_text
from retune.codegen.opencl.kernels import callable_only, single_item_kernel
from retune.core.dtypes import FLOAT32, TensorType
from retune.device.opencl.persistent import Persistent, can_persist
from retune.device.opencl.runtime import Device, DeviceMemory, open_device
from tests.support.tests_fixtures import Golden

pytestmark = pytest.mark.device

ADD = """
static void add_group(
    __global const float* restrict x,
    __global float* restrict y,
    const int3 group)
{
  y[group.x + 5 * group.y] += x[group.x + 5 * group.y] + 10 * group.y;
}
"""
CALLEES = [Callee(kernel="add", parameters=2, groups=(5, 3, 1))]
X, Y, Z = (0, 0), (1, 0), (1, 64)
STEPS = [
    CalleeLaunch(kernel="add", args=(X, Y), waits=(), label="x into y"),
    CalleeLaunch(kernel="add", args=(X, Z), waits=(), label="x into z"),
    CalleeLaunch(kernel="add", args=(Y, Z), waits=(1, 0), label="y into z"),
]
FLOATS = TensorType((32,), FLOAT32)
GROUP = 10.0 * (np.arange(15) // 5)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture
def kernel(device: Device) -> Persistent:
    assert can_persist(device)
    return Persistent(device, [ADD], (), CALLEES, STEPS, 2)


@pytest.fixture
def buffers(device: Device) -> tuple[DeviceMemory, DeviceMemory]:
    return device.upload(np.arange(15, dtype=np.float32)), device.upload(np.zeros(32, np.float32))


def test_the_text(golden: Golden) -> None:
    assert ADD + "\n" + persistent_text(CALLEES, STEPS, 2, 2) == golden


def test_the_text_of_a_moving_base(golden: Golden) -> None:
    assert ADD + "\n" + persistent_text(CALLEES, STEPS, 2, 2, moving=True) == golden


def test_kernels_that_are_only_called_are_functions(device: Device) -> None:
    """A driver compiles each kernel of a program that it hands out."""
    text = "\n".join(single_item_kernel("unused", [], [], ["(void)group;"]))
    own = "__kernel void own(__global int* x) { unused_group((int3)(*x)); }"
    (program,) = device.build(f"{callable_only(text)}\n{own}").handles
    assert program.kernel_names == "own"


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_each_round_reads_from_the_next_window(device: Device, rounds: int) -> None:
    """Three windows of x, 128 bytes apart; a second launch goes on where the first one ended."""
    kernel = Persistent(device, [ADD], (), CALLEES, STEPS[:1], 2, moving=True)
    x = np.arange(3 * 32, dtype=np.float32).reshape(3, 32)
    buffers = device.upload(x), device.upload(np.zeros(32, np.float32))
    launch = kernel.launch(buffers, rounds=rounds, windows=(128, 3))
    device.enqueue([launch, launch])
    expected = sum(x[i % 3, :15] + GROUP for i in range(2 * rounds))
    np.testing.assert_array_equal(device.read(buffers[1], FLOATS)[:15], expected)


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_any_number_of_workers_completes_every_step(
    device: Device, kernel: Persistent, buffers: tuple[DeviceMemory, DeviceMemory], workers: int
) -> None:
    launch = replace(kernel.launch(buffers), global_size=(workers, 1, 1))
    x = np.arange(15, dtype=np.float32)
    y, z = np.zeros(15), np.zeros(15)
    for _ in range(3):  # counters are clear again after each launch
        device.enqueue([launch])
        y = y + x + GROUP
        z = z + x + GROUP + y + GROUP
        found = device.read(buffers[1], FLOATS)
        np.testing.assert_array_equal(found[:15], y)
        np.testing.assert_array_equal(found[16:31], z)


def test_a_part_of_the_steps_alone(
    device: Device, kernel: Persistent, buffers: tuple[DeviceMemory, DeviceMemory]
) -> None:
    device.enqueue([kernel.launch(buffers, first=1, last=2)])
    found = device.read(buffers[1], FLOATS)
    np.testing.assert_array_equal(found[:16], np.zeros(16))
    np.testing.assert_array_equal(found[16:31], np.arange(15) + GROUP)


@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_rounds_follow_one_another(
    device: Device, kernel: Persistent, buffers: tuple[DeviceMemory, DeviceMemory], rounds: int
) -> None:
    device.enqueue([kernel.launch(buffers, rounds=rounds)])
    x, y, z = np.arange(15) + GROUP, np.zeros(15), np.zeros(15)
    for _ in range(rounds):
        y = y + x
        z = z + x + y + GROUP
    found = device.read(buffers[1], FLOATS)
    np.testing.assert_array_equal(found[:15], y)
    np.testing.assert_array_equal(found[16:31], z)


def test_most_rounds_fit_the_counters(kernel: Persistent) -> None:
    most = max(callee.count for callee in CALLEES)
    assert kernel.most_rounds == persistent.most_rounds(most)
    assert most * kernel.most_rounds < 2**31 <= most * (kernel.most_rounds + 1)


def test_counters_go_on_through_many_rounds(
    device: Device, kernel: Persistent, buffers: tuple[DeviceMemory, DeviceMemory]
) -> None:
    device.enqueue([kernel.launch(buffers, first=0, last=1, rounds=3000)] * 2)
    found = device.read(buffers[1], FLOATS)
    np.testing.assert_array_equal(found[:15], 6000 * (np.arange(15) + GROUP))
