"""Exported C programs against the Python executor: times in turns, and each one's peak memory.

    python -m benchmarks.export_c zoo:resnet18_v1

A network is compiled with the best of the record store, or with default schedules, exported, and
built by `cc` with the library that pyopencl brings along. Each round runs the program and, in a
process of its own, the same bundle by Python; both load it, warm up, and time whole calls, copies
included. The ratio is of the medians over all rounds.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.command import parser_of
from benchmarks.memory import resident_mib
from benchmarks.networks import known_candidates
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.export.loader import brought_link
from retune.bundle.export.program import export_c
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module
from retune.core.config import cache_root, records_root
from retune.device.opencl.catalogue import device_spec
from retune.device.opencl.runtime import open_device
from retune.records.store import RecordStore

_SAID = re.compile(
    r"time    ([\d.]+) ms median.*\nmemory  ([\d.]+) MB on the device, ([\d.]+) MB at the peak"
)


def child(bundle: Path, repeat: int) -> dict[str, float]:
    """Median milliseconds of a call by Python, and the peak of this process in MB."""
    module = Module.load(bundle, open_device("pocl"))
    seconds = module.benchmark(repeat=repeat, inputs=module.random_inputs())
    return {"ms": 1e3 * median(seconds), "peak": resident_mib("VmHWM") * 2**20 / 1e6}


def by_python(bundle: Path, repeat: int) -> dict[str, float]:
    """What `child` finds in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.export_c", "--child", str(bundle), str(repeat)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def by_program(folder: Path, words: list[str], repeat: int) -> dict[str, float]:
    """What the program says of itself."""
    command = ["./network", "--runs", str(repeat), *words]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    said = _SAID.search(done.stdout)
    assert said is not None, done.stdout
    ms, planned, peak = map(float, said.groups())
    return {"ms": ms, "planned": planned, "peak": peak}


def measure(model: str, records: Path, folder: Path, rounds: int, repeat: int) -> str:
    """A line that says how the two compare on a network, and whether their outputs are equal."""
    network = import_network(model, {}, "NHWC", cache_root())
    spec = device_spec("pocl")
    chosen = known_candidates(network.network, RecordStore(records), spec)
    plan = build_plan(network.network, chosen, spec, model_key=model, notes={})
    bundle, program = write_bundle(plan, folder / "module"), export_c(plan, folder / "c")
    command = ["make", "-s", f"OPENCL={brought_link()}"]
    subprocess.run(command, cwd=program, check=True)
    module = Module(plan, open_device("pocl"))
    feeds = module.random_inputs()
    expected = module.run(feeds)
    del module
    words: list[str] = []
    for number, (name, array) in enumerate(feeds.items()):
        np.save(program / f"in{number}.npy", array)
        words += ["--input", f"{name}=in{number}.npy"]
    for number, name in enumerate(expected):
        words += ["--output", f"{name}=out{number}.npy"]
    found = [(by_program(program, words, repeat), by_python(bundle, repeat)) for _ in range(rounds)]
    equal = all(
        np.array_equal(np.load(program / f"out{number}.npy"), array)
        for number, array in enumerate(expected.values())
    )
    own, python = (median(pair[i]["ms"] for pair in found) for i in (0, 1))
    peaks = [max(pair[i]["peak"] for pair in found[1:] or found) for i in (0, 1)]
    return (
        f"{model:20} C {own:.3f} ms, Python {python:.3f} ms, C/Python {own / python:.3f}; "
        f"peak C {peaks[0]:.0f} MB, Python {peaks[1]:.0f} MB, planned on the device "
        f"{found[0][0]['planned']:.0f} MB; outputs {'equal' if equal else 'DIFFER'}"
    )


def main() -> None:
    """Prints a line for each network."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=["zoo:resnet18_v1"])
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(Path(options.child[0]), int(options.child[1]))))
        return
    for model in options.networks:
        with TemporaryDirectory() as folder:
            line = measure(model, options.records, Path(folder), options.rounds, options.repeat)
            print(line)


if __name__ == "__main__":
    main()
