"""Matching of tasks with existing records: hit, near hit or miss, and first candidates.

Read `match_records`. Nothing is applied unproven: whatever fits is measured and compared with the
reference like any other candidate, before others. Where nothing is measured, `fitting_record` is
what a bundle may be made of, which is compared with one of default schedules.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.core.results import RecordMatch
from retune.core.target import DeviceSpec, model_of
from retune.records.conditions import Conditions
from retune.records.distilled import TravellingRecords
from retune.records.schema import TuningRecord
from retune.records.shared import SHARED, Level, shared_records
from retune.schedule.space import Candidate, Space
from retune.search.history import candidate_of
from retune.search.model.transfer import nearest_rows
from retune.search.task import Task

_MOST = 4
"""Candidates that records suggest, for each task."""
_LEVELS: tuple[Level, ...] = ("user", *SHARED)
_SIZES = ("vector_bits", "vector_registers", "l1_bytes", "l2_bytes", "l3_bytes", "compute_units")
"""Fields of a DeviceSpec by which devices of a class are near each other."""
_UNKNOWN = 100.0
"""Distance of a device that nobody has described, or of one of another class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggested:
    """What is measured first of a task, and why."""

    match: RecordMatch
    candidates: tuple[Candidate, ...] = ()


Sources = Callable[[Level], TravellingRecords]
"""The records of a level, the fastest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Where a task is to run."""

    spec: DeviceSpec
    conditions: Conditions


def match_records(
    task: Task, space: Space, here: Here, measured: bool, sources: Sources
) -> Suggested:
    """The match of a task; `measured`: the user's store has times of it under these conditions.

    A record of the same task under the same conditions is a hit, under others a near hit. So is one
    of the workload that is nearest by its shapes, of the same operator and types, whose decisions
    are taken to the nearest ones of this space. Of equal ones those of the device that is nearest
    by its vectors, registers, caches and cores go first.
    """
    if measured:
        return Suggested(match=RecordMatch(kind="hit", level="user"))
    for level in _LEVELS:
        if found := _of_task(task, space, here, level, sources(level)):
            return found
    for level in _LEVELS:
        if found := _of_workload(task, space, here, level, sources(level)):
            return found
    return Suggested(match=RecordMatch(kind="miss", why=f"no record of {_workload(task)}"))


def _workload(task: Task) -> str:
    return f"{task.op} of {'/'.join(dict.fromkeys(task.dtypes))}"


def fitting_record(
    task: Task, space: Space, spec: DeviceSpec, sketches: Collection[str], denied: Collection[str]
) -> TuningRecord | None:
    """What a team, or the package, has of the task on a device of the same kind; None for nothing.

    The fastest with one of these sketches whose id and configuration are not `denied`. Devices are
    of one kind where kernels for one are as good for the other: the same class, vectors, registers
    and instructions, whichever caches and cores.
    """
    for level in SHARED:
        found = shared_records(level)
        for record in found.records:
            if record.task_key != task.key or record.sketch not in sketches:
                continue
            if denied and {record.record_id, record.config_hash} & {*denied}:
                continue
            alike = _alike(spec, record, found.devices)
            if alike and record.measurement.ok and candidate_of(record, space) is not None:
                return record
    return None


def _alike(spec: DeviceSpec, record: TuningRecord, devices: Mapping[str, DeviceSpec]) -> bool:
    there = devices.get(record.spec)
    if there is None:
        return record.device == spec.fingerprint
    same = ("device_class", "vector_bits", "vector_registers")
    return all(getattr(spec, name) == getattr(there, name) for name in same) and (
        {*there.instructions} <= {*spec.instructions}
    )


def _farness(spec: DeviceSpec, record: TuningRecord, devices: Mapping[str, DeviceSpec]) -> float:
    """How many times devices' numbers are doubled or halved from one to the other, in all."""
    there = devices.get(record.spec)
    if there is None:
        return 0.0 if record.device == spec.fingerprint else _UNKNOWN
    if there.device_class != spec.device_class:
        return _UNKNOWN
    mine, others = (np.array([getattr(s, n) for n in _SIZES], float) for s in (spec, there))
    return float(np.abs(np.log2(1.0 + mine) - np.log2(1.0 + others)).sum())


def _of_task(
    task: Task, space: Space, here: Here, level: Level, known: TravellingRecords
) -> Suggested | None:
    pairs = [(candidate_of(r, space), r) for r in known.records if r.task_key == task.key]
    fitting = [(candidate, record) for candidate, record in pairs if candidate is not None]
    if not fitting:
        return None

    def order(pair: tuple[Candidate, TuningRecord]) -> tuple[int, float]:
        differences = len(_differences(here.conditions, pair[1]))
        return differences, _farness(here.spec, pair[1], known.devices)

    fitting.sort(key=order)  # stable: fastest first
    why = ", ".join(_differences(here.conditions, fitting[0][1]))
    match = RecordMatch(kind="near hit" if why else "hit", level=level, why=why)
    every = dict.fromkeys(candidate for candidate, _ in fitting)
    return Suggested(match=match, candidates=tuple(every)[:_MOST])


def _differences(here: Conditions, record: TuningRecord) -> list[str]:
    """What is different where the record was taken, as people read it."""
    there = record.conditions
    if record.device != here.device:
        other = model_of(record.device)
        same = other == model_of(here.device)
        return ["another driver" if same else f"measured on {other}"]
    if there is None:
        return ["conditions are not known"]
    named = {
        "processor": (there.host, here.host) if here.affinity else ("", ""),
        "number of cores": (there.compute_units, here.compute_units),
        "memory of weights": (there.constants, here.constants),
    }
    return [f"another {what}" for what, (one, other) in named.items() if one != other]


def _of_workload(
    task: Task, space: Space, here: Here, level: Level, known: TravellingRecords
) -> Suggested | None:
    """By the nearest workload of the same operator and types."""
    alike = [
        record
        for record in known.records
        if (record.op, record.dtypes) == (task.op, task.dtypes)
        and _ranks(record.input_shapes) == _ranks(task.input_shapes)
    ]

    def far(record: TuningRecord) -> float:
        return _distance(task, record) + _farness(here.spec, record, known.devices)

    alike.sort(key=far)
    found: dict[Candidate, TuningRecord] = {}
    for record in alike:
        candidate = _nearest(space, record)
        if candidate is not None:
            found.setdefault(candidate, record)
        if len(found) == _MOST:
            break
    if not found:
        return None
    nearest = next(iter(found.values()))
    why = f"by {nearest.task_name}, measured on {model_of(nearest.device)}"
    return Suggested(
        match=RecordMatch(kind="near hit", level=level, why=why), candidates=tuple(found)
    )


def _ranks(shapes: Sequence[Sequence[int]]) -> list[int]:
    return [len(shape) for shape in shapes]


def _distance(task: Task, record: TuningRecord) -> float:
    """Of extents, by their logarithms, as tile sizes are compared."""
    mine, others = (
        np.array([extent for shape in shapes for extent in shape], float)
        for shapes in (task.input_shapes, record.input_shapes)
    )
    return float(np.abs(np.log1p(mine) - np.log1p(others)).sum())


def _nearest(space: Space, record: TuningRecord) -> Candidate | None:
    """The candidate with the sketch of the record and the decisions nearest to its; None if there
    is none."""
    for number, sketch in enumerate(space.sketches):
        if sketch.name == record.sketch:
            rows = nearest_rows(sketch, [record.decisions])
            rows = rows[sketch.valid(rows)]
            return space.candidate(space.population(number, rows), 0) if len(rows) else None
    return None
