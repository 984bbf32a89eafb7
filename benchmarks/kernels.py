"""Convolution and dense layers: speed, share of the machine's ceiling, and ratio to peers.

    python -m benchmarks.kernels --trials 128 zoo:resnet50_v1

Every distinct layer is tuned in one run (or taken from the record store with `--trials 0`), then
timed in turns with onnxruntime (and openvino where it is installed) on a model of that one layer.
What the machine can do is timed beside each layer, since it drifts: register-only multiply-adds,
and copies of as many bytes as the layer moves; `share` is the time that the slower of the two
allows over the time taken. The first row is the reference shape that tells windows apart. Ours is
a layer as it is inside a network, one of many steps of a launch: a few rounds of the layer in one
launch, with enqueueing and waiting, without copies of input and output. The peers' is their call,
in a loop; their threads spin in between. At the end come the steps of whole networks that are no
convolutions, see `benchmarks.steps`.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.layers import (
    ROUNDS,
    heavy_tasks,
    layer_launches,
    reference_task,
    write_layer,
)
from benchmarks.networks import known_candidates
from benchmarks.steps import STEP_NETWORKS, step_rows
from benchmarks.table import Row, show, summary
from retune.api import ImportedNetwork, import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.device.measure.ceilings import Ceilings
from retune.device.measure.local import LocalRunner
from retune.device.opencl.catalogue import device_spec
from retune.device.opencl.runtime import open_device
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from retune.search.task import Task

NETWORKS = ("zoo:resnet50_v1", "zoo:vgg19_bn", "zoo:mobilenet", "zoo:inception_v3")
PEERS = ("onnxruntime", "openvino")
_RUN = "benchmark-kernels"
_FIRST_CHANNELS = 4


def kind_of(task: Task) -> str:
    """The class of layers that a target is stated for."""
    data, weight = task.input_shapes[0], task.input_shapes[1]
    if len(weight) == 2:
        return "dense"
    if task.op.startswith("depthwise"):
        return "depthwise"
    return "first layer" if data[1] <= _FIRST_CHANNELS else "convolution"


def describe(task: Task) -> str:
    """Kernel, stride and shapes of a layer."""
    data, weight = task.input_shapes[0], task.input_shapes[1]
    kernel = "x".join(map(str, weight[2:])) or "dense"
    stride = f" s{task.stride}" if task.stride and task.stride > 1 else ""
    shapes = f"{'x'.join(map(str, data[1:]))} -> {'x'.join(map(str, task.output_shape[1:]))}"
    return f"{kernel}{stride} {shapes}"


def tune(networks: Sequence[ImportedNetwork], trials: int, records: Path) -> None:
    """Each layer gets `trials` trials of one run; the default schedule is the first of them."""
    tasks = {t.key: t for n in networks for t in n.network.tasks.values() if t.tunable}
    runner = LocalRunner("pocl")
    try:
        settings = RunSettings(
            run_id=f"{_RUN}-{trials}",
            model="layers",
            layout="NHWC",
            task_scheduler="round-robin",
            trials=trials * len(tasks),
        )
        session = Session(list(tasks.values()), runner, RecordStore(records), settings)
        search_all(session, lambda text, done: print(f"[{done}] {text}", flush=True))
    finally:
        runner.close()


def measure(task: Task, network: ImportedNetwork, options: argparse.Namespace) -> Row:
    """One layer in turns with its peers."""
    spec = device_spec("pocl")
    chosen = known_candidates(network.network, RecordStore(options.records), spec)
    plan = build_plan(network.network, chosen, spec, model_key=task.key, notes={})
    device = open_device("pocl")
    module = Module(plan, device)
    feeds = module.random_inputs()
    module.run(feeds)
    first, end = layer_launches(module)
    own = plan.launches[first:end]
    contenders: dict[str, Callable[[], object]] = {"retune": module.runner(first, end, ROUNDS)}
    for name in PEERS:
        if find_spec(name) is not None:
            peer = open_peer(name, Path(network.onnx))
            contenders[name] = lambda peer=peer: peer(feeds)
    before = Ceilings(device)
    flops, traffic = sum(x.flops for x in own), sum(x.bytes for x in own)
    least = before.least_s(flops, traffic)
    outcome = compare_times(contenders, options=BenchOptions(budget_s=options.seconds))
    after = Ceilings(device)
    least = min(least, after.least_s(flops, traffic))
    times = {t.name: 1e6 * t.median_s for t in outcome.timings}
    times["retune"] /= ROUNDS
    return Row(
        layer=describe(task),
        kind=kind_of(task),
        flops=task.flops,
        us=times,
        gflops=task.flops / times["retune"] / 1e3,
        ceiling_gflops=max(before.gflops, after.gflops),
        share=1e6 * least / times["retune"],
    )


def main() -> None:
    """Measures the layers of the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--trials", type=int, default=128, help="0: use what the store has")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each layer")
    parser.add_argument("--steps", nargs="*", default=list(STEP_NETWORKS), metavar="NETWORK")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tasks = [reference_task(), *heavy_tasks(options.networks).values()]
    networks = [_layer(task) for task in tasks]
    if options.trials:
        tune(networks, options.trials, options.records)
    rows: list[Row] = []
    for task, network in zip(tasks, networks, strict=True):
        rows.append(measure(task, network, options))
        print(show(rows[-1]), flush=True)
    print(f"the reference shape reached {rows[0].share:.0%} in this window")
    for model in options.steps:
        for row in step_rows(model, options.records, options.seconds):
            rows.append(row)
            print(show(row), flush=True)
    print("\n".join(summary(rows[1:])))
    if options.json:
        found: list[Mapping[str, object]] = [asdict(row) for row in rows]
        options.json.write_text(json.dumps(found, indent=1))


def _layer(task: Task) -> ImportedNetwork:
    path = write_layer(task, cache_root() / "layers" / f"{task.key}.onnx")
    return import_network(str(path), {}, "NHWC", cache_root())


if __name__ == "__main__":
    main()
