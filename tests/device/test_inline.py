"""A plan in one thread on PoCL: the same results as with workers, whole and in parts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.codegen.network.inline import NAME, inline_text
from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.core.dtypes import FLOAT32, TensorType
from retune.device.opencl.catalogue import list_devices
from retune.device.opencl.runtime import Device, open_device
from tests.support.tests_fixtures import Golden

pytestmark = pytest.mark.device

ADD = """
static void add_group(
    __global const float* restrict x,
    __global float* restrict y,
    const int3 group)
{
  y[group.x + 5 * group.y] += x[group.x + 5 * group.y] + 10 * group.y;
}
"""
CALLEES = [Callee(kernel="add", parameters=2, groups=(5, 3, 1))]
X, Y, Z = (0, 0), (1, 0), (1, 64)
STEPS = [
    CalleeLaunch(kernel="add", args=(X, Y), waits=(), label="x into y"),
    CalleeLaunch(kernel="add", args=(Y, Z), waits=(0,), label="y into z"),
]
GROUP = 10.0 * (np.arange(15) // 5)


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def caller(device: Device) -> Device:
    """Where the calling thread does the work."""
    found = device.in_caller
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plan(device: Device, tmp_path_factory: pytest.TempPathFactory) -> NetworkPlan:
    network = import_network("zoo:mlp", cache=tmp_path_factory.mktemp("models"))
    return build_plan(network.network, {}, device.spec, model_key="0", notes={})


def test_the_text(golden: Golden) -> None:
    assert ADD + "\n" + inline_text(CALLEES, STEPS, 2) == golden


def test_one_device_is_listed_for_both(device: Device, caller: Device) -> None:
    assert [spec.name for spec in list_devices()].count("pocl") == 1
    assert not any("basic" in spec.model for spec in list_devices())
    assert caller.spec.compute_units == 1
    assert caller.spec.opencl.rpartition("-")[2] == device.spec.opencl.rpartition("-")[2]


@pytest.mark.parametrize(("first", "last", "rounds"), [(0, 2, 1), (0, 1, 3), (1, 2, 2), (0, 2, 3)])
def test_the_steps_asked_for_run_in_order(
    caller: Device, first: int, last: int, rounds: int
) -> None:
    program = caller.build(ADD + "\n" + inline_text(CALLEES, STEPS, 2))
    buffers = [caller.upload(np.arange(15, dtype=np.float32)), caller.upload(np.zeros(32, "f4"))]
    one = (1, 1, 1)
    caller.enqueue([caller.prepare(program, NAME, buffers, one, one, (first, last, rounds))])
    x, y, z = np.arange(15) + GROUP, np.zeros(15), np.zeros(15)
    for _ in range(rounds):
        y = y + x * (first == 0)
        z = z + (y + GROUP) * (last == 2)
    found = caller.read(buffers[1], TensorType((32,), FLOAT32))
    np.testing.assert_array_equal(found[:15], y)
    np.testing.assert_array_equal(found[16:31], z)


def test_both_forms_compute_the_same(plan: NetworkPlan, device: Device) -> None:
    inline, persistent = (
        Module(replace(plan, form=form), device) for form in ("inline", "persistent")
    )
    assert (inline.form, persistent.form) == ("inline", "persistent")
    feeds = inline.random_inputs()
    for name, array in persistent.run(feeds).items():
        np.testing.assert_array_equal(inline.run(feeds)[name], array)
    inline.runner(0, len(plan.launches), rounds=3)()
    assert len(inline.profile(repeat=1)) == len(plan.launches)


def test_a_bundle_keeps_its_form(plan: NetworkPlan, device: Device, tmp_path: Path) -> None:
    path = write_bundle(replace(plan, form="inline"), tmp_path / "module")
    assert Module.load(path, device).form == "inline"


def test_a_machine_without_the_form_takes_another(
    plan: NetworkPlan, device: Device, without_caller: Callable[[], Device]
) -> None:
    feeds = (usual := Module(plan, device)).random_inputs()
    module = Module(replace(plan, form="inline"), without_caller())
    assert module.form == "persistent"
    np.testing.assert_array_equal(module.run(feeds)["prob"], usual.run(feeds)["prob"])


@pytest.fixture
def without_caller(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Device]:
    """Opens PoCL as on a machine that has only the device with threads."""

    def open_alone() -> Device:
        monkeypatch.setattr("retune.device.opencl.runtime.find_in_caller", lambda spec: None)
        return open_device("pocl")

    return open_alone


def test_the_best_form_is_one_that_the_device_allows(plan: NetworkPlan, device: Device) -> None:
    found = best_form(plan, device)
    assert found.form in ("persistent", "inline")
    assert replace(found, form=plan.form) == plan
