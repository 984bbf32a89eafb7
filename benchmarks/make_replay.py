"""Records the outcomes of whole grids of candidates, on which searches are compared later.

    python -m benchmarks.make_replay record --records artifacts/replay --seconds 3600
    python -m benchmarks.make_replay pack --records artifacts/replay

`record` measures six layers of different kinds, at least 3,000 candidates each, and may be stopped
and started again at any time. All layers advance together, each in random order. Candidates whose
reference kernel ran slow, since the machine was busy with something else, are measured again once
all had their turn (PoCL keeps what it compiled, so that takes little). `pack` writes the calm
measurements to tests/data/replay.parquet.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import numpy as np

from benchmarks.replay_layers import LAYERS
from retune.codegen.lower import lower
from retune.core.target import DeviceSpec
from retune.device.measure import LocalRunner
from retune.device.runtime import device_spec
from retune.device.workload import MeasureOptions
from retune.records.replay import calm_hashes, pack
from retune.records.schema import Environment, TuningRecord
from retune.records.store import RecordStore
from retune.schedule.space import Candidates, Space
from retune.search.features import VERSION, featurise
from retune.search.recorded import thin
from retune.search.task import Task

PER_LAYER = 3000
PACKED = Path(__file__).resolve().parent.parent / "tests" / "data" / "replay.parquet"
RUN = "replay"

_BATCH = 16
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
    """A layer with the candidates to measure, in the order of measurement."""

    layer: str
    task: Task
    space: Space
    candidates: Candidates


def grid(name: str, spec: DeviceSpec, seed: int) -> Grid:
    """The grid of a layer: the same for the same device limits and seed."""
    task = LAYERS[name]()
    rng = np.random.default_rng(seed)
    space = thin(task.space(spec), PER_LAYER, spec, rng)
    everyone = space.everyone()
    return Grid(name, task, space, everyone.take(rng.permutation(len(everyone))))


def record(records: Path, seconds: float, seed: int) -> None:
    """Measures until all is known or the time is over."""
    store = RecordStore(records)
    end = monotonic() + seconds
    with LocalRunner("pocl") as runner:
        grids = [grid(name, runner.spec, seed) for name in LAYERS]
        while any(left := [missing(place, store, runner.spec) for place in grids]):
            for i, place in enumerate(grids):
                print(f"{place.layer}: {len(left[i])} of {len(place.candidates)} to measure")
            for start in range(0, max(map(len, left)), _BATCH):
                if monotonic() > end:
                    return
                for place, members in zip(grids, left, strict=True):
                    measure(place, members[start : start + _BATCH], runner, store)
                print(f"{start + _BATCH} of each, load {os.getloadavg()[0]:.1f}", flush=True)


def missing(place: Grid, store: RecordStore, spec: DeviceSpec) -> list[int]:
    """Indices of the candidates without a calm measurement, those never tried first."""
    tried = store.known(place.task.key, spec.fingerprint)
    calm = calm_hashes(store, place.task.key, spec)
    keys = [place.space.candidate(place.candidates, i).key for i in range(len(place.candidates))]
    left = [i for i, key in enumerate(keys) if key not in calm]
    return sorted(left, key=lambda i: keys[i] in tried)


def measure(place: Grid, members: Sequence[int], runner: LocalRunner, store: RecordStore) -> None:
    """One batch, recorded durably."""
    if not members:
        return
    workload = place.task.workload()
    runner.prepare(workload)
    chosen = [place.space.candidate(place.candidates, i) for i in members]
    sources = [lower(place.space.instantiate(c)) for c in chosen]
    spec = runner.spec
    features = featurise(place.space, place.candidates.take(np.array(members)), spec)
    found = runner.measure(workload.key, sources, _OPTIONS)
    store.append(
        [
            TuningRecord(
                run_id=RUN,
                model=place.layer,
                target=spec.model,
                task_key=place.task.key,
                task_name=place.task.name,
                sketch=candidate.sketch,
                decisions=tuple(v for _, values in candidate.decisions for v in values),
                trace=place.space.trace(candidate).to_json(),
                config_hash=candidate.key,
                strategy=place.task.op,
                layout="NHWC",
                device=spec.fingerprint,
                features=tuple(row.tolist()),
                feature_set=VERSION,
                env=Environment.of(spec, version("retune")),
                measurement=measurement,
            )
            for candidate, measurement, row in zip(chosen, found, features, strict=True)
        ]
    )


def main() -> None:
    """Records or packs, by the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("record", "pack"))
    parser.add_argument("--records", type=Path, default=Path("artifacts/replay"))
    parser.add_argument("--seconds", type=float, default=3600.0, help="to record for, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--note", default="", help="pack: the state of the machine, in words")
    options = parser.parse_args()
    if options.step == "record":
        record(options.records, options.seconds, options.seed)
        return
    names = {make().key: name for name, make in LAYERS.items()}
    notes = {"packed": datetime.now(UTC).isoformat(timespec="seconds"), "note": options.note}
    rows = pack(RecordStore(options.records), names, device_spec("pocl"), PACKED, notes)
    print(f"{PACKED}: {rows} outcomes, {PACKED.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
