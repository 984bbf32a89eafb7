"""A network with finalists for its steps: outputs are right whoever serves, and times add up."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import FinalistsPlan, build_finalists
from retune.bundle.runtime.module import Module, random_inputs
from retune.bundle.verify.compare import compare
from retune.bundle.verify.in_network import FinalistsRunner, open_finalists
from retune.bundle.verify.in_network_child import FinalistsChild
from retune.bundle.verify.peers import open_peer
from retune.bundle.weights import save_weights
from retune.device.opencl.clock import clock_hz
from retune.device.opencl.runtime import Device, open_device
from retune.pipeline.network import import_network
from retune.schedule.space import Candidate, Space
from retune.targets.cost.estimate import default_candidate
from tests.support.device_networks import write

pytestmark = pytest.mark.device

NETWORKS = ("bottleneck", "odd_concatenations", "square_windows")


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def some_candidates(space: Space, device: Device) -> tuple[Candidate, ...]:
    """The default schedule, and a random candidate of each of the first sketches."""
    rng = np.random.default_rng(0)
    found = [default_candidate(space, device.spec)]
    for number, sketch in enumerate(space.sketches[:3]):
        found.append(space.candidate(space.population(number, sketch.sample(1, rng)), 0))
    return tuple(dict.fromkeys(found))


def finalists_plan(name: str, folder: Path, device: Device) -> FinalistsPlan:
    network = import_network(str(write(name, folder))).network
    finalists = {
        key: some_candidates(task.space(device.spec), device)
        for key, task in network.tasks.items()
        if task.tunable
    }
    return build_finalists(network, finalists, device.spec, model_key="", notes={})


def outputs_of(name: str, folder: Path, device: Device) -> dict[str, np.ndarray]:
    """The oracle's."""
    path = write(name, folder)
    network = import_network(str(path)).network
    types = {value: network.graph.types[value] for value in network.graph.inputs}
    return dict(open_peer("onnxruntime", path)(random_inputs(types)))


def random_choices(plan: FinalistsPlan, iterations: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    columns = [rng.integers(0, len(slot.finalists), iterations) for slot in plan.slots]
    return np.stack(columns, axis=1)


def assert_right(runner: FinalistsRunner, expected: dict[str, np.ndarray]) -> None:
    for name, array in runner.outputs().items():
        found = compare(name, array, expected[name])
        assert found.max_rel_range < 1e-5, found


@pytest.mark.parametrize("name", NETWORKS)
def test_whoever_serves_the_outputs_are_right(name: str, tmp_path: Path, device: Device):
    plan = finalists_plan(name, tmp_path, device)
    assert max(len(slot.finalists) for slot in plan.slots) > 1
    expected = outputs_of(name, tmp_path, device)
    runner = open_finalists(plan, device)
    assert runner.resolved
    for choice in random_choices(plan, 6):
        seconds = runner.times(choice[None])
        assert seconds.shape == (1, len(plan.slots))
        assert (seconds >= 0).all() and seconds.sum() > 0
        assert_right(runner, expected)


def test_without_a_clock_whole_passes_are_timed(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retune.bundle.verify.in_network.clock_hz", lambda device: None)
    plan = finalists_plan("bottleneck", tmp_path, device)
    runner = open_finalists(plan, device)
    assert not runner.resolved
    expected = outputs_of("bottleneck", tmp_path, device)
    for choice in random_choices(plan, 3):
        seconds = runner.times(choice[None])
        assert seconds.shape == (1, 1) and seconds > 0
        assert_right(runner, expected)


def test_a_child_runs_passes(tmp_path: Path, device: Device):
    plan = finalists_plan("bottleneck", tmp_path, device)
    save_weights(plan.plan.weights, tmp_path / "weights")
    bare = replace(plan, plan=replace(plan.plan, weights={}))
    with FinalistsChild("pocl", bare, tmp_path / "weights") as child:
        assert child.resolved and child.spec == device.spec
        found = child.run(random_choices(plan, 3))
    assert found.seconds.shape == (3, len(plan.slots))
    assert found.reference_us > 0


def test_a_plan_of_one_finalist_each_is_the_bundles_plan(tmp_path: Path, device: Device):
    network = import_network(str(write("odd_concatenations", tmp_path))).network
    runner = build_finalists(network, {}, device.spec, model_key="", notes={})
    assert [rows for slot in runner.slots for rows in slot.finalists[0]] == list(
        range(len(runner.plan.launches))
    )
    assert Module(runner.plan, device).outputs


def test_a_processor_has_a_clock_that_kernels_read(device: Device):
    hertz = clock_hz(device)
    assert hertz is not None and 1e6 < hertz < 1e11
    assert clock_hz(_Gpu(device)) is None  # type: ignore[arg-type]


class _Gpu:
    """A device of a class whose kernels have no clock."""

    def __init__(self, device: Device) -> None:
        self.spec = replace(device.spec, device_class="gpu")
