"""A night on disk: what was planned, by whom it is run, and what came of every member of the fleet.

Read NightState, and `run_night`, which gives the Night that this process may change. Every change
replaces WORK/nights/NAME/night.json in one step, so a night whose process died is continued where
it stood: what is done is not done again, and a member that has begun keeps its minutes, since they
are a part of its run's identity. All others are planned anew by each attempt.

How processes are told apart and locked out is passed in, see Processes.
"""

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from retune.core.errors import InputError, RecordError, sentence
from retune.core.names import check_name
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.nightly.fleet import Key
from retune.nightly.window import TimeWindow, is_open, night_of

FOLDER = "nights"
STATE = "night.json"
LOCK = "night.lock"
INDEX = "index"
"""Name of the page over all nights: no night has it."""

Status = Literal["planned", "running", "done", "failed", "skipped"]
"""Of a member; what is not `done` is tried again when the same night is continued."""
AttemptEnd = Literal["running", "finished", "stopped", "died"]
"""`finished`: all was done. `stopped`: it left in order before that. `died`: it was killed."""

Clock = Callable[[], datetime]
"""The moment, aware."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What a night has to know of processes."""

    me: str
    """This process, in one line without line break that tells it from any other one."""
    alive: Callable[[str], bool]
    """Whether the process of such a line still runs; True if nobody can tell here."""
    describe: Callable[[str], str]
    """Such a line for people: host, process, since when."""
    hold: Callable[[Path], AbstractContextManager[object]]
    """Holds the lock file for the time of the context. Raises an error that says who has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times of one bundle, taken in turns with another's."""

    median_us: float
    low_us: float
    """Quartiles."""
    high_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberResult:
    """What a night did for a network on a device."""

    minutes: float
    """Spent on measuring."""
    trials: int
    statuses: tuple[tuple[str, int], ...] = ()
    """Status -> trials, the most frequent first."""
    champion: Measured | None = None
    """The bundle that was current when the night began. None: there was none that runs."""
    challenger: Measured | None = None
    """The bundle that the night made. None: it made none."""
    ratio: float | None = None
    """Time of the challenger over the champion's: below 1, it is faster."""
    ratio_low: float | None = None
    """Bounds of the 95 % interval."""
    ratio_high: float | None = None
    promoted: bool = False
    reason: str = ""
    """Why the challenger became current, or did not."""
    failures: tuple[str, ...] = ()
    """A sentence for each part that failed while the rest went on."""
    report: str = ""
    """File of the run's own report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """A network on a device, in a night."""

    model: str
    """Its name in the configuration."""
    device: str
    minutes: float
    """Planned; 0: none were left for it, or it was skipped before it began."""
    status: Status = "planned"
    reason: str = ""
    """Why it failed or was skipped."""
    result: MemberResult | None = None
    begun: bool = False
    """Its run has begun with these minutes, in this attempt or an earlier one."""
    spent: float | None = None
    """Minutes of measuring, where there is no result that says so."""

    @property
    def key(self) -> Key:
        """What it is known by in the fleet."""
        return self.model, self.device

    @property
    def used(self) -> float:
        """Minutes of its device that are gone or taken: what it spent, once that is known."""
        if self.result is not None:
            return self.result.minutes
        if self.status == "failed" and self.spent is not None:
            return self.spent
        return self.minutes if self.begun else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A process that ran the night, or a part of it."""

    process: str
    """See Processes.me."""
    begun: str
    """ISO 8601, UTC."""
    ended: str = ""
    end: AttemptEnd = "running"
    reason: str = ""
    """Why it stopped before all was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What came of a step that concerns the whole fleet, such as training the cost model."""

    step: str
    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NightState:
    """Everything that is known of a night."""

    name: str
    attempts: tuple[Attempt, ...] = ()
    members: tuple[MemberState, ...] = ()
    """In the order of the plan."""
    notes: tuple[Note, ...] = ()

    @property
    def begun(self) -> str:
        """When it was begun first: ISO 8601, UTC."""
        return self.attempts[0].begun if self.attempts else ""

    @property
    def finished(self) -> bool:
        """True if all was done; members may have failed."""
        return bool(self.attempts) and self.attempts[-1].end == "finished"

    def member(self, key: Key) -> MemberState | None:
        """The member, if it was planned."""
        return next((each for each in self.members if each.key == key), None)


