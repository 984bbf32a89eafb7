"""Ceilings: measured once, by size, and the roofline made of them."""

import pytest

from retune.device.measure.ceilings import Ceilings
from retune.device.opencl.runtime import open_device

pytestmark = pytest.mark.device


def test_the_roofline_is_the_slower_of_arithmetic_and_traffic() -> None:
    ceilings = Ceilings(open_device("pocl"))
    speed, rate = ceilings.gflops, ceilings.gbytes_per_s(1 << 20)
    assert speed > 0
    assert rate > 0
    assert ceilings.gbytes_per_s((1 << 20) + 5) == rate, "kept, by rounded sizes"
    assert ceilings.least_s(10**9, 0) == pytest.approx(1 / speed)
    assert ceilings.least_s(0, 1 << 20) == pytest.approx(1e-9 * (1 << 20) / rate)
    both = ceilings.least_s(10**9, 1 << 20)
    assert both == max(ceilings.least_s(10**9, 0), ceilings.least_s(0, 1 << 20))
