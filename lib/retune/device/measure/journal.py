"""A journal of candidates in flight, on disk, that shows which one took a device down.

Read `Journal`. A candidate may take down more than its process: the machine, the device's driver,
the board. Nobody is left then to write a row. So the candidates in flight are written down first,
with the machine's boot id; entries of an earlier boot are those that the machine went down with. A
candidate of which that is known twice is not measured any more.

What lies in the folder RETUNE_JOURNAL: a file for each process that measures, `in-flight-*`, and
one for each device with all that took it down, `taken-down-*`. Deleting the latter allows its
candidates again.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from retune.codegen.source import ProgramSource
from retune.core import processes
from retune.core.config import knob
from retune.core.errors import DeviceError, InputError, RecordError
from retune.core.keys import content_key
from retune.core.locking import exclusive
from retune.core.processes import Holder, is_alive, this_process
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.core.target import DeviceSpec
from retune.records.schema import Measurement, failed

MOST_TIMES = 2
"""A candidate that took its device down so often is denied."""

_IN_FLIGHT = "in-flight-"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A candidate that is built or measured."""

    id: str
    """Workload and kernel."""
    kernel: str
    """ProgramSource.key: equal ones run the same code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """What a process does on a device."""

    device: str
    """Name and fingerprint."""
    boot: str
    """Boot id of the machine; empty where the system has none."""
    process: Holder
    candidates: tuple[Flight, ...] = ()
    """Built together, or one that is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenDown:
    """A kernel during which its device went down."""

    kernel: str
    device: str
    times: int
    last: str
    """ISO time, UTC."""
    what: str
    """What went down the last time: the machine, or the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JournalFile:
    kernels: tuple[TakenDown, ...] = ()


Measure = Callable[[Sequence[ProgramSource]], list[Measurement]]
"""A row for each of some candidates that are built together."""


class Journal:
    """The candidates that a process builds and measures on one device, and those that it denies.

    Threads may share it. A folder that cannot be written to costs a warning, and nothing else.
    """

    def __init__(self, spec: DeviceSpec) -> None:
        """Candidates that the machine went down with count from now on."""
        self._device = f"{spec.name}|{spec.fingerprint}"
        self._folder = Path(knob("RETUNE_JOURNAL"))
        key = content_key(self._device)[:16]
        self._counts = self._folder / f"taken-down-{key}.json"
        self._others = f"{_IN_FLIGHT}{key}-*.json"
        self._own = self._folder / f"{_IN_FLIGHT}{key}-{uuid4().hex[:8]}.json"
        self._lock = threading.Lock()
        self._flights: dict[int, tuple[Flight, ...]] = {}
        """What each thread does."""
        self._warned = False
        with self._noted():
            self._recover()

    def rows(
        self, workload_key: str, sources: Sequence[ProgramSource], measure: Measure
    ) -> list[Measurement]:
        """What `measure` makes of the candidates, a row each, in their order.

        Those denied are rows that say so. Those with which the device may have gone down before are
        measured one by one: the next time shows which of them it is.
        """
        known = {item.kernel: item for item in self._stored()}
        denied = {k: item for k, item in known.items() if item.times >= MOST_TIMES}
        fresh = [number for number, source in enumerate(sources) if source.key not in known]
        suspected = [
            [number]
            for number, source in enumerate(sources)
            if source.key in known and source.key not in denied
        ]
        made: dict[int, Measurement] = {}
        for batch in [batch for batch in (fresh, *suspected) if batch]:
            chosen = [sources[number] for number in batch]
            try:
                self.begin(workload_key, chosen)
                made |= zip(batch, measure(chosen), strict=True)
            finally:
                self._fly(())
        return [made.get(n) or self._denied(denied[s.key]) for n, s in enumerate(sources)]

    def begin(self, workload_key: str, sources: Sequence[ProgramSource]) -> None:
        """This thread builds or measures these candidates now, instead of what it did before.

        They are on disk when the call returns, with device and boot id.
        """
        self._fly(tuple(Flight(id=f"{workload_key}/{s.key}", kernel=s.key) for s in sources))

    @contextlib.contextmanager
    def blaming(self, source: ProgramSource) -> Generator[None]:
        """A DeviceError in the context counts for the candidate, whose process was just lost: the
        driver opens the device no more, or does not let go of the process."""
        try:
            yield
        except DeviceError:
            with self._noted():
                self._count([source.key], "the driver")
            raise

    def close(self) -> None:
        """This process does nothing on the device any more."""
        with self._noted():
            self._own.unlink(missing_ok=True)

    def _fly(self, flights: tuple[Flight, ...]) -> None:
        with self._lock:
            self._flights.pop(threading.get_ident(), None)
            if flights:
                self._flights[threading.get_ident()] = flights
            entry = InFlight(
                device=self._device,
                boot=processes.boot(),
                process=this_process(),
                candidates=tuple(each for some in self._flights.values() for each in some),
            )
            with self._noted(), replacing(self._own) as stream:
                stream.write(to_json(entry).encode())

    def _recover(self) -> None:
        """Candidates of an earlier boot of this machine are counted; files of the dead are gone."""
        if not self._folder.is_dir():
            return
        with exclusive(self._folder / ".recovery.lock"):
            for path in self._folder.glob(self._others):
                try:
                    entry = from_json(InFlight, path.read_text(encoding="utf-8"))
                except (RecordError, UnicodeDecodeError):
                    _LOG.warning("%s: expected candidates in flight, got a damaged file", path)
                    continue
                if entry.process.host != this_process().host:
                    continue  # a folder that machines share: that one sees to it
                if entry.boot != processes.boot():
                    self._count([each.kernel for each in entry.candidates], "the machine")
                elif is_alive(entry.process):
                    continue
                path.unlink(missing_ok=True)

    def _count(self, kernels: Sequence[str], what: str) -> None:
        """One time more for each of the kernels."""
        known = {item.kernel: item for item in self._stored()}
        for kernel in dict.fromkeys(kernels):
            before = known[kernel].times if kernel in known else 0
            known[kernel] = item = TakenDown(
                kernel=kernel,
                device=self._device,
                times=before + 1,
                last=datetime.now(UTC).isoformat(timespec="seconds"),
                what=what,
            )
            _LOG.warning("%s went down while %s", what, _sentence(item))
        with replacing(self._counts) as stream:
            stream.write(to_json(_JournalFile(kernels=tuple(known.values()))).encode())

    def _stored(self) -> tuple[TakenDown, ...]:
        """What took the device down. Raises: RecordError if the file is damaged."""
        try:
            text = self._counts.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return from_json(_JournalFile, text, where=str(self._counts)).kernels

    def _denied(self, item: TakenDown) -> Measurement:
        error = (
            f"denied: {item.what} went down while {_sentence(item)}, the last time at {item.last}; "
            f"delete {self._counts} to allow it again"
        )
        return failed("crash", error)

    @contextlib.contextmanager
    def _noted(self) -> Generator[None]:
        try:
            yield
        except RecordError:
            raise
        except (OSError, InputError) as error:
            if not self._warned:
                self._warned = True
                _LOG.warning(
                    "%s: expected a folder that can be written to, got %s; candidates that take "
                    "the machine down are not recognised: name another folder by RETUNE_JOURNAL",
                    *(self._folder, error),
                )


def _sentence(item: TakenDown) -> str:
    times = "once" if item.times == 1 else f"{item.times} times"
    return f"kernel {item.kernel[:12]} was measured on {item.device.partition('|')[0]}, {times}"
