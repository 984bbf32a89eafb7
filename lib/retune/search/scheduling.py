"""Task scheduling: whose batch is proposed next, and when its results are known to other proposals.

Each task has a worker: a thread that carries out the task's batches. A batch is granted, proposed,
measured, recorded, and at last known: its task's tuner and the model have taken it in. One batch
more than there are devices is in flight, so while one is measured another one is got ready:

    batch n      proposed | measured ......... | recorded | known
    batch n + 1             proposed | waits   | measured ......... | recorded | known
    batch n + 2                                             proposed | waits   | measured ...

A batch is known once the next one was proposed, however quick it was. So on one device each
proposal knows all batches but the last one before it, whatever the threads' timing, and so it does
in a run that was killed: its last batch is in flight again, already recorded. Several devices end
their batches in no fixed order, and each is known as soon as nobody proposes.

Open first: `TaskScheduler.take`.
"""

import logging
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from time import perf_counter
from typing import Literal

_LOG = logging.getLogger(__name__)

GRACE_S = 60.0
"""How long the workers who are there wait for those who are not, before the first batch."""
_GLANCE_S = 0.5
"""While they wait, they ask so often whether to stop."""

End = Literal["trials", "time", "little expected", "stopped", "nothing left"]
"""Why a search is over: the budget, little is expected of going on, somebody's wish, or all that
there is was measured."""
Stop = Callable[[], bool]
"""Asked before each batch: True if nothing more is to be measured."""
Choose = Callable[[Collection[str], float], str | None]
"""(tasks that may have a batch, share of the budget that is spent) -> the next task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may be spent on a run, by all of its processes."""

    trials: int | None = None
    """Measurements over all tasks; None: no limit."""
    seconds: float | None = None
    """Time for searching; None: no limit."""
    batch: int
    """Candidates of one batch at most."""
    enough: Callable[[], bool] = lambda: False
    """Asked before each batch: True where too little is expected of going on."""


class Phase(IntEnum):
    """How far a batch is."""

    PROPOSING = 1
    WAITING = 2
    MEASURING = 3
    MEASURED = 4
    RECORDED = 5


@dataclass(eq=False, slots=True, kw_only=True)
class ScheduledBatch:
    """A batch of one task, until its results are known."""

    key: str
    """Of the task."""
    most: int
    """Candidates that may be proposed."""
    phase: Phase = Phase.PROPOSING
    trials: int = 0
    """Candidates that were proposed."""
    first: int = -1
    """Trial number of the first of them, once they are measured; the others follow."""
    learn: Callable[[], None] | None = None
    """Makes the results known; there once they are recorded."""
    left_over: bool = False
    """Of a process that was killed: no worker carries it out."""


