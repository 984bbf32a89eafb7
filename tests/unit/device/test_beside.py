"""What goes on beside a measurement: nothing on a CPU; on a GPU the next batch is built."""

import contextlib
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.measure import local as measure
from retune.device.measure.child import ChildLostError
from retune.device.measure.lease import lease
from retune.device.measure.local import LocalRunner, MeasureOptions
from retune.device.measure.messages import (
    Build,
    Check,
    Forget,
    LoadArrays,
    Reply,
    Request,
    Time,
    Warm,
)
from tests.support.measure import WORKLOAD, FakeChild, program

DEADLINE_S = 60.0
OPTIONS = MeasureOptions()

Answer = Callable[[Request], Reply | Exception | None]


class Children:
    """The child that measures and one that helps, by their scripts."""

    def __init__(self, spec: DeviceSpec, helpers: int = 1) -> None:
        self.main, self.helper = FakeChild(lambda _: None), FakeChild(lambda _: None)
        self.main.spec = self.helper.spec = spec

        def make(device: str, *, pinned: bool = True) -> FakeChild:
            return self.main if pinned else self.helper

        self.runner = LocalRunner("fake", builders=1 + helpers, make_child=make)
        self.runner.prepare(WORKLOAD)

    def measure(self, *names: str) -> list[str]:
        rows = self.runner.measure("task", [program(name) for name in names], OPTIONS)
        return [row.status for row in rows]


def test_on_a_cpu_work_goes_on_while_a_batch_is_built_and_waits_while_it_is_measured():
    log: list[str] = []
    threads: list[threading.Thread] = []
    cpu = Children(GENERIC_CPU)

    def work(name: str) -> None:
        with cpu.runner.working():
            log.append(name)

    def answer(request: Request) -> None:
        if isinstance(request, Build | Warm):
            work("work beside building")
        if isinstance(request, Check):
            threads.append(threading.Thread(target=work, args=["work afterwards"]))
            threads[-1].start()
        if isinstance(request, Time):
            log.append("timed")

    cpu.main.answer = cpu.helper.answer = answer
    assert cpu.measure("a", "b") == ["ok", "ok"]
    for thread in threads:
        thread.join(DEADLINE_S)
    assert log == ["work beside building"] * 4 + ["timed"] * 2 + ["work afterwards"] * 2


def test_a_workload_is_prepared_during_work_that_a_measurement_waits_for():
    """Who works holds up the measurement, so nothing that it does may wait for the measurement."""
    cpu = Children(GENERIC_CPU)
    with ThreadPoolExecutor(1) as pool:
        with cpu.runner.working():
            found = pool.submit(cpu.measure, "a")
            cpu.runner.prepare(replace(WORKLOAD, key="other"))
        assert found.result(DEADLINE_S) == ["ok"]


def test_a_workload_that_was_replaced_travels_again():
    cpu = Children(GENERIC_CPU)
    cpu.measure("a")
    cpu.runner.prepare(replace(WORKLOAD, rtol=0.5))
    cpu.measure("a")
    loads = [item for item in cpu.main.seen if isinstance(item, LoadArrays)]
    assert [load.rtol for load in loads] == [WORKLOAD.rtol, 0.5]


def test_on_a_gpu_the_next_batch_is_built_while_one_is_measured():
    gpu, building = Children(GENERIC_GPU), threading.Event()

    def build(request: Request) -> None:
        if isinstance(request, Build) and "b" in next(iter(request.jobs.values())).kernels[0].text:
            building.set()

    def check(request: Request) -> None:
        if isinstance(request, Check) and not building.is_set():
            with gpu.runner.working():
                later.append(others.submit(gpu.measure, "b"))
                assert building.wait(DEADLINE_S)

    gpu.helper.answer, gpu.main.answer = build, check
    later: list = []
    with ThreadPoolExecutor(1) as others:
        assert gpu.measure("a") == ["ok"]
        assert later[0].result(DEADLINE_S) == ["ok"]


def test_on_a_gpu_the_lease_is_for_measuring_alone(monkeypatch: pytest.MonkeyPatch):
    gpu, leased = Children(GENERIC_GPU), list[bool]()
    seen: list[tuple[str, bool]] = []

    @contextlib.contextmanager
    def watched(spec: DeviceSpec) -> Generator[None]:
        with lease(spec):
            leased.append(True)
            yield
            leased.clear()

    def note(who: str) -> Answer:
        return lambda request: seen.append((f"{who} {type(request).__name__}", bool(leased)))

    monkeypatch.setattr(measure, "lease", watched)
    gpu.main.answer, gpu.helper.answer = note("main"), note("helper")
    assert gpu.measure("a") == ["ok"]
    assert seen == [
        ("helper Build", False),
        ("helper Warm", False),
        ("helper Forget", False),
        *((f"main {kind}", True) for kind in ("LoadArrays", "Build", "Check", "Time", "Forget")),
    ]


def test_on_a_gpu_a_program_that_lost_its_helper_is_built_again_by_the_child_that_measures():
    gpu = Children(GENERIC_GPU)
    deaths = iter([ChildLostError("crash", "died")])
    gpu.helper.answer = lambda item: next(deaths, None) if isinstance(item, Build) else None
    assert gpu.measure("a") == ["ok"]
    assert gpu.helper.count(Build) == 1
    assert gpu.main.count(Build) == gpu.main.count(Warm) == 1


def test_a_gpu_without_a_helper_is_measured_too():
    gpu = Children(GENERIC_GPU, helpers=0)
    assert gpu.measure("a", "b") == ["ok", "ok"]
    assert gpu.main.count(Build) == 2 and gpu.main.count(Forget) == 1
