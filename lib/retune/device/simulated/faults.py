"""A board's script of faults: which of them hits which measurement.

Read `Script`. What happened so far (how many measurements there were, which faults are spent, which
candidates are wrong in their bundles) is a file beside the board's, so that it is counted over all
processes that measure on the board.
"""

import contextlib
import fcntl
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from retune.codegen.source import Run
from retune.core.errors import InputError, RecordError
from retune.core.keys import content_key
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.device.simulated.board import Fault, SimulatedBoard
from retune.device.simulated.simulation import fraction, program_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A program that is about to be measured."""

    runs: tuple[Run, ...]
    spared: bool
    """The first one of its task: no fault that names a task hits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What becomes of a batch."""

    faults: tuple[Fault | None, ...]
    """Of each measurement in order; after one that is `lost` there is no other."""
    offending: frozenset[str]
    """Keys of the programs that are wrong in bundles, by now."""


@dataclass(slots=True, kw_only=True)
class _State:
    measured: int
    applied: dict[str, int]
    """Measurements that each fault has hit, by its key."""
    offending: list[str]
    """Keys of programs, in the order in which they were hit."""


class Script:
    """The faults of one board. Processes may share the board."""

    def __init__(self, board: SimulatedBoard) -> None:
        """Reads nothing yet."""
        self._faults = board.fault
        self._path = board.path.with_name(f"{board.path.name}.state")
        self._lock = board.path.with_name(f"{board.path.name}.lock")
        seen: Counter[Fault] = Counter()
        self._keys: list[str] = []
        for fault in board.fault:
            self._keys.append(content_key(fault, seen[fault]))
            seen[fault] += 1

    @property
    def offending(self) -> frozenset[str]:
        """Keys of the programs that are wrong in bundles. Raises: InputError."""
        return frozenset(self._read().offending)

    def claim(self, turns: Sequence[Turn]) -> Claimed:
        """The next measurements of the board; they are counted when the call returns.

        Raises: InputError if the file beside the board's is damaged or cannot be written.
        """
        with self._exclusive():
            state = self._read()
            faults: list[Fault | None] = []
            for turn in turns:
                state.measured += 1
                faults.append(found := self._next(state, turn))
                if found is not None and found.kind == "lost":
                    break
            self._write(state)
        return Claimed(faults=tuple(faults), offending=frozenset(state.offending))

    def _next(self, state: _State, turn: Turn) -> Fault | None:
        """The first fault that hits the measurement; it is noted in the state."""
        key = program_key(turn.runs)
        for fault, name in zip(self._faults, self._keys, strict=True):
            if not _hits(fault, name, state, turn, key):
                continue
            state.applied[name] = state.applied.get(name, 0) + 1
            if fault.kind == "wrong_bundle" and key not in state.offending:
                state.offending.append(key)
            return fault
        return None

    @contextlib.contextmanager
    def _exclusive(self) -> Generator[None, None, None]:
        try:
            stream = self._lock.open("ab")
        except OSError as error:
            raise InputError(
                f"{self._lock}: expected a folder that can be written to beside the simulated "
                f"device ({error.strerror}); copy its file to another one"
            ) from error
        with stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _read(self) -> _State:
        try:
            return from_json(_State, self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return _State(measured=0, applied={}, offending=[])
        except (OSError, ValueError, RecordError) as error:
            raise InputError(
                f"{self._path}: expected what happened to the simulated device so far, got a file "
                f"that cannot be read ({error}); remove it to begin anew"
            ) from error

    def _write(self, state: _State) -> None:
        with replacing(self._path) as stream:
            stream.write(to_json(state).encode())


def _hits(fault: Fault, name: str, state: _State, turn: Turn, key: str) -> bool:
    """Whether the fault of that name hits the turn, the last one that the state counts."""
    if fault.at is not None:
        return fault.at <= state.measured < fault.at + (fault.times or 1)
    if fault.share is not None:
        left = fault.times is None or state.applied.get(name, 0) < fault.times
        return left and fraction(name, key) < fault.share
    assert fault.task is not None
    if turn.spared or state.applied.get(name, 0) >= (fault.times or 1):
        return False
    return any(fnmatchcase(kernel.name, fault.task) for kernel, _ in turn.runs)
