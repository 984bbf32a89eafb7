"""What a module does with its device: all set-up at load, little at each run."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.format import pack_zip, write_bundle
from retune.bundle.plan import Alias, NetworkPlan
from retune.bundle.runtime.module import BundleWarning, Module, random_inputs
from retune.codegen.kernel import Function
from retune.codegen.opencl.intrinsics import function_lines
from retune.codegen.source import ProgramBuffer
from retune.core.dtypes import BOOL, FLOAT32, INT8, INT64, UINT8, TensorType
from retune.core.errors import InputError, RecordError, VerifyError
from retune.core.target import GENERIC_CPU
from retune.intrinsics import Signature
from tests.support.module import FakeDevice
from tests.support.programs import kernels_of, texts_of


@pytest.fixture
def x(rng: np.random.Generator) -> np.ndarray:
    return rng.random((4, 8), np.float32)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def module(plan: NetworkPlan, device: FakeDevice) -> Module:
    loaded = Module(plan, device)  # type: ignore[arg-type]
    device.log.clear()
    return loaded


def test_a_run_computes_every_output(module: Module, x: np.ndarray) -> None:
    out = module.run({"x": x})
    total = x.reshape(-1) + np.arange(32, dtype=np.float32)
    assert list(out) == ["twice", "eight"]
    np.testing.assert_array_equal(out["twice"], 2 * total)
    np.testing.assert_array_equal(out["eight"], (8 * total).reshape(8, 4))


def test_a_bundle_without_states_has_no_sessions(module: Module) -> None:
    with pytest.raises(InputError, match="expected states, got none; compile the model with"):
        module.session()


def test_outputs_of_two_runs_are_arrays_of_their_own(module: Module, x: np.ndarray) -> None:
    first = module.run({"x": x})["twice"]
    kept = first.copy()
    module.run({"x": x + 1})
    np.testing.assert_array_equal(first, kept)


def test_an_input_may_be_any_view(module: Module, x: np.ndarray) -> None:
    view = np.asfortranarray(x)
    np.testing.assert_array_equal(module.run({"x": view})["twice"], module.run({"x": x})["twice"])


def test_load_sets_everything_up_and_compiles_every_kernel(
    plan: NetworkPlan, device: FakeDevice
) -> None:
    Module(plan, device)  # type: ignore[arg-type]
    assert device.log.count("build") == device.log.count("map") == 1
    assert [entry for entry in device.log if entry.startswith("allocate")] == [
        "allocate 512",  # the arena: sum and four share it
        "allocate 512",  # the weights
        f"allocate {3 * 512}",  # x, twice, and eight with wide
    ]
    assert device.log[-6:-2] == ["prepare add", *["prepare scale"] * 3]
    assert device.log[-2:] == ["enqueue 4", "finish"]
    assert device.built.count("__kernel") == 2


def test_programs_that_came_compiled_have_not_run_after_load(plan: NetworkPlan) -> None:
    device = FakeDevice(origin="bundle")
    module = Module(plan, device)  # type: ignore[arg-type]
    assert not any(entry.startswith("enqueue") for entry in device.log)
    module.run_launches()
    assert device.log[-2:] == ["enqueue 4", "finish"]


def test_nothing_is_launched_with_damaged_weights(
    plan: NetworkPlan, device: FakeDevice, tmp_path: Path
) -> None:
    path = write_bundle(plan, tmp_path / "module") / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordError, match="expected content with hash"):
        Module.load(tmp_path / "module", device)  # type: ignore[arg-type]
    assert "map" in device.log
    assert not any(entry.startswith("enqueue") for entry in device.log)


def test_a_run_is_one_write_one_enqueue_and_the_reads(
    module: Module, device: FakeDevice, x: np.ndarray
) -> None:
    module.run({"x": x})
    assert device.log == ["write", "enqueue 4", "read", "read"]


def test_a_text_of_two_kernels_is_built_once(plan: NetworkPlan, device: FakeDevice) -> None:
    texts = texts_of(plan)
    both = kernels_of(dict.fromkeys(texts, "\n".join(texts.values())))
    Module(replace(plan, kernels=both), device)  # type: ignore[arg-type]
    assert device.built.count("__kernel void add") == 1


def test_an_output_may_be_an_input(plan: NetworkPlan, device: FakeDevice, x: np.ndarray) -> None:
    echo = replace(
        plan,
        buffers=(
            *plan.buffers,
            ProgramBuffer(name="echo", dtype=FLOAT32, elements=32, role="output", shape=(2, 16)),
        ),
        outputs=("echo", *plan.outputs),
        aliases=(*plan.aliases, Alias(value="echo", of="x")),
    )
    out = Module(echo, device).run({"x": x})  # type: ignore[arg-type]
    np.testing.assert_array_equal(out["echo"], x.reshape(2, 16))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "bundle demo: expected the inputs x; got none"),
        ({"y": np.zeros((4, 8), np.float32)}, "expected the inputs x; got y"),
        ({"x": np.zeros((4, 8))}, r"float32\[4, 8\]; got float64\[4, 8\]; .* .astype\('float32'\)"),
        ({"x": np.zeros((8, 4), np.float32)}, r"got float32\[8, 4\]; bring it into that layout"),
        ({"x": np.zeros((2, 8), np.float32)}, r"got float32\[2, 8\]; compile .* with --shape"),
    ],
)
def test_wrong_inputs_are_refused(
    module: Module, device: FakeDevice, inputs: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        module.run(inputs)
    assert device.log == []


def test_the_module_says_what_it_takes_and_gives(module: Module) -> None:
    assert module.inputs == {"x": TensorType((4, 8))}
    assert module.outputs == {"twice": TensorType((32,)), "eight": TensorType((8, 4))}
    assert module.peak_bytes == 512 + 128 + 3 * 128


def test_benchmark_times_each_run(module: Module, device: FakeDevice) -> None:
    times = module.benchmark(repeat=4, warmup=2)
    assert len(times) == 4
    assert min(times) > 0
    assert device.log.count("enqueue 4") == 6


def test_profile_gives_medians_and_shares(module: Module, device: FakeDevice) -> None:
    device.clock = [4e-9, 2e-9, 1e-9, 1e-9, 9e-9, 2e-9, 1e-9, 1e-9, 4e-9, 2e-9, 1e-9, 1e-9]
    rows = module.profile(repeat=3)
    assert [row.label for row in rows] == [
        f"group of {n}" for n in ("sum", "twice", "four", "wide")
    ]
    assert [row.share for row in rows] == [0.5, 0.25, 0.125, 0.125]
    assert rows[0].gflops == pytest.approx(32 / 4)
    assert rows[0].gbytes_per_s == pytest.approx(3 * 128 / 4)


def test_no_run_of_a_profile_begins_late(
    module: Module, device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retune.bundle.runtime.module.PROFILE_S", 0.0)
    device.clock = [4e-9, 2e-9, 1e-9, 1e-9]
    assert [row.share for row in module.profile(repeat=9)] == [0.5, 0.25, 0.125, 0.125]


def test_profile_survives_a_clock_that_stands_still(module: Module, device: FakeDevice) -> None:
    device.clock = [0.0] * 4
    assert {(row.share, row.gflops) for row in module.profile(repeat=1)} == {(0.0, 0.0)}


def test_a_folder_and_a_zip_load_alike(folder: Path, tmp_path: Path, x: np.ndarray) -> None:
    zipped = pack_zip(folder, tmp_path / "module.zip")
    first, second = (
        Module.load(path, FakeDevice()).run({"x": x})  # type: ignore[arg-type]
        for path in (folder, zipped)
    )
    np.testing.assert_array_equal(first["eight"], second["eight"])


def test_the_bundle_may_go_once_it_is_loaded(
    plan: NetworkPlan, folder: Path, device: FakeDevice, x: np.ndarray
) -> None:
    module = Module.load(folder, device)  # type: ignore[arg-type]
    write_bundle(replace(plan, weights={"bias": np.zeros(32, np.float32)}), folder)
    assert not np.array_equal(module.run({"x": x})["twice"], 2 * x.reshape(-1))
    assert module.plan.weights == {}


def test_the_device_that_it_was_tuned_for_gives_no_warning(
    folder: Path, device: FakeDevice
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Module.load(folder, device)  # type: ignore[arg-type]


def test_another_device_gives_a_warning(folder: Path, x: np.ndarray) -> None:
    other = FakeDevice(spec=replace(GENERIC_CPU, driver="newer"))
    with pytest.warns(BundleWarning, match="was tuned for two cores .*; this is two cores"):
        module = Module.load(folder, other)  # type: ignore[arg-type]
    assert module.run({"x": x})["twice"].shape == (32,)


def test_a_device_with_smaller_work_groups_is_refused(
    plan: NetworkPlan, with_launch: Callable[..., NetworkPlan]
) -> None:
    wide = with_launch(plan, 1, local_size=(32, 1, 1))
    small = FakeDevice(spec=replace(GENERIC_CPU, max_work_group=16))
    with pytest.raises(InputError, match="group of twice: expected work-groups of at most 16"):
        Module(wide, small)  # type: ignore[arg-type]


def test_a_device_without_an_instruction_of_the_kernels_is_refused(plan: NetworkPlan) -> None:
    """It would end the process at the first launch."""
    shape = Signature((UINT8, INT8), 1)
    defined = "\n".join(function_lines([Function("tile8", shape, "amx")]))
    kernels = kernels_of({name: f"{defined}\n{t}" for name, t in texts_of(plan).items()})
    spec = replace(GENERIC_CPU, instructions=("dot4.vnni",))
    with pytest.raises(InputError, match=r"compiled with tile8\.amx, which .* does not have"):
        Module(replace(plan, kernels=kernels), FakeDevice(spec=spec))  # type: ignore[arg-type]
    able = FakeDevice(spec=replace(spec, instructions=("dot4.vnni", "tile8.amx")))
    Module(replace(plan, kernels=kernels), able)  # type: ignore[arg-type]


def test_an_invalid_plan_is_refused(plan: NetworkPlan, device: FakeDevice) -> None:
    with pytest.raises(VerifyError):
        Module(replace(plan, weights={}), device)  # type: ignore[arg-type]
    assert device.log == []


def test_random_inputs_repeat_by_seed_and_differ_by_name() -> None:
    types = {"a": TensorType((64,)), "b": TensorType((64,)), "i": TensorType((64,), INT64)}
    first, again, other = (random_inputs(types, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in types)
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], other["a"])
    assert first["i"].dtype == np.int64


def test_random_indices_reach_all_that_is_valid_and_no_more() -> None:
    types = {"ids": TensorType((4000,), INT64), "flag": TensorType((64,), BOOL)}
    found = random_inputs(types, counts={"ids": 1000, "flag": 2})
    assert (found["ids"].min(), found["ids"].max() > 900) == (0, True)
    assert found["ids"].max() < 1000
    assert found["flag"].dtype == np.bool_
