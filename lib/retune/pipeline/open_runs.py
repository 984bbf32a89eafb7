"""The state of a run whose search goes on, in this process or the next one: session and time.

The searches of a run's tasks share one session; it knows what none of their manifests says.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from retune.core.replacing import replacing
from retune.records.files import list_files
from retune.records.store import RecordStore
from retune.search.session import Session

_SPENT = "seconds_done"


@dataclass(slots=True)
class _OpenSession:
    session: Session
    users: int = 0
    closed: bool = False
    """True: its measuring processes have ended, and it is only looked at."""


class OpenRuns:
    """The sessions of the runs that this process searches, by run id. For any threads."""

    def __init__(self) -> None:
        self._runs: dict[str, _OpenSession] = {}
        self._lock = threading.Lock()

    @contextmanager
    def searching(self, run: str, make: Callable[[], Session]) -> Generator[Session]:
        """The session of that run, which the first one makes. Its runner is closed by the last."""
        with self._lock:
            entry = self._runs.get(run)
            if entry is None or entry.closed:
                self._runs[run] = entry = _OpenSession(make())
            entry.users += 1
        try:
            yield entry.session
        finally:
            with self._lock:
                entry.users -= 1
                if not entry.users:
                    entry.closed = True
                    entry.session.runner.close()

    @contextmanager
    def searched(
        self, run: str, make: Callable[[], Session], *, last: bool = True
    ) -> Generator[Session]:
        """The session of a run that nobody searches any more: it knows all that was recorded.

        It is made if there is none, or if its measuring processes have ended and it is not the
        `last` time; after that it is forgotten.
        """
        with self._lock:
            entry = self._runs.get(run)
            if entry is None or (entry.closed and not last):
                self._runs[run] = entry = _OpenSession(make())
        try:
            entry.session.finish()
            yield entry.session
        finally:
            if not entry.closed:
                entry.closed = True
                entry.session.runner.close()
            if last:
                self.forget(run)

    def forget(self, run: str) -> None:
        """No session of that run is kept."""
        with self._lock:
            self._runs.pop(run, None)


class RecordedTrials:
    """The number of a run's measurements in a store, by task.

    The store is read again only if it has other files than at the last question.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: tuple[str, list[Path]] = ("", [])
        self._counts: Counter[str] = Counter()

    def of(self, records: str, run: str) -> Mapping[str, int]:
        """The number of the run's trials in that store, by task key."""
        with self._lock:
            asked = (run, list_files(Path(records)))
            if asked != self._asked:
                wanted = {"run_id": run, "phase": "search"}
                rows = RecordStore(records).table(wanted, ["task_key"])
                self._asked, self._counts = asked, Counter(rows.column(0).to_pylist())
            return self._counts


class Ledger:
    """The time that a run has spent on searching, in a file that outlives its processes."""

    def __init__(self, work: Path, run: str) -> None:
        self._path = work / "runs" / run / "ledger.json"

    def read(self) -> float:
        """Seconds; 0 where none are known."""
        try:
            return float(json.loads(self._path.read_text(encoding="utf-8"))[_SPENT])
        except (OSError, ValueError, KeyError, TypeError):
            return 0.0  # nobody has searched yet, or the file is not ours: all the time is left

    def write(self, seconds: float) -> None:
        """They survive whatever happens next."""
        with replacing(self._path) as stream:
            stream.write(json.dumps({_SPENT: seconds}).encode())
