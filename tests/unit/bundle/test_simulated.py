"""Bundles on simulated boards: real results, simulated times, and results that a script spoils."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.plan import NetworkPlan, PlanLoop
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.simulated import (
    SimulatedModule,
    launch_seconds,
    module_on,
    simulated_seconds,
    simulated_times,
)
from retune.bundle.verify.compare import verify
from retune.codegen.source import ProgramBuffer, ProgramSource
from retune.core.dtypes import FLOAT32
from retune.core.target import GENERIC_CPU
from retune.device.measure.workload import MeasureOptions, Workload
from retune.device.simulated.runner import SimulatedRunner
from retune.records.cost import NOMINAL_US
from tests.support.boards import board, fault
from tests.support.module import FakeDevice
from tests.support.programs import kernels_of, texts_of


def candidate(plan: NetworkPlan, position: int) -> ProgramSource:
    """The launch as the candidate that it was when it was measured."""
    launch = plan.launches[position]
    names = [f"b{i}" for i in range(len(launch.args))]
    candidate = replace(
        launch, args=tuple(names), writes=(names[-1],), global_size=(32, 1, 1), local_size=(1, 1, 1)
    )
    buffers = tuple(
        ProgramBuffer(
            name=n, dtype=FLOAT32, elements=32, role="input" if n != names[-1] else "output"
        )
        for n in names
    )
    kernels = tuple(kernel for kernel in plan.kernels if kernel.name == launch.kernel)
    return ProgramSource(kernels=kernels, launches=(candidate,), buffers=buffers)


def measured_us(plan: NetworkPlan, folder: Path, text: str = "", *positions: int) -> list[float]:
    """What those launches take alone on the board, measured one after the other."""
    runner = SimulatedRunner(board(folder, text), GENERIC_CPU)
    zeros = np.zeros(32, np.float32)
    found: list[float] = []
    for position in positions:
        source = candidate(plan, position)
        *read, made = (spec.name for spec in source.buffers)
        inputs, outputs = dict.fromkeys(read, zeros), {made: zeros}
        runner.prepare(Workload(key=f"{position}", inputs=inputs, outputs=outputs))
        (row,) = runner.measure(f"{position}", [source], MeasureOptions(repeat=1))
        found.append(row.median_us or 0.0)
    return found


def loaded(plan: NetworkPlan, folder: Path, text: str = "") -> SimulatedModule:
    return SimulatedModule(plan, FakeDevice(), board(folder, text))  # type: ignore[arg-type]


@pytest.fixture
def x(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": rng.random((4, 8), np.float32)}


def test_a_bundle_takes_what_its_candidates_take(plan: NetworkPlan, tmp_path: Path):
    alone = measured_us(plan, tmp_path, "speed = 2.0", 0, 1, 2, 3)
    here = board(tmp_path, "speed = 2.0")
    assert launch_seconds(plan, here) == pytest.approx([1e-6 * us for us in alone])
    assert simulated_seconds(plan, here) == pytest.approx(1e-6 * sum(alone))
    looped = replace(plan, loops=(PlanLoop(first=1, end=3, times=5),))
    often = [1, 5, 5, 1]
    assert launch_seconds(looped, here) == pytest.approx(1e-6 * np.multiply(alone, often))


def test_bundles_are_compared_without_doubt(plan: NetworkPlan, tmp_path: Path):
    here = board(tmp_path)
    shorter = replace(plan, launches=plan.launches[:2])
    found = simulated_times({"long": plan, "short": shorter}, here, baseline="long")
    ratio, gain = (
        found.ratio("short"),
        simulated_seconds(plan, here) / simulated_seconds(shorter, here),
    )
    assert (ratio.baseline, ratio.low, ratio.high) == ("long", ratio.ratio, ratio.ratio)
    assert ratio.ratio == pytest.approx(gain) and gain > 1
    assert found.timing("long").times_s == (simulated_seconds(plan, here),)


def test_results_are_real_and_times_are_simulated(
    plan: NetworkPlan, tmp_path: Path, x: dict[str, np.ndarray]
):
    module, real = loaded(plan, tmp_path), Module(plan, FakeDevice())  # type: ignore[arg-type]
    for name, array in real.run(x).items():
        np.testing.assert_array_equal(module.run(x)[name], array)
    seconds = simulated_seconds(plan, board(tmp_path))
    assert module.benchmark(repeat=3) == [seconds] * 3
    rows = module.profile()
    assert [row.median_s for row in rows] == list(launch_seconds(plan, board(tmp_path)))
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.roofline is not None and 0 < row.roofline < 1 for row in rows)


def test_a_bundle_with_a_candidate_that_is_hit_does_not_agree(
    plan: NetworkPlan, tmp_path: Path, x: dict[str, np.ndarray]
):
    real = Module(plan, FakeDevice())  # type: ignore[arg-type]
    assert verify(loaded(plan, tmp_path), real, real.random_inputs).passed
    text = fault("wrong_bundle", at=2)
    measured_us(plan, tmp_path, text, 0, 1)
    wrong = loaded(plan, tmp_path, text)
    found = verify(wrong, real, real.random_inputs)
    assert not found.passed
    assert [row.max_rel_range > 1 for row in found.outputs] == [True, True]
    texts = texts_of(plan)
    without = replace(plan, kernels=kernels_of({**texts, "scale": f"{texts['scale']}// another"}))
    assert verify(loaded(without, tmp_path, text), real, real.random_inputs).passed


def test_what_is_wrong_is_as_fast_in_the_bundle_as_it_was_alone(plan: NetworkPlan, tmp_path: Path):
    text = fault("wrong_bundle", at=1)
    alone = measured_us(plan, tmp_path, text, 0, 1)
    assert launch_seconds(plan, board(tmp_path, text))[:2] == pytest.approx(
        [1e-6 * us for us in alone]
    )


def test_a_real_device_has_a_plain_module(plan: NetworkPlan):
    assert type(module_on(plan, FakeDevice())) is Module  # type: ignore[arg-type]


def test_the_calibration_kernel_knows_the_boards_speed_alone(plan: NetworkPlan, tmp_path: Path):
    slow = board(tmp_path, 'speed = 0.5\n[[slower]]\nkernel = "*"\nfactor = 3.0')
    found = simulated_times({"a": plan}, slow, calibration="kernel")
    assert found.timing("kernel").median_s == pytest.approx(2e-6 * NOMINAL_US)
    plain = simulated_seconds(plan, board(tmp_path))
    assert found.timing("a").median_s == pytest.approx(6.0 * plain)


def test_kernels_of_a_name_are_slower_in_bundles_and_alone(plan: NetworkPlan, tmp_path: Path):
    text = '[[slower]]\nkernel = "scal*"\nfactor = 1.5'
    plain, slower = (launch_seconds(plan, board(tmp_path, each)) for each in ("", text))
    factors = [1.5 if launch.kernel == "scale" else 1.0 for launch in plan.launches]
    assert slower == pytest.approx([f * s for f, s in zip(factors, plain, strict=True)])
    alone = measured_us(plan, tmp_path, text, 1)
    assert alone == pytest.approx([1e6 * slower[1]])


def test_times_of_bundles_scatter_from_round_to_round_and_from_night_to_night(
    plan: NetworkPlan, tmp_path: Path
):
    def timed(text: str) -> np.ndarray:
        return np.array(simulated_times({"a": plan}, board(tmp_path, text)).timing("a").times_s)

    known = simulated_seconds(plan, board(tmp_path))
    noisy = timed("noise = 0.02")
    assert len(noisy) > 8 and 0.01 < np.log(noisy).std() < 0.04
    assert (noisy == timed("noise = 0.02")).all()  # the same in every process
    assert (noisy != timed("noise = 0.02\nseed = 1")).all()
    nights = np.array([timed(f"wander = 0.05\nseed = {seed}")[0] for seed in range(200)])
    assert np.log(nights / known).std() == pytest.approx(0.05, rel=0.2)
    assert abs(np.log(nights / known).mean()) < 0.02
