"""LocalRunner: measures candidates on a device of this machine, in processes that may die.

A batch is built first (`building`: on several cores, a few candidates in one program), then each
candidate runs alone: compared with the reference, timed, with the calibration kernel on either
side. Whatever a candidate does to its process, the outcome is a row, and the batch goes on.

On a CPU nothing else is done while a batch is measured: nothing is built, and the caller's own
work waits (`gate`). A GPU is not disturbed by that: one batch is built while another is measured.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError
from retune.core.target import DeviceSpec
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.gate import HOST
from retune.device.measure.journal import Journal
from retune.device.measure.lease import check_free, lease
from retune.device.measure.messages import (
    Check,
    Checked,
    Forget,
    Launching,
    LoadArrays,
    Refused,
    Time,
    Timed,
)
from retune.device.measure.timing import check_deadline_s, disturbance, time_deadline_s
from retune.device.measure.workload import (
    DirectRunner,
    MeasureOptions,
    Runner,
    Workload,
    check_fits,
    packed_weights,
)
from retune.device.opencl.building import Builder, Built
from retune.device.opencl.host import available_cores
from retune.device.opencl.launch_cost import LaunchCost
from retune.records.cost import measured_costs, quiet_level
from retune.records.schema import Measurement, failed, succeeded

__all__ = ["LocalRunner", "MeasureOptions", "Runner", "Workload"]

_MAX_BUILDERS = 16
_WORKLOAD = "workload"
"""What a child holds that was given one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """A candidate of the present batch."""

    source: ProgramSource
    built: Built


