"""Two checkouts of this repository: whole networks with default schedules, in turns.

    python -m benchmarks.checkouts ../before . zoo:mobilenet int8:zoo:mobilenet

Each checkout compiles and runs a network in a process of its own, with its own code and environment
(`.venv`). The two take turns, one block of calls each, until the seconds for a network are over.
Prints the medians, their ratio (second over first) and the geometric mean of the ratios.
`int8:MODEL` is the network quantized with random samples. Differences of outputs are stated.
"""

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean

_BLOCK_S = 0.15
"""Calls of one turn take about so long."""

WORKER = """
import sys, time, zlib
import numpy as np
from benchmarks import int8, networks
model, device = sys.argv[1:]
opened = networks.open_device(device)
if model.startswith("int8:"):
    graph = int8.load_model(model.removeprefix("int8:"))
    made = int8.quantize(graph, int8.samples_of(graph), int8.QuantizeSettings())
    module = int8.compiled(made, opened, int8.Path("no-records"))
else:
    network = networks.import_network(model, {}, "NHWC", networks.cache_root())
    module = networks.compiled_twice(network, {}, opened)["default"]
feeds = module.random_inputs()
outputs = module.run(feeds)
largest = max(float(np.abs(array.astype(np.float64)).max()) for array in outputs.values())
print(zlib.crc32(b"".join(array.tobytes() for array in outputs.values())), largest, flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    for _ in range(int(line)):
        module.run(feeds)
    print(time.perf_counter() - begin, flush=True)
"""


@contextmanager
def opened(checkout: Path, model: str, device: str) -> Generator[subprocess.Popen[str]]:
    """A process of that checkout that has compiled the network and waits for turns."""
    root = checkout.resolve()
    python = root / ".venv/bin/python"
    process = subprocess.Popen(
        [str(python) if python.exists() else sys.executable, "-c", WORKER, model, device],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'lib'}{os.pathsep}{root}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answer(process: subprocess.Popen[str]) -> str:
    """The process's next line. Raises: SystemExit if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args}: ended without an answer")
    return line.strip()


def seconds_of(process: subprocess.Popen[str], calls: int) -> float:
    """Seconds of one call, over so many in a row."""
    assert process.stdin is not None
    process.stdin.write(f"{calls}\n")
    process.stdin.flush()
    return float(answer(process)) / calls


def compare(
    model: str, checkouts: tuple[Path, Path], device: str, budget_s: float
) -> tuple[float, float, bool]:
    """Median seconds of a call in each checkout, and whether the outputs are equal bit by bit."""
    with (
        opened(checkouts[0], model, device) as first,
        opened(checkouts[1], model, device) as second,
    ):
        processes = (first, second)
        same = len({answer(process) for process in processes}) == 1
        calls = max(1, round(_BLOCK_S / min(seconds_of(process, 3) for process in processes)))
        times: tuple[list[float], list[float]] = ([], [])
        until = time.monotonic() + budget_s
        turn = 0
        while time.monotonic() < until or turn % 2:
            order = (0, 1) if turn % 2 else (1, 0)
            for which in order:
                times[which].append(seconds_of(processes[which], calls))
            turn += 1
    return median(times[0]), median(times[1]), same


def main() -> None:
    """Compares the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each network")
    options = parser.parse_args()
    ratios: list[float] = []
    for model in options.networks:
        checkouts = (options.before, options.after)
        before, after, same = compare(model, checkouts, options.device, options.seconds)
        ratios.append(after / before)
        equal = "outputs equal" if same else "outputs differ"
        times = f"{1e3 * before:8.3f} ms  {1e3 * after:8.3f} ms  {ratios[-1]:5.3f}x"
        print(f"{model:26} {times}  {equal}", flush=True)
    print(f"geometric mean {geometric_mean(ratios):.3f}x")


if __name__ == "__main__":
    main()
