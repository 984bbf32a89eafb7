"""Bundles in a process of their own, on PoCL: right, wrong, hanging and crashing ones."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.examination import Failed, Open, Opened, Verdict, Verify
from retune.bundle.verify.examiner import Comparison, Examiner, Original, Patience, Rival
from retune.bundle.verify.examiner_child import OracleWorker
from retune.core.errors import DeviceError, InputError, ModelError
from retune.device.opencl.runtime import Device, open_device
from retune.pipeline.network import import_network
from tests.support.bundle_fixtures import SCALE, make_plan
from tests.support.device_networks import write
from tests.support.local_runner import ASLEEP
from tests.support.programs import kernels_of, texts_of
from tests.support.types import half_network

pytestmark = pytest.mark.device

QUICK = BenchOptions(min_rounds=2, max_rounds=2, settle_s=0, min_sample_s=0)
HANG = SCALE.replace("const int i", f"{ASLEEP} const int i")
CRASH = SCALE.replace("y[i]", "y[i + (1L << 40)]")


@dataclass(frozen=True)
class Made:
    """A bundle, and what it is of."""

    bundle: Path
    network: Original
    plan: NetworkPlan


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    with Examiner("pocl") as opened:
        yield opened


def bundle_of(onnx: Path, device: Device) -> Made:
    network = import_network(str(onnx)).network
    plan = build_plan(network, {}, device.spec, model_key="", notes={})
    bundle = write_bundle(plan, onnx.parent / "module")
    return Made(bundle, Original(onnx=onnx, shapes=plan.input_shapes), plan)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Made:
    """A bundle of a small network of convolutions."""
    return bundle_of(write("bottleneck", tmp_path_factory.mktemp("made")), device)


def scaling(text: str, folder: Path, device: Device) -> Path:
    """A bundle of which one kernel is this."""
    plan = make_plan()
    kernels = kernels_of({**texts_of(plan), "scale": text})
    return write_bundle(replace(plan, kernels=kernels, device=device.spec), folder)


def test_a_bundle_is_verified_timed_and_profiled(made: Made, examiner: Examiner):
    judged = examiner.verify(made.bundle, Comparison(network=made.network, samples=2))
    assert judged.found.passed and judged.found.samples == 2
    assert 0 < judged.found.max_rel_range < 1e-5 and judged.oracle == "onnxruntime"
    rival = Rival(peer="onnxruntime", network=made.network)
    found = examiner.compare({"mine": made.bundle, "theirs": rival}, options=QUICK)
    assert [timing.name for timing in found.timings] == ["mine", "theirs"]
    assert all(timing.median_s > 0 for timing in found.timings) and found.rounds == 2
    beside = examiner.compare({"mine": made.bundle}, options=QUICK, calibration="kernel")
    assert [timing.name for timing in beside.timings] == ["mine", "kernel"]
    assert beside.timing("kernel").median_s > 0
    rows = examiner.profile(made.bundle, repeat=2)
    assert [row.label for row in rows] == [step.label for step in made.plan.launches]
    assert all(row.roofline is not None and row.median_s > 0 for row in rows)


def test_bundles_of_several_networks_run_on_inputs_of_their_own(
    made: Made, examiner: Examiner, tmp_path: Path, device: Device
):
    (tmp_path / "other").mkdir()
    other = bundle_of(write("odd_image", tmp_path / "other"), device)
    assert other.plan.input_shapes != made.plan.input_shapes
    found = examiner.compare({"one": made.bundle, "other": other.bundle}, options=QUICK)
    assert all(timing.median_s > 0 for timing in found.timings)


def test_the_form_is_one_that_the_device_allows(made: Made, examiner: Examiner):
    assert examiner.best_form(made.bundle) in ("persistent", "inline")


def test_a_wrong_bundle_does_not_pass(made: Made, examiner: Examiner, tmp_path: Path):
    (name, weight), *_ = made.plan.weights.items()
    wrong = replace(made.plan, weights={**made.plan.weights, name: weight + 0.1})
    bundle = write_bundle(wrong, tmp_path / "wrong")
    judged = examiner.verify(bundle, Comparison(network=made.network, samples=1))
    assert not judged.found.passed
    assert (
        judged.found == examiner.verify(bundle, Comparison(network=made.network, samples=1)).found
    )


def test_a_kernel_that_hangs_is_ended_and_the_next_bundle_goes_on(
    made: Made, device: Device, tmp_path: Path
):
    bundle = scaling(HANG, tmp_path / "hanging", device)
    hangs = r"hanging: loading on pocl did not answer in 1\.2 s"
    with (
        Examiner("pocl", patience=Patience(open_s=1.0, kernel_s=0.1)) as impatient,
        pytest.raises(DeviceError, match=hangs),
    ):
        impatient.verify(bundle, Comparison(network=made.network))
    with Examiner("pocl") as examiner:
        assert examiner.verify(
            made.bundle, Comparison(network=made.network, samples=1)
        ).found.passed


def test_a_kernel_that_crashes_takes_its_process_only(
    made: Made, device: Device, examiner: Examiner, tmp_path: Path
):
    bundle = scaling(CRASH, tmp_path / "crashing", device)
    with pytest.raises(DeviceError, match=r"crashing: loading on pocl crashed .* died of SIG"):
        examiner.compare({"crashing": bundle}, options=QUICK)
    assert examiner.verify(made.bundle, Comparison(network=made.network, samples=1)).found.passed


def test_what_is_wrong_with_the_input_is_said_as_in_this_process(
    made: Made, examiner: Examiner, tmp_path: Path
):
    broken = replace(made.network, onnx=tmp_path / "net.onnx")
    broken.onnx.write_bytes(b"\x08\x07not a model")
    with pytest.raises(InputError, match="'tvm' is not known; choose one of onnxruntime"):
        examiner.compare({"a": made.bundle, "b": Rival(peer="tvm", network=made.network)})
    with pytest.raises(ModelError, match="not a readable ONNX file"):
        examiner.verify(made.bundle, Comparison(network=broken))
    with Examiner("toaster") as nowhere, pytest.raises(InputError, match="'toaster' is not known"):
        nowhere.verify(made.bundle, Comparison(network=made.network))


def test_a_driver_that_refuses_says_so(device: Device, examiner: Examiner, tmp_path: Path):
    bundle = scaling(SCALE.replace("2.0f", "nothing"), tmp_path / "refused", device)
    with pytest.raises(DeviceError, match="does not build"):
        examiner.profile(bundle)


def verdict(worker: OracleWorker, made: Made) -> Verdict:
    comparison = Comparison(network=made.network, samples=1, tolerance=1e-4)
    reply = worker.handle(Verify(bundle=made.bundle, comparison=comparison))
    assert isinstance(reply, Verdict), reply
    return reply


@pytest.mark.parametrize("half", [False, True])
def test_without_onnxruntime_the_oracle_is_the_numpy_meaning(
    half: bool, tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    file = half_network(tmp_path / "net.onnx") if half else write("bottleneck", tmp_path)
    made = bundle_of(file, device)
    theirs = verdict(OracleWorker(device), made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ours = verdict(OracleWorker(device), made)
    assert (theirs.oracle, ours.oracle) == ("onnxruntime", "numpy")
    assert theirs.found.passed and ours.found.passed


def test_the_process_stays_in_order_after_a_failure(made: Made, device: Device, tmp_path: Path):
    worker = OracleWorker(device)
    gone = Open(bundle=tmp_path / "gone")
    assert isinstance(worker.handle(gone), Failed)
    assert isinstance(worker.handle("nonsense"), Failed)
    opened = worker.handle(Open(bundle=made.bundle))
    assert isinstance(opened, Opened) and opened.call_s > 0
