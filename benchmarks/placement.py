"""Instances of one program: how far their times differ by where their memory lies.

    python -m benchmarks.placement light:squeezenet --instances 8 --calls 200

Each instance is loaded by itself, between buffers of random sizes that stay, so that memory lies
elsewhere. All run in turns on one core, in random order, and what counts is the time of the
processor: other programs on the machine then disturb little. An instance's time is the mean of the
fastest tenth of its calls. `noise` is how far the times of even and odd calls of the same instance
differ, and `agreement` the correlation of both over the instances: near 1 where instances differ by
what they are, and not by chance. Pages are those of `retune.device.opencl.pages`: buffers get large
ones from so many bytes on.
"""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from benchmarks.command import parser_of
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.format import write_bundle
from retune.bundle.runtime.module import Module
from retune.device.opencl import pages
from retune.device.opencl.runtime import Device, open_device

VARIANTS = {"none": 1 << 40, "2 MiB": pages.HUGE_BYTES, "64 KiB": 1 << 16}
"""Large pages from so many bytes on."""
_ONE_CORE = {"POCL_CPU_MAX_CU_COUNT": "1", "POCL_MAX_PTHREAD_COUNT": "1"}


def main() -> None:
    """A row for each variant, each in a process of its own."""
    parser = parser_of(__doc__)
    parser.add_argument("network")
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS)
    options = parser.parse_args()
    if options.variant:
        print(_line(options), flush=True)
        return
    for variant in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.placement", *sys.argv[1:]]
        environment = {**os.environ, **_ONE_CORE}
        subprocess.run([*command, "--variant", variant], check=True, env=environment)


def _line(options: Namespace) -> str:
    """What instances of that variant took."""
    pages.LEAST_BYTES = VARIANTS[options.variant]
    rng = np.random.default_rng(options.seed)
    device = open_device("pocl")
    with TemporaryDirectory() as folder:
        bundle = _bundle(options.network, device, Path(folder) / "module")
        kept = [np.ones(int(rng.integers(1, 1 << 20)), np.uint8) for _ in range(options.instances)]
        modules = [Module.load(bundle, device) for _ in kept]
        times = _times(modules, options.calls, rng)
    each = _fastest(times)
    halves = [_fastest(times[start::2]) for start in (0, 1)]
    noise = float(np.abs(halves[0] / halves[1] - 1.0).mean())
    agreement = float(np.corrcoef(np.stack(halves))[0, 1])
    return (
        f"{options.network}, large pages from {options.variant:6}  {each.mean():8.3f} ms  "
        f"slowest / fastest {each.max() / each.min():.3f}  noise {noise:.3f}  "
        f"agreement {agreement:.2f}"
    )


def _bundle(network: str, device: Device, folder: Path) -> Path:
    """The network with default schedules, a launch for each step."""
    imported = import_network(network).network
    return write_bundle(build_plan(imported, {}, device.spec, model_key="", notes={}), folder)


def _times(modules: list[Module], calls: int, rng: np.random.Generator) -> np.ndarray:
    """Milliseconds of the processor. float64 [calls, modules]"""
    inputs = [module.random_inputs() for module in modules]
    for module, given in zip(modules, inputs, strict=True):
        module.run(given)
    times = np.zeros((calls, len(modules)))
    for call in range(calls):
        for number in rng.permutation(len(modules)):
            start = process_time()
            modules[number].run(inputs[number])
            times[call, number] = 1e3 * (process_time() - start)
    return times


def _fastest(times: np.ndarray) -> np.ndarray:
    """Of each instance. float64 [modules]"""
    return np.sort(times, axis=0)[: max(1, len(times) // 10)].mean(axis=0)


if __name__ == "__main__":
    main()