class LocalRunner(DirectRunner):
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
        super().__init__()
        wanted = min(available_cores(), _MAX_BUILDERS) if builders is None else builders
        helpers = max(0, wanted - 1)
        self._main = make_child(device)
        self._helpers = [make_child(device, pinned=False) for _ in range(helpers)]
        self._builder = Builder([self._main, *self._helpers])
        self._ahead = Builder(self._helpers)
        """Builds while the main child measures."""
        self._loaded: Workload | None = None
        """The one that the main child was given last."""
        self._best_cost: dict[str, float] = {}
        """Least cost of each workload."""
        self._references: list[float] = []
        """Every time of the calibration kernel so far; the quiet machine's follows from them."""
        self._kept: Journal | None = None
        self._opening = threading.Lock()
        self._turn = threading.Lock()
        """Held by who measures, and by who builds with the child that measures."""
        self._building = threading.Lock()
        """Held by who builds ahead."""

    @property
    def spec(self) -> DeviceSpec:
        """The device, as its driver describes it. Raises: InputError if there is none."""
        with self._opening:
            return self._main.spec

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,
    ) -> list[Measurement]:
        """One measurement for each candidate, in their order; the device is leased meanwhile.

        What is built ahead is built without the lease: no more than a work-group of it runs then.
        Raises: InputError for an unknown workload, or a candidate that does not fit its arrays.
        """
        workload = self._workload(workload_key)
        for source in candidates:
            check_fits(workload, source)

        def measure(chosen: Sequence[ProgramSource]) -> list[Measurement]:
            return self._batch(workload, chosen, options)

        return self._journal.rows(workload_key, candidates, measure)

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
        for source in candidates:
            check_fits(workload, source)

        def build(chosen: Sequence[ProgramSource]) -> list[Measurement]:
            with self._turn, self._building:
                slots = self._built(self._builder, chosen, options)
                self._forget([self._main, *self._helpers], options)
            return [_compiled(slot.built) for slot in slots]

        return self._journal.rows(workload_key, candidates, build)

    def launching(self, options: MeasureOptions) -> LaunchCost:
        """What launching costs on the device. Raises: DeviceError if it cannot launch anything."""
        with self._turn, lease(self.spec):
            self._main.ensure()
            reply = self._main.request(Launching(), options.run_deadline_s)
        if not isinstance(reply, LaunchCost):
            raise DeviceError(f"{self.spec.name}: launching nothing failed: {reply}")
        return reply

    def close(self) -> None:
        """Ends the children."""
        for child in (self._main, *self._helpers):
            child.close()
        if self._kept is not None:
            self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _journal(self) -> Journal:
        """What is built and measured here."""
        spec = self.spec
        with self._opening:
            self._kept = self._kept or Journal(spec)
            return self._kept

    @property
    def _on_cpu(self) -> bool:
        return self.spec.device_class == "cpu"

    @property
    def _builds_ahead(self) -> bool:
        """Whether one batch is built while another is measured."""
        return bool(self._helpers) and not self._on_cpu

    def _batch(
        self, workload: Workload, sources: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        """A row for each candidate: built, and then measured while the device is leased."""
        if self._builds_ahead:
            with self._building:
                slots = self._built(self._ahead, sources, options)
                self._forget(self._helpers, options)  # the driver's disk cache has it
            with self._turn, lease(self.spec):
                return self._measured(workload, slots, options)
        with self._turn, lease(self.spec):
            slots = self._built(self._builder, sources, options)
            with HOST.measuring() if self._on_cpu else nullcontext():
                return self._measured(workload, slots, options)

    def _built(
        self, builder: Builder, sources: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[_Slot]:
        built = builder.build([source.unpacked for source in sources], options)
        return [_Slot(source=s, built=b) for s, b in zip(sources, built, strict=True)]

    def _measured(
        self, workload: Workload, slots: Sequence[_Slot], options: MeasureOptions
    ) -> list[Measurement]:
        """The rows of a batch that was built; no child holds it any more."""
        try:
            return [self._measure(workload, slot, options) for slot in slots]
        finally:
            others = () if self._builds_ahead else self._helpers
            self._forget([self._main, *others], options)

    def _measure(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Measurement:
        """The candidate's row; a failure that others may have caused is tried again.

        A failure in a shared program is tried again alone; a crash or a timeout, which others or a
        busy machine may have caused, once more in a fresh child.
        """
        self._journal.begin(workload.key, [slot.source])
        result = self._attempt(workload, slot, options)
        refused, lost = slot.built.refused is not None, result.status in {"crash", "timeout"}
        if result.ok or not (lost or (slot.built.shared and not refused)):
            return result
        with self._journal.blaming(slot.source) if lost else nullcontext():
            if lost:
                self._main.close()
                check_free(self.spec)
            if refused or slot.built.shared:
                builder = self._ahead if self._builds_ahead else self._builder
                slot = replace(slot, built=builder.build_alone(slot.built, self._main, options))
            return self._attempt(workload, slot, options)

    def _attempt(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Measurement:
        build_s, refused = slot.built.build_s, slot.built.refused
        if refused is not None:
            return failed(refused.status, refused.error, build_s=build_s)
        start = time.monotonic()
        stage = "preparing the run"
        error: float | None = None

        def stopped(refused: Refused) -> Measurement:
            if refused.status == "launch_error" and not self._on_cpu:
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
                constants=packed_weights(workload, slot.source),
                spread_bytes=options.spread_bytes,
            )
            checked = self._main.request(check, check_deadline_s(slot.source, options))
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
        """The calibration kernel's time on the quiet machine, as far as this runner knows it."""
        return quiet_level(np.array(self._references)) if self._references else None

    def _provide(self, workload: Workload, slot: _Slot, options: MeasureOptions) -> Refused | None:
        """The measuring child has the workload and the program, even after a restart.

        Or else why it refuses the program.
        """
        child = self._main
        child.ensure()
        if _WORKLOAD not in child.holds or self._loaded is not workload:
            load = LoadArrays(
                inputs=dict(workload.inputs),
                outputs=dict(workload.outputs),
                positions=dict(workload.positions),
                rtol=workload.rtol,
                atol=workload.atol,
            )
            child.request(load, options.run_deadline_s + options.build_deadline_s)
            child.holds.add(_WORKLOAD)
            self._loaded = workload
        if slot.built.index not in child.holds:
            reply = child.request(slot.built.request, options.build_deadline_s)
            if isinstance(reply, Refused):
                return reply
            child.holds |= slot.built.request.jobs.keys()
        return None

    def _time(self, key: str, deadline_s: float, options: MeasureOptions) -> Timed | Refused:
        """Times from a moment in which the machine kept its speed, or from the quietest of a
        few."""
        quietest: Timed | None = None
        for _ in range(1 + options.disturbed_retries):
            request = Time(
                options=options, best_cost=self._best_cost.get(key), calm_us=self._calm_us
            )
            reply = self._main.request(request, deadline_s)
            if isinstance(reply, Refused):
                return reply
            assert isinstance(reply, Timed)
            if quietest is None or disturbance(reply) < disturbance(quietest):
                quietest = reply
            if disturbance(reply) <= options.disturbed_ratio:
                break
        assert quietest is not None
        return quietest

    def _note_best(self, key: str, result: Measurement) -> None:
        ((cost,),) = measured_costs([result])[1:]
        self._best_cost[key] = min(self._best_cost.get(key, np.inf), float(cost))

    def _forget(self, children: Sequence[Child], options: MeasureOptions) -> None:
        """The children hold no job any more."""
        for child in children:
            child.holds -= {item for item in child.holds if isinstance(item, int)}
            if child.pid is not None:
                try:
                    child.request(Forget(), options.run_deadline_s)
                except ChildLostError:
                    continue


def _compiled(built: Built) -> Measurement:
    """The row of a candidate that is not to run."""
    if built.refused is None:
        return failed("skipped", "compiled only", build_s=built.build_s)
    return failed(built.refused.status, built.refused.error, build_s=built.build_s)
