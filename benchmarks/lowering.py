"""Time of lowering and printing a candidate, of this checkout and another one, in turns.

    python -m benchmarks.lowering --against ../another-checkout

Processor time, the least of some rounds for each candidate, on layers of `replay_layers` for a CPU
and a GPU; candidates are those that both checkouts have. Each checkout has a process of its own,
which runs this file with that checkout's library.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.command import parser_of
from benchmarks.replay_layers import LAYERS
from benchmarks.table import geometric_mean
from retune.codegen.lower import lower
from retune.core.errors import RetuneError
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.stmt import Program

_HERE = Path(__file__).resolve()
_SERVE = "--serve"


class Checkout:
    """A process with the library of a checkout, which lowers what it is told to."""

    def __init__(self, folder: Path, count: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{folder / 'lib'}{os.pathsep}{folder}"}
        command = [sys.executable, str(_HERE), _SERVE, str(count)]
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        self.candidates: dict[str, list[str]] = self._answer()

    def seconds(self, layer: str, keys: list[str]) -> np.ndarray:
        """What each of these candidates took this time."""
        assert self._process.stdin is not None
        print(json.dumps([layer, keys]), file=self._process.stdin, flush=True)
        return np.array(self._answer())

    def _answer(self) -> Any:
        """Whatever the other process says."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def serve(count: int) -> None:
    """Says which candidates there are, then what those took that it reads the names of."""
    work: dict[str, dict[str, Callable[[], object]]] = {}
    for spec in (GENERIC_CPU, GENERIC_GPU):
        lowered = _lowering(spec)
        for name, make in LAYERS.items():
            space = make().space(spec)
            drawn = space.sample(count, np.random.default_rng(0))
            chosen = [*space.untuned(), *(space.candidate(drawn, i) for i in range(len(drawn)))]
            work[f"{spec.device_class} {name}"] = {
                c.key: lambda c=c, space=space, lowered=lowered: lowered(space.instantiate(c))
                for c in chosen
            }
    print(json.dumps({layer: list(found) for layer, found in work.items()}), flush=True)
    for line in sys.stdin:
        layer, keys = json.loads(line)
        gc.collect()
        print(json.dumps([_timed(work[layer][key]) for key in keys]), flush=True)


def _lowering(spec: DeviceSpec) -> Callable[[Program], object]:
    """`lower` for a device; that of older checkouts asked for no target."""
    if "target" not in signature(lower).parameters:
        return lower  # pyrefly: ignore[bad-return]
    from retune.targets.devices import target_of

    return partial(lower, target=target_of(spec))


def _timed(task: Callable[[], object]) -> float:
    start = process_time()
    with suppress(RetuneError):  # one without a program says so after as much work
        task()
    return process_time() - start


def main() -> None:
    """Prints milliseconds of a candidate and their ratio, layer by layer."""
    parser = parser_of(__doc__)
    parser.add_argument("--against", type=Path, required=True, help="a checkout of another version")
    parser.add_argument("--candidates", type=int, default=24, help="drawn from each space")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    folders = (options.against.resolve(), _HERE.parent.parent)
    before, after = (Checkout(folder, options.candidates) for folder in folders)
    ratios: list[float] = []
    print(f"{'layer':22} {'n':>3} {'before':>8} {'after':>8}  ms a candidate, and the ratio's mean")
    for layer, keys in before.candidates.items():
        common = [key for key in keys if key in after.candidates.get(layer, [])]
        if not common:
            print(f"{layer:22}   0")
            continue
        rounds = [
            [checkout.seconds(layer, common) for checkout in (before, after)]
            for _ in range(options.rounds)
        ]
        old, new = (np.min([r[side] for r in rounds], axis=0) for side in (0, 1))
        ratios.append(geometric_mean((new / old).tolist()))
        times = f"{1e3 * old.mean():8.2f} {1e3 * new.mean():8.2f}"
        print(f"{layer:22} {len(common):3} {times}  {ratios[-1]:.3f}x")
    print(f"geometric mean {geometric_mean(ratios):.3f}x")


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(int(sys.argv[2]))
    else:
        main()
