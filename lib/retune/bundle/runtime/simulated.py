"""Bundles on simulated boards: they run on the board's base device, and take simulated time.

Read `module_on` and `SimulatedModule`. What a bundle computes is real, so that its verification
is; its time is the sum of what its launches take on the board, by the same function as candidates'
times (`simulation`), so that it is the same everywhere. A bundle that holds a candidate
which the board's script (`wrong_bundle`) has hit computes something else.

A candidate whose output lies within a wider one (what a concatenation reads) is another program in
the bundle than it was alone: it has a time of its own there, and the script does not know it.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np

from retune.bundle.format import OpenBundle
from retune.bundle.plan import NetworkPlan, PlanHost
from retune.bundle.runtime.hosting import HostRun
from retune.bundle.runtime.module import (
    Inputs,
    LaunchProfile,
    Module,
    Outputs,
    profile_rows,
)
from retune.bundle.verify.bench import Benchmark, known_times, rounds_of
from retune.codegen.source import Run
from retune.core.keys import content_key
from retune.device.measure.ceilings import Roofline
from retune.device.opencl.runtime import Device
from retune.device.simulated.board import SimulatedBoard
from retune.device.simulated.faults import Script
from retune.device.simulated.runner import SimulatedDevice
from retune.device.simulated.simulation import (
    BoardRoofline,
    corrupted,
    corrupted_array,
    program_key,
    program_times_us,
)
from retune.records.cost import NOMINAL_US

_ROUNDS = 32
_SEED_DIGITS = 16


def simulated_seconds(plan: NetworkPlan, board: SimulatedBoard) -> float:
    """What a call of the plan takes on the board; host steps take nothing."""
    return sum(launch_seconds(plan, board))


def launch_seconds(plan: NetworkPlan, board: SimulatedBoard) -> tuple[float, ...]:
    """What each launch of the plan takes on the board, all times that it runs, in order; of the
    largest sizes."""
    offending, largest = Script(board).offending, plan.at(plan.largest)
    each_us = (
        time_us
        for program in programs_of(largest)
        for time_us in program_times_us(program, board, offending)
    )
    return tuple(1e-6 * us * times for us, times in zip(each_us, largest.repeats, strict=True))


def simulated_times(
    plans: Mapping[str, NetworkPlan],
    board: SimulatedBoard,
    *,
    baseline: str | None = None,
    calibration: str = "",
) -> Benchmark:
    """What `bench.compare_times` is for bundles on a real device, see `Examiner.compare`.

    One round and no doubt, unless the board's times are to scatter.
    """
    known = {name: simulated_seconds(plan, board) for name, plan in plans.items()}
    programs = {name: program_key(plan.runs) for name, plan in plans.items()}
    if calibration:
        known[calibration] = 1e-6 * NOMINAL_US / board.speed
    if not (board.noise or board.wander):
        return known_times(known, baseline=baseline)
    rounds = {n: list(s * _scatter(programs.get(n, ""), board)) for n, s in known.items()}
    return rounds_of(rounds, baseline=baseline)


def _scatter(program: str, board: SimulatedBoard) -> np.ndarray:
    """Each round's time of that program, over its time without noise. float64 [_ROUNDS]"""
    rng = np.random.default_rng(int(content_key(board.seed, program)[:_SEED_DIGITS], 16))
    run = board.wander * rng.standard_normal()
    return np.exp(run + board.noise * rng.standard_normal(_ROUNDS))


def programs_of(plan: NetworkPlan) -> list[list[Run]]:
    """The launches of each group in order, as they were when they were measured."""
    return [list(runs) for _, runs in groupby(plan.runs, key=lambda run: run[1].label)]


def module_on(source: NetworkPlan | OpenBundle, device: Device) -> Module:
    """It on that device: a SimulatedModule if it is a simulated one. Raises: as these do."""
    if isinstance(device, SimulatedDevice):
        return SimulatedModule(source, device, device.board)
    return Module(source, device)


class SimulatedModule(Module):
    """A network on a simulated board."""

    def __init__(
        self, source: NetworkPlan | OpenBundle, device: Device, board: SimulatedBoard
    ) -> None:
        """`device` is the board's. Raises: as Module, and InputError as `Script`."""
        super().__init__(source, device)
        self._board = board
        offending = Script(board).offending
        self._wrong = any(program_key(p) in offending for p in programs_of(self.plan))

    def run(self, inputs: Inputs) -> Outputs:
        """As Module; every output is wrong if the board's script has hit a part of the plan."""
        if self.plan.hosts:
            return Outputs(self.observe(inputs)[0])
        outputs = super().run(inputs)
        return Outputs(corrupted(outputs)) if self._wrong else outputs

    __call__ = run

    def observe(self, inputs: Inputs) -> tuple[dict[str, np.ndarray], tuple[HostRun, ...]]:
        """As Module; where outputs are wrong, so is what host steps get from the device."""
        outputs, runs = super().observe(inputs)
        if not self._wrong:
            return outputs, runs
        return corrupted(outputs), tuple(
            replace(run, inputs=tuple(corrupted_array(array) for array in run.inputs))
            for run in runs
        )

    def benchmark(
        self,
        repeat: int = 20,
        warmup: int = 3,  # noqa: ARG002  nothing runs
        inputs: Mapping[str, np.ndarray] | None = None,
    ) -> list[float]:
        """Simulated seconds of each of `repeat` runs: all the same."""
        return [simulated_seconds(self.plan_for(inputs), self._board)] * repeat

    def profile(
        self,
        repeat: int = 10,  # noqa: ARG002  all would be the same
        inputs: Mapping[str, np.ndarray] | None = None,
        ceilings: Roofline | None = None,  # noqa: ARG002  the board has its own
    ) -> tuple[LaunchProfile, ...]:
        """The simulated time of each step in order, against the board's roofline."""
        plan = self.plan_for(inputs)
        launched = iter(launch_seconds(plan, self._board))
        seconds = [0.0 if isinstance(s, PlanHost) else next(launched) for s in plan.steps]
        return profile_rows(plan, seconds, BoardRoofline(self._board))
