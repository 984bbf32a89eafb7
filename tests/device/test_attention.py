"""Attention by one kernel on PoCL, whose text needs no instruction."""

import numpy as np
import pytest

from retune.core.dtypes import BFLOAT16
from retune.core.target import GENERIC_GPU
from retune.device.opencl.runtime import Device, open_device
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.targets.gpu.space import gpu_space
from tests.support.attention import ATTENDING, attention_dag
from tests.support.oracle import assert_device_agrees

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(
    "dag",
    [attention_dag(35, 37), attention_dag(33, 40, causal=7, bias=(1, 2, 33, 40), dtype=BFLOAT16)],
    ids=["plain", "causal with a bias"],
)
def test_results(device: Device, dag: Dag):
    (sketch, *_) = gpu_space(from_dag(dag), ATTENDING).sketches
    (row,) = sketch.sample(1, np.random.default_rng(0))
    assert_device_agrees(device, dag, sketch.instantiate(row))


@pytest.mark.parametrize(
    "dag", [attention_dag(6, 37), attention_dag(3, 300, bias=(1, 1, 1, 300))], ids=["six", "three"]
)
def test_few_queries(device: Device, dag: Dag):
    (sketch,) = gpu_space(from_dag(dag), GENERIC_GPU).sketches
    assert sketch.name == "gpu.attention.few"
    for row in sketch.sample(2, np.random.default_rng(0)):
        assert_device_agrees(device, dag, sketch.instantiate(row))
