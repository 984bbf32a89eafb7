"""Whose batch it is, what each proposal knows, and when all is over; tasks are only names here."""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from retune.search.scheduling import Budget, End, ScheduledBatch, TaskScheduler
from retune.search.session import never

DEADLINE_S = 60.0
BATCH = 4

Act = Callable[[ScheduledBatch], None]


class Search:
    """Tasks that take batches by how often they had one; a device that does what `during` says."""

    def __init__(
        self,
        *names: str,
        budget: Budget | None = None,
        devices: int = 1,
        ahead: bool = False,
        grace_s: float = DEADLINE_S,
        clock: Callable[[], float] = lambda: 0.0,
        supply: int = 1000,
        present: Callable[[], int] | None = None,
    ) -> None:
        """`present` says how many devices there are at the moment, in place of `devices`."""
        self.granted: list[str] = []
        self.known: list[tuple[str, int]] = []
        self.knowledge: list[int] = []
        """TaskScheduler that were known at each grant."""
        self.recorded: list[int] = []
        """First trial numbers, in order."""
        self.left = dict.fromkeys(names, supply)
        self.during: Act = lambda batch: None
        self.stop = never
        self.batches = TaskScheduler(
            self._choose,
            lambda key: not self.left[key],
            budget or Budget(trials=40, batch=BATCH),
            changed=threading.Condition(),
            devices=present or (lambda: devices),
            slots=present or (lambda: devices + int(ahead)),
            awaited=names,
            grace_s=grace_s,
            clock=clock,
        )

    def _choose(self, available: Collection[str], spent: float) -> str | None:
        assert 0.0 <= spent <= 1.0
        open_keys = [key for key in self.left if key in available and self.left[key]]
        if not open_keys:
            return None
        self.knowledge.append(len(self.known))
        self.granted.append(min(open_keys, key=self.granted.count))
        return self.granted[-1]

    def work(self, key: str) -> End:
        """What a task's worker does."""
        batches = self.batches
        with batches.worker(key):
            while (batch := batches.take(key, self.stop)) is not None:
                trials = min(batch.most, self.left[key])
                self.left[key] -= trials
                batches.proposed(batch, trials)
                if not trials or not batches.enter(batch, self.stop):
                    continue
                self.during(batch)
                batches.measured(batch)
                self.recorded.append(batch.first)
                batches.recorded(batch, self._learning(batch))
                batches.wait_to_know(batch)
                while not batches.know(batch):
                    batches.wait_to_know(batch)
            return batches.end()

    def _learning(self, batch: ScheduledBatch) -> Callable[[], None]:
        return lambda: self.known.append((batch.key, batch.first))

    def run(self) -> list[End | BaseException]:
        """How each task's worker ended."""
        with ThreadPoolExecutor(len(self.left)) as pool:
            found = [pool.submit(self.work, key) for key in self.left]
            return [error if (error := f.exception(DEADLINE_S)) else f.result() for f in found]


def test_each_proposal_knows_all_batches_but_the_one_before_it():
    for _ in range(20):  # threads come in another order each time
        search = Search("a", "b", "c")
        assert search.run() == ["trials"] * 3
        assert search.granted == ["a", "b", "c", "a", "b", "c", "a", "b", "c", "a"]
        assert search.knowledge == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
        assert [first for _, first in search.known] == list(range(0, 40, BATCH))
        assert search.recorded == list(range(0, 40, BATCH))


def test_a_task_alone_knows_all_of_its_batches():
    search = Search("a")
    assert search.run() == ["trials"]
    assert search.knowledge == list(range(10))


def test_what_is_left_over_is_known_once_the_next_batch_is_proposed():
    search = Search("a", "b")
    search.batches.recall(done=8, following=8, spent_s=3.0)
    search.batches.leave_over("a", lambda: search.known.append(("a", 4)))
    assert search.run() == ["trials"] * 2
    assert search.granted == ["b", "a", "b", "a", "b", "a", "b", "a"]
    assert search.knowledge == [0, 1, 2, 3, 4, 5, 6, 7]
    assert search.known[:2] == [("a", 4), ("b", 8)]
    assert search.batches.done == 40 and search.batches.seconds == 3.0


