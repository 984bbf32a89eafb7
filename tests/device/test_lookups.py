"""Every byte finds its own in a table, by the processor's permutations or byte by byte."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT8, UINT8, TensorType
from retune.device.opencl.runtime import Device, open_device
from tests.support.lookups import by_lanes, looked_up
from tests.support.oracle import run_source

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("feature", ["__AVX512BW__", "ANOTHER"])
@pytest.mark.parametrize("table", [UINT8, INT8])
@pytest.mark.parametrize("codes", [UINT8, INT8])
def test_tables_of_bytes(device: Device, codes: str, table: str, feature: str):
    rng = np.random.default_rng(3)
    elements = rng.permutation(256).astype(np.uint8).view(table)
    least = int(np.iinfo(codes).min)
    x = (rng.permutation(256) + least).astype(codes)
    source = lower(by_lanes(looked_up(codes, table, count=256), 16).program, CPU)
    (kernel,) = source.kernels
    assert "__AVX512BW__" in kernel.text
    text = kernel.text.replace("__AVX512BW__", feature)
    source = replace(source, kernels=(replace(kernel, text=text),))
    made = {"y": TensorType((256,), UINT8 if table == UINT8 else INT8)}
    found = run_source(device, source, {"x": x, "t": elements}, made)["y"]
    np.testing.assert_array_equal(found, elements[x.astype(int) - least])
