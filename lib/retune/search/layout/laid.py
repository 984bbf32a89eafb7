"""Candidates measured with the images at their ends lying in other layouts than rows.

Layouts are conditions of a measurement: its records stand beside those in rows, under the same
task, and no search mistakes the ones for the others. Read `LaidTrials.measure`.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import CodegenError, ScheduleError
from retune.device.measure.workload import Workload
from retune.ir.views import view
from retune.records.conditions import Conditions
from retune.records.schema import Measurement, failed
from retune.schedule.space import Candidate
from retune.search.batch import measure_programs
from retune.search.layout.layouts import Ends, laid_workload, storages_of
from retune.search.session import Session
from retune.search.task import Task
from retune.targets.devices import target_of


def laid_conditions(conditions: Conditions, ends: Ends) -> Conditions:
    """The conditions, with images lying so."""
    return replace(conditions, layout_in=ends.read, layout_out=ends.made)


class LaidTrials:
    """Measures on the device of a session, into its store, beside its searches' trials."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workloads: dict[str, Workload] = {}
        self._prepared: set[str] = set()
        self.count = 0
        """Candidates measured so far."""

    def measure(
        self, task: Task, ends: Ends, candidates: Sequence[Candidate]
    ) -> Sequence[Measurement]:
        """The candidates, measured now with the task's images lying so; they are in the store.

        Not beside a search. Raises: InputError where the images cannot lie so.
        """
        session = self._session
        workload = self._workload(task, ends)
        storages = storages_of(task, ends) or {}
        space, target = task.space(session.spec), target_of(session.spec)
        programs: list[ProgramSource | Measurement] = []
        for candidate in candidates:
            try:
                programs.append(lower(view(space.instantiate(candidate), storages), target))
            except (ScheduleError, CodegenError) as error:  # an instruction wants words, say
                programs.append(failed("skipped", str(error)))
        measured = measure_programs(
            session.runner, workload.key, programs, session.settings.options
        )
        conditions = laid_conditions(session.conditions, ends)
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

    def _workload(self, task: Task, ends: Ends) -> Workload:
        if task.key not in self._workloads:
            self._workloads = {task.key: task.workload(self._session.settings.seed)}
        laid = laid_workload(self._workloads[task.key], task, ends)
        if laid.key not in self._prepared:
            self._session.runner.prepare(laid)
            self._prepared.add(laid.key)
        return laid
