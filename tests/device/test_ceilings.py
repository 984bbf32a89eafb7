"""Ceilings: measured once, by size, and the roofline made of them."""

from dataclasses import replace

import pytest

from retune.device.measure.ceilings import Ceilings
from retune.device.measure.reference import Reference
from retune.device.opencl.runtime import open_device

Patch = pytest.MonkeyPatch
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


def test_a_disturbed_run_lowers_no_ceiling(monkeypatch: Patch) -> None:
    rates, seconds = iter((50.0, 90.0, 60.0, 85.0, 40.0)), iter((9.0, 4.0, 2.0, 8.0, 4.0, 6.0))
    device = open_device("pocl")
    monkeypatch.setattr(Reference, "gflops", lambda _: next(rates))
    assert Ceilings(device).gflops == 90.0
    monkeypatch.setattr(device, "time", lambda _: next(seconds))
    assert Ceilings(device).gbytes_per_s(1 << 20) == pytest.approx(1e-9 * (1 << 26) / 2.0, rel=0.1)


@pytest.mark.parametrize(("bits", "lanes"), [(512, 16), (256, 8), (128, 4)])
def test_accumulators_are_as_wide_as_registers(bits: int, lanes: int, monkeypatch: Patch) -> None:
    """On AVX2 twelve of 16 floats do not fit the registers: 84 GFLOPS where 8 floats reach 204."""
    device = open_device("pocl")
    texts: list[str] = []
    build = device.build
    monkeypatch.setattr(device, "spec", replace(device.spec, vector_bits=bits))
    monkeypatch.setattr(
        device, "build", lambda text, **kw: (texts.append(text), build(text, **kw))[1]
    )
    assert Ceilings(device).gflops > 0
    assert f"float{lanes} a0" in texts[-1]


def test_smaller_values_come_from_where_all_of_them_came_from(monkeypatch: Patch) -> None:
    """3 GiB of weights were to take 0.09 of the time in int8, as if each layer's came from L3."""
    ceilings = Ceilings(open_device("pocl"))
    monkeypatch.setattr(ceilings, "gbytes_per_s", lambda size: 10.0 if size > 1 << 24 else 100.0)
    assert ceilings.least_lower_s(8, 0, 1 << 26) == ceilings.least_s(0, 1 << 26) / 4
    assert ceilings.least_lower_s(16, 0, 1 << 26) == ceilings.least_s(0, 1 << 26) / 2
