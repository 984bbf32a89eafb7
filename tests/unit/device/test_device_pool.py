"""Several devices of one kind measure at the same time, and fail each for itself."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier, Event

import pytest

from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError, InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.device_pool import DevicePool
from retune.device.measure.workload import MeasureOptions, Workload, handed_in
from retune.records.schema import Measurement, succeeded
from tests.support.measure import WORKLOAD, program

DEADLINE_S = 60.0
OPTIONS = MeasureOptions()


class Device:
    """A runner whose rows tell which device they are of; `during` is called while it measures."""

    capacity = 1

    def __init__(self, number: int) -> None:
        self.number = number
        self.spec = GENERIC_CPU
        self.prepared: list[Workload] = []
        self.batches = 0
        self.closed = False
        self.open_for_work = 0
        self.during = lambda: None

    @contextmanager
    def working(self) -> Generator[None]:
        self.open_for_work += 1
        yield
        self.open_for_work -= 1

    def prepare(self, workload: Workload) -> None:
        self.prepared.append(workload)

    places = 1

    def forget(self, workload_key: str) -> None:
        self.prepared = [each for each in self.prepared if each.key != workload_key]

    def submit(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> Future[list[Measurement]]:
        return handed_in(self.measure, workload_key, candidates, options)

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        assert workload_key in [workload.key for workload in self.prepared]
        self.batches += 1
        self.during()
        time_us = 1.0 + self.number
        row = succeeded([time_us], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)
        return [row] * len(candidates)

    def close(self) -> None:
        self.closed = True


def pool_of(*devices: Device) -> DevicePool:
    pool = DevicePool(devices)
    pool.prepare(WORKLOAD)
    return pool


def measured(pool: DevicePool) -> float | None:
    """Which device's time a batch has; both of its rows have it."""
    first, second = pool.measure("task", [program("a"), program("b")], OPTIONS)
    assert first == second
    return first.median_us


def test_what_is_forgotten_is_held_by_no_device():
    devices = Device(0), Device(1)
    pool = pool_of(*devices)
    for _ in devices:
        measured(pool)
    assert [len(device.prepared) for device in devices] == [1, 1]
    pool.forget("task")
    other = replace(WORKLOAD, key="other")
    pool.prepare(other)
    for _ in devices:
        pool.measure("other", [program("a")], OPTIONS)
    assert [device.prepared for device in devices] == [[other], [other]]


def test_two_tasks_are_measured_at_the_same_time():
    devices, both = (Device(0), Device(1)), Barrier(2)
    for device in devices:
        device.during = lambda: both.wait(DEADLINE_S)  # ends only if the other one measures too
    pool = pool_of(*devices)
    assert pool.capacity == 2
    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(lambda _: measured(pool), range(2))) == [1.0, 2.0]


def test_a_third_batch_waits_for_a_device():
    devices, both, leave = (Device(0), Device(1)), Barrier(3), Event()

    def busy() -> None:
        both.wait(DEADLINE_S)
        assert leave.wait(DEADLINE_S)

    for device in devices:
        device.during = busy
    pool = pool_of(*devices)
    with ThreadPoolExecutor(3) as threads:
        first = [threads.submit(measured, pool) for _ in range(2)]
        both.wait(DEADLINE_S)
        for device in devices:
            device.during = lambda: None
        third = threads.submit(measured, pool)
        assert [device.batches for device in devices] == [1, 1]
        leave.set()
        assert sorted(f.result() for f in first) == [1.0, 2.0]
        assert third.result() in (1.0, 2.0)


def test_a_device_gets_a_workload_once_and_again_when_it_is_another():
    device = Device(0)
    pool = pool_of(device)
    measured(pool)
    measured(pool)
    assert device.prepared == [WORKLOAD]
    other = replace(WORKLOAD, rtol=0.5)
    pool.prepare(other)
    measured(pool)
    assert device.prepared[1:] == [other]


def test_a_device_that_fails_fails_its_own_batch_and_is_free_again():
    broken, sound = Device(0), Device(1)

    def fail() -> None:
        raise DeviceError("the driver is gone")

    broken.during = fail
    pool = pool_of(broken, sound)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(measured, pool) for _ in range(8)]
        errors = [f.exception() for f in found]
    assert broken.batches == sum(error is not None for error in errors) > 0
    assert {str(error) for error in errors if error} == {"the driver is gone"}
    assert [f.result() for f in found if not f.exception()] == [2.0] * sound.batches
    broken.during = lambda: None
    assert {measured(pool), measured(pool)} == {1.0, 2.0}


def test_work_begins_when_no_device_is_disturbed_by_it():
    devices = Device(0), Device(1)
    with pool_of(*devices).working():
        assert [device.open_for_work for device in devices] == [1, 1]
    assert [device.open_for_work for device in devices] == [0, 0]


def test_all_devices_are_closed():
    devices = Device(0), Device(1)
    pool_of(*devices).close()
    assert all(device.closed for device in devices)


def test_devices_of_several_kinds_are_no_pool():
    other = Device(1)
    other.spec = replace(GENERIC_CPU, driver="another")
    with pytest.raises(InputError, match="runners of one kind of device, got 2"):
        DevicePool([Device(0), other])
    with pytest.raises(InputError, match=r"got 0 \(no runner\)"):
        DevicePool([])
