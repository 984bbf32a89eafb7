"""Whole networks on a GPU by their launches, and by one launch of a persistent kernel.

    python -m benchmarks.staying --device nvidia-cuda-0 zoo:kws zoo:resnet50_v1

Both forms are of one plan, with default schedules by direct kernels. They are checked to give the
same outputs, several times over, and run in turns: launches only, on inputs that are there. Prints
how long each form takes to load as well.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.bundle.build import build_plan
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.frontend.models import load_model
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract

NETWORKS = ("zoo:kws", "zoo:mobilenet", "zoo:resnet18_v1", "zoo:resnet50_v1")
FORMS: tuple[Form, ...] = ("queued", "persistent")
RUNS = 5
"""Runs of each network whose outputs are compared."""


def loaded(plan: NetworkPlan, form: Form, device: Device) -> tuple[Module, float]:
    """The plan in that form, and the seconds that loading it takes."""
    start = time.perf_counter()
    module = Module(replace(plan, form=form), device)
    if module.form != form:
        raise SystemExit(f"{plan.name}: {device.spec.name} has no persistent kernel for it")
    return module, time.perf_counter() - start


def measure(model: str, device: Device, seconds: float) -> float:
    """Prints a line; the time with a persistent kernel over that of launches."""
    network = extract(optimise(load_model(model), "NHWC"), max_error=0.0)
    plan = build_plan(network, {}, device.spec, model_key=model, notes={})
    found = {form: loaded(plan, form, device) for form in FORMS}
    modules = {form: module for form, (module, _) in found.items()}
    inputs = modules["queued"].random_inputs()
    expected = modules["queued"].run(inputs)
    for outputs in (modules["persistent"].run(inputs) for _ in range(RUNS)):
        if not all(np.array_equal(outputs[name], expected[name]) for name in expected):
            raise SystemExit(f"{model}: the outputs differ")
    runs: dict[str, Callable[[], None]] = {
        form: module.runner(0, len(plan.launches)) for form, module in modules.items()
    }
    outcome = compare_times(runs, options=BenchOptions(budget_s=seconds))
    times = {timing.name: 1e6 * timing.median_s for timing in outcome.timings}
    ratio = times["persistent"] / times["queued"]
    parts = ", ".join(f"{f} {times[f]:.0f} us (loaded in {found[f][1]:.1f} s)" for f in FORMS)
    print(f"{model:22} {len(plan.launches)} launches: {parts}, {ratio:.2f}x", flush=True)
    return ratio


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring a network")
    options = parser.parse_args()
    device = open_device(options.device)
    ratios = [measure(model, device, options.seconds) for model in options.networks]
    print(f"geometric mean {geometric_mean(ratios):.2f}x")


if __name__ == "__main__":
    main()
