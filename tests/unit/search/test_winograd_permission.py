"""Winograd convolution is used only where the user allows it, and a permission is another run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.plan import WINOGRAD_NOTE
from retune.bundle.verify import TOLERANCE, WINOGRAD_TOLERANCE, tolerance_of
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_CPU
from retune.records.schema import Environment, TuningRecord, succeeded
from retune.records.store import RecordStore
from retune.schedule.cpu_winograd import PREFIX
from retune.search.history import best_candidate
from retune.search.task import Task
from retune.stages.manifest import TuneRequest
from retune.stages.network import import_network, stage_import
from retune.stages.tuning import run_id
from tests.device.networks import write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write("square_windows", tmp_path_factory.mktemp("models")))


def task(model: str, *, winograd: bool) -> Task:
    """The first convolution of the network."""
    tasks = import_network(model, winograd=winograd).network.tasks.values()
    return next(t for t in tasks if t.tunable)


def recorded(task: Task, prefix: str, time_us: float, number: int) -> TuningRecord:
    """A record of a random candidate of the first sketch whose name starts so."""
    space = task.space(GENERIC_CPU)
    index = next(i for i, s in enumerate(space.sketches) if s.name.startswith(prefix))
    rows = space.sketches[index].sample(1, np.random.default_rng(number))
    candidate = space.candidate(space.population(index, rows), 0)
    times = [time_us] * 3
    return TuningRecord(
        run_id=f"run-{number}",
        model="m",
        target=GENERIC_CPU.name,
        task_key=task.key,
        task_name=task.name,
        sketch=candidate.sketch,
        decisions=tuple(v for _, values in candidate.decisions for v in values),
        trace=space.trace(candidate).to_json(),
        config_hash=candidate.key,
        strategy="random",
        layout="NHWC",
        device=GENERIC_CPU.fingerprint,
        env=Environment(driver="none", opencl="OpenCL 3.0", retune="0.1.0"),
        measurement=succeeded(times, max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0),
    )


def test_sketches_appear_with_permission_alone(model: str):
    names = {s.name for s in task(model, winograd=True).space(GENERIC_CPU).sketches}
    assert {f"{PREFIX}2", f"{PREFIX}4"} <= names
    plain = {s.name for s in task(model, winograd=False).space(GENERIC_CPU).sketches}
    assert plain == names - {f"{PREFIX}2", f"{PREFIX}4"}


def test_records_of_it_are_not_chosen_without_permission(model: str, tmp_path: Path):
    """However many of them are faster than everything else."""
    allowed, plain = (task(model, winograd=w) for w in (True, False))
    assert allowed.key == plain.key
    store = RecordStore(tmp_path)
    store.append([recorded(allowed, PREFIX, 1.0 + i, i) for i in range(8)])
    store.append([recorded(plain, "cpu.v", 50.0, 9)])
    here = {"device": GENERIC_CPU.fingerprint}
    best = best_candidate(store, plain.key, here, plain.space(GENERIC_CPU))
    assert best is not None and best[1].run_id == "run-9"
    best = best_candidate(store, plain.key, here, allowed.space(GENERIC_CPU))
    assert best is not None and best[1].run_id == "run-0"


def test_a_plan_notes_it_and_refuses_it_without_permission(model: str):
    allowed = import_network(model, winograd=True).network
    plan = build_plan(allowed, {}, GENERIC_CPU, model_key="", notes={"who": "me"})
    assert plan.notes["who"] == "me" and plan.notes[WINOGRAD_NOTE].endswith(" tasks")
    assert tolerance_of(plan) == WINOGRAD_TOLERANCE
    refused = import_network(model).network
    plan = build_plan(refused, {}, GENERIC_CPU, model_key="", notes={})
    assert WINOGRAD_NOTE not in plan.notes and tolerance_of(plan) == TOLERANCE
    some = next(t for t in allowed.tasks.values() if t.tunable)
    space = some.space(GENERIC_CPU)
    number = next(i for i, s in enumerate(space.sketches) if s.name.startswith(PREFIX))
    rows = space.sketches[number].sample(1, np.random.default_rng(0))
    chosen = {some.key: space.candidate(space.population(number, rows), 0)}
    with pytest.raises(ScheduleError, match=f"no sketch '{PREFIX}"):
        build_plan(refused, chosen, GENERIC_CPU, model_key="", notes={})


def test_a_run_with_permission_is_another_run(model: str, tmp_path: Path):
    request = TuneRequest(model=model, out="out", records="records", work=str(tmp_path), trials=1)
    network = stage_import(request)
    runs = {
        run_id(replace(request, winograd=allowed), network, GENERIC_CPU)
        for allowed in (False, True)
    }
    assert len(runs) == 2
