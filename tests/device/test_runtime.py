"""An open OpenCL device: PoCL."""

import gc
from dataclasses import replace

import numpy as np
import pyopencl as cl
import pytest

from retune.core.dtypes import TensorType
from retune.core.errors import DeviceError, InputError
from retune.device.opencl import pages, runtime
from retune.device.opencl.catalogue import driver_problems, list_devices
from retune.device.opencl.runtime import (
    BuildFailed,
    Device,
    LaunchFailed,
    open_device,
)

pytestmark = pytest.mark.device

DOUBLE = """
__kernel void twice(__global const float *x, __global float *y) {
  int i = get_global_id(0);
  y[i] = 2 * x[i];
}
__kernel void next(__global float *y) { y[get_global_id(0)] += 1; }
"""
KIND = TensorType((8, 16))


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module", params=["objects", "pointers"])
def memory(request: pytest.FixtureRequest) -> Device:
    """PoCL, whose memory is objects of the driver, or addresses as on a GPU."""
    opened = open_device("pocl")
    if request.param == "pointers":
        opened.spec = replace(opened.spec, device_class="gpu")
        assert opened.allocate(4).addresses is not None
    return opened


def test_pocl_is_listed_first_and_once():
    names = [spec.name for spec in list_devices()]
    assert names[0] == "pocl"
    assert len(names) == len(set(names))
    assert isinstance(driver_problems(), tuple)


def test_the_spec_is_filled_and_names_a_processor(device: Device):
    spec = device.spec
    assert spec.device_class == "cpu"
    assert spec.compute_units >= 1
    assert spec.global_memory_bytes > 1 << 20
    assert spec.max_work_group >= 1
    assert not spec.opencl.endswith("-generic")


def test_an_unknown_device_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match=r"'toaster' is not known; found here: pocl.*Choose one"):
        open_device("toaster")


def test_a_kernel_is_found_among_many(device: Device):
    """More than 8 KiB of them: what NVIDIA's driver says of its programs must not be asked for."""
    names = [f"kernel_{'x' * 60}_{number}" for number in range(140)]
    attribute = "__attribute__((reqd_work_group_size(1, 1, 1)))"
    heads = [f"__kernel {attribute}\nvoid {name}" for name in names]
    helper = "void other(__global int* x) { *x = 1; }\n"
    program = device.build(
        helper + "\n".join(f"{head}(__global int* x) {{ other(x); }}" for head in heads)
    )
    buffer = device.upload(np.zeros(1, np.int32))
    device.enqueue([device.prepare(program, names[-1], [buffer], (1,), (1,))])
    assert device.read(buffer, TensorType((1,), "int32")) == 1


def test_launches_run_in_order(memory: Device):
    program = memory.build(DOUBLE, options=("-cl-fast-relaxed-math",))
    x, y = memory.random("float32", KIND.elements, 1), memory.random("float32", KIND.elements, 2)
    first = memory.prepare(program, "twice", [x, y], (KIND.elements, 1, 1), (1, 1, 1))
    then = memory.prepare(program, "next", [y], (KIND.elements, 1, 1), (16, 1, 1))
    memory.enqueue([first, then])
    memory.finish()
    assert np.array_equal(memory.read(y, KIND), 2 * memory.read(x, KIND) + 1)
    assert memory.time([first], 3) > 0
    assert len(memory.profile([first, then])) == 2


def test_a_launch_keeps_its_buffers_alive(memory: Device):
    program = memory.build(DOUBLE)
    y = memory.upload(np.zeros(KIND.shape, np.float32))
    x = np.full(KIND.shape, 3, np.float32)
    launch = memory.prepare(program, "twice", [memory.upload(x), y], (128, 1, 1), (1, 1, 1))
    gc.collect()
    memory.enqueue([launch])
    assert np.array_equal(memory.read(y, KIND), 2 * x)


def test_one_group_touches_one_work_group(device: Device):
    program = device.build(DOUBLE)
    y = device.upload(np.zeros(KIND.shape, np.float32))
    launch = device.prepare(program, "next", [y], (128, 1, 1), (16, 1, 1))
    device.enqueue([launch.one_group()])
    assert device.read(y, KIND).sum() == 16


def test_parts_and_writes_share_memory(memory: Device):
    whole = memory.allocate(4096)
    part = memory.part(whole, 1024, 64)
    given = np.arange(16, dtype=np.float32)
    given.flags.writeable = False  # as the arrays of a file are
    memory.write(part, given)
    found = memory.read(whole, TensorType((1024,)))
    assert found[256:272].tolist() == list(range(16))
    assert found.sum() == sum(range(16))
    with pytest.raises(DeviceError, match="write of 128 bytes from byte 0 on to a buffer of 64"):
        memory.write(part, np.zeros(32, np.float32))
    memory.write(whole, np.full(4, 7, np.float32), 2048)
    assert memory.read(whole, TensorType((1024,)))[510:518].tolist() == [0, 0, 7, 7, 7, 7, 0, 0]


