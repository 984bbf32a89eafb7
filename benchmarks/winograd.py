"""3x3 convolutions: direct against Winograd, in turns in one run.

    python -m benchmarks.winograd zoo:vgg19_bn zoo:resnet18_v1 light:squeezenet

For every distinct 3x3 layer of stride 1: the default direct schedule, the best of a few candidates
of F(2x2) and F(4x4) that the static estimate ranks first, and onnxruntime. GFLOPS count the direct
convolution's operations for all of them, so Winograd may pass the machine's multiply-add ceiling,
which is timed beside each layer. Ours is kernel time; onnxruntime's is its call. `*` marks what an
untuned build would take.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.kernels import describe
from benchmarks.layers import ROUNDS, heavy_tasks, layer_launches, write_layer
from retune.api import ImportedNetwork, import_network
from retune.bundle.bench import BenchOptions, compare_times
from retune.bundle.build import build_plan
from retune.bundle.module import Module
from retune.bundle.peers import open_peer
from retune.bundle.plan import NetworkPlan
from retune.core.config import cache_root
from retune.core.target import DeviceSpec
from retune.device.catalogue import device_spec
from retune.device.reference import Reference
from retune.device.runtime import open_device
from retune.schedule.cpu_winograd import PREFIX
from retune.schedule.estimate import default_candidate, estimate
from retune.schedule.space import Candidate, Sketch, Space
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.task import Task

NETWORKS = ("zoo:vgg19_bn", "zoo:resnet18_v1", "light:squeezenet")
_POPULATION = 4096


def measure(task: Task, options: argparse.Namespace) -> dict[str, object] | None:
    """One layer: times in microseconds by contender; None if Winograd does not apply."""
    path = write_layer(task, cache_root() / "layers" / f"{task.key}.onnx")
    network = import_network(str(path), max_error=options.max_error)
    spec, device = device_spec("pocl"), open_device("pocl")
    own = next(t for t in network.network.tasks.values() if t.tunable)
    chosen = candidates(own.space(spec), spec, options.candidates)
    if len(chosen) == 1:
        return None
    modules = {n: Module(plan_of(network, own.key, c, spec), device) for n, c in chosen.items()}
    feeds = modules["direct"].random_inputs()
    contenders: dict[str, Callable[[], object]] = {}
    for name, module in modules.items():
        module.run(feeds)
        contenders[name] = module.runner(*layer_launches(module), ROUNDS)
    peer = open_peer("onnxruntime", path)
    contenders["onnxruntime"] = lambda: peer(feeds)
    reference = Reference(device)
    before = reference.gflops()
    outcome = compare_times(contenders, options=BenchOptions(budget_s=options.seconds))
    times: dict[str, float] = {}
    for timing in outcome.timings:
        kind = timing.name.split("#")[0]
        rounds = 1 if kind == "onnxruntime" else ROUNDS
        times[kind] = min(times.get(kind, np.inf), 1e6 * timing.median_s / rounds)
    return {
        "layer": describe(task),
        "flops": task.flops,
        "us": times,
        "ceiling_gflops": max(before, reference.gflops()),
        "default": default_candidate(own.space(spec), spec).sketch,
    }


def candidates(space: Space, spec: DeviceSpec, count: int) -> dict[str, Candidate]:
    """The direct default, and the first few of each Winograd sketch by the estimate."""
    direct = Space(tuple(s for s in space.sketches if not s.name.startswith(PREFIX)))
    found = {"direct": default_candidate(direct, spec)}
    for number, sketch in enumerate(space.sketches):
        if sketch.name.startswith(PREFIX):
            rows = best_rows(sketch, spec, count)
            for i in range(len(rows)):
                population = space.population(number, rows)
                found[f"F{sketch.name[-1]}#{i}"] = space.candidate(population, i)
    return found


def best_rows(sketch: Sketch, spec: DeviceSpec, count: int) -> np.ndarray:
    """The rows of a sketch that the estimate ranks first."""
    rows = np.unique(sketch.sample(_POPULATION, np.random.default_rng(0)), axis=0)
    return rows[np.argsort(estimate(sketch, rows, spec), kind="stable")[:count]]


def plan_of(
    network: ImportedNetwork, key: str, candidate: Candidate, spec: DeviceSpec
) -> NetworkPlan:
    """The layer built with a candidate."""
    return build_plan(network.network, {key: candidate}, spec, model_key=key, notes={})


def show(row: dict[str, object]) -> str:
    """One line: time, GFLOPS and share of the ceiling of each contender."""
    times, ceiling = row["us"], float(str(row["ceiling_gflops"]))
    assert isinstance(times, dict)
    parts = []
    for name, us in times.items():
        gflops = int(str(row["flops"])) / us / 1e3
        mark = "*" if str(row["default"])[-1:] == name[-1:] and name[0] == "F" else " "
        parts.append(f"{name}{mark}{us:8.0f} us {gflops:5.0f} ({gflops / ceiling:4.0%})")
    return f"{row['layer']:36} " + "  ".join(parts)


def main() -> None:
    """Measures the layers of the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--candidates", type=int, default=3, help="of each Winograd sketch")
    parser.add_argument("--max-error", type=float, default=DEFAULT_MAX_ERROR, help="of a layer")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each layer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for task in heavy_tasks(options.networks).values():
        if task.stride == 1 and task.input_shapes[1][2:] == (3, 3):
            row = measure(task, options)
            if row is not None:
                rows.append(row)
                print(show(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
