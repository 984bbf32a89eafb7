"""Candidates measured in layouts, and the schedules that are for activations in blocks.

Layouts are conditions of a measurement: its records stand beside those in NHWC, under the same
task, and no search mistakes the ones for the others. The template conv2d_NCHWc reads NCHW{ic}c and
makes NCHW{oc}c; both are knobs of it. Read `LayoutTrials.measure`, and `best_in_layouts` for what a
bundle may be built of.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import CodegenError, ScheduleError
from retune.core.layouts import IOLayouts, LayoutAssignment
from retune.core.target import DeviceSpec
from retune.device.measure.workload import Workload
from retune.ir.views import view
from retune.records.conditions import Conditions
from retune.records.schema import Measurement, TuningRecord, failed
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Sketch
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.choices import layout_kernels
from retune.search.layout.layouts import (
    activations_of,
    block_of,
    io_storages,
    own_shapes,
    workload_in,
)
from retune.search.session import Session
from retune.search.task import Task
from retune.targets.cost.estimate import estimate
from retune.targets.devices import target_of


def conditions_in(conditions: Conditions, io: IOLayouts) -> Conditions:
    """The conditions, in these layouts."""
    return replace(conditions, layout_in=io.input, layout_out=io.output)


class LayoutTrials:
    """Measures on the device of a session, into its store, beside its searches' trials."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workloads: dict[str, Workload] = {}
        self._prepared: set[str] = set()
        self.count = 0
        """Candidates measured so far."""

    def measure(
        self, task: Task, io: IOLayouts, candidates: Sequence[Candidate]
    ) -> Sequence[Measurement]:
        """The candidates, measured now with the task in these layouts; they are in the store.

        Not beside a search. Raises: InputError where the task cannot have the layouts.
        """
        session = self._session
        workload = self._workload(task, io)
        storages = io_storages(task, io) or {}
        space, target = task.space(session.spec), target_of(session.spec)
        programs: list[ProgramSource | Measurement] = []
        for candidate in candidates:
            try:
                programs.append(lower(view(space.instantiate(candidate), storages), target))
            except (ScheduleError, CodegenError) as error:  # an instruction packs channels, say
                programs.append(failed("skipped", str(error)))
        measured = session.timed(workload.key, programs)
        conditions = conditions_in(session.conditions, io)
        rows = [
            replace(
                session.record_of(task, space, candidate, found),
                phase="layout",
                conditions=conditions,
            )
            for candidate, found in zip(candidates, measured, strict=True)
        ]
        session.store.append(rows)
        self.count += len(rows)
        return measured

    def _workload(self, task: Task, io: IOLayouts) -> Workload:
        if task.key not in self._workloads:
            self._workloads = {task.key: task.workload(self._session.settings.seed)}
        found = workload_in(self._workloads[task.key], task, io)
        if found.key not in self._prepared:
            self._session.runner.prepare(found)
            self._prepared.add(found.key)
        return found


def blocked_candidates(task: Task, io: IOLayouts, spec: DeviceSpec, count: int) -> list[Candidate]:
    """The best schedules for these blocks alone, by the static estimate; none where there are none.

    Of a task in NHWC there are none: the search has its own.
    """
    blocks = None if io.is_nhwc else _blocks(task, io)
    if blocks is None:
        return []
    found: list[tuple[float, Candidate]] = []
    for sketch in task.space(spec).blocked:
        rows = _rows_for(sketch, blocks)
        times = estimate(sketch, rows, spec) if len(rows) else []
        for time, row in zip(times, rows, strict=True):
            candidate = Candidate(sketch.name, tuple(sketch.decided(row).items()))
            found.append((float(time), candidate))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])[:count]]


def best_in_layouts(
    network: Network,
    layouts: LayoutAssignment,
    store: RecordStore,
    conditions: Conditions,
    spec: DeviceSpec,
) -> dict[str, tuple[Candidate, TuningRecord]]:
    """The fastest known candidate of each task that is not in NHWC, and its record.

    By measurements in its layouts; where the network has the task in several, in those that it has
    most often: a task has one kernel.
    """
    found: dict[str, tuple[Candidate, TuningRecord]] = {}
    for key, counts in assigned_to_tasks(network, layouts, spec).items():
        task, io = network.tasks[key], max(counts, key=lambda io: (counts[io], str(io)))
        if io.is_nhwc or not task.tunable:
            continue
        where = conditions_in(conditions, io).comparable
        best = best_candidates(store, key, where, task.space(spec).whole, 1)
        if best:
            found[key] = best[0]
    return found


def assigned_to_tasks(
    network: Network, layouts: LayoutAssignment, spec: DeviceSpec
) -> dict[str, Counter[IOLayouts]]:
    """How often the network has each task in which layouts."""
    found: dict[str, Counter[IOLayouts]] = {}
    for kernel in layout_kernels(network, spec):
        io = kernel.in_network(layouts.of_kernel(kernel.label))
        found.setdefault(kernel.task_key, Counter())[io] += 1
    return found


def _blocks(task: Task, io: IOLayouts) -> tuple[int, int] | None:
    """Channels of the blocks of the activation that the task reads, and of the one it makes."""
    channels = {
        made: own_shapes(task)[name][-1] for name, made in reversed(activations_of(task).items())
    }
    if len(channels) < 2:
        return None
    one, other = block_of(io.input, channels[False]), block_of(io.output, channels[True])
    return None if one is None or other is None else (one, other)


def _rows_for(sketch: Sketch, blocks: tuple[int, int]) -> np.ndarray:
    """The valid rows of a sketch with these blocks. int64 [n, decisions]"""
    wanted: Mapping[str, int] = dict(zip(sketch.blocks or (), blocks, strict=True))
    rows = sketch.all_rows()
    for column, decision in enumerate(sketch.decisions):
        if decision.name in wanted:
            rows = rows[decision.table[rows[:, column], 0] == wanted[decision.name]]
    return rows
