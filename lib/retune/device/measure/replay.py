"""A Runner that answers from records: a search runs again without the device that it ran on.

`retune.search.replaying` makes one for a run of a store.
"""

from collections.abc import Mapping, Sequence

from retune.codegen.source import ProgramSource
from retune.core.errors import LookupFailed
from retune.core.target import DeviceSpec
from retune.device.measure.workload import DirectRunner, MeasureOptions
from retune.records.schema import Measurement

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
