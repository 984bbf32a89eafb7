"""A Runner that answers from records: search and flow are tested without a device."""

from collections.abc import Callable, Mapping, Sequence

from retune.codegen.source import ProgramSource
from retune.core.errors import InputError, LookupFailed
from retune.core.target import DeviceSpec
from retune.device.workload import MeasureOptions, Workload
from retune.records.schema import Measurement

Outcomes = Mapping[tuple[str, str], Measurement]
"""(task key, config hash) -> measurement, as RecordStore.measurements gives."""


class ReplayRunner:
    """Measures nothing: a candidate that the records do not have is a loud error."""

    def __init__(
        self,
        spec: DeviceSpec,
        outcomes: Outcomes,
        identify: Callable[[ProgramSource], str] | None = None,
    ) -> None:
        """`identify` gives a candidate's config hash; by default it is the source's key."""
        self.spec = spec
        self._outcomes = outcomes
        self._identify = identify or _source_key
        self._prepared: set[str] = set()

    def prepare(self, workload: Workload) -> None:
        """Makes the workload known."""
        self._prepared.add(workload.key)

    def measure(
        self,
        workload_key: str,
        candidates: Sequence[ProgramSource],
        options: MeasureOptions,  # noqa: ARG002  the protocol's; recorded times are what they are
    ) -> list[Measurement]:
        """The recorded outcome of each candidate.

        Raises: InputError if the workload was not prepared; LookupFailed for an unknown candidate.
        """
        if workload_key not in self._prepared:
            raise InputError(f"workload {workload_key!r} was not prepared")
        return [self._lookup(workload_key, self._identify(item)) for item in candidates]

    def close(self) -> None:
        """Nothing is held."""

    def _lookup(self, task: str, config: str) -> Measurement:
        found = self._outcomes.get((task, config))
        if found is None:
            same = sum(1 for key, _ in self._outcomes if key == task)
            raise LookupFailed(
                f"replay: no record of candidate {config} of task {task}; the records hold {same} "
                f"candidates of this task and {len(self._outcomes)} in all. Replay a search with "
                "the seed and the space that made the records, or measure on a device."
            )
        return found


def _source_key(source: ProgramSource) -> str:
    return source.key
