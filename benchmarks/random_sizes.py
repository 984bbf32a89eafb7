"""Random networks with open dimensions at several sizes: which are wrong, and what fixes sizes.

`python -m benchmarks.random_sizes --count 500 [--first SEED] [--steps 5] [--sizes 5] [--seconds S]`
With `--counted` they keep as many rows as their data say, and have dense layers behind that.
Each network is compiled once by default schedules for one of the devices that PoCL stands for, in
turns, and compared with onnxruntime. One in five is compiled as a user's network is; for the others
PoCL does not optimise and no estimate chooses programs. Failures name their seed;
`tests/device/test_random_sizes.py` runs the same ones. Ends with 1 if some network failed.
"""

import argparse
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_stack, extract_tb

from retune.core import dims
from tests.support.random_sizes import random_counted, random_sized
from tests.support.sized_ways import WAYS, Compiled, fixes_a_size

_THOROUGH = 5
"""One network in so many is compiled as a user's is."""


@contextmanager
def askers() -> Generator[Counter[str]]:
    """Counts the functions whose questions fix a size, by the line that asks."""
    found: Counter[str] = Counter()
    note = dims.Assumptions.note

    def noted(self: dims.Assumptions, condition: dims.Condition) -> None:
        before = len(self.conditions)
        note(self, condition)
        if fixes_a_size(condition) and len(self.conditions) > before:
            # What makes a random network may ask, too.
            lines = [f for f in extract_stack() if {"retune", "tests"} & {*Path(f.filename).parts}]
            asker = next(f for f in reversed(lines) if not f.filename.endswith("dims.py"))
            place = asker.filename.rpartition("retune/")[2]
            found[f"{place}:{asker.lineno} {asker.name}: {condition}"] += 1

    dims.Assumptions.note = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        dims.Assumptions.note = note  # type: ignore[method-assign]


def failure(error: Exception) -> str:
    """One line: what it says, and where it was raised."""
    *_, last = extract_tb(error.__traceback__)
    place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:300]}"


def main() -> int:
    """Reports on networks as they are asked for; the exit code says whether all are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("first", 0), ("count", 500), ("steps", 5), ("sizes", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--counted", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    start, right, wrong, variants = time.monotonic(), 0, 0, Counter[int]()
    with askers() as found:
        for seed in range(args.first, args.first + args.count):
            if time.monotonic() - start > args.seconds:
                break
            make, way = random_counted if args.counted else random_sized, WAYS[seed % len(WAYS)]
            sized = make(seed, args.steps)
            quick = seed % _THOROUGH != 0
            made = Compiled(sized, *way, counts=args.counted, quick=quick)
            try:
                made.assert_right(sized.some(seed, args.sizes), seed)
            except Exception as error:  # noqa: BLE001 - one does not end the others
                wrong += 1
                ranges = " ".join(map(str, sized.sizes))
                print(f"seed {seed} {way} {ranges}: {failure(error)}", flush=True)
                continue
            right += 1
            variants[len(made.traces)] += 1
    programs = sum(n * count for n, count in variants.items()) / max(1, right)
    print(f"{right + wrong} networks, {right} right, {programs:.2f} variants each")
    print("variants: networks", dict(sorted(variants.items())))
    for asker, count in found.most_common():
        print(f"fixes a size: {count} times {asker}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
