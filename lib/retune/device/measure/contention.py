"""Times on a processor that others use, too, less what they had of it. Read `took`; `Waiting` says
how much that was.

Linux states for each thread how long it ran, and how long it was ready to run and had no core
(`/proc/PID/task/TID/schedstat`; Documentation/scheduler/sched-stats.rst of the kernel). At six
times as many ready threads as cores, medians of five repeats of one program lay 24 to 40 % apart,
those of what is stated here 7 %.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id

from retune.core.target import DeviceSpec

THREADS = Path("/proc/self/task")
NOTICEABLE = 0.05
"""Part of a time that threads waited for cores from which on it counts as disturbed."""
_WAKING_S = 20e-6
"""Of a wait each time: on a quiet machine threads that are woken run after 1 to 3 us, and those
that wait for others after a millisecond or more."""
_LINE = 128
"""Bytes that hold three numbers."""
_LITTLE = 0.1
"""Part of a time that a thread ran which others worked for."""
MOST_REPEATS = 2
"""Times as many repeats are made as are wanted where others disturb them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """A time, as far as it was this process's own."""

    seconds: float
    disturbed: bool = False
    """Threads waited for cores: the time is an estimate, and rather too long."""


class Waiting:
    """How long this process's threads are ready and have no core, from now on."""

    def __init__(self, threads: Path = THREADS) -> None:
        self._threads = threads
        self._before = _usage(threads)

    def share(self, seconds: float) -> float:
        """Part of so many seconds, all that have passed, that the thread that waited most did wait.

        From 0 to 1; 0 where the system does not tell.
        """
        return _share(self.since(seconds), seconds)

    def since(self, seconds: float) -> "list[Usage]":
        """What each thread that there is now did in the seconds since then.

        Waking up does not count as waiting. The calling thread does not count where it did little
        itself: it may be woken before the others are done, and it is these that have the cores
        then.
        """
        found: list[Usage] = []
        for thread, now in _usage(self._threads).items():
            before = self._before.get(thread, Usage(0.0, 0.0, 0))
            ran, starts = now.ran - before.ran, now.starts - before.starts
            if int(thread) == get_native_id() and ran < _LITTLE * seconds:
                continue
            waited = max(0.0, now.waited - before.waited - _WAKING_S * starts)
            found.append(Usage(ran, waited, starts))
        return found


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of one thread, and how often it was given a core."""

    ran: float
    waited: float
    starts: int


def took(run: Callable[[], float], spec: DeviceSpec, threads: Path = THREADS) -> Took:
    """The seconds that `run` states, less those in which the device's threads waited for cores.

    Threads wait at once or in turns, so no more was lost than all of them waited, and no less is
    left than the busiest one ran. A time in which none waited is as `run` states it, and so is any
    where the system does not tell, or where the device is not a processor: this process's threads
    do not work for it.
    """
    if spec.device_class != "cpu":
        return Took(seconds=run())
    waiting = Waiting(threads)
    wall = run()
    each = waiting.since(wall)
    busiest = max((usage.ran for usage in each), default=0.0)
    own = min(wall, max(busiest, wall - sum(usage.waited for usage in each)))
    return Took(seconds=own, disturbed=_share(each, wall) > NOTICEABLE)


def undisturbed_times(
    run: Callable[[], Took], count: int, taken: Sequence[Took] = ()
) -> list[float]:
    """Seconds of `count` runs, those `taken` before among them, in which nothing waited for cores.

    Where others keep disturbing, `run` is called up to twice as often, and the fastest are
    stated: whatever disturbs makes a time longer.
    """
    every = list(taken)
    while sum(not one.disturbed for one in every) < count and len(every) < MOST_REPEATS * count:
        every.append(run())
    quiet = [one.seconds for one in every if not one.disturbed]
    return quiet[:count] if len(quiet) >= count else sorted(one.seconds for one in every)[:count]


def _share(each: Sequence[Usage], seconds: float) -> float:
    """See `Waiting.share`."""
    longest = max((usage.waited for usage in each), default=0.0)
    return min(1.0, longest / seconds) if seconds > 0 else 0.0


def _usage(threads: Path) -> dict[str, Usage]:
    """By thread; none where the system does not tell. Paths would take four times as long."""
    found: dict[str, Usage] = {}
    try:
        names = os.listdir(threads)  # noqa: PTH208
    except OSError:
        return found
    for name in names:
        try:
            with open(f"{threads}/{name}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123
                ran, waited, starts = file.read(_LINE).split()
            found[name] = Usage(1e-9 * int(ran), 1e-9 * int(waited), int(starts))
        except (OSError, ValueError):
            continue  # it has ended, or the kernel keeps no such account
    return found
