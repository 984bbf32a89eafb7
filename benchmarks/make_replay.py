"""Records the outcomes of whole grids of candidates, on which searches are compared later.

    python -m benchmarks.make_replay build  --records artifacts/replay
    python -m benchmarks.make_replay record --records artifacts/replay --seconds 3600
    python -m benchmarks.make_replay pack   --records artifacts/replay --note "quiet"

`build` only compiles, at idle priority, on a machine that may be busy: PoCL keeps what it compiled
on disk (0.06 to 0.6 s a candidate on two cores). `record` measures, on a quiet machine: 0.03 to
0.07 s for a candidate that was built before. Both take six layers of different kinds, at least
3,000 candidates each (some more, as not all will be quiet), may be stopped and started again at any
time, and do what is missing. All layers advance together, each in random order. Candidates whose
calibration kernel ran slow, since the machine was busy with something else, are measured again once
all had their turn. `pack` writes the quiet measurements to one small file.

Batches are cut from the whole grid at fixed places and go together even where only some members are
missing: the candidates of a batch share programs, and so the driver's disk cache knows them again.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from time import monotonic

import numpy as np

from benchmarks.command import parser_of
from benchmarks.recorded import pack, quiet_hashes, thin
from benchmarks.replay_layers import LAYERS
from retune import __version__
from retune.codegen.source import ProgramSource
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions, Runner
from retune.device.opencl.catalogue import device_spec
from retune.records.ranking import known
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.schedule.space import Candidate, Space
from retune.search.session import RunSettings, Session
from retune.search.task import Task

PER_LAYER = 3300
PACKED = Path(__file__).resolve().parent.parent / "tests" / "data" / "replay.parquet"

_BATCH = 16
_BUILT = "built"
"""Folder in the records' in which `build` notes what it has compiled."""
_OPTIONS = MeasureOptions(
    repeat=5,
    min_repeat_ms=1.0,
    give_up_factor=8.0,
    disturbed_retries=1,
    build_deadline_s=300.0,
    run_deadline_s=60.0,
)
"""Short repeats, of which the median counts; generous deadlines, since a busy machine is slow."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A layer's candidates, in the order of measurement. Its task has them as its own space."""

    layer: str
    task: Task

    @cached_property
    def batches(self) -> list[list[Candidate]]:
        """What is measured together."""
        space = self.task.own_space
        assert space is not None, "grid_of gave it one"
        everyone = space.everyone()
        order = np.random.default_rng(len(everyone)).permutation(len(everyone))
        chosen = [space.candidate(everyone, i) for i in order]
        return [chosen[i : i + _BATCH] for i in range(0, len(chosen), _BATCH)]


def grid_of(layer: str, spec: DeviceSpec, count: int = PER_LAYER) -> Grid:
    """The grid of a layer: the same for the same device limits and rules.

    Sketches are named by what they do: candidates of edited rules are others.
    """
    task = LAYERS[layer]()
    space = thin(task.space(spec), count, spec, np.random.default_rng(0))
    named = [s.renamed(f"{s.name}.{content_key(s.trace.to_json())[:8]}") for s in space.sketches]
    return Grid(layer, replace(task, own_space=Space(tuple(named))))


class Compiler(LocalRunner):
    """Compiles what it is asked to measure, and measures nothing."""

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        return self.compile(workload_key, candidates, options)


def missing(grid: Grid, known: set[str]) -> list[list[Candidate]]:
    """The batches with a candidate that is not among these config hashes."""
    return [b for b in grid.batches if not all(candidate.key in known for candidate in b)]


def advance(grids: Sequence[Grid], runner: Runner, store: RecordStore, seconds: float) -> None:
    """Measures until every candidate has a quiet measurement or the time is over."""
    end = monotonic() + seconds
    sessions = [_session(grid, runner, store) for grid in grids]
    where = {"device": runner.spec.fingerprint}
    while True:
        tried = [missing(g, known(store, g.task.key, where)) for g in grids]
        left = [
            untried or missing(g, quiet_hashes(store, g.task.key, runner.spec))
            for g, untried in zip(grids, tried, strict=True)
        ]
        for grid, batches in zip(grids, left, strict=True):
            print(f"{grid.layer}: {len(batches)} of {len(grid.batches)} batches left", flush=True)
        if not any(left):
            return
        _pass(grids, sessions, left, end)
        if monotonic() > end:
            return


def compile_all(grids: Sequence[Grid], runner: Runner, notes: RecordStore, seconds: float) -> None:
    """Compiles until every candidate is noted or the time is over."""
    fingerprint = runner.spec.fingerprint
    wanted = {"device": fingerprint, "status": ["skipped", "compile_error", "launch_error"]}
    noted = notes.scan(wanted, ["task_key", "config_hash"])
    known = [set(noted["config_hash"][noted["task_key"] == grid.task.key]) for grid in grids]
    left = [missing(grid, keys) for grid, keys in zip(grids, known, strict=True)]
    _pass(grids, [_session(g, runner, notes) for g in grids], left, monotonic() + seconds)


def _session(grid: Grid, runner: Runner, store: RecordStore) -> Session:
    settings = RunSettings(
        run_id=f"replay.{grid.layer}", model=grid.layer, layout="NHWC", tuner="random",
        options=_OPTIONS, retune=__version__,
    )  # fmt: skip
    return Session([grid.task], runner, store, settings)


def _pass(
    grids: Sequence[Grid],
    sessions: Sequence[Session],
    left: Sequence[Sequence[Sequence[Candidate]]],
    end: float,
) -> None:
    """Each of the batches once, the layers in turn."""
    start = monotonic()
    done = 0
    for turn in range(max(map(len, left))):
        for grid, session, batches in zip(grids, sessions, left, strict=True):
            if turn >= len(batches):
                continue
            if monotonic() > end:
                return
            session.measure(grid.task.key, batches[turn])
            done += len(batches[turn])
        if turn % 8 == 0:
            pace = (monotonic() - start) / done
            load = os.getloadavg()[0]
            print(f"{done} candidates, {pace:.3f} s each, load {load:.1f}", flush=True)


def main() -> None:
    """Builds, records or packs, by the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("step", choices=("build", "record", "pack"))
    parser.add_argument("--records", type=Path, default=Path("artifacts/replay"))
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--layers", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--count", type=int, default=PER_LAYER, help="candidates of a layer")
    parser.add_argument("--seconds", type=float, default=3600.0, help="to go on for, at most")
    parser.add_argument("--file", type=Path, default=PACKED, help="what pack writes")
    parser.add_argument("--note", default="", help="pack: the state of the machine, in words")
    options = parser.parse_args()
    if options.step == "pack":
        names = {LAYERS[name]().key: name for name in options.layers}
        notes = {"packed": datetime.now(UTC).isoformat(timespec="seconds"), "note": options.note}
        spec = device_spec(options.device)
        rows = pack(RecordStore(options.records), names, spec, options.file, notes)
        print(f"{options.file}: {rows} outcomes, {options.file.stat().st_size / 1024:.0f} kB")
        return
    building = options.step == "build"
    if building and hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # the children inherit it
    with (Compiler if building else LocalRunner)(options.device) as runner:
        grids = [grid_of(name, runner.spec, options.count) for name in options.layers]
        if building:
            notes = RecordStore(options.records / _BUILT)
            compile_all(grids, runner, notes, options.seconds)
        else:
            advance(grids, runner, RecordStore(options.records), options.seconds)


if __name__ == "__main__":
    main()
