"""Hand-written kernels through a bundle on PoCL: an alias, shared memory, two outputs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.format import pack_zip, write_bundle
from retune.bundle.runtime.allocations import allocated
from retune.bundle.runtime.module import BundleWarning, Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.compare import verify
from retune.core.errors import DeviceError, InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.ceilings import Ceilings
from retune.device.opencl.runtime import Device, open_device
from tests.support.bundle import BIAS, COLUMNS, ROWS, plan_of

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def pocl() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def module(pocl: Device) -> Module:
    return Module(plan_of(pocl.spec), pocl)


def test_a_module_agrees_with_numpy(module: Module) -> None:
    outcome = verify(module, _meaning, module.random_inputs, samples=5, tolerance=1e-6)
    assert outcome.passed, outcome


def test_temporaries_share_one_arena(module: Module) -> None:
    memory = module.memory
    assert memory.arena_bytes == memory.lower_bound_bytes < memory.unshared_bytes


@pytest.mark.parametrize("zipped", [False, True])
def test_a_bundle_runs_from_disk(pocl: Device, tmp_path: Path, zipped: bool) -> None:
    path = write_bundle(plan_of(pocl.spec), tmp_path / "module")
    path = pack_zip(path, tmp_path / "module.zip") if zipped else path
    module = Module.load(path)
    assert verify(module, _meaning, module.random_inputs).passed


def test_a_bundle_of_another_device_runs_with_a_warning(pocl: Device, tmp_path: Path) -> None:
    path = write_bundle(plan_of(GENERIC_CPU), tmp_path / "module")
    with pytest.warns(BundleWarning, match="tuned for two cores"):
        module = Module.load(path, "pocl")
    assert verify(module, _meaning, module.random_inputs).passed


def test_weights_that_cannot_be_copied_are_an_error(pocl: Device) -> None:
    class Unreadable:
        dtype, nbytes = np.dtype(np.float32), 4 * COLUMNS

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise MemoryError("no room")

    plan = plan_of(pocl.spec)
    broken = replace(plan, weights=dict.fromkeys(plan.weights, Unreadable()))  # type: ignore[arg-type]
    with pytest.raises(MemoryError, match="no room"), allocated(broken, pocl):
        pass


def test_two_modules_share_a_device(pocl: Device, module: Module) -> None:
    other = Module(plan_of(pocl.spec), pocl)
    feeds = module.random_inputs(seed=3)
    other.run(module.random_inputs(seed=4))
    np.testing.assert_allclose(module.run(feeds)["low"], _meaning(feeds)["low"], rtol=1e-5)


def test_runs_that_are_submitted_come_in_their_order_and_with_their_errors(pocl: Device) -> None:
    with Module(plan_of(pocl.spec), pocl) as module:
        feeds = {seed: module.random_inputs(seed) for seed in range(4)}
        later = [module.submit(each) for each in feeds.values()]
        wrong = module.submit({"no": np.zeros(1)})
    for each, made in zip(feeds.values(), later, strict=True):
        np.testing.assert_allclose(made.result()["low"], _meaning(each)["low"], rtol=1e-5)
    assert "expected the inputs x; got no" in str(wrong.exception())
    with pytest.raises(InputError, match="one that was closed"):
        module.submit(feeds[0])


def test_shared_memory_takes_inputs_and_gives_outputs(module: Module) -> None:
    for seed in (5, 6):
        feeds = module.random_inputs(seed)
        for name, array in feeds.items():
            module.shared(name)[:] = array
        module.run_launches()
        np.testing.assert_allclose(module.shared("low"), _meaning(feeds)["low"], rtol=1e-5)
    with pytest.raises(InputError, match=r"expected one of .*low"):
        module.shared("nothing")


def test_a_part_of_the_launches_runs_alone(module: Module) -> None:
    feeds = module.random_inputs()
    expected = module.run(feeds)
    module.runner(0, len(module.plan.launches), rounds=3)()
    module.runner(1, 2)()
    found = module.run(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_profile_has_a_row_for_each_launch(module: Module) -> None:
    rows = module.profile(repeat=3)
    assert [row.kernel for row in rows] == ["vector_add", "scale", "scale", "halves"]
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.median_s >= 0 for row in rows)
    assert all(row.roofline is None for row in rows)


def test_profile_with_ceilings_says_what_share_of_them(module: Module) -> None:
    ceilings = Ceilings(module.device)
    for row, launch in zip(module.profile(1, ceilings=ceilings), module.plan.launches, strict=True):
        least = ceilings.least_s(launch.flops, launch.bytes)
        assert row.roofline == pytest.approx(least / row.median_s)


def test_a_module_is_a_contender(module: Module) -> None:
    feeds = module.random_inputs()
    contenders = {"module": lambda: module.run(feeds), "numpy": lambda: _meaning(feeds)}
    options = BenchOptions(min_rounds=2, max_rounds=2, min_sample_s=0)
    assert compare_times(contenders, options=options).rounds == 2


def test_a_kernel_that_does_not_build_is_one_error(pocl: Device) -> None:
    plan = plan_of(pocl.spec, scale="__kernel void scale(__global float *x) { nonsense; }")
    with pytest.raises(DeviceError, match="does not build"):
        Module(plan, pocl)


def _meaning(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    nine = 9 * (inputs["x"].reshape(-1) + BIAS)
    return {"high": (1.5 * nine).reshape(COLUMNS, ROWS), "low": 0.5 * nine}
