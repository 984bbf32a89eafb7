"""Simulated boards as devices: SimulatedRunner says what one would have measured.

Candidates are not executed: whether they are right is found out where bundles are verified, on the
board's base device. Faults of the board's script end as they would by `local.LocalRunner`, with
the same statuses and texts. SimulatedDevice is where bundles run.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError
from retune.core.target import DeviceSpec
from retune.device.measure.lease import lease
from retune.device.measure.timing import ExpectedOutputs, check_deadline_s
from retune.device.measure.workload import (
    DirectRunner,
    MeasureOptions,
    Workload,
    check_fits,
)
from retune.device.opencl.runtime import Device
from retune.device.simulated.board import Fault, SimulatedBoard
from retune.device.simulated.faults import Script, Turn
from retune.device.simulated.simulation import corrupted, program_times_us
from retune.records.cost import NOMINAL_US
from retune.records.schema import Measurement, failed, succeeded

_DEATH = "the process died of SIGSEGV"
_SEED_DIGITS = 16


class SimulatedDevice(Device):
    """A board's base device under the board's description. What runs on it runs there."""

    def __init__(self, handle: Any, base: DeviceSpec, board: SimulatedBoard) -> None:
        """`base` and `handle` are the base device's, as `catalogue.find_device` gives them."""
        super().__init__(handle, base)
        self.spec = board.described(base)
        self.board = board


class SimulatedRunner(DirectRunner):
    """A Runner for a simulated board. May be shared by threads: batches queue up."""

    def __init__(
        self, board: SimulatedBoard, base: DeviceSpec, *, wait: Callable[[float], None] = time.sleep
    ) -> None:
        """`base` is the spec of the board's base device; `wait` lets so many seconds pass."""
        super().__init__(board.described(base))
        self._board = board
        self._wait = wait
        self._script = Script(board)
        self._first: dict[str, str] = {}
        """Key of the first program of each workload."""
        self._turn = threading.Lock()

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order; the board is leased meanwhile.

        Raises: InputError for an unknown workload, or a candidate that does not fit its arrays.
        DeviceError where the script says that the driver is lost.
        """
        workload = self._workload(workload_key)
        for source in candidates:
            check_fits(workload, source)
        with self._turn, lease(self.spec):
            claimed = self._script.claim([self._turn_of(workload_key, s) for s in candidates])
            return [
                self._measure(workload, source, fault, claimed.offending, options)
                for source, fault in zip(candidates, claimed.faults, strict=False)
            ]

    def close(self) -> None:
        """Nothing is held."""

    def _turn_of(self, workload_key: str, source: ProgramSource) -> Turn:
        first = self._first.setdefault(workload_key, source.key)
        return Turn(runs=source.runs, spared=source.key == first)

    def _measure(
        self,
        workload: Workload,
        source: ProgramSource,
        fault: Fault | None,
        offending: frozenset[str],
        options: MeasureOptions,
    ) -> Measurement:
        board, kind = self._board, fault.kind if fault else None
        self._wait(board.hang_s if kind == "hang" else board.measure_s)
        match kind:
            case "hang":
                deadline_s = check_deadline_s(source, options)
                text = f"the first run: no answer within {deadline_s:.3g} s; killed"
                return failed("timeout", text, run_s=deadline_s)
            case "crash":
                return failed("crash", f"the first run: {_DEATH}", run_s=board.measure_s)
            case "wrong_result":
                expected = ExpectedOutputs.of(workload.outputs, workload.rtol, workload.atol)
                off = expected.deviation(corrupted(workload.outputs))
                return failed(kind, off.problem, max_abs_err=off.largest, run_s=board.measure_s)
            case "launch_error":
                text = f"{board.name}: wait for the queue: clFinish failed: OUT_OF_RESOURCES"
                return failed(kind, text, run_s=board.measure_s)
            case "lost":
                raise DeviceError(f"device {board.name!r} cannot be opened: {_DEATH}")
            case "slow" | "wrong_bundle" | None:
                slower = fault.factor if fault and kind == "slow" else 1.0
                return self._timed(source, slower, offending, options)
            case _:
                assert_never(kind)

    def _timed(
        self,
        source: ProgramSource,
        slower: float,
        offending: frozenset[str],
        options: MeasureOptions,
    ) -> Measurement:
        """A right result, and its repeats; the board's calibration kernel knows its speed alone."""
        board = self._board
        time_us = slower * sum(program_times_us(source.runs, board, offending))
        rng = np.random.default_rng(int(source.key[:_SEED_DIGITS], 16))
        spread = np.exp(board.noise * rng.standard_normal(options.repeat))
        return succeeded(
            (time_us * spread).tolist(),
            max_abs_err=0.0,
            reference_us=NOMINAL_US / board.speed,
            build_s=0.0,
            run_s=board.measure_s,
        )
