"""Batch: some candidates of one task, made into programs and measured. Open first: `make_batch`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retune.codegen.source import ProgramSource
from retune.codegen.target import Target
from retune.core.errors import ScheduleError
from retune.device.measure.workload import MeasureOptions, Runner
from retune.records.schema import Measurement, failed
from retune.schedule.space import Candidates, Space
from retune.search.model.learning import ModelScorer
from retune.search.task import Task


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Batch:
    """Candidates with all that they are measured and recorded by."""

    candidates: Candidates
    features: np.ndarray
    """float32 [n, len(FEATURES)]"""
    programs: tuple[ProgramSource | Measurement, ...]
    """Of each candidate; for one that cannot be made, the row that says why."""

    def __len__(self) -> int:
        return len(self.programs)


def make_batch(
    task: Task, space: Space, scorer: ModelScorer, candidates: Candidates, target: Target
) -> Batch:
    """The candidates of the task's space as programs for a target."""
    programs: list[ProgramSource | Measurement] = []
    for index in range(len(candidates)):
        try:
            programs.append(task.source(space, space.candidate(candidates, index), target))
        except ScheduleError as error:
            programs.append(failed("skipped", str(error)))
    features = scorer.features(candidates)
    return Batch(candidates=candidates, features=features, programs=tuple(programs))


def measure_programs(
    runner: Runner,
    workload_key: str,
    programs: Sequence[ProgramSource | Measurement],
    options: MeasureOptions,
) -> Sequence[Measurement]:
    """A row for each program of a workload that the runner knows, or the one that there is."""
    sources = [item for item in programs if isinstance(item, ProgramSource)]
    measured = iter(runner.submit(workload_key, sources, options).result())
    return [next(measured) if isinstance(item, ProgramSource) else item for item in programs]
