"""Convolutions of stride 1: direct against each form of Winograd, timed as tuning times them.

    python -m benchmarks.winograd zoo:vgg19_bn zoo:resnet18_v1 light:inception_v1

For every distinct layer that has a Winograd sketch: what an untuned build without and with
Winograd takes (`direct`, `default`), and the best of a few candidates that the static estimate
ranks first, of the direct sketches together (`tuned`) and of each Winograd sketch: `F4` by tiles
of size 4 in one nest, `F4.staged` in three. All in turns, with weights as far away as in the
network. `*` marks the form of the default, the number before is `direct` / `default`. At the end,
the sum of each over the layers as often as they occur.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.kernels import describe
from retune.api import import_network
from retune.codegen.lower import lower
from retune.core.target import DeviceSpec
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions
from retune.schedule.space import Candidate, Sketch, Space
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cpu.winograd import PREFIX
from retune.targets.devices import target_of

NETWORKS = ("zoo:vgg19_bn", "zoo:resnet18_v1", "light:inception_v1")
_POPULATION = 4096
_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer."""

    layer: str
    weight: int
    us: Mapping[str, float]
    """Best time of each kind of candidate."""
    form: str
    """The kind of the default candidate's sketch."""

    def __str__(self) -> str:
        """The times, `default` with how many times as fast as `direct` it is."""
        parts = [
            f"{kind}{'*' if kind == self.form else ''} {us:.0f}" for kind, us in self.us.items()
        ]
        gain = self.us["direct"] / self.us["default"]
        return f"{self.layer:36} x{self.weight}  {gain:4.2f}  {'  '.join(parts)}"


def measure(task: Task, runner: LocalRunner, options: MeasureOptions, count: int) -> Row:
    """The layer's times in microseconds."""
    space = task.space(runner.spec)
    chosen = candidates(space, runner.spec, count)
    programs = [lower(space.instantiate(c), target_of(runner.spec)) for _, c in chosen]
    workload = task.workload()
    runner.prepare(workload)
    us: dict[str, float] = {}
    for _ in range(_TURNS):
        measured = runner.measure(workload.key, programs, options)
        for (kind, _), row in zip(chosen, measured, strict=True):
            us[kind] = min(us.get(kind, inf), row.median_us or inf)
    form = kind_of(default_candidate(space, runner.spec).sketch)
    return Row(layer=describe(task), weight=task.weight, us=us, form=form)


def candidates(space: Space, spec: DeviceSpec, count: int) -> list[tuple[str, Candidate]]:
    """What is timed, by kind: both defaults, and those that the estimate ranks first."""
    direct = Space(tuple(s for s in space.sketches if s.error == 0))
    found = [
        ("direct", default_candidate(direct, spec)),
        ("default", default_candidate(space, spec)),
    ]
    ranked: dict[str, list[tuple[float, Candidate]]] = {}
    for number, sketch in enumerate(space.sketches):
        rows, times = best_rows(sketch, spec, count)
        population = space.population(number, rows)
        ranked.setdefault(kind_of(sketch.name), []).extend(
            (float(time), space.candidate(population, i)) for i, time in enumerate(times)
        )
    for kind, those in ranked.items():
        those.sort(key=lambda pair: pair[0])
        found += [(kind, candidate) for _, candidate in those[:count]]
    return found


def kind_of(sketch: str) -> str:
    """The column of a sketch."""
    return f"F{sketch.removeprefix(PREFIX)}" if sketch.startswith(PREFIX) else "tuned"


def best_rows(sketch: Sketch, spec: DeviceSpec, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a sketch that the estimate ranks first, and their estimates."""
    rows = np.unique(sketch.sample(_POPULATION, np.random.default_rng(0)), axis=0)
    times = estimate(sketch, rows, spec)
    order = np.argsort(times, kind="stable")[:count]
    return rows[order], times[order]


def measure_network(model: str, runner: LocalRunner, options: argparse.Namespace) -> list[Row]:
    """A row for each layer of the network, printed as soon as it is there."""
    tasks = import_network(model, max_error=options.max_error).network.tasks.values()
    spread = sum(task.weight * task.constant_bytes for task in tasks)
    rows: list[Row] = []
    for task in tasks:
        if any(sketch.error for sketch in task.space(runner.spec).sketches):
            timing = MeasureOptions(spread_bytes=spread)
            rows.append(measure(task, runner, timing, options.candidates))
            print(rows[-1], flush=True)
    return rows


def total(rows: list[Row], kind: str) -> float:
    """Milliseconds of all layers; of the direct candidates where a layer has none of the kind."""
    return sum(row.weight * row.us.get(kind, row.us["tuned"]) for row in rows) / 1e3


def main() -> None:
    """Measures the layers of the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--candidates", type=int, default=3, help="of each sketch")
    parser.add_argument("--max-error", type=float, default=DEFAULT_MAX_ERROR, help="of a layer")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Row]] = {}
    with LocalRunner("pocl") as runner:
        for model in options.networks:
            print(model, flush=True)
            rows = found[model] = measure_network(model, runner, options)
            kinds = dict.fromkeys(kind for row in rows for kind in row.us)
            print("  ".join(f"{kind} {total(rows, kind):.2f} ms" for kind in kinds), flush=True)
    if options.json:
        data = {model: [asdict(row) for row in rows] for model, rows in found.items()}
        options.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