def test_memory_is_filled_in_pieces(memory: Device, monkeypatch: pytest.MonkeyPatch):
    """NVIDIA's driver does not come back from a fill of 2**31 bytes."""
    fills = list[str]()
    for name in ("enqueue_fill_buffer", "enqueue_svm_memfill"):

        def filling(*args: object, name: str = name, own: object = getattr(cl, name)) -> object:
            fills.append(name)
            return own(*args)  # type: ignore[operator]

        monkeypatch.setattr(cl, name, filling)
    monkeypatch.setattr(runtime, "MOST_FILLED", 256)
    buffer = memory.allocate(1000)
    assert len(fills) == 4
    assert not memory.read(buffer, TensorType((250,))).any()


def test_large_buffers_are_zeros_that_kernels_read_and_write(device: Device):
    """They lie in memory of ours, aligned to large pages, which lives as long as the buffer."""
    count = (pages.HUGE_BYTES + 4096) // 4
    x, y = device.allocate(4 * count), device.allocate(4 * count)
    kind = TensorType((count,))
    assert not device.read(x, kind).any()
    values = np.arange(count, dtype=np.float32)
    device.write(x, values)
    launch = device.prepare(device.build(DOUBLE), "twice", [x, y], (count, 1, 1), (1, 1, 1))
    del x
    gc.collect()
    device.enqueue([launch])
    np.testing.assert_array_equal(device.read(y, kind), 2 * values)


def test_an_array_in_huge_pages_starts_at_one():
    array = pages.in_huge_pages(100)
    assert array.shape == (100,)
    assert array.ctypes.data % pages.HUGE_BYTES == 0
    assert not array.any()


def test_an_empty_array_has_a_buffer(device: Device):
    buffer = device.upload(np.zeros((0,), np.float32))
    assert device.read(buffer, TensorType((0,))).shape == (0,)


def test_a_build_failure_carries_the_compilers_log(device: Device):
    with pytest.raises(BuildFailed, match="use of undeclared identifier 'z'"):
        device.build("__kernel void bad(__global float *x) { x[0] = z; }")


def test_a_function_whose_name_a_macro_makes_is_declared(device: Device):
    text = """
#define JOIN(a, b) a##b
__kernel void f(__global float *y) { y[0] = JOIN(fm, a)(2.0f, 3.0f, y[0]); }
"""
    y = device.upload(np.ones(1, np.float32))
    device.enqueue([device.prepare(device.build(text), "f", [y], (1,), (1,))])
    assert device.read(y, TensorType((1,))) == 7


def test_a_device_that_is_opened_again_has_the_same_context(device: Device):
    """Drivers refuse memory of another one, and NVIDIA's never frees one."""
    memory = device.upload(np.arange(4, dtype=np.float32))
    again = open_device(device.spec.name)
    assert again.read(memory, TensorType((4,))).tolist() == [0, 1, 2, 3]


def test_refused_launches_say_which(device: Device):
    program = device.build(DOUBLE)
    y = device.allocate(4096)
    with pytest.raises(LaunchFailed, match="'thrice': the program has no kernel of that name"):
        device.prepare(program, "thrice", [y], (1, 1, 1), (1, 1, 1))
    with pytest.raises(LaunchFailed, match="'twice': takes 2 arguments, got 1"):
        device.prepare(program, "twice", [y], (1, 1, 1), (1, 1, 1))
    good, bad = (device.prepare(program, "next", [y], (n, 1, 1), (3, 1, 1)) for n in (3, 10))
    with pytest.raises(LaunchFailed, match=r"launch of kernel 'next' over \(10, .*GROUP_SIZE"):
        device.enqueue([good, bad])
    with pytest.raises(LaunchFailed, match="allocation of"):
        device.allocate(1 << 50)  # more than the system has
    with pytest.raises(LaunchFailed, match="allocation of"):
        device.allocate(device.spec.global_memory_bytes + 1)


def test_memory_that_host_and_device_share(device: Device):
    shared = device.allocate_shared(4096)
    assert shared.host is not None, "PoCL shares memory with the host"
    x, y = device.part(shared, 0, KIND.bytes), device.part(shared, 2048, KIND.bytes)
    values = np.arange(KIND.elements, dtype=np.float32)
    device.write(x, values)
    program = device.build(DOUBLE)
    launch = device.prepare(program, "twice", [x, y], (KIND.elements, 1, 1), (1, 1, 1))
    device.enqueue([launch])
    np.testing.assert_array_equal(device.read(y, KIND), 2 * values.reshape(KIND.shape))
