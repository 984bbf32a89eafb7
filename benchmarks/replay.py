"""A recorded run once more, without its device: the same settings must propose the same trials."""

from collections.abc import Iterator, Mapping, Sequence

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import LookupFailed, ScheduleError
from retune.core.target import DeviceSpec
from retune.device.measure.workload import DirectRunner, MeasureOptions
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.search.history import candidate_of
from retune.search.task import Task
from retune.targets.devices import target_of

Outcomes = Mapping[tuple[str, str], Sequence[Measurement]]
"""(workload key, key of a candidate's source) -> its measurements in the order of their taking."""


class ReplayRunner(DirectRunner):
    """Measures nothing: a candidate that the records do not have is a loud error."""

    def __init__(self, spec: DeviceSpec, outcomes: Outcomes) -> None:
        """`spec` is the device that the records are of."""
        super().__init__(spec)
        self._outcomes = {key: list(rows) for key, rows in outcomes.items()}

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,  # noqa: ARG002  the protocol's; recorded times are what they are
    ) -> list[Measurement]:
        """The recorded outcome of each candidate, each time the next one; the last one again.

        Raises: InputError if the workload was not prepared; LookupFailed for an unknown candidate.
        """
        self._workload(workload_key)
        return [self._next(workload_key, item.key) for item in candidates]

    def close(self) -> None:
        """Nothing is held."""

    def _next(self, workload: str, source: str) -> Measurement:
        rows = self._outcomes.get((workload, source), [])
        if not rows:
            same = sum(1 for key, _ in self._outcomes if key == workload)
            raise LookupFailed(
                f"replay: no record of source {source} of workload {workload}; the records hold "
                f"{same} sources of this workload and {len(self._outcomes)} in all. Replay a "
                "search with the settings that made the records, or measure on a device."
            )
        return rows.pop(0) if len(rows) > 1 else rows[0]


def replay_runner(
    store: RecordStore, run_id: str, tasks: Sequence[Task], spec: DeviceSpec
) -> ReplayRunner:
    """A runner for a Session over these tasks that answers what the run measured on the device.

    Give the session the run's settings and a store of what the run knew when it began. Candidates
    are known by the code that they are lowered to (about 5 ms each), so a rule or a code generator
    that has changed since is noticed: its candidates are unknown.
    """
    outcomes: dict[tuple[str, str], list[Measurement]] = {}
    for task in tasks:
        if task.tunable:
            for source, measured in _measured(store, run_id, task, spec):
                outcomes.setdefault((task.workload_key(), source), []).append(measured)
    return ReplayRunner(spec, outcomes)


def _measured(
    store: RecordStore, run_id: str, task: Task, spec: DeviceSpec
) -> Iterator[tuple[str, Measurement]]:
    """The run's trials of a task in order: key of the source, and what came out."""
    space = task.space(spec)
    for record in store.trials(run_id, task.key, spec.fingerprint):
        candidate = candidate_of(record, space)
        if candidate is None:
            continue
        try:
            yield lower(space.instantiate(candidate), target_of(spec)).key, record.measurement
        except ScheduleError:
            continue  # the session does not measure it either
