"""Small tasks, and a runner that measures nothing: a candidate's time follows from its text."""

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from retune.codegen.source import ProgramSource
from retune.core.dtypes import TensorType
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.measure.workload import MeasureOptions, Workload, handed_in
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.records.schema import Measurement, failed, succeeded
from retune.search.extract import extract
from retune.search.session import RunSettings
from retune.search.task import Task

HERE = {"device": GENERIC_CPU.fingerprint}
"""Columns of the records of the device that is pretended."""

Outcome = Callable[[ProgramSource], Measurement]


def measured(source: ProgramSource) -> Measurement:
    """Right, with a time between 1 and 2 us that depends on the text alone."""
    time_us = 1.0 + zlib.crc32(source.text.encode()) / 2**32
    return succeeded([time_us], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)


def transformed_first(source: ProgramSource) -> Measurement:
    """As `measured`, but programs with transformed constants, such as Winograd's, take half."""
    found = measured(source)
    transformed = any(p.sources != (name,) for name, p in source.packings.items())
    times = [time / 2 for time in found.run_times_us] if transformed else found.run_times_us
    return succeeded(times, max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)


def wrong(source: ProgramSource) -> Measurement:
    return failed("wrong_result", "off by one")


class FakeRunner:
    """Counts what it is asked to measure; `outcome` says what becomes of it."""

    capacity = 1

    def __init__(self, outcome: Outcome = measured, spec: DeviceSpec = GENERIC_CPU) -> None:
        self.outcome = outcome
        self._spec = spec
        self.workloads: list[str] = []
        self.measured: list[tuple[str, str]] = []
        self.options: list[MeasureOptions] = []
        self.closed = False

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare(self, workload: Workload) -> None:
        self.workloads.append(workload.key)

    slots = 1

    def forget(self, workload_key: str) -> None:
        self.workloads.remove(workload_key)

    def submit(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> Future[list[Measurement]]:
        return handed_in(self.measure, workload_key, candidates, options)

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        assert workload_key in self.workloads
        self.options.append(options)
        self.measured += [(workload_key, source.text) for source in candidates]
        return [self.outcome(source) for source in candidates]

    def close(self) -> None:
        self.closed = True


def network() -> Graph:
    """Two dense layers of different sizes, and an element-wise chain after a reshape."""
    build = GraphBuilder("net")
    build.input("x", TensorType((8, 32)))
    build.input("w", TensorType((64, 32)))
    build.input("v", TensorType((16, 64)))
    hidden = build.add("relu", [build.add("dense", ["x", "w"])])
    logits = build.add("dense", [hidden, "v"])
    flat = build.add("reshape", [logits], {"shape": (128,)})
    return build.finish([build.add("exp", [flat])])


def pooling() -> Graph:
    """One task with a small space."""
    build = GraphBuilder("net")
    build.input("x", TensorType((1, 3, 3, 4)))
    return build.finish([build.add("global_avg_pool", ["x"], {"layout": "NHWC"})])


def tasks() -> tuple[Task, ...]:
    return tuple(extract(optimise(network())).tasks.values())


def settings(**fields: object) -> RunSettings:
    given: dict[str, object] = {
        "run_id": "run",
        "model": "net",
        "layout": "NHWC",
        "tuner": "random",
        "seed": 0,
        "batch": 4,
        **fields,
    }
    return RunSettings(**given)  # type: ignore[arg-type]
