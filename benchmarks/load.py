"""Load of a bundle in fresh processes: wall and processor time, and peak memory of its weights.

    python -m benchmarks.load build/module
    python -m benchmarks.load net.zip --against ../other-checkout

Times are of `Module.load`: opening the device and the first call of its driver included, imports of
`retune` not. The memory is the peak above what a process with an open device holds, which loads
the same bundle. Compiled programs come from the bundle alone (`retune pack --with-binaries`). With
another checkout, processes take turns. The floor beside them is a process that opens PoCL, gives
it the compiled programs, and hashes and copies the weights, by as many threads, without a plan.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter, process_time

from benchmarks.command import parser_of
from retune.bundle.format import WEIGHTS, read_outline
from retune.bundle.hashing import hashing
from retune.bundle.runtime.module import Module
from retune.bundle.weights import map_file
from retune.device.opencl.catalogue import find_bare, opencl
from retune.device.opencl.pages import in_huge_pages
from retune.device.opencl.runtime import open_device

ROOT = Path(__file__).resolve().parents[1]


def timed(bundle: str) -> list[float]:
    """Seconds and seconds of processor time of a load, and of load and first call."""
    wall, busy = perf_counter(), process_time()
    module = Module.load(bundle)
    loaded = perf_counter() - wall, process_time() - busy
    inputs = module.random_inputs()
    wall_s = perf_counter()
    module.run(inputs)
    return [*loaded, perf_counter() - wall_s]


def held(bundle: str) -> list[float]:
    """MiB of the weights, and of the peak above that of the open device."""
    from benchmarks.memory import resident_mib  # the whole library, whose objects slow a load down

    device = open_device("pocl")
    floor = resident_mib("VmRSS")
    module = Module.load(bundle, device)
    return [module.memory.weight_bytes / 2**20, resident_mib("VmHWM") - floor]


def floor(bundle: str) -> list[float]:
    """Seconds and seconds of processor time of what no load on PoCL does without."""
    binaries = read_outline(Path(bundle)).binaries.values()
    wall, busy = perf_counter(), process_time()
    weights = map_file(Path(bundle) / WEIGHTS)
    with hashing(weights, "sha256") as digest:
        cl = opencl()
        context = cl.Context([find_bare("pocl")[1]])
        memory = in_huge_pages(len(weights))
        cl.Buffer(context, cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
        copying = Thread(target=lambda: memory.__setitem__(slice(None), weights))
        copying.start()
        for binary in binaries:
            cl.Program(context, context.devices, [binary]).build(cache_dir=False)
        copying.join()
        digest()
    return [perf_counter() - wall, process_time() - busy]


CHILDREN = {"timed": timed, "held": held, "floor": floor}


def in_child(what: str, bundle: Path, root: Path) -> list[float]:
    """What `timed`, `held` or `floor` finds in a fresh process with that checkout's library."""
    command = [sys.executable, "-m", "benchmarks.load", str(bundle), "--child", what]
    path = os.pathsep.join((str(root / "lib"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "RETUNE_PROGRAMS": "off"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints a line for each checkout, and of a folder the floor: medians of all its processes and
    the least of them."""
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--processes", type=int, default=9)
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(CHILDREN[given.child](str(given.bundle))))
        return
    bundle = given.bundle.resolve()
    roots = [ROOT, *([given.against.resolve()] if given.against else [])]
    times: dict[Path, list[list[float]]] = {root: [] for root in roots}
    least: list[list[float]] = []
    for _ in range(given.processes):
        for root in roots:
            times[root].append(in_child("timed", bundle, root))
        if bundle.is_dir():
            least.append(in_child("floor", bundle, ROOT))
    for root, found in times.items():
        walls, busy, firsts = ((median(row), min(row)) for row in zip(*found, strict=True))
        weights, peak = in_child("held", bundle, root)
        print(
            f"{root.name}: load {walls[0]:.3f} s (least {walls[1]:.3f}), processor time "
            f"{busy[0]:.3f} s (least {busy[1]:.3f}), first call {firsts[0]:.3f} s; "
            f"peak {peak:.0f} MiB, {peak / weights:.2f} of {weights:.0f} MiB of weights"
        )
    if least:
        walls, busy = ((median(row), min(row)) for row in zip(*least, strict=True))
        print(
            f"floor: {walls[0]:.3f} s (least {walls[1]:.3f}), processor time {busy[0]:.3f} s "
            f"(least {busy[1]:.3f})"
        )


if __name__ == "__main__":
    main()