def test_what_is_left_over_is_known_when_nobody_searches():
    search = Search("a", "b")
    search.batches.recall(done=8, following=8, spent_s=0.0)
    search.batches.leave_over("a", lambda: search.known.append(("a", 4)))
    search.batches.finish()
    search.batches.finish()
    assert search.known == [("a", 4)]


@pytest.mark.parametrize("left_over", [False, True])
def test_a_budget_that_was_spent_before_gives_no_batch(left_over: bool):
    search = Search("a", "b")
    search.batches.recall(done=40, following=40, spent_s=0.0)
    if left_over:
        search.batches.leave_over("a", lambda: search.known.append(("a", 36)))
    assert search.run() == ["trials"] * 2
    assert not search.granted
    assert search.known == [("a", 36)] * left_over


def test_the_last_batch_is_no_larger_than_the_budget():
    search = Search("a", "b", budget=Budget(trials=10, batch=BATCH))
    search.run()
    assert search.batches.done == 10
    assert search.recorded == [0, 4, 8]


def test_a_search_of_which_little_is_expected_ends_and_keeps_its_batches_in_flight():
    asked: list[int] = []

    def enough() -> bool:
        asked.append(len(search.known))
        return len(search.known) > 2

    search = Search("a", "b", budget=Budget(batch=BATCH, enough=enough))
    assert search.run() == ["little expected"] * 2
    assert asked == sorted(asked)
    assert search.batches.done == BATCH * len(search.known) == BATCH * (len(asked) - 1)


def test_a_task_with_nothing_left_ends_and_the_others_go_on():
    search = Search("a", "b")
    search.left["a"] = 6
    assert search.run() == ["nothing left", "trials"]
    assert search.batches.done == 40
    assert search.left == {"a": 0, "b": 1000 - 34}


def test_all_ends_when_no_task_has_anything_left():
    search = Search("a", "b", supply=6)
    assert search.run() == ["nothing left"] * 2
    assert search.batches.done == 12


def test_nobody_begins_before_all_are_there():
    search = Search("a", "b")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(search.work, "a")
        assert not search.granted
        second = pool.submit(search.work, "b")
        assert (first.result(DEADLINE_S), second.result(DEADLINE_S)) == ("trials", "trials")
    assert search.granted == ["a", "b"] * 5


def test_who_does_not_come_in_time_is_not_waited_for(caplog: pytest.LogCaptureFixture):
    search = Search("a", "b", grace_s=0.0)
    assert search.work("a") == "trials"
    assert search.granted == ["a"] * 10
    assert "1 of 2 tasks have nobody to search them after 0 s" in caplog.text
    assert search.work("b") == "trials"


def test_who_fails_before_the_beginning_is_not_waited_for():
    search = Search("a", "b")
    with pytest.raises(ZeroDivisionError), search.batches.worker("b"):
        raise ZeroDivisionError
    assert search.work("a") == "trials"
    assert search.granted == ["a"] * 10


def test_a_worker_that_fails_is_left_out_and_the_others_spend_the_budget():
    search = Search("a", "b", "c")

    def fail(batch: ScheduledBatch) -> None:
        if batch.key == "b":
            raise ZeroDivisionError

    search.during = fail
    ends = search.run()
    assert isinstance(ends[1], ZeroDivisionError)
    assert (ends[0], ends[2]) == ("trials", "trials")
    assert search.granted.count("b") == 1
    assert search.batches.done == 40
    assert len(set(search.recorded)) == len(search.recorded) == 10


def test_a_worker_that_failed_may_come_again():
    search, came_again = Search("a", "b"), list[Future[End]]()

    def fail_once(batch: ScheduledBatch) -> None:
        if batch.key == "b" and not came_again:
            came_again.append(pool.submit(search.work, "b"))  # it waits for this one to be gone
            raise ZeroDivisionError

    search.during = fail_once
    with ThreadPoolExecutor(2) as pool:
        first, failing = pool.submit(search.work, "a"), pool.submit(search.work, "b")
        assert isinstance(failing.exception(DEADLINE_S), ZeroDivisionError)
        assert first.result(DEADLINE_S) == came_again[0].result(DEADLINE_S) == "trials"
    assert search.granted.count("b") > 1
    assert search.batches.done == 40


