"""A run's stopwatch stands still while all that the run does is to wait for others."""

import threading
from contextvars import copy_context

import pytest

from retune.core.stopwatch import Stopwatch, turn


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Stopwatch:
    return Stopwatch(clock)


def test_waiting_does_not_count(clock: Clock, watch: Stopwatch):
    with watch.counting(), turn() as device:
        clock.now += 1
        device.waits()
        clock.now += 10
        assert watch() == 101
        device.is_ours()
        clock.now += 2
    clock.now += 3
    assert watch() == 106


def test_a_turn_that_ends_while_it_waits_waits_no_longer(clock: Clock, watch: Stopwatch):
    def interrupted() -> None:
        with turn() as device:
            device.waits()
            clock.now += 10
            raise KeyboardInterrupt

    with watch.counting():
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        clock.now += 1
    assert watch() == 101


def test_a_turn_inside_another_takes_its_place(clock: Clock, watch: Stopwatch):
    """Such as the wait for quiet cores by who has the lease of the device."""
    with watch.counting(), turn() as device:
        device.is_ours()
        with turn() as cores:
            clock.now += 1
            cores.waits()
            clock.now += 10
        clock.now += 2
        with turn() as cores:
            cores.is_ours()
        device.waits()
        clock.now += 10
    assert watch() == 103


def test_while_one_thread_has_a_device_others_may_wait(clock: Clock, watch: Stopwatch):
    def wait_ten_seconds() -> None:
        with turn() as device:
            device.waits()
            clock.now += 10

    def in_a_thread() -> None:
        thread = threading.Thread(target=copy_context().run, args=(wait_ten_seconds,))
        thread.start()
        thread.join()

    with watch.counting():
        with turn() as device:
            device.is_ours()
            in_a_thread()
            assert watch() == 110
        in_a_thread()
        assert watch() == 110


def test_other_runs_and_none_are_not_told(clock: Clock, watch: Stopwatch):
    other = Stopwatch(clock)
    with watch.counting(), turn() as outer:
        outer.waits()
        with other.counting(), turn() as device:
            device.is_ours()
            clock.now += 10
    with turn() as device:
        device.waits()
        clock.now += 1
    assert (watch(), other()) == (101, 111)
