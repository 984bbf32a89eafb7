"""Work and measurements keep apart, and neither waits for ever."""

import threading
from collections.abc import Callable

import pytest

from retune.core.stopwatch import Stopwatch
from retune.device.measure.gate import MeasuringGate
from tests.support.processes import wait_until

DEADLINE_S = 60.0


class Log:
    """What threads did, in order; each thread runs to its end before the test does."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: list[threading.Thread] = []

    def start(self, act: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=act))
        self.threads[-1].start()

    def ended(self) -> list[str]:
        for thread in self.threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        return self.lines


def works(gate: MeasuringGate, log: Log) -> Callable[[], None]:
    def act() -> None:
        with gate.working():
            log.lines.append("work")

    return act


def measures(gate: MeasuringGate, log: Log) -> Callable[[], None]:
    def act() -> None:
        with gate.measuring():
            log.lines.append("measure")

    return act


def wait_to_measure(gate: MeasuringGate) -> None:
    assert wait_until(lambda: gate._waiting == 1, DEADLINE_S)


def test_threads_work_side_by_side():
    gate, log = MeasuringGate(), Log()
    with gate.working():
        log.start(works(gate, log))
        assert log.ended() == ["work"]


def test_work_waits_for_the_measurement():
    gate, log = MeasuringGate(), Log()
    with gate.measuring():
        log.start(works(gate, log))
        log.start(works(gate, log))
        log.lines.append("measured")
    assert log.ended() == ["measured", "work", "work"]


def test_a_measurement_waits_for_work_and_comes_before_what_comes_later():
    gate, log = MeasuringGate(), Log()
    with gate.working():
        log.start(measures(gate, log))
        wait_to_measure(gate)
        log.start(works(gate, log))
        log.lines.append("worked")
    assert log.ended() == ["worked", "measure", "work"]


def test_one_measures_at_a_time():
    gate, log = MeasuringGate(), Log()
    with gate.measuring():
        log.start(measures(gate, log))
        wait_to_measure(gate)
        log.lines.append("measured")
    assert log.ended() == ["measured", "measure"]


@pytest.mark.parametrize("side", ["working", "measuring"])
def test_what_fails_leaves_the_gate_open(side: str):
    gate, log = MeasuringGate(), Log()
    with pytest.raises(ZeroDivisionError), getattr(gate, side)():
        raise ZeroDivisionError
    log.start(measures(gate, log))
    assert log.ended() == ["measure"]
    log.start(works(gate, log))
    assert log.ended() == ["measure", "work"]


def test_who_gives_up_waiting_to_measure_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch):
    gate, log = MeasuringGate(), Log()

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gate._changed, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), gate.measuring():
            pass
    log.start(works(gate, log))
    assert log.ended() == ["work"]


class Passing:
    """A condition on which ten seconds pass at each wait, and `then` happens."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: Callable[[], None] = lambda: None

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None: ...

    def wait_for(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.now += 10.0
            self.then()


@pytest.mark.parametrize("own_work", [False, True])
def test_a_run_pays_for_its_own_work_while_it_waits_to_measure(
    own_work: bool, monkeypatch: pytest.MonkeyPatch
):
    """And not for that of others."""
    gate, condition = MeasuringGate(), Passing()
    monkeypatch.setattr(gate, "_changed", condition)
    stopwatch = Stopwatch(lambda: condition.now)
    gate._working = 1
    if own_work:
        stopwatch.change("idle", "using")

    def work_ends() -> None:
        gate._working = 0
        if own_work:
            stopwatch.change("using", "idle")

    condition.then = work_ends
    with stopwatch.counting(), gate.measuring():
        condition.now += 1.0
    assert stopwatch() == (11.0 if own_work else 1.0)


def test_work_that_waits_for_what_others_measure_is_not_paid_for(monkeypatch: pytest.MonkeyPatch):
    gate, condition = MeasuringGate(), Passing()
    monkeypatch.setattr(gate, "_changed", condition)
    stopwatch = Stopwatch(lambda: condition.now)
    gate._measuring = True

    def measurement_ends() -> None:
        gate._measuring = False

    condition.then = measurement_ends
    with stopwatch.counting(), gate.working():
        condition.now += 1.0
    assert stopwatch() == 1.0
