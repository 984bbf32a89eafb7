"""Jobs of one program compute what each of them computes alone."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.dtypes import TensorType
from retune.device.jobs import BuiltJob, build_jobs
from retune.device.runtime import BuildFailed, Device, open_device
from retune.device.workload import Job, Workload, make_candidate
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.cpu import cpu_space
from tests.dags import conv2d, elementwise, softmax
from tests.oracle import inputs_for, reference

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def some_jobs(device: Device, dag: Dag, count: int) -> tuple[list[Job], Workload]:
    """Jobs of random candidates that pack no constants, and the data of their task."""
    merged = merge_axes(dag)
    inputs = inputs_for(merged)
    workload = Workload(key="task", inputs=inputs, outputs=reference(merged, inputs))
    space = cpu_space(from_dag(merged), device.spec)
    rng = np.random.default_rng(3)
    jobs: list[Job] = []
    for number in range(count):
        sketch = space.sketches[number % len(space.sketches)]
        source = lower(sketch.instantiate(sketch.sample(1, rng)[0]))
        jobs.append(make_candidate(workload, source).job)
    return jobs, workload


def result(device: Device, built: BuiltJob, job: Job, workload: Workload) -> np.ndarray:
    """The output after three runs, from memory full of ones."""
    buffers = {
        spec.name: device.upload(
            workload.inputs[spec.name]
            if spec.role in {"input", "constant"} and not spec.packed
            else np.ones(spec.elements, spec.dtype)
        )
        for spec in job.buffers
    }
    built.warm()
    built.bind(buffers).time(3)
    (output,) = (spec for spec in job.buffers if spec.role == "output")
    return device.read(buffers[output.name], TensorType((output.elements,), "float32"))


def test_candidates_of_several_tasks_share_one_program(device: Device):
    """Different numbers of launches and buffers; packed constants are all ones, for each alike."""
    tasks = [conv2d(1, 9, 9, 16, 16), softmax(3, 67), elementwise(3, 67)]
    both = [some_jobs(device, dag, 2) for dag in tasks]
    jobs = [(job, workload) for several, workload in both for job in several]
    assert len({len(job.buffers) for job, _ in jobs}) > 1
    assert len({len(job.launches) for job, _ in jobs}) > 1
    together = build_jobs(device, [job for job, _ in jobs])
    for built, (job, workload) in zip(together, jobs, strict=True):
        (alone,) = build_jobs(device, [job])
        found, expected = (result(device, b, job, workload) for b in (built, alone))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        if not any(spec.packed for spec in job.buffers):
            want = next(iter(workload.outputs.values())).reshape(-1)
            np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_a_text_that_does_not_compile_fails_its_program(device: Device):
    (good, other), _ = some_jobs(device, elementwise(3, 67), 2)
    bad = replace(other, texts=tuple(f"{text}\nnonsense" for text in other.texts))
    with pytest.raises(BuildFailed, match="nonsense"):
        build_jobs(device, [good, bad])
