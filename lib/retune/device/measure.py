"""LocalRunner: measures candidates on a device of this machine, in processes that may die.

A batch is built first (`building`: on several cores, a few candidates in one program), then each
candidate runs alone: compared with the reference, timed, with the fixed reference kernel on either
side. Whatever a candidate does to its process, the outcome is a row, and the batch goes on.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device.building import Builder, Built
from retune.device.child import Child, ChildLostError
from retune.device.lease import lease
from retune.device.messages import Check, Checked, Forget, Load, Refused, Time, Timed
from retune.device.timing import check_deadline_s, disturbance, time_deadline_s
from retune.device.workload import (
    Candidate,
    Job,
    MeasureOptions,
    Runner,
    Workload,
    make_candidate,
)
from retune.records.cost import calm_level, measured_costs
from retune.records.schema import Measurement, failed, succeeded

__all__ = ["LocalRunner", "MeasureOptions", "Runner", "Workload"]

_MAX_BUILDERS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A candidate of the present batch."""

    candidate: Candidate
    built: Built

    @property
    def job(self) -> Job:
        return self.candidate.job


class LocalRunner:
    """A Runner for a device of this machine. May be shared by threads: batches queue up."""

    def __init__(
        self,
        device: str = "pocl",
        *,
        builders: int | None = None,
        make_child: Callable[..., Child] = Child,
    ) -> None:
        """Starts nothing yet. `builders` processes compile at once (default: one for each core).

        What they compile reaches the measuring process by the driver's disk cache.
        """
        wanted = min(os.cpu_count() or 1, _MAX_BUILDERS) if builders is None else builders
        helpers = max(0, wanted - 1)
        self._main = make_child(device)
        self._helpers = [make_child(device, pinned=False) for _ in range(helpers)]
        self._builder = Builder([self._main, *self._helpers])
        self._workloads: dict[str, Workload] = {}
        self._best_cost: dict[str, float] = {}
        """Least cost of each workload."""
        self._references: list[float] = []
        """Every time of the reference kernel so far: what is known of the machine's calm level."""
        self._turn = threading.Lock()

    @property
    def spec(self) -> DeviceSpec:
        """The device, as its driver describes it. Raises: InputError if there is none."""
        return self._main.spec

    def prepare(self, workload: Workload) -> None:
        """Makes the workload known; an earlier one of the same key is replaced."""
        with self._turn:
            self._workloads[workload.key] = workload
            self._main.holds.discard(("workload", workload.key))

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order; the device is leased meanwhile.

        Raises: InputError for an unknown workload, or a candidate that does not fit its arrays.
        """
        workload = self._workload(workload_key)
        wanted = [make_candidate(workload, source) for source in candidates]
        with self._turn, lease(self.spec):
            built = self._builder.build([candidate.job for candidate in wanted], options)
            slots = [_Slot(candidate=c, built=b) for c, b in zip(wanted, built, strict=True)]
            try:
                return [self._measure(workload, slot, options) for slot in slots]
            finally:
                self._forget(options)

    def compile(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> list[Measurement]:
        """The same batch, compiled only, without a lease of the device.

        Where the driver keeps kernels on disk, `measure` of the same batch finds them there.
        A row each: `skipped`, or why it cannot be built.

        Raises: as `measure`.
        """
        workload = self._workload(workload_key)
        jobs = [make_candidate(workload, source).job for source in candidates]
        with self._turn:
            built = self._builder.build(jobs, options)
            self._forget(options)
        return [
            failed("skipped", "compiled only", build_s=one.build_s)
            if one.refused is None
            else failed(one.refused.status, one.refused.error, build_s=one.build_s)
            for one in built
        ]

    def close(self) -> None:
        """Ends the children."""
        for child in (self._main, *self._helpers):
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _workload(self, key: str) -> Workload:
        """The workload of that key. Raises: InputError naming those that were prepared."""
        if key not in self._workloads:
            known = ", ".join(sorted(self._workloads)) or "none"
            raise InputError(f"workload {key!r} was not prepared; prepared are: {known}")
        return self._workloads[key]

    def _measure(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Measurement:
        """The candidate's row. What may not have been its own fault convicts nobody.

        A failure in a shared program is tried again alone; a crash or a timeout, which others or a
        busy machine may have caused, once more in a fresh child.
        """
        result = self._attempt(workload, slot, options)
        refused, lost = slot.built.refused is not None, result.status in {"crash", "timeout"}
        if result.ok or not (lost or (slot.built.shared and not refused)):
            return result
        if lost:
            self._main.close()
        if refused or slot.built.shared:
            slot = replace(slot, built=self._builder.build_alone(slot.built, options))
        return self._attempt(workload, slot, options)

    def _attempt(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Measurement:
        build_s, refused = slot.built.build_s, slot.built.refused
        if refused is not None:
            return failed(refused.status, refused.error, build_s=build_s)
        start = time.monotonic()
        stage = "preparing the run"
        error: float | None = None

        def stopped(refused: Refused) -> Measurement:
            if refused.status == "launch_error" and self.spec.device_class == "gpu":
                self._main.close()  # a failed launch may poison the whole context
            return failed(
                refused.status,
                refused.error,
                max_abs_err=refused.max_abs_err,
                build_s=build_s,
                run_s=time.monotonic() - start,
            )

        try:
            if (missing := self._provide(workload, slot, options)) is not None:
                return stopped(missing)
            stage = "the first run"
            check = Check(
                index=slot.built.index,
                constants=slot.candidate.constants(workload),
                spread_bytes=options.spread_bytes,
            )
            checked = self._main.request(check, check_deadline_s(slot.job, options))
            if isinstance(checked, Refused):
                return stopped(checked)
            assert isinstance(checked, Checked)
            error, stage = checked.max_abs_err, "timing"
            timed = self._time(workload.key, time_deadline_s(checked.first_s, options), options)
        except ChildLostError as lost:
            return stopped(Refused(status=lost.status, error=f"{stage}: {lost}", max_abs_err=error))
        if isinstance(timed, Refused):
            return stopped(timed)
        self._references.append((timed.before_us + timed.after_us) / 2)
        result = succeeded(
            timed.times_us,
            max_abs_err=error,
            reference_us=self._references[-1],
            calm_us=self._calm_us,
            build_s=build_s,
            run_s=time.monotonic() - start,
        )
        self._note_best(workload.key, result)
        return result

    @property
    def _calm_us(self) -> float | None:
        """The reference kernel's time on the calm machine, as far as this runner knows it."""
        return calm_level(np.array(self._references)) if self._references else None

    def _provide(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Refused | None:
        """The measuring child has the workload and the program, even after a restart.

        Or else why it refuses the program.
        """
        child = self._main
        child.ensure()
        if ("workload", workload.key) not in child.holds:
            load = Load(
                inputs=dict(workload.inputs),
                outputs=dict(workload.outputs),
                rtol=workload.rtol,
                atol=workload.atol,
            )
            child.request(load, options.run_deadline_s + options.build_deadline_s)
            child.holds -= {item for item in child.holds if isinstance(item, tuple)}
            child.holds.add(("workload", workload.key))
        if slot.built.index not in child.holds:
            reply = child.request(slot.built.request, options.build_deadline_s)
            if isinstance(reply, Refused):
                return reply
            child.holds |= slot.built.request.jobs.keys()
        return None

    def _time(self, key: str, deadline_s: float, options: MeasureOptions) -> Timed | Refused:
        """Times from a moment in which the machine kept its speed, or from the calmest of a few."""
        calmest: Timed | None = None
        for _ in range(1 + options.disturbed_retries):
            request = Time(
                options=options, best_cost=self._best_cost.get(key), calm_us=self._calm_us
            )
            reply = self._main.request(request, deadline_s)
            if isinstance(reply, Refused):
                return reply
            assert isinstance(reply, Timed)
            if calmest is None or disturbance(reply) < disturbance(calmest):
                calmest = reply
            if disturbance(reply) <= options.disturbed_ratio:
                break
        assert calmest is not None
        return calmest

    def _note_best(self, key: str, result: Measurement) -> None:
        ((cost,),) = measured_costs([result])[1:]
        self._best_cost[key] = min(self._best_cost.get(key, np.inf), float(cost))

    def _forget(self, options: MeasureOptions) -> None:
        for child in (self._main, *self._helpers):
            child.holds -= {item for item in child.holds if isinstance(item, int)}
            if child.pid is not None:
                try:
                    child.request(Forget(), options.run_deadline_s)
                except ChildLostError:
                    continue