def night_name(window: TimeWindow | None, now: datetime, campaign: str = "") -> str:
    """The campaign's name, or the date on which the night's window opened, also after midnight.

    While the window is closed it is date and time by its clock, so that it is no other night's.
    Raises: InputError for a campaign that cannot be the name of a folder.
    """
    if not campaign:
        if window is not None and not is_open(window, now):
            return f"{now.astimezone(window.zone):%Y-%m-%d-%H%M}"
        return night_of(window, now).isoformat()
    try:
        check_name(campaign)
    except InputError as error:
        raise InputError(f"campaign: {error}") from None
    if campaign == INDEX:
        raise InputError(f"campaign: expected another name than {INDEX}, the page of all nights")
    return campaign


def read_night(work: Path, name: str) -> NightState | None:
    """What is known of a night. None: it was never begun. Raises: RecordError if it is damaged."""
    path = _folder(work, name) / STATE
    try:
        return from_json(NightState, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise RecordError(f"{path}: expected JSON, got other bytes; delete the file") from None
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def read_nights(work: Path) -> tuple[NightState, ...]:
    """Every night that was begun, the oldest first. Damaged ones are named in the log."""
    found: list[NightState] = []
    for path in sorted((work / FOLDER).glob(f"*/{STATE}")):
        try:
            state = read_night(work, path.parent.name)
        except RecordError as error:
            _LOG.warning("%s; it is left out", error)
            continue
        if state is not None and state.attempts:
            found.append(state)
    return tuple(sorted(found, key=lambda state: (state.begun, state.name)))


def attempt_of(state: NightState, processes: Processes) -> Attempt | None:
    """The last attempt as it really is: `died` if it counts as running and its process is gone."""
    if not state.attempts:
        return None
    last = state.attempts[-1]
    gone = last.end == "running" and not processes.alive(last.process)
    return replace(last, end="died") if gone else last


def nights_since(nights: Sequence[NightState], step: str) -> int:
    """How many of these nights, the oldest first, come after the last one that has done a step."""
    done = [number for number, state in enumerate(nights, 1) if has_note(state, step)]
    return len(nights) - (done[-1] if done else 0)


def has_note(state: NightState, step: str) -> bool:
    """True if the night has done that step of the whole fleet, and it has not failed."""
    return any(note.step == step and not note.failed for note in state.notes)


@contextmanager
def run_night(work: Path, name: str, processes: Processes, clock: Clock) -> Generator["Night"]:
    """The night of that name, begun or continued by this process, for the time of the context.

    What earlier attempts did not get done is planned again. At the end of the context the attempt
    has ended, see `Night.end`; without that call it was `stopped`.

    Raises: an error that says who runs it, if somebody does; RecordError if its file is damaged.
    """
    folder = _folder(work, name)
    folder.mkdir(parents=True, exist_ok=True)
    with processes.hold(folder / LOCK):
        state = read_night(work, name) or NightState(name=name)
        last = attempt_of(state, processes)
        if last is not None and last.end == "running" and last.process != processes.me:
            raise InputError(
                f"night {name} is being run by {processes.describe(last.process)}; wait until it "
                f"ends, or name another night with --campaign"
            )
        if last is not None and last.end == "running":
            last = replace(last, end="died")
        night = Night(folder / STATE, state, clock)
        night.begin_attempt(processes.me, last)
        try:
            yield night
        except BaseException as error:
            night.end(sentence(error))
            raise
        finally:
            night.end("it was left before its end")


class Night:
    """A night that this process runs; threads may share it. What a method says is on disk then."""

    def __init__(self, path: Path, state: NightState, clock: Clock) -> None:
        self._path = path
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def state(self) -> NightState:
        """Everything as it stands."""
        return self._state

    @property
    def name(self) -> str:
        """Date or campaign: what makes the night's runs others than those of earlier nights."""
        return self._state.name

    def plan(self, minutes: Mapping[Key, float]) -> None:
        """Every one of these is a member, in this order, with these minutes unless it has begun.

        Members that are not among them, since the configuration has changed, are skipped.
        """
        with self._lock:
            known = {member.key: member for member in self._state.members}
            planned = [_with_minutes(known.get(key), key, share) for key, share in minutes.items()]
            gone = [_gone(member) for key, member in known.items() if key not in minutes]
            self._write(replace(self._state, members=(*planned, *gone)))

    def of_device(self, device: str) -> tuple[MemberState, ...]:
        """The members of that device, in the order of the plan."""
        return tuple(each for each in self._state.members if each.device == device)

    def to_do(self, device: str) -> tuple[MemberState, ...]:
        """Members of that device that wait for their turn: those that had begun come first."""
        waiting = [each for each in self.of_device(device) if each.status == "planned"]
        return tuple(sorted(waiting, key=lambda each: not each.begun))

    def begin(self, key: Key, minutes: float) -> None:
        """The member is running, with these minutes unless it had begun before."""
        self._change(
            key, lambda m: replace(_with_minutes(m, key, minutes), status="running", begun=True)
        )
        member = self._state.member(key)
        assert member is not None, "it is on the list of what is to be done"
        _LOG.info("%s on %s, %.1f minutes of night %s", *key, member.minutes, self.name)

    def finish(self, key: Key, result: MemberResult) -> None:
        """The member is done."""
        self._change(key, lambda member: replace(member, status="done", result=result))

    def fail(self, key: Key, reason: str, *, spent: float = 0.0) -> None:
        """The member failed, for this reason, after so many minutes of measuring. The log says so
        at once, and the night goes on."""
        _LOG.error("%s on %s failed: %s", *key, reason)
        self._change(
            key, lambda member: replace(member, status="failed", reason=reason, spent=spent)
        )

    def skip(self, key: Key, reason: str) -> None:
        """The member is left out in this attempt, for this reason; the next one plans it anew."""
        self._change(
            key, lambda m: replace(_with_minutes(m, key, 0.0), status="skipped", reason=reason)
        )

    def note(self, step: str, text: str, *, failed: bool = False) -> None:
        """What came of a step of the whole fleet; a note of before on that step gives way."""
        with self._lock:
            others = tuple(note for note in self._state.notes if note.step != step)
            new = Note(step=step, text=text, failed=failed)
            self._write(replace(self._state, notes=(*others, new)))

    def noted(self, step: str) -> bool:
        """True if that step was done and has not failed."""
        return has_note(self._state, step)

    def begin_attempt(self, process: str, last: Attempt | None) -> None:
        """An attempt of that process has begun; `last` says how the one before it ended."""
        with self._lock:
            now = _moment(self._clock)
            before = self._state.attempts[:-1]
            ended = (replace(last, ended=last.ended or now),) if last else ()
            attempts = (*before, *ended, Attempt(process=process, begun=now))
            members = tuple(_again(member) for member in self._state.members)
            self._write(replace(self._state, attempts=attempts, members=members))

    def end(self, reason: str = "") -> None:
        """The attempt has ended: all was done, or it stopped for that reason. Once is enough.

        A member that still counts as running waits for the next attempt.
        """
        with self._lock:
            last = self._state.attempts[-1]
            if last.end != "running":
                return
            end: AttemptEnd = "stopped" if reason else "finished"
            last = replace(last, ended=_moment(self._clock), end=end, reason=reason)
            members = tuple(
                _again(member) if member.status == "running" else member
                for member in self._state.members
            )
            attempts = (*self._state.attempts[:-1], last)
            self._write(replace(self._state, attempts=attempts, members=members))

    def _change(self, key: Key, change: Callable[[MemberState], MemberState]) -> None:
        with self._lock:
            assert self._state.member(key) is not None, f"night {self.name}: {key} was not planned"
            members = tuple(
                change(member) if member.key == key else member for member in self._state.members
            )
            self._write(replace(self._state, members=members))

    def _write(self, state: NightState) -> None:
        """A night does not fail for a full disk: what it could not say is said with the next."""
        self._state = state
        try:
            with replacing(self._path) as stream:
                stream.write(to_json(state).encode())
        except OSError as error:
            _LOG.warning(
                "%s cannot be written (%s); a night that is killed now does more than once what "
                "it did since the last change",
                self._path,
                error.strerror,
            )


def _with_minutes(member: MemberState | None, key: Key, minutes: float) -> MemberState:
    """The member with these minutes, unless it has begun with others."""
    if member is None:
        return MemberState(model=key[0], device=key[1], minutes=minutes)
    return member if member.begun else replace(member, minutes=minutes)


def _again(member: MemberState) -> MemberState:
    """The member at the beginning of an attempt: what is not done waits for its turn."""
    if member.status == "done":
        return member
    return replace(member, status="planned", reason="", spent=None)


def _gone(member: MemberState) -> MemberState:
    if member.status == "done":
        return member
    return replace(member, status="skipped", reason="it is no longer in the configuration")


def _folder(work: Path, name: str) -> Path:
    return work / FOLDER / name


def _moment(clock: Clock) -> str:
    return clock().astimezone(UTC).isoformat(timespec="seconds")
