"""Vector loads and stores of our own: every length and type, at addresses that are not aligned."""

import numpy as np
import pytest

from retune.core.dtypes import TensorType
from retune.device.opencl.runtime import Device, open_device
from retune.device.opencl.vectors import LANES


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("int", "int32")])
def test_lanes_are_read_and_written_where_they_lie_and_nothing_else(
    device: Device, lanes: int, kind: str, dtype: str
):
    text = f"""
    __kernel void put(__global const {kind}* x, __global {kind}* y) {{
      {kind} own[2 * {lanes}];
      vstore{lanes}(vload{lanes}(1, x + 1), 1, own);
      vstore{lanes}(vload{lanes}(0, own + {lanes}), 1, y + 3);
    }}"""
    x = np.arange(2 * lanes + 1).astype(dtype)
    source, target = device.upload(x), device.upload(np.zeros(2 * lanes + 5, dtype))
    launch = device.prepare(device.build(text), "put", [source, target], (1, 1, 1), (1, 1, 1))
    device.enqueue([launch])
    device.finish()
    found = device.read(target, TensorType((2 * lanes + 5,), dtype))  # type: ignore[arg-type]
    expected = np.zeros(2 * lanes + 5, dtype)
    expected[lanes + 3 : 2 * lanes + 3] = x[lanes + 1 :]
    assert np.array_equal(found, expected)
