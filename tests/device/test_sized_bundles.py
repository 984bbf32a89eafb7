"""One bundle for every batch and length: all forms at all sizes, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.export.program import export_c
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.codegen.network.extents import SizesAt, extent_text
from retune.core.dims import at, parse_condition
from retune.core.dtypes import INT32, TensorType
from retune.core.errors import InputError
from retune.device.opencl.runtime import Device, open_device
from tests.device.c_programs import build, outputs_of, run
from tests.support.size_values import holding
from tests.support.sized import BATCH, STEPS, batch, expected, sized_plan, steps

pytestmark = pytest.mark.device

AT = {"batch": 0, "steps": 4}
SIZES = [(1, 2), (2, 2), (0, 4), (3, 12), (9, 8), (1, 10), (9, 12), (2, 2)]
STAYING = "launch.groups_stay.atomics"


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def plan(device: Device) -> NetworkPlan:
    return sized_plan(device.spec)


@pytest.fixture(scope="module")
def module(plan: NetworkPlan, device: Device) -> Module:
    return Module(plan, device)


def feeds(batch: int, steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch + 100 * steps)
    x, bias = rng.standard_normal((batch, steps, 8)), rng.standard_normal((batch, 5))
    return {"x": x.astype(np.float32), "bias": bias.astype(np.float32)}


def assert_right(module: Module, batch: int, steps: int) -> None:
    given = feeds(batch, steps)
    found = module.run(given)
    for name, array in expected(**given).items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["persistent", "inline", "queued"])
def test_every_form_at_several_sizes(plan: NetworkPlan, device: Device, form: Form) -> None:
    if form == "queued":
        device = open_device("pocl")
        device.__dict__["has_atomics"] = False  # what workers need
    module = Module(replace(plan, form=form), device)
    assert module.form == form
    for sizes in SIZES:
        assert_right(module, *sizes)


def test_groups_that_stay(plan: NetworkPlan) -> None:
    gpu = open_device("pocl")
    gpu.spec = replace(gpu.spec, device_class="gpu", instructions=(STAYING,))
    options = (*plan.options, "-cl-opt-disable")
    module = Module(replace(plan, form="persistent", options=options, device=gpu.spec), gpu)
    assert module.form == "persistent"
    for sizes in SIZES:
        assert_right(module, *sizes)


def test_a_bundle_on_disk_is_the_same(plan: NetworkPlan, device: Device, tmp_path: Path) -> None:
    found = read_bundle(write_bundle(plan, tmp_path / "module"))
    assert found.sizes == plan.sizes and found.variants == plan.variants
    assert (found.buffers, found.launches) == (plan.buffers, plan.launches)
    assert_right(Module(found, device), 4, 6)


@pytest.mark.parametrize(
    ("batch", "steps", "message"),
    [
        (10, 4, "input x: axis 0: expected batch from 0 to 9; got 10"),
        (4, 3, "input x: axis 1: expected steps from 2 to 12 in steps of 2; got 3"),
    ],
)
def test_sizes_out_of_range_are_refused(
    module: Module, batch: int, steps: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        module.run(feeds(batch, steps))
    assert_right(module, 3, 4)


def test_inputs_that_do_not_fit_each_other_are_refused(module: Module) -> None:
    given = feeds(3, 4) | {"bias": np.zeros((2, 5), np.float32)}
    with pytest.raises(InputError, match=r"input bias: expected .*; got \[2, 5\]; for batch=3"):
        module.run(given)


def test_sizes_without_a_variant_are_refused(plan: NetworkPlan, device: Device) -> None:
    one, several = plan.variants
    few = replace(several, conditions=(parse_condition("batch < 5", {"batch": BATCH}),))
    module = Module(replace(plan, variants=(one, few)), device)
    assert module.random_inputs()["bias"].shape == (4, 5)
    with pytest.raises(InputError, match=r"expected sizes for which .*: batch == 1; or batch < 5"):
        module.run(feeds(6, 2))


def test_variants_of_conditions_on_unlike_sizes_run_in_turns(
    plan: NetworkPlan, device: Device
) -> None:
    one, several = plan.variants
    other = replace(several, conditions=(parse_condition("steps != 3", {"steps": STEPS}),))
    module = Module(replace(plan, variants=(one, other)), device)
    for items in (1, 3, 1):
        assert_right(module, items, 4)


def test_nothing_is_compiled_or_allocated_after_load(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("build", "allocate", "allocate_shared", "upload"):
        monkeypatch.setattr(Device, name, None)
    for values in holding((), (BATCH, STEPS)):
        assert_right(module, **values)
    assert len(module._runs._prepared) <= 64


def test_profiles_and_random_inputs_are_for_sizes_that_are_chosen(module: Module) -> None:
    assert module.random_inputs()["x"].shape == (9, 12, 8)
    given = module.random_inputs(3, {"batch": 1, "steps": 4})
    assert {name: a.shape for name, a in given.items()} == {"x": (1, 4, 8), "bias": (1, 5)}
    rows = module.profile(2, given)
    assert [row.label for row in rows] == [
        *("twice", "product", "sums_of_one", "start", "move", "halved")
    ]
    assert rows[0].flops == 40
    assert [row.label for row in module.profile(1)][2] == "sums"
    assert len(module.benchmark(2, 1, given)) == 2


def test_extents_in_c_are_those_of_python(device: Device) -> None:
    """With quotients of what may be negative, and of more than an int holds."""
    wide = (batch * 2**30 + 5) // 7
    dims = [batch * steps, (batch * steps + 3) // 4 - 2, 7 - batch, (batch - 5) // steps, wide]
    assert extent_text(wide).count("(long)") == 1
    assert "long" not in "".join(map(extent_text, dims[:-1]))
    every = list(holding((), (BATCH, STEPS)))
    lines = [f"found[i * {len(dims)} + {n}] = {extent_text(dim)};" for n, dim in enumerate(dims)]
    body = "\n".join(
        ["const int i = get_global_id(0);", *SizesAt(offsets=AT).lines(dims, "in"), *lines]
    )
    given = "__global const char* sizes, __global int* found"
    text = f"__kernel void extents({given}) {{\n{body}\n}}".replace("in + ", "sizes + 8 * i + ")
    values = device.upload(np.array([[v["batch"], v["steps"]] for v in every], np.int32))
    found = device.allocate(4 * len(every) * len(dims))
    one = (1, 1, 1)
    launch = device.prepare(device.build(text), "extents", [values, found], (len(every), 1, 1), one)
    device.enqueue([launch])
    expected_extents = [[at(dim, v) for dim in dims] for v in every]
    kind = TensorType((len(every), len(dims)), INT32)
    np.testing.assert_array_equal(device.read(found, kind), expected_extents)


@pytest.mark.process
@pytest.mark.parametrize("form", ["persistent", "inline", "queued"])
def test_a_program_in_c_at_several_sizes(plan: NetworkPlan, tmp_path: Path, form: Form) -> None:
    defines = ["PASS_FOR_GPU"] if form == "queued" else []
    build(export_c(replace(plan, form=form), tmp_path / "c"), *defines)
    for sizes in SIZES[:5]:
        given = feeds(*sizes)
        pairs = zip(("batch", "steps"), sizes, strict=True)
        options = [word for name, n in pairs for word in ("--size", f"{name}={n}")]
        found = outputs_of(tmp_path / "c", given, ["sum", "state"], *options)
        for name, array in expected(**given).items():
            assert found[name].shape == array.shape
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
    refused = run(tmp_path / "c", "--size", "steps=3")
    assert refused.returncode == 1
    assert "size steps: expected 2 to 12 in steps of 2, got 3" in refused.stderr
