"""A night's lanes: the networks of one device after another, all devices at the same time.

Read `run_lanes`. Who tunes a network is passed in. Before each member its lane divides what is left
of the device's minutes, and of the window, over the members that have not begun (`fleet.allocate`):
what one member did not need goes to the others.

Where measuring is not disturbed by work on this machine, the next member begins as soon as the
search of the one before is over, so that one is compiled, verified and reported while another is
measured.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field
from statistics import fmean

from retune.core.errors import RunStopped, sentence
from retune.nightly.fleet import Key, Member, allocate
from retune.nightly.night import Clock, MemberResult, MemberState, Night
from retune.nightly.window import TimeWindow, minutes_left
from retune.pipeline.watch import stopping, watching

LEAST_MINUTES = 0.01
"""With less than that a search measures nothing: the member is skipped."""
_AT_ONCE = 2
"""Members of an overlapping lane: one is measured, one is delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLane:
    """What a night has to do on one device."""

    device: str
    """Its name in the configuration."""
    minutes: float
    """Of measuring, for the whole night."""
    members: tuple[Member, ...]
    """In the order in which they are begun."""
    overlaps: bool
    """Whether work on this machine leaves its measurements undisturbed."""


class MemberTurn:
    """A member's turn: who tunes it says how far its search is."""

    def __init__(self, key: Key, minutes: float) -> None:
        self.key = key
        self.minutes = minutes
        self.spent = 0.0
        """Minutes of measuring so far."""
        self._searched = threading.Event()

    def spend(self, share: float) -> None:
        """So much of the minutes is gone, from 0 to 1."""
        self.spent = share * self.minutes

    def searched(self) -> None:
        """The search is over, however it ended: the device is free for the next member's."""
        self._searched.set()

    def wait_until_searched(self) -> None:
        """Returns once the search is over."""
        self._searched.wait()


Tune = Callable[[MemberTurn], MemberResult]
"""Tunes the member in as many minutes. Raises: why that failed; RunStopped if the night is to end
before the member is done."""


def run_lanes(
    lanes: Sequence[DeviceLane], night: Night, tune: Tune, hours: TimeWindow | None, clock: Clock
) -> None:
    """Every member of the lanes has had its turn, or the night says why not.

    Members are begun within these hours only; None: at any time. The lanes' threads run in copies
    of the caller's context, and begin nothing more once those who watch wish it so
    (`pipeline.watch`): then members still wait, or count as running. An interrupt stops every lane
    after the batch in flight; Ctrl-C does not wait for that, as it ends the process.
    """
    if not lanes:
        return
    left = threading.Event()
    pool = ThreadPoolExecutor(len(lanes), thread_name_prefix="lane")
    with watching(stop=left.is_set):
        runs = [_LaneRun(lane, night, tune, hours, clock) for lane in lanes]
        futures = [pool.submit(copy_context().run, run.go) for run in runs]
    waits = True
    try:
        wait(futures)
    except BaseException as error:
        left.set()
        waits = not isinstance(error, KeyboardInterrupt)
        raise
    finally:
        pool.shutdown(wait=waits)
    for future in futures:
        future.result()


@dataclass
class _LaneRun:
    """A lane that is carried out by its thread."""

    lane: DeviceLane
    night: Night
    tune: Tune
    hours: TimeWindow | None
    clock: Clock
    overheads: list[float] = field(default_factory=list[float])
    """Minutes that each member of this lane has taken besides measuring."""
    stopped: bool = False
    """Whether a member was stopped before it was done."""

    def go(self) -> None:
        """All members had their turn, or have a reason."""
        at_once = _AT_ONCE if self.lane.overlaps else 1
        name = f"lane-{self.lane.device}"
        with ThreadPoolExecutor(at_once, thread_name_prefix=name) as pool:
            begun: list[Future[None]] = []
            while (turn := self._next_turn()) is not None:
                begun.append(pool.submit(copy_context().run, self._take, turn))
                if self.lane.overlaps:
                    turn.wait_until_searched()
                else:
                    wait(begun)
        for each in begun:
            each.result()

    def _next_turn(self) -> MemberTurn | None:
        """The next member's, with its minutes; None if no other one is begun."""
        waiting = self.night.to_do(self.lane.device)
        if not waiting or self.stopped or stopping():
            return None
        window = minutes_left(self.hours, self.clock())
        if window <= 0:
            return self._skip(waiting, "the window closed before its turn")
        member = waiting[0]
        if member.begun:
            return MemberTurn(member.key, member.minutes)
        shares = self._shares(waiting, window)
        for each in waiting:
            if shares[each.key] >= LEAST_MINUTES:
                return MemberTurn(each.key, shares[each.key])
        return self._skip(waiting, "no minutes of its device were left for it")

    def _shares(self, waiting: Sequence[MemberState], window: float) -> dict[Key, float]:
        """Minutes for each of the members that wait, of what is left."""
        names = {member.key: member for member in self.lane.members}
        fresh = [names[each.key] for each in waiting if not each.begun and each.key in names]
        used = sum(each.used for each in self.night.of_device(self.lane.device))
        overhead = fmean(self.overheads) * len(fresh) if self.overheads else 0.0
        left = max(0.0, min(self.lane.minutes - used, window - overhead))
        shares = allocate(fresh, left)
        return {each.key: shares.get(each.key, 0.0) for each in waiting}

    def _skip(self, members: Sequence[MemberState], reason: str) -> None:
        for each in members:
            self.night.skip(each.key, reason)

    def _take(self, turn: MemberTurn) -> None:
        """The member is done, or the night says why not."""
        self.night.begin(turn.key, turn.minutes)
        began = self.clock()
        try:
            result = self.tune(turn)
        except RunStopped:
            self.stopped = True
        except Exception as error:  # noqa: BLE001 - what goes wrong with one does not end the others
            self.night.fail(turn.key, sentence(error), spent=turn.spent)
        else:
            self.night.finish(turn.key, result)
            elapsed = (self.clock() - began).total_seconds() / 60
            self.overheads.append(max(0.0, elapsed - result.minutes))
        finally:
            turn.searched()
