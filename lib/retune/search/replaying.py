"""A recorded run once more, without its device: the same settings must propose the same trials."""

from collections.abc import Iterator, Sequence

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.device.measure.replay import ReplayRunner
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.search.history import candidate_of
from retune.search.task import Task
from retune.targets.devices import target_of


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