class TaskScheduler:
    """Grants the batches of a run to its workers; `changed` is held whenever a task is read."""

    def __init__(
        self,
        choose: Choose,
        finished: Callable[[str], bool],
        budget: Budget,
        *,
        changed: threading.Condition,
        devices: Callable[[], int] = lambda: 1,
        slots: Callable[[], int] = lambda: 1,
        awaited: Collection[str] = (),
        grace_s: float = GRACE_S,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`finished` says of a task whether it has nothing left to try.

        No batch is granted before the `awaited` tasks all have a worker, or had `grace_s` to find
        one. `devices` says how many there are now, and `slots` how many batches they take in.
        """
        self._choose = choose
        self._finished = finished
        self._budget = budget
        self._changed = changed
        self._devices = devices
        self._slots = slots
        """Batches that devices take in at the same time."""
        self._enough = False
        """True once too little was expected: what is in flight then changes nothing."""
        self._missing = set(awaited)
        self._grace_s = grace_s
        self._clock = clock
        self._workers: set[str] = set()
        self._flight: list[ScheduledBatch] = []
        """In the order of the grants."""
        self._deadline: float | None = None
        """When those who are missing are waited for no longer; None: nobody has come yet."""
        self._begun = False
        self._stopped = False
        self._since: float | None = None
        """When the present workers began; None while there are none."""
        self._spent_s = 0.0
        self._done = 0
        self._next = 0

    # -- what was, and how it stands ---------------------------------------------------------------

    def recall(self, done: int, following: int, spent_s: float) -> None:
        """Earlier processes recorded `done` trials, in so many seconds; `following` is the next."""
        self._done, self._next, self._spent_s = done, following, spent_s

    def leave_over(self, key: str, learn: Callable[[], None]) -> None:
        """The last batch that an earlier process recorded: in flight until the next is proposed."""
        self._flight.append(
            ScheduledBatch(key=key, most=0, phase=Phase.RECORDED, learn=learn, left_over=True)
        )

    def finish(self) -> None:
        """What an earlier process recorded last is known too: nothing is tuned here any more."""
        with self._changed:
            assert not self._workers, "workers make it known themselves"
            self._learn_left_over()

    @property
    def done(self) -> int:
        """Trials recorded so far, earlier processes' included."""
        return self._done

    @property
    def seconds(self) -> float:
        """Spent on searching so far, earlier processes' included."""
        running = self._clock() - self._since if self._since is not None else 0.0
        return self._spent_s + running

    @property
    def upcoming(self) -> str | None:
        """The task of the batch in flight that is measured next, if there is one."""
        return next((t.key for t in self._flight if t.phase <= Phase.WAITING), None)

    @property
    def spent(self) -> float:
        """Share of the budget that is gone, with what is in flight."""
        if self._budget.trials:
            return (self._done + self._flying) / self._budget.trials
        return self.seconds / self._budget.seconds if self._budget.seconds else 0.0

    def number(self, trials: int) -> int:
        """The first of so many trial numbers, which nobody else gets. These are in no batch."""
        with self._changed:
            first = self._next
            self._next += trials
            self._done += trials
            return first

    # -- a worker's way --------------------------------------------------------------------------

    @contextmanager
    def worker(self, key: str) -> Generator[None]:
        """The caller carries out the task's batches. What it leaves unfinished is dropped.

        So a worker that fails hinders nobody; it may come again.
        """
        with self._changed:
            assert key not in self._workers, f"task {key} is searched already"
            self._workers.add(key)
            self._missing.discard(key)
            if self._deadline is None:
                self._deadline = self._clock() + self._grace_s
            if self._begun and self._since is None:
                self._since = self._clock()
            self._advance()
        try:
            yield
        finally:
            with self._changed:
                self._workers.discard(key)
                self._missing.discard(key)
                self._flight = [t for t in self._flight if t.key != key or t.left_over]
                if not self._workers:
                    self._spent_s, self._since = self.seconds, None
                self._advance()

    def take(self, key: str, stop: Stop) -> ScheduledBatch | None:
        """The task's next batch, when it is granted; None when it gets no further one.

        Then all that was recorded is known, unless it is only this task that has nothing left.
        """
        with self._changed:
            while True:
                self._stopped = self._stopped or (not self._begun and stop())
                self._begin()
                mine = next((t for t in self._flight if t.key == key and not t.left_over), None)
                if mine is None:
                    if self._begun and (self._ended() or self._has_nothing_left(key)):
                        return None
                    self._changed.wait(None if self._begun else _GLANCE_S)
                elif stop():
                    self._stopped = True
                    self._drop(mine)
                else:
                    return mine

    def proposed(self, batch: ScheduledBatch, trials: int) -> None:
        """So many candidates wait to be measured; without any the batch is over."""
        with self._changed:
            batch.trials, batch.phase = trials, Phase.WAITING
            if not trials:
                self._flight.remove(batch)
            self._advance()

    def enter(self, batch: ScheduledBatch, stop: Stop) -> bool:
        """A device may have the batch; False if nothing is to be measured any more.

        The batch is over then: a run that goes on later proposes the same again.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._may_enter(batch))
            self._stopped = self._stopped or stop()
            if self._stopped or self._late:
                self._drop(batch)
                return False
            batch.phase = Phase.MEASURING
            batch.first, self._next = self._next, self._next + batch.trials
            self._changed.notify_all()
            return True

    def measured(self, batch: ScheduledBatch) -> None:
        """The device is free. The batch may be recorded when the call returns.

        On one device batches are recorded in their order, so that a killed run lacks the last ones.
        """
        with self._changed:
            batch.phase = Phase.MEASURED
            self._changed.notify_all()
            if self._ordered:
                self._changed.wait_for(lambda: self._is_next_to_record(batch))

    def recorded(self, batch: ScheduledBatch, learn: Callable[[], None]) -> None:
        """The results are in the store; `learn` makes them known when it is time."""
        with self._changed:
            batch.phase, batch.learn = Phase.RECORDED, learn
            self._done += batch.trials
            self._advance()

    def wait_to_know(self, batch: ScheduledBatch) -> None:
        """The results may be made known: the next batch is proposed, or there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._next_to_know() is batch)

    def know(self, batch: ScheduledBatch) -> bool:
        """The results are known and the batch is over; False if another one is proposed first."""
        with self._changed:
            if self._next_to_know() is not batch:
                return False
            self._learn(batch)
            self._advance()
            return True

    def end(self) -> End:
        """Why a worker who got None from `take` gets no further batch."""
        with self._changed:
            return self._ended() or "nothing left"

    # -- all of these are called with `changed` held ---------------------------------------------

    @property
    def _flying(self) -> int:
        """Trials in flight that are not recorded."""
        return sum(t.trials for t in self._flight if t.phase < Phase.RECORDED)

    @property
    def _late(self) -> bool:
        return self._budget.seconds is not None and self.seconds >= self._budget.seconds

    def _room(self) -> int:
        """Trials that the budget has room for beside those in flight, at the pace so far, and at
        most a batch: what is being measured when the time is over is carried on to its end."""
        most = self._budget.batch
        if self._budget.trials is not None:
            most = min(most, self._budget.trials - self._done - self._flying)
        if self._budget.seconds is not None and self._done and self.seconds > 0:
            left_s = self._budget.seconds - self.seconds
            most = min(most, int(left_s * self._done / self.seconds) - self._flying)
        return most

    def _over(self) -> End | None:
        """Why no further batch is granted, as long as those in flight do not fail."""
        if self._budget.trials is not None and self._done + self._flying >= self._budget.trials:
            return "trials"
        if self._late or self._room() < 1:
            return "time"
        if self._stopped:
            return "stopped"
        return "little expected" if self._enough else None

    def _ended(self) -> End | None:
        """Why the search is over for all; None while batches are in flight, or could be."""
        return None if self._flight else self._over()

    def _has_nothing_left(self, key: str) -> bool:
        idle = all(batch.key != key for batch in self._flight)
        return idle and self._finished(key)

    def _gathering(self) -> bool:
        """Whether somebody is still waited for."""
        in_time = self._deadline is not None and self._clock() < self._deadline
        return bool(self._missing) and in_time and not self._stopped

    def _begin(self) -> None:
        """The first batch is granted, if all are there or were waited for long enough."""
        if self._begun or self._gathering():
            return
        if self._missing and not self._stopped:
            _LOG.warning(
                "%d of %d tasks have nobody to search them after %g s; the others begin",
                len(self._missing),
                len(self._missing) + len(self._workers),
                self._grace_s,
            )
        self._begun, self._since = True, self._clock()
        self._advance()

    def _advance(self) -> None:
        """The next batch is granted if it may be; who waits for any of it looks again."""
        self._grant()
        while self._learn_left_over():
            self._grant()
        self._changed.notify_all()

    def _grant(self) -> None:
        if not self._begun or self._proposing or len(self._flight) >= self._depth or self._over():
            return
        self._enough = self._budget.enough()
        if self._enough:
            return
        flying = {batch.key for batch in self._flight}
        key = self._choose([k for k in self._workers if k not in flying], self.spent)
        if key is not None:
            self._flight.append(ScheduledBatch(key=key, most=self._room()))

    @property
    def _depth(self) -> int:
        """TaskScheduler in flight at most."""
        return max(self._devices() + 1, self._slots())

    @property
    def _ordered(self) -> bool:
        return self._devices() == 1

    @property
    def _proposing(self) -> bool:
        return any(batch.phase == Phase.PROPOSING for batch in self._flight)

    def _drop(self, batch: ScheduledBatch) -> None:
        self._flight.remove(batch)
        self._advance()

    def _may_enter(self, batch: ScheduledBatch) -> bool:
        """First come, first served."""
        inside = sum(t.phase == Phase.MEASURING for t in self._flight)
        waiting = next(t for t in self._flight if t.phase == Phase.WAITING)
        return inside < self._slots() and waiting is batch

    def _is_next_to_record(self, batch: ScheduledBatch) -> bool:
        return next(t for t in self._flight if t.phase < Phase.RECORDED) is batch

    def _next_to_know(self) -> ScheduledBatch | None:
        """The batch that is made known now; None while the next one is not proposed yet."""
        if self._proposing:
            return None
        flight = self._flight[:1] if self._ordered else self._flight
        return next((t for t in flight if t.phase == Phase.RECORDED), None)

    def _learn_left_over(self) -> bool:
        """What an earlier process recorded last is known, if it is time."""
        batch = self._next_to_know()
        idle = not self._begun and bool(self._workers)
        if batch is None or not batch.left_over or idle:
            return False
        self._learn(batch)
        return True

    def _learn(self, batch: ScheduledBatch) -> None:
        assert batch.learn is not None, "it is recorded"
        self._flight.remove(batch)
        batch.learn()
