"""What the records of a network are worth: their fastest kernels are measured again.

    python -m benchmarks.headroom --device pocl --records artifacts/records zoo:resnet18_v1

A search keeps the least of many noisy times, so a part of a recorded gain is luck. Of each task the
default schedule and the fastest recorded ones are measured again, in so many rounds, as the search
measured them. Printed is, for each network, the sum over its layers of the time of the default
schedules; and as parts of it, judged by the later half of the rounds, that of the schedules chosen
by the records alone, and by the earlier half of the rounds. The last column chooses and judges by
the later rounds: no choice among these schedules gains more. `--layers N` prints the N layers with
the largest gains. What the layers sum up to is a bound: a network has launches and waits beside.
"""

from argparse import Namespace
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.api import import_network
from retune.codegen.source import ProgramSource
from retune.core.target import DeviceSpec
from retune.device.measure.local import LocalRunner
from retune.pipeline.precision import precision_named
from retune.records.cost import measured_costs
from retune.records.ranking import Where
from retune.records.store import RecordStore
from retune.schedule.space import Candidate
from retune.search.batch import measure_programs
from retune.search.conditions import network_conditions, network_options, usual_options
from retune.search.history import best_candidates
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of

CHOOSERS = ("records", "rounds", "hindsight")
"""Who choose a schedule: the records, the earlier rounds, and the later rounds, which judge."""
Times = Mapping[str, float]
"""By who chooses, the default among them."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layer:
    """A task's default schedule and its fastest recorded ones."""

    task: Task
    recorded: int
    """Which of them is the fastest by the records."""
    costs: np.ndarray
    """Microseconds, the default first; NaN for a failure. float64 [rounds, n]"""

    def times(self) -> Times:
        """Microseconds in the network by who chooses, each judged by the later rounds."""
        half = len(self.costs) // 2
        chosen_by, judge = (np.nanmedian(part, axis=0) for part in np.split(self.costs, [half]))
        fastest = {
            "default": 0,
            "records": self.recorded,
            "rounds": int(np.nanargmin(chosen_by)),
            "hindsight": int(np.nanargmin(judge)),
        }
        return {name: self.task.weight * float(judge[i]) for name, i in fastest.items()}


def programs_of(
    task: Task, spec: DeviceSpec, store: RecordStore, where: Where, count: int
) -> tuple[list[ProgramSource], int]:
    """Of the default schedule and the fastest recorded others, and which of them is the fastest by
    the records: the default where there are none."""
    space = task.space(spec)
    default = default_candidate(space, spec)
    found = [c for c, _ in best_candidates(store, task.key, where, space, count)]
    every: list[Candidate] = [default, *(c for c in found if c != default)]
    fastest = every.index(found[0]) if found else 0
    return [task.source(space, candidate, target_of(spec)) for candidate in every], fastest


def layers_of(model: str, options: Namespace) -> list[Layer]:
    """The network's tasks, measured."""
    with LocalRunner(options.device) as runner:
        spec = runner.spec
        precision = precision_named(options.precision, spec)
        network = import_network(model, precision=precision).network
        tasks = [task for task in network.tasks.values() if task.searched]
        asked = usual_options(spec)
        where = network_conditions(spec, tasks, asked).comparable
        timing = network_options(tasks, asked)
        store = RecordStore(options.records)
        made = {t.key: programs_of(t, spec, store, where, options.fastest) for t in tasks}
        rounds: dict[str, list[np.ndarray]] = {task.key: [] for task in tasks}
        for task in tasks:
            runner.prepare(task.workload())
        for _ in range(options.rounds):
            for task in tasks:
                found = measure_programs(runner, task.workload_key(), made[task.key][0], timing)
                rounds[task.key].append(measured_costs(found)[1])
        return [
            Layer(task=t, recorded=made[t.key][1], costs=np.array(rounds[t.key])) for t in tasks
        ]


def lines(model: str, times: Mapping[str, Times], most: int) -> Iterator[str]:
    """The lines of a network, from the times of its layers by name."""
    whole = sum(us["default"] for us in times.values())
    parts = "  ".join(f"{name} {part:.3f}" for name, part in parts_of(times.values()).items())
    yield f"{model:48} {len(times):3} layers  default {whole:9.1f} us  {parts}"
    gained = sorted(times.items(), key=lambda entry: entry[1]["rounds"] - entry[1]["default"])
    for name, us in gained[:most]:
        yield f"    {name:60} {us['default']:9.1f} us  {us['rounds'] / us['default']:.3f}"


def parts_of(times: Collection[Times]) -> Times:
    """The layers' sums by who chooses, as parts of that of default schedules."""
    sums = {name: sum(us[name] for us in times) for name in ("default", *CHOOSERS)}
    return {name: sums[name] / sums["default"] for name in CHOOSERS}


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", help="as for `retune tune`")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--fastest", type=int, default=8, help="recorded schedules of each task")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--layers", type=int, default=0)
    options = parser.parse_args()
    parts: list[Times] = []
    for model in options.models:
        times = {each.task.name: each.times() for each in layers_of(model, options)}
        print("\n".join(lines(model, times, options.layers)), flush=True)
        parts.append(parts_of(times.values()))
    for name in CHOOSERS:
        print(f"{name} {geometric_mean([part[name] for part in parts]):.3f}")


if __name__ == "__main__":
    main()
