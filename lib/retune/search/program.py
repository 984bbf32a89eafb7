"""Tuning a tensor expression by itself: `tune`, `measure`, and the result `Tuned`.

Both make a task of the expression and hand it to a `Session`, so that candidates are proposed,
verified, timed and recorded exactly as those of a network are.
"""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retune import __version__
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.config import records_root
from retune.core.errors import DeviceError, InputError, ScheduleError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.measure.workload import Runner
from retune.device.opencl.execute import execute
from retune.device.opening import open_runner
from retune.ir.stmt import Program
from retune.ir.te import Dag, Tensor
from retune.records.schema import Measurement, TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Rule, Sketch, Space
from retune.schedule.trace import Trace
from retune.search.conditions import network_conditions
from retune.search.defaults import DEFAULT_TUNER
from retune.search.history import best_candidate
from retune.search.owner import own_run
from retune.search.session import Report, RunSettings, Session
from retune.search.task import Task, expression_task
from retune.targets.devices import target_of
from retune.targets.spaces import written_sketches

if TYPE_CHECKING:
    from retune.records import Table

Expression = Tensor | Sequence[Tensor] | Dag
"""What is computed: one or several computed tensors."""

_MODEL = "expression"
"""What the records of an expression name as their network."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tuned:
    """The fastest right candidate of a task that is known, and every measurement behind it."""

    task: Task
    space: Space
    candidate: Candidate
    """The best: sketch and decisions."""
    record: TuningRecord
    """The measurement of the best."""
    records: "Table"
    """Every measurement of this space under these conditions, oldest first; earlier runs' too."""
    run_id: str
    """Column `run_id` of those that this run took."""
    device: str
    spec: DeviceSpec
    shapes: Mapping[str, tuple[int, ...]]
    """Of the outputs, as the expression states them."""

    @property
    def time_us(self) -> float:
        """Median microseconds of one run of the best candidate."""
        assert self.record.measurement.median_us is not None
        return self.record.measurement.median_us

    @property
    def gflops(self) -> float:
        """1e9 arithmetic operations a second at that time."""
        return self.task.flops / self.time_us / 1e3

    @property
    def trace(self) -> Trace:
        """The schedule of the best candidate; prints as Python."""
        return self.space.trace(self.candidate)

    @cached_property
    def program(self) -> Program:
        """The loop nest of the best candidate."""
        return self.space.instantiate(self.candidate)

    @cached_property
    def source(self) -> ProgramSource:
        """The best candidate's kernels."""
        return lower(self.program, target_of(self.spec))

    @property
    def opencl(self) -> str:
        """The best candidate's OpenCL C."""
        return self.source.text

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name, in the shapes that the expression states, computed on the device.

        `inputs` are the arrays of every input and constant by name; constants are not packed.
        Raises: InputError for an input that is missing, unknown, or of another size.
        """
        found = execute(self.source, inputs, self.device)
        return {name: array.reshape(self.shapes[name]) for name, array in found.items()}

    def __str__(self) -> str:
        right = list(self.records["status"]).count("ok")
        return (
            f"{self.task.name}: {self.time_us:.1f} us, {self.gflops:.0f} GFLOPS, "
            f"the best of {len(self.records)} candidates ({right} right)"
        )


def tune(
    program: Expression | Task,
    *,
    space: Space | Rule | None = None,
    trials: int = 64,
    device: str = "pocl",
    records: Path | str | None = None,
    seed: int = 0,
    tuner: str = DEFAULT_TUNER,
    runner: Runner | None = None,
    report: Report = lambda text, trials: None,
) -> Tuned:
    """The best schedule found for a tensor expression in `trials` measurements.

    `space` is a schedule function with sampling instructions, or a Space made by `space_for`;
    without it the built-in rules and templates apply. Each candidate's result is compared with
    the numpy evaluation of the expression before its time counts, and becomes a record in the
    store at `records` (default: the RETUNE_RECORDS folder). The same call again continues the
    same run: it measures only what is missing, and a second call at the same time waits for the
    first. `runner` measures instead of this machine's `device`; `report` is called after each
    batch.

    Raises: InputError if it is not an expression, a space does not fit it, or without trials;
    DeviceError if no candidate was right.
    """
    if trials < 1:
        raise InputError(f"tune: expected at least one trial, got trials={trials}")
    with _session(program, space, device, records, seed, tuner, runner, trials) as (task, session):
        session.search(task.key, report)
        return _tuned(task, session, device, _shapes(program, task))


def measure(
    program: Expression | Task,
    candidates: Sequence[Candidate],
    *,
    space: Space | Rule | None = None,
    device: str = "pocl",
    records: Path | str | None = None,
    seed: int = 0,
    runner: Runner | None = None,
) -> list[Measurement]:
    """These candidates of the space, verified and timed; each becomes a record, as in `tune`.

    Raises: InputError as `tune` does; ScheduleError for a candidate that is not of the space.
    """
    with _session(program, space, device, records, seed, "random", runner) as (task, session):
        return list(session.measure(task.key, candidates)) if candidates else []


def space_for(program: Expression, *schedules: Rule) -> Space:
    """The union of the sketches that some schedule functions make of an expression.

    Raises: InputError if one does not fit it, or has no valid candidate.
    """
    if not schedules:
        raise InputError("space_for: expected at least one schedule function, got none")
    found = expression_task(_dag(program), lambda start: _space_of_rules(start, schedules))
    assert found.own_space is not None
    return found.own_space


# -- what the user gave ------------------------------------------------------------------------


def _task(program: Expression | Task, space: Space | Rule | None) -> Task:
    if not isinstance(program, Task):
        made = None if space is None else (lambda start: _space(start, space))
        return expression_task(_dag(program), made)
    return program if space is None else replace(program, own_space=_space(program.program, space))


def _dag(program: object) -> Dag:
    """The expression as a DAG. Raises: InputError for anything else."""
    if isinstance(program, Dag):
        dag = program
    else:
        items: Sequence[object] = program if isinstance(program, (list, tuple)) else (program,)
        tensors = tuple(t for t in items if isinstance(t, Tensor))
        if len(tensors) != len(items):
            raise InputError(
                f"expected a computed tensor, several, or a Dag, got {type(program).__name__}"
            )
        dag = Dag(tensors)
    if not dag.outputs:
        raise InputError("the expression has no output; expected at least one computed tensor")
    for tensor in dag.outputs:
        if tensor.op is None:
            raise InputError(f"output {tensor.name!r} is a placeholder; expected a computed tensor")
    return dag


def _space(start: Program, space: Space | Rule) -> Space:
    if isinstance(space, Space):
        return _fitting(start, space)
    if not callable(space):
        kind = type(space).__name__
        raise InputError(f"space: expected a schedule function or a Space, got {kind}")
    return _space_of_rules(start, [space])


def _space_of_rules(start: Program, schedules: Sequence[Rule]) -> Space:
    sketches: list[Sketch] = []
    for schedule in schedules:
        name = getattr(schedule, "__name__", "schedule")
        try:
            made = written_sketches(start, schedule, name)
        except ScheduleError as error:
            raise InputError(f"schedule function {name!r}: {error}") from error
        possible = [s for s in made if len(s.sample(1, np.random.default_rng(0)))]
        if not possible:
            raise InputError(
                f"schedule function {name!r}: none of the {sum(s.size for s in made)} choices "
                "drawn meets its conditions; loosen what it requires"
            )
        sketches += possible
    return Space(tuple(sketches))


def _fitting(start: Program, space: Space) -> Space:
    """The space, if it is one of this program. Raises: InputError if not."""
    wanted = (start.inputs, start.outputs)
    for sketch in space.sketches:
        if (sketch.program.inputs, sketch.program.outputs) != wanted:
            raise InputError(
                f"space: sketch {sketch.name!r} schedules {sketch.program.name}, expected "
                f"{start.name}; make it of this expression with space_for"
            )
    return space


# -- the run -----------------------------------------------------------------------------------


@contextmanager
def _session(
    program: Expression | Task,
    space: Space | Rule | None,
    device: str,
    records: Path | str | None,
    seed: int,
    tuner: str,
    runner: Runner | None,
    trials: int | None = None,
) -> Generator[tuple[Task, Session]]:
    """The task and the only session over it; a runner that was opened for it is closed after."""
    task = replace(_task(program, space), weight=1)
    used = runner or open_runner(device)
    try:
        names = [sketch.name for sketch in task.space(used.spec).sketches]
        where = network_conditions(used.spec, [task])
        settings = RunSettings(
            run_id=content_key(task.key, names, where.key, tuner, seed),
            model=_MODEL,
            layout="",
            tuner=tuner,
            seed=seed,
            trials=trials,
            retune=__version__,
        )
        store = RecordStore(records or records_root())
        with own_run(store.root, settings.run_id, task.name):
            yield task, Session([task], used, store, settings)
    finally:
        if runner is None:
            used.close()


def _tuned(
    task: Task, session: Session, device: str, shapes: Mapping[str, tuple[int, ...]]
) -> Tuned:
    spec, store = session.spec, session.store
    space = task.space(spec)
    names = [sketch.name for sketch in space.sketches]
    wanted = {**session.conditions.comparable, "task_key": task.key, "sketch": names}
    rows = store.scan(wanted).sort_values("timestamp", ignore_index=True)
    best = best_candidate(store, task.key, session.conditions.comparable, space)
    if best is None:
        (why, _), *_ = Counter(rows["status"] + ": " + rows["error"]).most_common(1)
        raise DeviceError(
            f"{task.name}: none of {len(rows)} candidates was right; most frequent: {why}"
        )
    return Tuned(
        task=task,
        space=space,
        candidate=best[0],
        record=best[1],
        records=rows,
        run_id=session.settings.run_id,
        device=device,
        spec=spec,
        shapes=shapes,
    )


def _shapes(program: Expression | Task, task: Task) -> dict[str, tuple[int, ...]]:
    """The outputs' shapes before axes were merged."""
    if task.graph is None:
        dag = task.dag if isinstance(program, Task) else _dag(program)
        return {t.name: t.shape for t in dag.outputs}
    types = (task.graph.types[value] for value in task.graph.outputs)
    return {name: kind.shape for name, kind in zip(task.outputs, types, strict=True)}
