"""Trials a second on ten boards of a farm against one, and what the farm itself takes of a batch.

    python -m benchmarks.farm --boards 10 --measure 0.25 --batch 4 --batches 20

Scheduler and boards are processes of this machine, and talk over TLS on loopback. A simulated
board takes a fixed time for each measurement, in which nothing is computed; so what is left of the
boards' number is the farm's own: sending, handing out, waiting. What the farm takes of a batch is
the time of one batch after the other on a board that takes no time, less what the same takes in
this process. With `--search zoo:mobilenet` a search proposes the trials, so that what this machine
needs for that counts as well; it wants twice as many tasks as boards.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np

from benchmarks.command import parser_of
from retune.api import extract_tasks, import_network
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.errors import ScheduleError
from retune.device.measure.workload import MeasureOptions, Runner, Workload
from retune.device.opening import open_runner
from retune.device.remote.link import Link
from retune.device.remote.names import FarmName
from retune.device.remote.runner import FarmRunner
from retune.farm.certs import make_certs
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from retune.search.task import Task
from retune.targets.devices import target_of

OPTIONS = MeasureOptions()
_PORT = 18_786
_WAIT_S = 120.0


class Farm:
    """A scheduler and boards, until the context ends."""

    def __init__(self, folder: Path, boards: int, measure_s: float) -> None:
        self.address = f"tls://127.0.0.1:{_PORT}"
        self.certs = folder / "certs"
        make_certs(self.certs)
        self._processes: list[subprocess.Popen[bytes]] = []
        retune = [sys.executable, "-m", "retune.cli.main", "farm"]
        certs = ["--certs", str(self.certs / "scheduler")]
        self._start(folder, [*retune, "scheduler", "--port", str(_PORT), *certs])
        for number in range(boards):
            file = write_board(folder, number, measure_s)
            what = ["--key", "sim", "--device", f"sim:{file}", "--name", f"board{number}"]
            who = ["--scheduler", self.address, "--certs", str(self.certs / "board")]
            self._start(folder, [sys.executable, "-m", "retune.farm.serve", *what, *who])
        self.link = Link(self.address, certs=self.certs / "client")
        self._await(boards)

    def _start(self, folder: Path, command: Sequence[str]) -> None:
        """Locks are the farm's own, and so is its log."""
        environment = {**os.environ, "RETUNE_LOCKS": str(folder)}
        with (folder / "log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stderr=log, env=environment))

    def _await(self, boards: int) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                if len(self.link.boards().found) == boards:
                    return
            except Exception:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"{boards} boards did not start")
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()


def write_board(folder: Path, number: int, measure_s: float) -> Path:
    """The file of a simulated board of one model."""
    path = folder / f"board{number}.toml"
    text = f'name = "board{number}"\nmodel = "farm"\nmeasure_s = {measure_s}\n'
    path.write_text(text, encoding="utf-8")
    return path


def candidates(task: Task, runner: Runner, count: int) -> tuple[Workload, list[ProgramSource]]:
    """A task's arrays, and random programs of it."""
    space, programs = task.space(runner.spec), list[ProgramSource]()
    drawn = space.sample(4 * count, np.random.default_rng(0))
    for number in range(len(drawn)):
        with suppress(ScheduleError):
            kept = space.instantiate(space.candidate(drawn, number))
            programs.append(lower(kept, target_of(runner.spec)))
    return task.workload(0), programs[:count]


def batch_rate(runner: Runner, task: Task, size: int, batches: int) -> float:
    """Trials a second of so many batches, which are all handed in as soon as there is place."""
    workload, programs = candidates(task, runner, size)
    runner.prepare(workload)
    for future in [
        runner.submit(workload.key, programs[:1], OPTIONS) for _ in range(4 * runner.capacity)
    ]:
        future.result()  # every board has the arrays
    start = time.perf_counter()
    futures = [runner.submit(workload.key, programs, OPTIONS) for _ in range(batches)]
    rows = [row for future in futures for row in future.result()]
    return len(rows) / (time.perf_counter() - start)


def search_rate(runner: Runner, tasks: Sequence[Task], size: int, batches: int) -> float:
    """Trials a second of a search."""
    settings = RunSettings(
        run_id="farm",
        model="farm",
        layout="NHWC",
        tuner="random",
        trials=size * batches,
        batch=size,
    )
    with TemporaryDirectory() as folder:
        session = Session(tasks, runner, RecordStore(Path(folder)), settings)
        start = time.perf_counter()
        search_all(session)
        return session.trials / (time.perf_counter() - start)


def batch_s(runner: Runner, task: Task, size: int, repeat: int = 50) -> float:
    """Seconds of a batch, one after the other, in the middle."""
    workload, programs = candidates(task, runner, size)
    runner.prepare(workload)
    times: list[float] = []
    for _ in range(repeat + 5):
        start = time.perf_counter()
        runner.submit(workload.key, programs, OPTIONS).result()
        times.append(time.perf_counter() - start)
    return median(times[5:])


def farm_rate(
    boards: int, tasks: Sequence[Task], size: int, measure_s: float, batches: int, search: bool
) -> float:
    """Trials a second on so many boards, each of which gets so many batches."""
    with TemporaryDirectory() as folder, Farm(Path(folder), boards, measure_s) as farm:
        runner = FarmRunner(FarmName("sim", farm.address), link=farm.link)
        try:
            if search:
                return search_rate(runner, tasks, size, boards * batches)
            return batch_rate(runner, tasks[0], size, boards * batches)
        finally:
            runner.close()


def farm_overhead_s(task: Task, size: int) -> tuple[float, float]:
    """Seconds of a batch that takes no time: on a board of a farm, and on one of this process."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        farm = stack.enter_context(Farm(Path(folder), 1, 0.0))
        runner = FarmRunner(FarmName("sim", farm.address), link=farm.link)
        there = batch_s(runner, task, size)
        runner.close()
        here = open_runner(f"sim:{write_board(Path(folder), 1, 0.0)}")
        return there, batch_s(here, task, size)


def main() -> None:
    """Prints both figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--boards", type=int, default=10)
    parser.add_argument("--measure", type=float, default=0.25, help="seconds of a measurement")
    parser.add_argument("--batch", type=int, default=4, help="candidates of a batch")
    parser.add_argument("--batches", type=int, default=20, help="for each board")
    parser.add_argument("--search", help="a network whose search proposes the trials")
    options = parser.parse_args()
    tasks = [t for t in extract_tasks(import_network(options.search or "zoo:kws")) if t.tunable]
    search = bool(options.search)
    one, several = (
        farm_rate(boards, tasks, options.batch, options.measure, options.batches, search)
        for boards in (1, options.boards)
    )
    print(f"1 board:   {one:7.2f} trials a second, of {1 / options.measure:.2f}")
    most = options.boards / options.measure
    print(f"{options.boards} boards: {several:7.2f} trials a second, of {most:.2f}")
    print(f"{several / one:.2f} times as fast")
    there, here = farm_overhead_s(tasks[0], options.batch)
    print(f"a batch of {options.batch}: {1e3 * there:.1f} ms in the farm, {1e3 * here:.1f} ms here")
    print(f"the farm takes {1e3 * (there - here):.1f} ms of a batch")


if __name__ == "__main__":
    main()
