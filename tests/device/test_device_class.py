"""A class of devices that a test registers: tuned, bundled, verified and loaded like any other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from retune.api import tune_network
from retune.bundle.format import read_bundle
from retune.bundle.runtime.simulated import module_on
from retune.codegen.target import CPU
from retune.device.measure.reference import Reference
from retune.device.opening import open_device, spec_of
from retune.targets import devices
from retune.targets.cost.cpu import cpu_cycles
from retune.targets.devices import DeviceRules, register_device_class
from tests.support.boards import written
from tests.support.device_networks import write
from tests.support.devices import LEVELS, sketches

pytestmark = pytest.mark.device


@pytest.fixture
def npu(tmp_path: Path) -> Iterator[str]:
    """A device of a class of its own: two levels, one rule; its kernels run on PoCL."""
    rules = DeviceRules(levels=LEVELS, rules=(sketches,), cost=cpu_cycles, target=CPU)
    register_device_class("npu", rules)
    board = written(tmp_path, 'device_class = "npu"')
    yield f"sim:{board}"
    del devices._CLASSES["npu"]


def test_a_third_class_of_devices_goes_all_the_way(
    npu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))
    assert spec_of(npu).device_class == "npu"
    made = tune_network(
        str(write("bottleneck", tmp_path)),
        tmp_path / "out",
        device=npu,
        trials=8,
        records=tmp_path / "records",
    )
    assert made.verified.passed and made.verified.max_abs > 0
    plan = read_bundle(tmp_path / "out" / "module")
    assert plan.device.device_class == "npu"
    assert "_0_" in plan.launches[0].kernel
    module = module_on(plan, open_device(npu))
    found = module.run(module.random_inputs())
    assert all(np.isfinite(array).all() for array in found.values())


def test_a_third_class_has_a_calibration_kernel(npu: str):
    assert Reference(open_device(npu)).time_us() > 0
