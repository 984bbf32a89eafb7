"""Convolution and dense layers: speed, share of the machine's ceiling, and ratio to peers.

    python -m benchmarks.kernels --trials 64 zoo:resnet50_v1

Every distinct layer is tuned with random trials (or taken from the record store with
`--trials 0`), then timed in turns with onnxruntime (and openvino where it is installed) on a model
of that one layer. The register-only multiply-add ceiling of this machine is timed beside each
layer, since it drifts. Ours is kernel time with enqueueing and waiting, without copies of input
and output; the peers' is their call.
"""

import argparse
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.layers import heavy_tasks, write_layer
from benchmarks.networks import known_candidates
from retune.api import import_network, tune_network
from retune.bundle.bench import BenchOptions, compare_times
from retune.bundle.build import build_plan
from retune.bundle.module import Module
from retune.bundle.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.device.reference import Reference
from retune.device.runtime import device_spec, open_device
from retune.records.store import RecordStore
from retune.search.task import Task

NETWORKS = ("zoo:resnet50_v1", "zoo:vgg19_bn", "zoo:mobilenet", "zoo:inception_v3")
PEERS = ("onnxruntime", "openvino")


def measure(task: Task, options: argparse.Namespace) -> dict[str, object]:
    """One layer: times in microseconds, GFLOPS, share of the ceiling."""
    path = write_layer(task, cache_root() / "layers" / f"{task.key}.onnx")
    if options.trials:
        out = cache_root() / "layers" / task.key
        tune_network(str(path), out, trials=options.trials, records=options.records)
    network = import_network(str(path), {}, "NHWC", cache_root())
    spec = device_spec("pocl")
    chosen = known_candidates(network, RecordStore(options.records), spec)
    plan = build_plan(network.network, chosen, spec, model_key=task.key, notes={})
    device = open_device("pocl")
    module = Module(plan, device)
    feeds = module.random_inputs()
    module.run(feeds)
    kernels = {k for k in plan.kernels if not k.startswith("transpose")}
    reference = Reference(device)
    contenders: dict[str, Callable[[], object]] = {"retune": lambda: module.run_kernels(kernels)}
    for name in PEERS:
        if find_spec(name) is not None:
            peer = open_peer(name, path)
            contenders[name] = lambda peer=peer: peer(feeds)
    before = reference.gflops()
    outcome = compare_times(contenders, options=BenchOptions(budget_s=options.seconds))
    ceiling = max(before, reference.gflops())
    times = {t.name: 1e6 * t.median_s for t in outcome.timings}
    gflops = task.flops / times["retune"] / 1e3
    return {
        "layer": describe(task),
        "flops": task.flops,
        "us": times,
        "gflops": gflops,
        "ceiling_gflops": ceiling,
        "share": gflops / ceiling,
    }


def describe(task: Task) -> str:
    """Kind, kernel, stride and shapes of a layer."""
    data, weight = task.input_shapes[0], task.input_shapes[1]
    kernel = "x".join(map(str, weight[2:])) or "dense"
    stride = f" s{task.stride}" if task.stride and task.stride > 1 else ""
    kind = "depthwise " if task.op.startswith("depthwise") else ""
    shapes = f"{'x'.join(map(str, data[1:]))} -> {'x'.join(map(str, task.output_shape[1:]))}"
    return f"{kind}{kernel}{stride} {shapes}"


def main() -> None:
    """Measures the layers of the networks named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--trials", type=int, default=64, help="0: use what the store has")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each layer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for task in heavy_tasks(options.networks).values():
        row = measure(task, options)
        rows.append(row)
        times = row["us"]
        assert isinstance(times, dict)
        ratios = "  ".join(
            f"{name} {times['retune'] / us:.2f}x" for name, us in times.items() if name != "retune"
        )
        print(
            f"{row['layer']:44} {times['retune']:9.1f} us {row['gflops']:6.0f} GFLOPS "
            f"{row['share']:4.0%} of {row['ceiling_gflops']:.0f}  {ratios}",
            flush=True,
        )
    shares = [float(str(r["share"])) for r in rows]
    print(f"share of the ceiling: geometric mean {np.exp(np.mean(np.log(shares))):.0%}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
