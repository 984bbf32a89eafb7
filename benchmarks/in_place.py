"""Which way of timing a candidate says how fast it is in its place in a network.

    python -m benchmarks.in_place --channels 512 --size 7 --layers 10

A network of equal 3x3 layers, each with weights of its own. Candidates of the layer are timed in
turns: with the same constants in each call, with constants spread over as many bytes as the
network has (as tuning does), and in place: the network with that candidate in each layer. Printed
are the rank correlations with the times in place, and what the winner of each way takes there.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from benchmarks.command import parser_of
from retune.api import ImportedNetwork, build_plan, extract_tasks, import_network
from retune.bundle.runtime.module import Module
from retune.codegen.lower import lower
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.zoo.writer import NetWriter
from retune.schedule.space import Candidate
from retune.search.model.ranks import rank_correlation
from retune.search.task import Task
from retune.targets.cost.estimate import estimate
from retune.targets.devices import target_of

_RUNS = 5
"""Of the network in a turn; the median counts."""
_SAMPLES = 600
"""Random candidates of each sketch."""
_STEP = 5
"""Neighbours by the estimate are alike: one of so many is taken."""
WAYS = ("the same", "spread", "in place")


def chain(channels: int, size: int, layers: int, folder: Path) -> ImportedNetwork:
    """A network of that many 3x3 convolutions with ReLU."""
    net = NetWriter("chain", seed=0)
    x = net.input("data", (1, channels, size, size))
    for _ in range(layers):
        x = net.conv_relu(x, channels, 3, pad=1)
    net.output(x, "out")
    onnx.save(net.model(), folder / "chain.onnx")
    return import_network(str(folder / "chain.onnx"))


def promising(task: Task, device: Device, number: int) -> list[Candidate]:
    """That many of the better half of random candidates, by the static estimate."""
    space = task.space(device.spec)
    rng = np.random.default_rng(0)
    found: list[tuple[float, Candidate]] = []
    for index, sketch in enumerate(space.sketches):
        rows = sketch.sample(_SAMPLES, rng)
        estimates = estimate(sketch, rows, device.spec)
        for row in np.argsort(estimates)[: len(rows) // 2 : _STEP]:
            chosen = space.candidate(space.population(index, rows[row : row + 1]), 0)
            found.append((float(estimates[row]), chosen))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])[:number]]


def time_in_turns(
    network: ImportedNetwork, device: Device, candidates: Sequence[Candidate], turns: int
) -> np.ndarray:
    """Best microseconds of a layer by each way in WAYS. float64 [ways, candidates]"""
    (task,) = extract_tasks(network)
    programs = [
        lower(task.space(device.spec).instantiate(c), target_of(device.spec)) for c in candidates
    ]
    warm = MeasureOptions(disturbed_retries=0)
    spread = replace(warm, spread_bytes=task.weight * task.constant_bytes)
    whole = [module_of(network, task, candidate, device) for candidate in candidates]
    times = np.full((turns, len(WAYS), len(candidates)), np.inf)
    workload = task.workload()
    with LocalRunner("pocl") as runner:
        runner.prepare(workload)
        for turn in times:
            for way, options in zip(turn, (warm, spread), strict=False):
                measured = runner.measure(workload.key, programs, options)
                way[:] = [row.median_us or np.inf for row in measured]
            turn[-1] = [layer_us(module, task.weight) for module in whole]
    return times.min(axis=0)


def module_of(network: ImportedNetwork, task: Task, candidate: Candidate, device: Device) -> Module:
    """The network with the candidate in each of its layers."""
    chosen = {task.key: candidate}
    plan = build_plan(network.network, chosen, device.spec, model_key="chain", notes={})
    return Module(plan, device)


def layer_us(module: Module, layers: int) -> float:
    """Median microseconds of a layer in a run of the network."""
    return 1e6 * statistics.median(module.benchmark(_RUNS, warmup=1)) / layers


def report(times: np.ndarray) -> list[str]:
    """A line for each way: how well it orders, and what its winner takes."""
    return [
        f"  {way:9} rank correlation {rank_correlation(own, times[-1]):5.2f}; its winner "
        + ", ".join(f"{us:.0f} us {name}" for name, us in zip(WAYS, winner, strict=True))
        for way, own in zip(WAYS, times, strict=True)
        for winner in [times[:, int(np.argmin(own))]]
    ]


def main() -> None:
    """Prints a line for each way of timing."""
    parser = parser_of(__doc__)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--size", type=int, default=7)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    device = open_device("pocl")
    with TemporaryDirectory() as folder:
        network = chain(options.channels, options.size, options.layers, Path(folder))
        (task,) = extract_tasks(network)
        candidates = promising(task, device, options.candidates)
        times = time_in_turns(network, device, candidates, options.turns)
    megabytes = 1e-6 * task.weight * task.constant_bytes
    print(f"{len(candidates)} candidates; {megabytes:.0f} MB of weights in {task.weight} layers")
    print("\n".join(report(times)))


if __name__ == "__main__":
    main()
