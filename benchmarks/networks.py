"""Whole networks against other runtimes, interleaved in one run.

    python -m benchmarks.networks --records artifacts/records light:resnet50 zoo:mobilenet
    python -m benchmarks.networks --bundles tuned=build/tuned --bundles before=build/before

Each network is compiled with default schedules and from the record store, and runs in turns with
onnxruntime (and openvino where it is installed) on the same inputs and cores. `--bundles NAME=DIR`
has bundles of `benchmarks.bundles` take part under that name; `tuned` in place of the store's, and
those of another version beside them. Prints medians and ratios, and geometric means at the end;
`--json FILE` writes the same as data.
"""

import argparse
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.api import ImportedNetwork, import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import Device, open_device
from retune.graph.passes.precision import Precision
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.conditions import network_conditions
from retune.search.extract import Network
from retune.search.history import best_candidate

NETWORKS = (
    "zoo:squeezenet_v1.1", "zoo:resnet18_v1", "zoo:resnet50_v1", "zoo:vgg19_bn", "zoo:mobilenet",
    "light:inception_v1", "light:inception_v2", "light:densenet121", "light:shufflenet",
    "light:alexnet",
)  # fmt: skip
PEERS = ("onnxruntime", "openvino")
OWN_PRECISION = "openvino, own precision"
FASTER = "the faster peer"


def known_candidates(
    network: Network, store: RecordStore, spec: DeviceSpec
) -> dict[str, Candidate]:
    """The best recorded candidate of each task that has one."""
    found: dict[str, Candidate] = {}
    where = network_conditions(spec, network.tasks.values()).comparable
    for task in network.tasks.values():
        if not task.tunable:
            continue
        best = best_candidate(store, task.key, where, task.space(spec))
        if best is not None:
            found[task.key] = best[0]
    return found


def compiled_twice(
    network: ImportedNetwork, chosen: Mapping[str, Candidate], device: Device
) -> dict[str, Module]:
    """The network with default schedules (`default`), and with those chosen (`tuned`)."""
    key = str(network.onnx)
    return {
        name: Module(
            build_plan(network.network, pick, device.spec, model_key=key, notes={}), device
        )
        for name, pick in (("default", {}), ("tuned", chosen))
    }


def folder_of(model: str) -> str:
    """Name of the folder of a network's bundle."""
    return model.replace(":", "-").replace("/", "_")


def measure(
    model: str, options: argparse.Namespace, bundles: Mapping[str, Path]
) -> dict[str, object]:
    """One network: medians in milliseconds by contender, deviation, and memory."""
    opened = open_device(options.device)
    wanted = Precision(own=opened.spec.stored, stored=DType(options.precision))
    network = import_network(model, {}, "NHWC", cache_root(), precision=wanted)
    chosen = known_candidates(network.network, RecordStore(options.records), opened.spec)
    modules = compiled_twice(network, {} if "tuned" in bundles else chosen, opened)
    if wanted.changes:
        whole = import_network(model, {}, "NHWC", cache_root())
        modules[FLOAT32] = compiled_twice(whole, {}, opened)["default"]
    for name, folder in bundles.items():
        modules[name] = Module.load(folder / folder_of(model) / "module", opened)
    feeds = modules["tuned"].random_inputs()
    contenders = {n: (lambda m=m: m.run(feeds)) for n, m in modules.items()}
    peers = {n: open_peer(n, network.onnx) for n in PEERS if find_spec(n) is not None}
    if options.own_precision:
        peers[OWN_PRECISION] = open_peer("openvino", network.onnx, own_precision=True)
    contenders |= {n: (lambda p=p: p(feeds)) for n, p in peers.items()}
    outcome = compare_times(contenders, options=BenchOptions(budget_s=options.seconds))
    tuned = modules["tuned"]
    check = verify(tuned, peers["onnxruntime"], tuned.random_inputs, samples=1)
    return {
        "network": model,
        "gflop": network.flops / 1e9,
        "median_ms": {t.name: 1e3 * t.median_s for t in outcome.timings},
        "rounds": outcome.rounds,
        "deviation": check.max_rel_range,
        "peak_bytes": modules["tuned"].peak_bytes,
    }


def show(row: dict[str, object]) -> str:
    """One line for a network."""
    times = row["median_ms"]
    assert isinstance(times, dict)
    tuned = times["tuned"]
    parts = [f"{row['network']:22} {row['gflop']:6.2f} GFLOP"]
    parts += [f"{name} {ms:8.2f} ms ({tuned / ms:4.2f}x)" for name, ms in times.items()]
    return "  ".join(parts) + f"  deviation {row['deviation']:.1e}"


def ratios_to(rows: list[dict[str, object]], peer: str) -> list[float]:
    """Time of the tuned bundle over that contender's, for each network that it ran."""
    found: list[float] = []
    for row in rows:
        times = row["median_ms"]
        assert isinstance(times, dict)
        peers = [
            ms for name, ms in times.items() if name == peer or (peer == FASTER and name in PEERS)
        ]
        if peers:
            found.append(times["tuned"] / min(peers))
    return found


def main() -> None:
    """Measures the networks named on the command line, or all of NETWORKS."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--bundles", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each network")
    parser.add_argument("--precision", choices=(FLOAT32, BFLOAT16, FLOAT16), default=FLOAT32)
    parser.add_argument("--own-precision", action="store_true", help="OpenVINO as it comes, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bundles = {
        name: Path(folder) for name, _, folder in (b.partition("=") for b in options.bundles)
    }
    rows: list[dict[str, object]] = []
    for model in options.networks:
        rows.append(measure(model, options, bundles))
        print(show(rows[-1]), flush=True)
    for name in (
        *(n for n in ("default", FLOAT32, *bundles) if n != "tuned"),
        *PEERS,
        OWN_PRECISION,
        FASTER,
    ):
        ratios = ratios_to(rows, name)
        if ratios:
            mean = geometric_mean(ratios)
            print(f"tuned / {name}: geometric mean {mean:.3f}, worst {max(ratios):.3f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
