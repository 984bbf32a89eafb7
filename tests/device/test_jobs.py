"""Jobs of one program compute what each of them computes alone."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.source import ProgramBuffer, ProgramSource
from retune.core.dtypes import FLOAT32, INT32, TensorType
from retune.device.measure.workload import Workload, check_fits
from retune.device.opencl.jobs import BuiltJob, build_jobs
from retune.device.opencl.pool import ConstantPool, Window
from retune.device.opencl.runtime import BuildFailed, Device, open_device
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from tests.support.dags import conv2d, elementwise, softmax
from tests.support.oracle import inputs_for, reference

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def some_jobs(device: Device, dag: Dag, count: int) -> tuple[list[ProgramSource], Workload]:
    """Jobs of random candidates that pack no constants, and the data of their task."""
    merged = merge_axes(dag)
    inputs = inputs_for(merged)
    workload = Workload(key="task", inputs=inputs, outputs=reference(merged, inputs))
    space = cpu_space(from_dag(merged), device.spec)
    rng = np.random.default_rng(3)
    jobs: list[ProgramSource] = []
    for number in range(count):
        sketch = space.sketches[number % len(space.sketches)]
        source = lower(sketch.instantiate(sketch.sample(1, rng)[0]), target_of(device.spec))
        check_fits(workload, source)
        jobs.append(source)
    return jobs, workload


def result(device: Device, built: BuiltJob, job: ProgramSource, workload: Workload) -> np.ndarray:
    """The output after three runs, from memory full of ones."""
    arrays = {
        spec.name: workload.inputs[spec.name]
        if spec.role in {"input", "weight"} and spec.name not in job.packings
        else np.ones(spec.elements, spec.dtype)
        for spec in job.buffers
    }
    constants = {s.name: arrays.pop(s.name) for s in job.buffers if s.role == "weight"}
    buffers = {name: device.upload(array) for name, array in arrays.items()}
    built.warm()
    built.bind(buffers, constants).time(3)
    (output,) = (spec for spec in job.buffers if spec.role == "output")
    return device.read(buffers[output.name], TensorType((output.elements,), FLOAT32))


def test_candidates_of_several_tasks_share_one_program(device: Device):
    """Different numbers of launches and buffers; packed constants are all ones, for each alike."""
    tasks = [conv2d(1, 9, 9, 16, 16), softmax(3, 67), elementwise(3, 67)]
    both = [some_jobs(device, dag, 2) for dag in tasks]
    jobs = [(job, workload) for several, workload in both for job in several]
    assert len({len(job.buffers) for job, _ in jobs}) > 1
    assert len({len(job.launches) for job, _ in jobs}) > 1
    pool = ConstantPool(device)
    together = build_jobs(device, [job for job, _ in jobs], pool)
    for built, (job, workload) in zip(together, jobs, strict=True):
        (alone,) = build_jobs(device, [job], pool)
        found, expected = (result(device, b, job, workload) for b in (built, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        if not job.packings:
            want = next(iter(workload.outputs.values())).reshape(-1)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_spread_constants_change_the_later_runs_only(device: Device):
    """Runs with the task's constants, before and after others that have random numbers in turn."""
    dag = conv2d(1, 9, 9, 16, 16)
    (job,), _ = some_jobs(device, dag, 1)
    window = Window.of(job)
    assert window.movable
    arrays = {s.name: np.ones(s.elements, np.float32) for s in job.buffers}
    constants = {name: arrays.pop(name) for name in window.offsets}
    buffers = {name: device.upload(array) for name, array in arrays.items()}
    (built,) = build_jobs(device, [job], ConstantPool(device))
    (output,) = (spec for spec in job.buffers if spec.role == "output")

    def read() -> np.ndarray:
        return device.read(buffers[output.name], TensorType((output.elements,), FLOAT32))

    bound = built.bind(buffers, constants, 2 * window.bytes)
    bound.time(2)
    expected = read()
    spread: list[bool] = []
    for runs in (1, 1, 2, 1):  # windows 0, 1, 0 and 1, 0
        bound.time_spread(runs)
        spread.append(not np.allclose(read(), expected))
    assert spread == [False, True, True, False]
    bound.time()
    np.testing.assert_array_equal(read(), expected)
    alone = built.bind(buffers, constants, 2 * window.bytes - 1)
    alone.time_spread(2)
    np.testing.assert_array_equal(read(), expected)


def test_windows_are_no_more_than_it_takes_to_leave_the_caches(device: Device):
    spec = device.spec
    window = Window(offsets={"w": 0}, bytes=spec.l2_bytes, movable=True)
    arrays = {"w": np.ones(3, np.float32)}
    pool = ConstantPool(device)
    assert pool.place(window, arrays, 5 * spec.l2_bytes)[1] == 5
    caches = max(spec.l2_bytes, spec.l3_bytes)
    assert pool.place(window, arrays, 1 << 50)[1] * window.bytes <= 4 * caches


def test_constants_that_may_be_indices_do_not_move(device: Device):
    numbers = ProgramBuffer(name="i", dtype=INT32, elements=3, role="weight")
    weights = replace(numbers, name="w", dtype=FLOAT32)
    job = ProgramSource(kernels=(), launches=(), buffers=(weights, numbers))
    window = Window.of(job)
    assert window == Window(offsets={"w": 0, "i": 512}, bytes=1024, movable=False)
    arrays = {"w": np.ones(3, np.float32), "i": np.arange(3, dtype=np.int32)}
    buffer, windows = ConstantPool(device).place(window, arrays, 1 << 20)
    assert windows == 1
    np.testing.assert_array_equal(
        device.read(device.part(buffer, 512, 12), TensorType((3,), INT32)), arrays["i"]
    )


def test_a_text_that_does_not_compile_fails_its_program(device: Device):
    (good, other), _ = some_jobs(device, elementwise(3, 67), 2)
    kernels = tuple(replace(k, text=f"{k.text}\nnonsense") for k in other.kernels)
    bad = replace(other, kernels=kernels)
    with pytest.raises(BuildFailed, match="nonsense"):
        build_jobs(device, [good, bad], ConstantPool(device))
