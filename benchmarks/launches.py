"""Whole networks' launches, with one address for all buffers of a kernel, and with one for each.

    python -m benchmarks.launches --device nvidia-cuda-0 zoo:resnet18_v1 zoo:resnet50_v1

Both are compiled with default schedules, checked to give the same outputs, and run in turns:
launches only, on inputs that are there.
"""

from dataclasses import replace

import numpy as np

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.codegen.target import ONE_BASE
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.models import load_model
from retune.graph.evaluate import random_inputs
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract

NETWORKS = ("zoo:resnet18_v1", "zoo:resnet50_v1", "zoo:mobilenet")


def compiled(graph: Graph, device: Device, instructions: tuple[str, ...]) -> Module:
    """For a device that offers these."""
    network = extract(optimise(graph, "NHWC"))
    spec = replace(device.spec, instructions=instructions)
    return Module(build_plan(network, {}, spec, model_key=graph.name, notes={}), device)


def measure(model: str, device: Device, seconds: float) -> float:
    """Prints a line; the time with one address over that with all of them."""
    graph = load_model(model)
    inputs = random_inputs(graph)
    others = tuple(name for name in device.spec.instructions if name != ONE_BASE)
    modules = {
        "one address": compiled(graph, device, (*others, ONE_BASE)),
        "each its own": compiled(graph, device, others),
    }
    first, second = (module.run(inputs) for module in modules.values())
    if not all(np.array_equal(first[name], second[name]) for name in first):
        raise SystemExit(f"{model}: the outputs differ")
    counts = [len(module.plan.launches) for module in modules.values()]
    runs = {name: m.runner(0, len(m.plan.launches)) for name, m in modules.items()}
    outcome = compare_times(runs, options=BenchOptions(budget_s=seconds))
    times = {timing.name: 1e6 * timing.median_s for timing in outcome.timings}
    ratio = times["one address"] / times["each its own"]
    parts = ", ".join(f"{name} {us:.0f} us" for name, us in times.items())
    print(f"{model:22} {counts[0]} launches: {parts} ({ratio:.2f}x)", flush=True)
    return ratio


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each network")
    options = parser.parse_args()
    device = open_device(options.device)
    if ONE_BASE not in device.spec.instructions:
        raise SystemExit(f"{options.device} does not reach all memory from one address")
    ratios = [measure(model, device, options.seconds) for model in options.networks]
    print(f"geometric mean {geometric_mean(ratios):.2f}x")


if __name__ == "__main__":
    main()
