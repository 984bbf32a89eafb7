"""Tuners on the ten packed tasks of ResNet-18 for the simulated VTA accelerator.

python -m benchmarks.vta_search --trials 1000 --few 100

For each task the best of up to `--trials` random candidates in simulated GOPS, beside the best of
as many on a Pynq board at 100 MHz; then random, GA and XGB with `--few` trials a task, as parts of
that best; and what one process and all cores take. Every candidate is executed and compared bit by
bit. `--parts seconds` alone depends on the machine, and wants a quiet one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

from benchmarks.command import parser_of
from benchmarks.vta import LAYERS
from retune.device.opening import spec_of
from retune.device.simulated.accelerator import AcceleratorRunner
from retune.frontend.models import load_model
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.records.store import RecordStore
from retune.search.conditions import usual_options
from retune.search.extract import extract
from retune.search.session import RunSettings, Session, search_all
from retune.search.task import Task
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.packed import packed_network

_DEVICE = "vta-sim"
_TUNERS = ("random", "ga", "xgb")
_CONFIG = VtaConfig()


def main() -> None:
    """Prints a line for each task, then the tuners, then the seconds."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="of each task, by random search")
    parser.add_argument("--few", type=int, default=100, help="of each task, by each tuner")
    parser.add_argument("--timed", type=int, default=250, help="of each task, to time processes")
    parser.add_argument("--parts", default="tuners,seconds", help="tuners, seconds, or both")
    options = parser.parse_args()
    tasks = ten_tasks()
    cores = os.cpu_count() or 1
    if "tuners" in options.parts:
        _compare(tasks, options.trials, options.few, cores)
    if "seconds" in options.parts:
        _print_seconds(tasks, options.trials, options.timed, cores)


def _compare(tasks: list[Task], trials: int, count: int, cores: int) -> None:
    best = searched(tasks, "random", trials, processes=cores)
    _print_best(tasks, best)
    for tuner in _TUNERS:
        few = searched(tasks, tuner, count, processes=cores)
        parts = [best[key] / few[key] for key in best]
        print(f"{tuner:8} {count} trials: {_mean(parts):.3f} of the best, by task "
              f"{' '.join(f'{part:.2f}' for part in parts)}")  # fmt: skip


def ten_tasks() -> list[Task]:
    """The accelerator's tasks of the network, in its order."""
    graph = load_model("zoo:resnet18_v1")
    data = {name: np.zeros(graph.types[name].shape, np.float32) for name in graph.inputs}
    network = extract(
        optimise(packed_network(quantize(graph, data, _settings()), _CONFIG)), accelerator=_CONFIG
    )
    return [task for task in network.tasks.values() if task.tunable]


def _settings() -> QuantizeSettings:
    return QuantizeSettings(
        scheme=POWER2.scheme,
        method=POWER2.method,
        weights=POWER2.weights,
        activations=POWER2.activations,
        pools_of_codes=POWER2.pools_of_codes,
        skip_conv_layers=(0,),
        bias_correction=False,
    )


def searched(
    tasks: list[Task], tuner: str, trials: int, *, processes: int, seed: int = 0
) -> dict[str, float]:
    """Microseconds of the best of so many trials of each task, by its key."""
    spec = spec_of(_DEVICE)
    runner = AcceleratorRunner(spec, processes)
    settings = RunSettings(
        run_id=f"{tuner}-{processes}",
        model="zoo:resnet18_v1",
        layout="",
        tuner=tuner,
        task_scheduler="round-robin",
        seed=seed,
        trials=trials * len(tasks),
        options=usual_options(spec),
    )
    try:
        with TemporaryDirectory() as folder:
            session = Session(tasks, runner, RecordStore(Path(folder)), settings)
            search_all(session)
            wrong = sum(run.failures for run in session.runs)
            assert not wrong, f"{wrong} candidates failed"
            return {run.task.key: run.best_us or np.inf for run in session.runs}
    finally:
        runner.close()


def _print_best(tasks: list[Task], best: Mapping[str, float]) -> None:
    pynq = {(work.c, work.h, work.o, work.kernel, work.strides): figure for work, figure in LAYERS}
    print(f"{'task':32} {'GOPS':>6} {'peak':>5} {'Pynq':>6}")
    for task in tasks:
        assert task.packed is not None
        work = task.packed.work
        gops = task.flops / best[task.key] / 1e3
        known = pynq[work.c, work.h, work.o, work.kernel, work.strides]
        print(f"{_name(task):32} {gops:6.1f} {gops / _CONFIG.peak_gops:5.0%} {known:6.2f}")


def _print_seconds(tasks: list[Task], trials: int, timed: int, cores: int) -> None:
    """Seconds of searches, the start of processes and the records of all trials included."""
    for task in tasks:
        spent = _seconds([task], trials, 1)
        print(f"{spent:5.1f} s for up to {trials} trials of {_name(task)}, one process")
    one, all_ = (_seconds(tasks, timed, processes) for processes in (1, cores))
    print(f"ten tasks, {timed} trials each: {one:.1f} s by one process, {all_:.1f} s by {cores}: "
          f"{one / all_:.2f} times as fast")  # fmt: skip


def _seconds(tasks: list[Task], trials: int, processes: int) -> float:
    start = perf_counter()
    searched(tasks, "random", trials, processes=processes)
    return perf_counter() - start


def _name(task: Task) -> str:
    assert task.packed is not None
    return f"{task.name} {'x'.join(map(str, task.packed.work.kernel))}"


def _mean(parts: list[float]) -> float:
    """Geometric."""
    return float(np.exp(np.mean(np.log(parts))))


if __name__ == "__main__":
    main()
