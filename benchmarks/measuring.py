"""Whether a candidate's time depends on how it is measured: its companions, and the repeats.

    python -m benchmarks.measuring conv3x3_large conv1x1

Random candidates of a layer are timed three ways, in turns: built together with others in one
program, as a search does; each in a program of its own; and so with longer repeats. Printed are,
against the first way, the rank correlation of the candidates' times and the median of their ratios;
how far a way's own times lie apart from turn to turn; and the seconds that building takes.
"""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.command import parser_of
from benchmarks.replay_layers import LAYERS
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.device.measure.messages import (
    Build,
    Check,
    Checked,
    LoadArrays,
    Refused,
    Time,
    Timed,
    Warm,
)
from retune.device.measure.worker import Worker
from retune.device.measure.workload import MeasureOptions, Workload, packed_weights
from retune.device.opencl.building import MAX_SHARING
from retune.device.opencl.runtime import Device, open_device
from retune.search.model.ranks import rank_correlation
from retune.search.task import Task
from retune.targets.devices import target_of

_LONGER = 2
"""How much longer the longer repeats last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of building and timing the candidates."""

    name: str
    indices: Sequence[int]
    """What the worker knows each candidate by."""
    options: MeasureOptions
    build_s: float
    """Of a candidate, on average."""


class Trial:
    """Candidates of one layer, built in several ways."""

    def __init__(self, device: Device, task: Task, number: int, seed: int) -> None:
        space = task.space(device.spec)
        chosen = space.sample(number, np.random.default_rng(seed))
        self._workload: Workload = task.workload()
        self._worker = Worker(device)
        self._numbers = count()
        self.candidates: list[ProgramSource] = [
            lower(space.instantiate(space.candidate(chosen, i)), target_of(device.spec))
            for i in range(len(chosen))
        ]
        load = LoadArrays(
            inputs=self._workload.inputs,
            outputs=self._workload.outputs,
            positions=self._workload.positions,
            rtol=self._workload.rtol,
            atol=self._workload.atol,
        )
        self._worker.handle(load)

    def build(self, sharing: int) -> tuple[list[int], float]:
        """Indices of the candidates, built that many in a program, and the seconds of each one."""
        start = time.perf_counter()
        indices: list[int] = []
        for first in range(0, len(self.candidates), sharing):
            part = self.candidates[first : first + sharing]
            request = Build(jobs={next(self._numbers): source.unpacked for source in part})
            for step in (request, Warm(indices=tuple(request.jobs))):
                if isinstance(reply := self._worker.handle(step), Refused):
                    raise SystemExit(f"a candidate does not build: {reply.error}")
            indices += request.jobs
        return indices, (time.perf_counter() - start) / len(self.candidates)

    def time(self, number: int, way: Way) -> float:
        """Median microseconds of a candidate. Raises: SystemExit if it is wrong."""
        constants = packed_weights(self._workload, self.candidates[number])
        checked = self._worker.handle(Check(index=way.indices[number], constants=constants))
        if not isinstance(checked, Checked):
            raise SystemExit(f"candidate {number} is wrong: {checked}")
        timed = self._worker.handle(Time(options=way.options, best_cost=None, calm_us=None))
        assert isinstance(timed, Timed)
        return statistics.median(timed.times_us)


def compare(trial: Trial, rounds: int) -> list[str]:
    """A line for each way."""
    options = MeasureOptions()
    longer = replace(options, min_repeat_ms=_LONGER * options.min_repeat_ms)
    together, together_s = trial.build(MAX_SHARING)
    alone, alone_s = trial.build(1)
    ways = [
        Way(name=f"{MAX_SHARING} together", indices=together, options=options, build_s=together_s),
        Way(name="alone", indices=alone, options=options, build_s=alone_s),
        Way(name="alone, longer", indices=alone, options=longer, build_s=alone_s),
    ]
    times = np.zeros((len(ways), rounds, len(trial.candidates)))
    for turn in range(rounds):
        for number in range(len(trial.candidates)):
            for place in np.roll(range(len(ways)), turn):
                times[place, turn, number] = trial.time(number, ways[place])
    medians = np.median(times, axis=1)
    apart = np.abs(np.log(times / medians[:, None])).mean(axis=(1, 2))
    return [
        f"  {way.name:14} rank correlation {rank_correlation(medians[0], own):.3f}, median ratio "
        f"{np.median(own / medians[0]):.3f}, turns {spread:.1%} apart, built in {way.build_s:.2f} s"
        for way, own, spread in zip(ways, medians, apart, strict=True)
    ]


def main() -> None:
    """Prints a table for each layer."""
    parser = parser_of(__doc__)
    parser.add_argument("layers", nargs="*", default=["conv3x3_large", "conv1x1"])
    parser.add_argument("--candidates", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        os.environ["POCL_CACHE_DIR"] = folder  # what is built here is built from nothing
        device = open_device("pocl")
        for layer in options.layers:
            trial = Trial(device, LAYERS[layer](), options.candidates, options.seed)
            print(f"{layer}: {options.candidates} candidates, {options.rounds} turns")
            print("\n".join(compare(trial, options.rounds)), flush=True)


if __name__ == "__main__":
    main()
