"""Peak memory of a bundle and of other runtimes, each in a process of its own.

    python -m benchmarks.memory zoo:resnet50_v1

A process imports its runtime and opens its device; what it holds then is the floor. It loads the
network, runs it a few times, and reports the peak of its resident memory above that floor. The
bundle is compiled once before, as on a second start: what the driver's compiler takes at the very
first load is stated apart. The peers read the same network as an ONNX file.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import parser_of
from benchmarks.networks import known_candidates
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module, random_inputs
from retune.bundle.verify.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.core.dtypes import TensorType
from retune.device.opencl.catalogue import device_spec
from retune.device.opencl.runtime import open_device
from retune.records.store import RecordStore

PEERS = ("onnxruntime", "openvino")
_RUNS = 10


def child(runtime: str, path: str) -> dict[str, float]:
    """Floor and peak of this process in MiB."""
    if runtime == "retune":
        device = open_device("pocl")
        floor = resident_mib("VmRSS")
        module = Module.load(path, device)
        for _ in range(_RUNS):
            module.run(module.random_inputs())
        return {"floor": floor, "peak": resident_mib("VmHWM"), "planned": module.peak_bytes / 2**20}
    types = json.loads(os.environ["RETUNE_BENCH_INPUTS"])
    feeds = random_inputs({n: TensorType(tuple(shape), kind) for n, (shape, kind) in types.items()})
    import_module(runtime)
    floor = resident_mib("VmRSS")
    peer = open_peer(runtime, Path(path))
    for _ in range(_RUNS):
        peer(feeds)
    return {"floor": floor, "peak": resident_mib("VmHWM")}


def resident_mib(field: str) -> float:
    """Resident memory of this process now (VmRSS) or at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def in_child(runtime: str, path: Path, inputs: Mapping[str, object]) -> dict[str, float]:
    """What `child` finds in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.memory", "--child", runtime, str(path)]
    environment = {**os.environ, "RETUNE_BENCH_INPUTS": json.dumps(inputs)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(model: str, records: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Floor, peak and their difference in MiB, by runtime."""
    network = import_network(model, {}, "NHWC", cache_root())
    spec = device_spec("pocl")
    chosen = known_candidates(network.network, RecordStore(records), spec)
    plan = build_plan(network.network, chosen, spec, model_key=model, notes={})
    write_bundle(plan, folder / "module")
    types = network.network.graph.types
    inputs = {n: (types[n].shape, types[n].dtype) for n in network.network.graph.inputs}
    found = {"retune, first load": in_child("retune", folder / "module", inputs)}
    found["retune"] = in_child("retune", folder / "module", inputs)
    for peer in PEERS:
        if find_spec(peer) is not None:
            found[peer] = in_child(peer, Path(network.onnx), inputs)
    return found


def main() -> None:
    """Prints a line for each network and runtime."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=["zoo:resnet50_v1"])
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child)))
        return
    for model in options.networks:
        with TemporaryDirectory() as folder:
            for name, row in measure(model, options.records, Path(folder)).items():
                above = row["peak"] - row["floor"]
                planned = f", planned {row['planned']:.0f}" if "planned" in row else ""
                print(
                    f"{model:20} {name:20} peak {row['peak']:6.0f} MiB, {above:6.0f} above the "
                    f"runtime itself{planned}"
                )


if __name__ == "__main__":
    main()
