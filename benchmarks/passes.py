"""Do the times of a network's steps, taken in their places, add up to the network's time?

    python -m benchmarks.passes zoo:resnet50_v1 light:squeezenet zoo:mobilenet

Each network with default schedules, or a bundle of `--bundles DIR`, in turns: passes of the
program that tells the time of every step (`codegen.network.in_network`), and whole launches of the
bundle, which has no clock. Prints the sum of the steps' medians, the median of the launches, and
their ratio.
"""

from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.networks import folder_of
from retune.api import import_network
from retune.bundle.build import FinalistsPlan, Slot, build_plan
from retune.bundle.format import read_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.in_network import open_finalists
from retune.device.opencl.runtime import Device, open_device

NETWORKS = ("zoo:resnet50_v1", "light:squeezenet", "zoo:mobilenet")
_PASSES = 20
"""At once; the launches then have a turn."""


def alone(plan: NetworkPlan) -> FinalistsPlan:
    """The plan with a slot for each launch, of one finalist."""
    slots = [
        Slot(task_key="", label=launch.label, finalists=(range(i, i + 1),))
        for i, launch in enumerate(plan.launches)
    ]
    return FinalistsPlan(plan=plan, slots=tuple(slots))


def measure(plan: NetworkPlan, device: Device, seconds: float) -> tuple[float, float]:
    """Milliseconds: the sum over the steps of a pass, and a launch of the whole bundle."""
    contest, module = open_finalists(alone(plan), device), Module(plan, device)
    choices = np.zeros((_PASSES, len(plan.launches)), np.int64)
    module.run(module.random_inputs())
    launch = module.runner(0, len(plan.launches))
    seen: list[np.ndarray] = []
    outcome = compare_times(
        {"launch": launch, "passes": lambda: seen.append(contest.times(choices))},
        options=BenchOptions(budget_s=seconds),
    )
    steps = np.median(np.concatenate(seen), axis=0)
    return 1e3 * float(steps.sum()), 1e3 * outcome.timing("launch").median_s


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--bundles", type=Path)
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each network")
    options = parser.parse_args()
    device = open_device(options.device)
    for model in options.networks:
        if options.bundles:
            plan = read_bundle(options.bundles / folder_of(model) / "module")
        else:
            network = import_network(model).network
            plan = build_plan(network, {}, device.spec, model_key=model, notes={})
        steps, whole = measure(plan, device, options.seconds)
        print(f"{model:20} steps {steps:8.3f} ms  network {whole:8.3f} ms  {steps / whole:.3f}x")


if __name__ == "__main__":
    main()
