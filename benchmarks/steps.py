"""Steps of whole networks other than convolutions: speed, and share of the roofline.

    python -m benchmarks.steps zoo:mobilenet light:inception_v1

Depthwise convolutions, pooling, transposes, and all that goes element by element, each as a step of
a launch: many rounds of it, with what it reads and writes where a network has it. Waking the device
is a cost of the launch, not of its steps: so many rounds that it does not count. What steps cost
each other does: taking work-groups, waiting for the last of them, and fetching lines from the other
core where that one took a group in the round before (measured: a depthwise layer of 256 channels at
28x28 takes 43 us, and 34 if no core may take from another's share). The roofline is measured in the
same run (`retune.device.measure.ceilings`), where each core stays with its own lines: copies of as
many bytes, or multiply-adds.
Steps have no peers: other runtimes cannot be asked for one.
"""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.networks import known_candidates
from benchmarks.table import Row, show, summary
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.codegen.source import KernelLaunch
from retune.core.config import cache_root, records_root
from retune.device.measure.ceilings import Ceilings
from retune.device.opencl.catalogue import device_spec
from retune.device.opencl.runtime import open_device
from retune.records.store import RecordStore

STEP_NETWORKS = ("zoo:mobilenet", "zoo:resnet50_v1", "light:squeezenet", "light:inception_v1")
_ROUNDS = 256
"""Rounds of a step in one launch: waking the threads (30 to 60 us) is spread over them."""
_KINDS = {
    "depthwise": "depthwise",
    "max_pool": "pooling",
    "avg_pool": "pooling",
    "global": "pooling",
    "transpose": "transpose",
    "softmax": "row",
    "lrn": "row",
    "conv": None,
    "dense": None,
}
"""Class of the kernels whose names begin so; None: not of this table. Others are element-wise."""


def kind_of_kernel(kernel: str) -> str | None:
    """The class of a step by its kernel's name, which begins with its operator's."""
    for stem, kind in _KINDS.items():
        if kernel.startswith(stem):
            return kind
    return "element-wise"


def step_rows(model: str, records: Path, seconds: float) -> Iterator[Row]:
    """One row for each distinct kernel of the network that is of a class of this table.

    `seconds` bounds the timing of each.
    """
    network = import_network(model, {}, "NHWC", cache_root())
    spec = device_spec("pocl")
    chosen = known_candidates(network.network, RecordStore(records), spec)
    plan = build_plan(network.network, chosen, spec, model_key=model, notes={})
    device = open_device("pocl")
    module = Module(plan, device)
    module.run(module.random_inputs())
    ceilings = Ceilings(device)
    seen: set[str] = set()
    for number, launch in enumerate(plan.launches):
        kind = kind_of_kernel(launch.kernel)
        if kind is None or launch.kernel in seen:
            continue
        seen.add(launch.kernel)
        run = module.runner(number, number + 1, _ROUNDS)
        outcome = compare_times({"retune": run}, options=BenchOptions(budget_s=seconds))
        us = 1e6 * outcome.timings[0].median_s / _ROUNDS
        yield Row(
            layer=_describe(plan, launch),
            kind=kind,
            flops=launch.flops,
            us={"retune": us},
            gflops=launch.flops / us / 1e3,
            ceiling_gflops=ceilings.gflops,
            share=1e6 * ceilings.least_s(launch.flops, launch.bytes) / us,
        )


def _describe(plan: NetworkPlan, launch: KernelLaunch) -> str:
    """Operator, and the bytes of what is moved."""
    stem = launch.kernel.split("_nhwc")[0].rsplit("_0_", 1)[0]
    return f"{plan.name[:12]} {stem[:24]} {launch.bytes / 1024:.0f} KiB"


def main() -> None:
    """Measures the steps of the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(STEP_NETWORKS))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each step")
    options = parser.parse_args()
    rows: list[Row] = []
    for model in options.networks:
        for row in step_rows(model, options.records, options.seconds):
            rows.append(row)
            print(show(row), flush=True)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
