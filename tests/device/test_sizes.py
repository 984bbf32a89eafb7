"""Kernels with sizes, lowered once, are right at all sizes that meet their conditions."""

from collections.abc import Callable

import numpy as np
import pytest

from retune.core.dims import Size, dim_of
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.device.opencl.execute import execute
from retune.device.opencl.runtime import Device, open_device
from retune.ir.interp import run_dag
from retune.ir.te import Dag
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d, dense, depthwise, pool, reduction, softmax, standardised
from tests.support.oracle import inputs_for
from tests.support.sizes import assert_right_at, lowered

BATCH = Size("batch", 1, 32)
SEVERAL = ["batch > 1"]
"""A batch of one has programs of its own: their loops over it are gone."""

BATCHES: dict[str, Callable[[int], Dag]] = {
    "dense": lambda n: dense(n, 67, 131),
    "convolution": lambda n: conv2d(n, 9, 8, 3, 17, 3, stride=2, residual=True),
    "pixelwise convolution": lambda n: conv2d(n, 5, 7, 16, 32, 1, pad=0),
    "depthwise": lambda n: depthwise(n, 7, 11, 67, stride=2),
    "largest of a window": lambda n: pool(n, 7, 11, 17, 3, 2, average=False),
    "mean of a window": lambda n: pool(n, 6, 6, 3, 2, 2, average=True),
    "softmax": lambda n: softmax(n, 96),
    "standardised rows": lambda n: standardised(n, 64),
    "largest of a row": lambda n: reduction(n, 160, "max", first=False),
}


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("name", BATCHES)
def test_batches(device: Device, name: str) -> None:
    made = lowered(lambda: BATCHES[name](dim_of(BATCH)), cpu_space, GENERIC_CPU, {"batch": 8})
    assert set(made.noted) <= {*SEVERAL, "batch != 1"}
    assert_right_at(device, made, [{"batch": n} for n in (2, 3, 5, 8, 32)])


def test_a_batch_of_one(device: Device) -> None:
    made = lowered(lambda: dense(dim_of(BATCH), 67, 131), cpu_space, GENERIC_CPU, {"batch": 1})
    assert set(made.noted) == {"batch <= 1", "batch == 1"}
    assert_right_at(device, made, [{"batch": 1}])


def test_execute_takes_sizes_as_arrays() -> None:
    made = lowered(lambda: dense(dim_of(BATCH), 67, 131), cpu_space, GENERIC_CPU, {"batch": 8})
    source = next(iter(made.sources.values()))
    inputs = inputs_for(dense(3, 67, 131))
    found = execute(source, {**inputs, "batch": np.array([3])}, "pocl")
    want = run_dag(made.dag, inputs, {"batch": 3})["z"]
    np.testing.assert_allclose(found["z"].reshape(3, 131), want, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="batch"):
        execute(source, inputs, "pocl")
