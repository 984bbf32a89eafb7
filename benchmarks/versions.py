"""Steps of two versions of a network's bundle, in turns: which layers became slower.

    git worktree add ../before COMMIT        # and there, and here:
    retune tune zoo:resnet50_v1 --trials 0 --out build/after/zoo-resnet50_v1
    python -m benchmarks.versions before=../before/build/after after=build/after zoo:resnet50_v1

A bundle is a program: one version of retune runs those of another. Each distinct convolution, dense
layer and window is timed as a step of a launch, many rounds of it, first of the one bundle and then
of the other, again and again. Steps are matched by operator and arithmetic, in the order in which
they run; what only one version has is left out, and counted. Prints the ratio of the medians of
each step, those of the second version over the first, and the geometric mean and the worst.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.networks import folder_of
from benchmarks.table import geometric_mean
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.core.errors import InputError
from retune.device.opencl.runtime import Device, open_device

_HEAVY = ("conv", "depthwise", "dense", "matmul", "max_pool", "avg_pool", "global")
"""What the names of the kernels begin with that count."""
_ROUND_US = 2000.0
"""Microseconds of one launch: waking the threads is spread over its rounds."""
_MOST_LAUNCHES = 1024
"""Launches of a `Module.runner`, rounds counted."""

Step = tuple[int, int]
"""First launch of a step, and the launch after its last one."""


def steps_of(plan: NetworkPlan) -> dict[tuple[str, int, int], Step]:
    """(operator, arithmetic, number among its equals) -> the launches, for each heavy step.

    The launches of one group stand together under one label: a layer of several kernels is a step.
    """
    found: dict[tuple[str, int, int], Step] = {}
    counts: dict[tuple[str, int], int] = {}
    number = 0
    while number < len(plan.launches):
        label, end = plan.launches[number].label, number + 1
        while end < len(plan.launches) and plan.launches[end].label == label:
            end += 1
        operator = label.split("_")[0].split(".")[0]
        heavy = max(plan.launches[number:end], key=lambda launch: launch.flops)
        if label.startswith(_HEAVY):
            key = operator, round(heavy.flops / 1e5)
            counts[key] = counts.get(key, 0) + 1
            found[*key, counts[key]] = number, end
        number = end
    return found


def compare(
    model: str, folders: dict[str, Path], device: Device, budget_s: float
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each step that both bundles have, and that is not like one before: its label and medians
    in microseconds by version."""
    modules = {
        name: Module.load(folder / folder_of(model) / "module", device)
        for name, folder in folders.items()
    }
    plans = {name: module.plan for name, module in modules.items()}
    first, second = (steps_of(plan) for plan in plans.values())
    common = [key for key in first if key in second and key[2] == 1]
    left = len({k[:2] for k in (*first, *second)}) - len(common)
    print(f"{model}: {len(common)} distinct steps that both have, {left} that one has", flush=True)
    for module in modules.values():
        module.run(module.random_inputs())
    for key in common:
        places = dict(zip(modules, (first[key], second[key]), strict=True))
        once = {n: modules[n].runner(*place, 1) for n, place in places.items()}
        us = 1e6 * min(
            t.median_s for t in compare_times(once, options=BenchOptions(budget_s=0.02)).timings
        )
        most = _MOST_LAUNCHES // max(end - start for start, end in places.values())
        rounds = max(1, min(most, round(_ROUND_US / us)))
        runs = {n: modules[n].runner(*place, rounds) for n, place in places.items()}
        outcome = compare_times(runs, options=BenchOptions(budget_s=budget_s))
        label = next(iter(plans.values())).launches[first[key][0]].label
        yield label, {t.name: 1e6 * t.median_s / rounds for t in outcome.timings}


def main() -> None:
    """Compares the bundles of two folders, for the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("versions", nargs=2, metavar="NAME=DIR")
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing for each step")
    options = parser.parse_args()
    folders = {n: Path(d) for n, _, d in (v.partition("=") for v in options.versions)}
    if len(folders) != 2:
        raise InputError(f"expected two versions as NAME=DIR, got {' '.join(options.versions)}")
    before, after = folders
    device = open_device(options.device)
    ratios: list[float] = []
    for model in options.networks:
        for label, us in compare(model, folders, device, options.seconds):
            ratios.append(us[after] / us[before])
            shown = "  ".join(f"{name} {value:8.1f} us" for name, value in us.items())
            print(f"  {label[:44]:44} {shown}  {ratios[-1]:5.2f}x", flush=True)
    print(
        f"{after} / {before}: {len(ratios)} steps on {device.spec.model}: geometric mean "
        f"{geometric_mean(ratios):.3f}x, worst {max(ratios):.3f}x"
    )


if __name__ == "__main__":
    main()