def test_a_stop_lets_the_batch_in_flight_end_and_drops_the_one_that_waits():
    search, stopped = Search("a", "b"), threading.Event()
    search.stop = stopped.is_set

    def stop_at_the_third(batch: ScheduledBatch) -> None:
        if batch.first == 2 * BATCH:
            stopped.set()

    search.during = stop_at_the_third
    assert search.run() == ["stopped"] * 2
    assert search.recorded == [0, 4, 8]
    assert [first for _, first in search.known] == [0, 4, 8]


def test_a_stop_before_the_beginning_measures_nothing():
    search = Search("a", "b")
    search.stop = lambda: True
    assert search.run() == ["stopped"] * 2
    assert not search.recorded


def test_a_stop_while_others_are_waited_for_ends_the_waiting():
    search = Search("a", "b")
    search.stop = lambda: True
    assert search.work("a") == "stopped"


def test_what_waits_when_the_time_is_over_is_not_measured():
    now = [0.0]
    search = Search("a", "b", budget=Budget(seconds=10.0, batch=BATCH), clock=lambda: now[0])

    def take_four(batch: ScheduledBatch) -> None:
        now[0] += 4.0

    search.during = take_four
    assert search.run() == ["time"] * 2
    assert search.recorded == [0, 4, 8]
    assert search.batches.seconds == 12.0
    now[0] += 100.0
    assert search.batches.seconds == 12.0, "nobody searches"


def test_the_last_batch_is_as_large_as_the_time_has_room_for():
    now = [0.0]
    search = Search("a", "b", budget=Budget(seconds=10.0, batch=BATCH), clock=lambda: now[0])

    def take_one_each(batch: ScheduledBatch) -> None:
        now[0] += batch.trials

    search.during = take_one_each
    assert search.run() == ["time"] * 2
    assert search.recorded == [0, 4, 8], "two were granted before the pace was known"
    assert search.batches.seconds == 10.0 and search.batches.done == 10


def test_a_device_that_builds_ahead_has_two_batches_and_they_are_recorded_in_order():
    search, both = Search("a", "b", "c", ahead=True), threading.Barrier(2)
    later_is_done = [threading.Event() for _ in range(10)]

    def late_and_early(batch: ScheduledBatch) -> None:
        """The earlier one of two is done after the later one."""
        number = batch.first // BATCH
        both.wait(DEADLINE_S)
        if number % 2:
            later_is_done[number].set()
        else:
            assert later_is_done[number + 1].wait(DEADLINE_S)

    search.during = late_and_early
    assert search.run() == ["trials"] * 3
    assert search.recorded == list(range(0, 40, BATCH))
    assert search.knowledge == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_two_devices_measure_at_the_same_time_and_each_trial_has_its_number():
    search, both = Search("a", "b", "c", devices=2), threading.Barrier(2)
    search.during = lambda batch: both.wait(DEADLINE_S)  # ends only if another one is measured too
    assert search.run() == ["trials"] * 3
    assert sorted(search.recorded) == list(range(0, 40, BATCH))
    assert sorted(first for _, first in search.known) == list(range(0, 40, BATCH))


def test_a_device_that_comes_in_mid_run_takes_part():
    there, both = [1], threading.Barrier(2)
    search = Search(
        "a", "b", "c", budget=Budget(trials=11 * BATCH, batch=BATCH), present=lambda: there[0]
    )

    def during(batch: ScheduledBatch) -> None:
        if there[0] == 1:
            there[0] = 2
        else:
            both.wait(DEADLINE_S)  # ends only if another one is measured too

    search.during = during
    assert search.run() == ["trials"] * 3
    assert sorted(search.recorded) == list(range(0, 11 * BATCH, BATCH))
