"""Runs generated kernels on another OpenCL implementation, compared with their numpy meaning:

    python -m tests.implementations rusticl-0 2000 --first 0

A process of its own runs them, so that one that the driver crashes at, or hangs at, is a difference
as well. Ends with a line for each difference, and the number of kernels of each strategy.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread

from retune.core.errors import DeviceError
from retune.device.opening import open_device
from tests.implementations.kernels import Kernel
from tests.support.processes import busy_s

WAITING = 30
"""Times the deadline that a kernel may take on a busy machine."""


def run(device: str, first: int, end: int) -> None:
    """A line of JSON before each kernel and one behind it: its number, name and difference."""
    opened = open_device(device)
    for number in range(first, end):
        print(json.dumps([number]), flush=True)
        kernel = Kernel.of(number)
        print(json.dumps([number, kernel.name]), flush=True)
        try:
            why = kernel.difference(opened)
        except DeviceError as error:
            why = f"{type(error).__name__}: {error}"
        print(json.dumps([number, kernel.name, why]), flush=True)


def outcomes(device: str, first: int, end: int, deadline_s: float) -> Iterator[tuple[str, str]]:
    """Name and difference of each kernel; after one that ends its process there is a new one."""
    while first < end:
        command = [sys.executable, "-m", "tests.implementations", device, str(end - first)]
        command += ["--first", str(first), "--here"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines: Queue[str] = Queue()
            Thread(target=_forward, args=(process, lines), daemon=True).start()
            name, why, begun = "?", "", False
            while first < end:
                line = _next(lines, process.pid, deadline_s)
                if line is None:
                    why = f"no answer in {deadline_s:g} s of processor time"
                    break
                if not line:
                    why = f"the process ended with {process.wait()}"
                    break
                begun = True
                match json.loads(line):
                    case [_, name, difference]:
                        yield name, difference
                        first += 1
                    case [_, name]:
                        pass
                    case _:
                        name = "?"
            process.kill()
        if not begun:
            raise SystemExit(f"device {device}: {why}")
        if first < end:
            yield f"{name} (kernel {first})", why
            first += 1


def _next(lines: "Queue[str]", pid: int, deadline_s: float) -> str | None:
    """The next line, unless the process computes, or waits, for too long before it says it."""
    most_s = busy_s(pid) + deadline_s
    for _ in range(WAITING):
        with suppress(Empty):
            return lines.get(timeout=deadline_s)
        if busy_s(pid) > most_s:
            break
    return None


def _forward(process: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put("")


def main() -> None:
    """Ends with exit code 1 if there are differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.implementations", description=__doc__)
    parser.add_argument("device")
    parser.add_argument("kernels", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument(
        "--deadline", type=float, default=120.0, help="seconds of processor time for each kernel"
    )
    parser.add_argument("--here", action="store_true", help="run them in this process")
    given = parser.parse_args()
    end = given.first + given.kernels
    if given.here:
        run(given.device, given.first, end)
        return
    counts, differences = Counter[str](), 0
    numbered = outcomes(given.device, given.first, end, given.deadline)
    for number, (name, why) in enumerate(numbered, given.first):
        counts[name.partition(" (")[0]] += 1
        if why:
            differences += 1
            print(f"DIFFERENCE {number}: {name}: {why}"[:2000], flush=True)
        if number % 100 == 99:
            print(f"{number + 1 - given.first} kernels, {differences} differences", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    print(f"{counts.total()} kernels of {len(counts)} strategies, {differences} differences")
    raise SystemExit(1 if differences else 0)


if __name__ == "__main__":
    main()
