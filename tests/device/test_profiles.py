"""Kernels for devices that are not here, on PoCL under their limits: right, and within them."""

from pathlib import Path

import numpy as np
import pytest

from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import verify
from retune.bundle.verify.examiner import Comparison, Examiner, Original
from retune.bundle.verify.peers import open_peer
from retune.core.errors import InputError
from retune.device.opening import open_device, playing, spec_of
from retune.device.profiles import profile_names
from retune.search.task import expression_task
from tests.support.dags import conv2d, depthwise, softmax
from tests.support.profile_checks import Checker, local_bytes

pytestmark = pytest.mark.device

MALI = "mali-g76"
SMALL = {
    "window": conv2d(1, 8, 7, 32, 16),
    "depthwise": depthwise(1, 7, 11, 36),
    "softmax": softmax(3, 67),
}


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


@pytest.mark.parametrize("profile", [MALI, "adreno-6xx"])
def test_candidates_are_right_and_within_the_limits(profile: str, checker: Checker):
    """Where local memory is a part of global memory, nothing is staged in it: 0 bytes are held."""
    checker.check(profile, [expression_task(dag) for dag in SMALL.values()], each=1)


def test_local_memory_is_counted_from_the_text():
    text = "  __local float4 A_local[6];\n  __local uchar B[3];\n  float x = A_local[0];\n"
    assert local_bytes(text) == 6 * 16 + 3


def test_a_bundle_for_a_profile_is_verified_where_it_is_played(tmp_path: Path):
    name = f"profile:{MALI}"
    network = import_network("zoo:mlp", cache=tmp_path)
    plan = build_plan(network.network, {}, spec_of(name), model_key="0", notes={})
    folder = write_bundle(plan, tmp_path / "module")
    with pytest.raises(InputError, match=f"device '{name}': expected a device that is here"):
        Module.load(folder)
    original = Original(onnx=Path(network.onnx), shapes=plan.input_shapes)
    with Examiner(playing(name)) as examiner:  # without a warning: it is not foreign there
        verdict = examiner.verify(folder, Comparison(network=original))
    assert verdict.found.passed, verdict


@pytest.mark.slow
def test_every_task_of_mobilenet_under_every_profile(tmp_path: Path, checker: Checker):
    network = import_network("zoo:mobilenet", cache=tmp_path).network
    tasks = [task for task in network.tasks.values() if task.tunable]
    assert len(tasks) == 22
    for profile in profile_names():
        checker.check(profile, tasks, each=10)
        print(f"{profile}: {checker.programs} candidates so far, {checker.run} programs run")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mobilenet", "resnet50_v1"])
def test_a_network_by_the_rules_for_a_mali_agrees_with_onnxruntime(model: str, tmp_path: Path):
    network = import_network(f"zoo:{model}", cache=tmp_path)
    device = open_device(f"profile:{MALI}@pocl")
    plan = build_plan(network.network, {}, device.spec, model_key="0", notes={})
    assert all(np.prod(step.local_size) <= device.spec.max_work_group for step in plan.launches)
    assert sum(local_bytes(kernel.text) for kernel in plan.kernels) == 0
    module = Module(plan, device)
    outcome = verify(module, open_peer("onnxruntime", Path(network.onnx)), module.random_inputs)
    assert outcome.passed, outcome
    print(outcome)
