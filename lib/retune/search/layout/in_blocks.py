"""Strategies that go by how images lie: which of a task's schedules are for which blocks.

The template conv2d_NCHWc reads NCHW{ic}c and makes NCHW{oc}c; both are knobs of it. Its records
stand beside all others of a task, under the layouts that they were measured with. Read
`written_candidates`, and `laid_candidates` for what a plan may be built of.
"""

from collections.abc import Mapping

import numpy as np

from retune.core.target import DeviceSpec
from retune.records.conditions import Conditions
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Sketch
from retune.search.extract import Network
from retune.search.history import best_candidates
from retune.search.layout.laid import laid_conditions
from retune.search.layout.laying import LayoutChoice
from retune.search.layout.layouts import IN_ROWS, Ends, block_of, images_of
from retune.search.layout.options import kernel_places
from retune.search.task import Task
from retune.targets.cost.estimate import estimate


def written_candidates(task: Task, ends: Ends, spec: DeviceSpec, count: int) -> list[Candidate]:
    """The best of them for images that lie so, by the static estimate; none where there are none.

    Of a task whose images all lie in rows there are none: the search in rows has its own.
    """
    blocks = None if ends.by_rows else _blocks(task, ends)
    if blocks is None:
        return []
    space = task.space(spec)
    found: list[tuple[float, Candidate]] = []
    for sketch in space.laid:
        rows = _rows_for(sketch, blocks)
        times = estimate(sketch, rows, spec) if len(rows) else []
        for time, row in zip(times, rows, strict=True):
            candidate = Candidate(sketch.name, tuple(sketch.decided(row).items()))
            found.append((float(time), candidate))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])[:count]]


def laid_candidates(
    network: Network,
    choice: LayoutChoice,
    store: RecordStore,
    conditions: Conditions,
    spec: DeviceSpec,
) -> dict[str, tuple[Candidate, TuningRecord]]:
    """The fastest known candidate of each task with images that are not in rows, and its record.

    By measurements with images lying so. Where the network has the task with several ends, by
    those that it has most often: a task has one kernel.
    """
    found: dict[str, tuple[Candidate, TuningRecord]] = {}
    for key, counts in laid_ends(network, choice, spec).items():
        task, ends = network.tasks[key], max(counts, key=lambda ends: (counts[ends], str(ends)))
        if ends.by_rows or not task.tunable:
            continue
        where = laid_conditions(conditions, ends).comparable
        best = best_candidates(store, key, where, task.space(spec).whole, 1)
        if best:
            found[key] = best[0]
    return found


def laid_ends(
    network: Network, choice: LayoutChoice, spec: DeviceSpec
) -> dict[str, dict[Ends, int]]:
    """How often the network has each task with its images lying so."""
    found: dict[str, dict[Ends, int]] = {}
    for place in kernel_places(network, spec):
        mine = found.setdefault(place.task_key, {})
        ends = place.lying(choice.ends.get(place.label, IN_ROWS))
        mine[ends] = mine.get(ends, 0) + 1
    return found


def _blocks(task: Task, ends: Ends) -> tuple[int, int] | None:
    """Channels of the blocks of the image that the task reads, and of the one that it makes."""
    if task.graph is None:
        return None
    images = images_of(task)
    values = dict(zip((*task.inputs, *task.outputs),
                      (*task.graph.inputs, *task.graph.outputs), strict=True))  # fmt: skip
    read = next((values[name] for name, made in images.items() if not made), None)
    made = next((values[name] for name, made in images.items() if made), None)
    if read is None or made is None:
        return None
    types = task.graph.types
    one, other = (
        block_of(layout, types[value].shape[-1])
        for layout, value in ((ends.read, read), (ends.made, made))
    )
    return None if one is None or other is None else (one, other)


def _rows_for(sketch: Sketch, blocks: tuple[int, int]) -> np.ndarray:
    """The valid rows of a sketch with these blocks. int64 [n, decisions]"""
    wanted: Mapping[str, int] = dict(zip(sketch.blocks or (), blocks, strict=True))
    rows = sketch.all_rows()
    for column, decision in enumerate(sketch.decisions):
        if decision.name in wanted:
            rows = rows[decision.table[rows[:, column], 0] == wanted[decision.name]]
    return rows
