"""Networks with planned layouts against NHWC, against blocks, and against each kernel's best.

    python -m benchmarks.layouts --records artifacts/records zoo:resnet50_v1 zoo:mobilenet

Kernels are the best of the record store (of tuned networks, say), or else the default schedules;
they are measured in other layouts, copies too, into a store of the benchmark's own unless
`--records` names one, and the plan is solved for (`retune.search.layout`). Then four bundles run in
turns: with the plan, with all activations in NHWC, all in blocks of 16 channels, and with the best
layouts of each kernel alone and the copies that this takes; on GPUs their launches, on inputs that
are there. What launching costs there is measured, and is part of what is expected. Prints medians,
the plan's time over each of the others', what the plan was expected to take, and how long the
solver took; with `--table` each kernel's best times by layouts, as parts of that in NHWC.
"""

from argparse import Namespace
from collections.abc import Iterator
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.command import parser_of
from benchmarks.int8 import runs, samples_of
from benchmarks.networks import known_candidates
from benchmarks.table import geometric_mean
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.core.layouts import BLOCKED, LayoutAssignment
from retune.device.opencl.launch_cost import LaunchCost, launch_cost
from retune.device.opencl.runtime import Device, open_device
from retune.device.opening import open_runner
from retune.frontend.models import load_model
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.layout_manifest import LayoutTotal
from retune.records.store import RecordStore
from retune.search.conditions import network_conditions, usual_options
from retune.search.extract import Network, extract
from retune.search.layout.assignment import uniform_layout, with_layouts
from retune.search.layout.problem import LayoutProblem
from retune.search.layout.search import FoundLayouts, LayoutSearch
from retune.search.layout.trials import best_in_layouts
from retune.search.session import RunSettings, Session


def network_of(model: str, *, int8: bool) -> Network:
    """The network by direct kernels, quantized if that is asked for."""
    graph = load_model(model)
    if int8:
        graph = quantize(graph, samples_of(graph), QuantizeSettings())
    return extract(optimise(graph, "NHWC"), max_error=0.0)


def found_layouts(
    network: Network, model: str, store: RecordStore, options: Namespace
) -> FoundLayouts:
    """The plan, after as many seconds of measuring as there may be."""
    runner = open_runner(options.device)
    settings = RunSettings(
        run_id=f"benchmarks.layouts {model}",
        model=model.replace(":", "-"),
        layout="NHWC",
        options=usual_options(runner.spec),
    )
    try:
        session = Session(list(network.tasks.values()), runner, store, settings)
        started = perf_counter()
        search = LayoutSearch(session, network)
        return search.run(lambda _: perf_counter() - started < options.seconds)
    finally:
        runner.close()


def table_lines(problem: LayoutProblem) -> Iterator[str]:
    """A line for each task with other layouts than NHWC: its weight, its time, and the others'."""
    kernels = {kernel.task_key: kernel for kernel in problem.choices.kernels}
    for key, kernel in kernels.items():
        labels = [k.label for k in problem.choices.kernels if k.task_key == key]
        nhwc = problem.nhwc_us(kernel)
        times = {io: problem.cost((key, io)) for io in problem.choices.of_tasks[key]}
        others = {str(io): us for io, us in times.items() if us is not None and io != kernel.nhwc}
        if others and nhwc:
            parts = "  ".join(f"{name} {us / nhwc:.2f}" for name, us in others.items())
            yield f"    {len(labels)} x {kernel.op} {labels[0]}: {nhwc:.1f} us; {parts}"


def expected_us(problem: LayoutProblem, choice: LayoutAssignment, launch: LaunchCost) -> float:
    """What kernels and copies take by their measurements, one after the other."""
    return LayoutTotal.of("", problem.plan(choice), launch).us


def measure(model: str, device: Device, store: RecordStore, options: Namespace) -> dict[str, float]:
    """Medians in milliseconds by the layouts."""
    network = network_of(model, int8=options.int8)
    found = found_layouts(network, model, store, options)
    problem = found.problem
    started = perf_counter()
    layouts, solution = problem.solved()
    solved_s = perf_counter() - started
    choices = {
        "plan": layouts,
        "NHWC": LayoutAssignment(),
        BLOCKED: uniform_layout(network, BLOCKED),
        "each": problem.each_alone(),
    }
    known = known_candidates(network, store, device.spec)
    conditions = network_conditions(device.spec, network.tasks.values())
    contenders = {}
    for name, choice in choices.items():
        assigned, best = with_layouts(network, choice), dict(known)
        recorded = best_in_layouts(network, choice, store, conditions, device.spec)
        best |= {key: candidate for key, (candidate, _) in recorded.items()}
        plan = build_plan(assigned, best, device.spec, model_key=name, notes={})
        module = Module(plan, device)
        contenders[name] = runs(module, module.random_inputs())
    outcome = compare_times(contenders, options=BenchOptions(budget_s=options.compare))
    times = {timing.name: 1e3 * timing.median_s for timing in outcome.timings}
    launch = launch_cost(device)
    greedy = expected_us(problem, choices["each"], launch)
    expected = expected_us(problem, choices["plan"], launch) / 1e3
    print(
        f"  {len(layouts.activations)} activations not in NHWC, {found.trials} candidates measured"
        f" ({found.untried} that a better plan may use were not), "
        f"{len(problem.table.own)} variables solved in {solved_s:.3f} s"
        f"{' (optimal)' if solution.optimal else ''}; "
        f"each kernel's best {_ratio(greedy / 1e3, expected)}x of the plan's cost"
    )
    nhwc = expected_us(problem, choices["NHWC"], launch) / 1e3
    print(
        f"  expected {expected:.3f} ms ({_ratio(expected, nhwc)}x of NHWC), "
        f"measured {times['plan']:.3f} ms",
        flush=True,
    )
    if options.table:
        print("\n".join(table_lines(problem)), flush=True)
    return times


def _ratio(value: float, least: float) -> str:
    return f"{value / least:.3f}" if least > 0 and value < inf else "-"


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--records", type=Path, help="a record store; default: none is known")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--int8", action="store_true", help="as networks of integers")
    parser.add_argument("--seconds", type=float, default=120.0, help="of measuring layouts")
    parser.add_argument("--table", action="store_true", help="what each kernel takes by layouts")
    parser.add_argument("--compare", type=float, default=12.0, help="seconds of runs in turns")
    options = parser.parse_args()
    device = open_device(options.device)
    ratios: dict[str, list[float]] = {"NHWC": [], BLOCKED: [], "each": []}
    with TemporaryDirectory() as folder:
        store = RecordStore(options.records or Path(folder))
        for model in options.networks:
            times = measure(model, device, store, options)
            for name, found in ratios.items():
                found.append(times["plan"] / times[name])
            parts = [f"{n} {ms:.3f} ms ({times['plan'] / ms:.3f}x)" for n, ms in times.items()]
            print(f"{model:22} " + "  ".join(parts), flush=True)
    for name, found in ratios.items():
        print(f"plan / {name}: geometric mean {geometric_mean(found):.3f}, worst {max(found):.3f}")


if __name__ == "__main__":
    main()
