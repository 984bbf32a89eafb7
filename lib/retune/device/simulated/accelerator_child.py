"""The process in which candidates for the simulated accelerator are lowered, executed and timed.

Its parent's side is `accelerator.AcceleratorRunner`; it opens no device.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from retune.core.errors import DeviceError, InputError, ScheduleError
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.measure.messages import Done
from retune.device.measure.worker import serve
from retune.device.simulated.accelerator import REQUESTS, Prepare, Simulate, described
from retune.records.cost import NOMINAL_US
from retune.records.schema import Measurement, failed, succeeded
from retune.targets.vta.functional import execute
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.source import PackedSource
from retune.targets.vta.timing import simulate


@dataclass(frozen=True, slots=True)
class _Simulated:
    """What stands for an open device."""

    spec: DeviceSpec


class Simulator:
    """Carries out the parent's requests, one after the other."""

    def __init__(self, _: object = None) -> None:
        self._known: dict[str, Prepare] = {}

    def handle(self, request: object) -> object:
        """The reply. A candidate's failure is a Measurement."""
        match request:
            case Prepare():
                for key in request.forgotten:
                    self._known.pop(key, None)
                self._known[request.key] = request
                return Done()
            case Simulate():
                return measured(request.source, self._known[request.workload_key])
            case _:
                raise DeviceError(f"expected a request of a simulator, got {request}")


def measured(source: PackedSource, given: Prepare) -> Measurement:
    """The candidate's outcome on these arrays: its cycles as microseconds, if it is right."""
    start = perf_counter()
    try:
        module = lower(source.work, source.decisions, source.config)
    except ScheduleError as error:
        return failed("skipped", str(error))
    build_s = perf_counter() - start
    try:
        made = _checked(module, given)
        time_us = simulate(module).time_us
    except InputError as error:
        return failed("launch_error", str(error), build_s=build_s)
    run_s = perf_counter() - start - build_s
    if made:
        return failed("wrong_result", made, build_s=build_s, run_s=run_s)
    return succeeded(
        [time_us],
        max_abs_err=0.0,
        reference_us=NOMINAL_US,
        build_s=build_s,
        run_s=run_s,
    )


def _checked(module: VtaModule, given: Prepare) -> str:
    """What is wrong with what the module computes; '' if all of it is right, bit by bit."""
    found = execute(module, given.inputs)
    for name, expected in given.outputs.items():
        wrong = np.flatnonzero(found[name].reshape(-1) != expected.reshape(-1))
        if len(wrong):
            got, wanted = (int(a.reshape(-1)[wrong[0]]) for a in (found[name], expected))
            return (
                f"output {name!r}: {len(wrong)} of {expected.size} elements differ; the first is "
                f"number {wrong[0]}: expected {wanted}, got {got}"
            )
    return ""


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves an AcceleratorRunner until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, Simulator, _opened, REQUESTS)


def _opened(device: str) -> _Simulated:
    return _Simulated(described(device, GENERIC_CPU))
