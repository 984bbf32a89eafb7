"""Strategies are used only where their error is allowed, and another error is another run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.plan import LARGEST_ERROR_NOTE, MAX_ERROR_NOTE
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_CPU
from retune.pipeline.network import import_network, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.tuning import run_id
from retune.records.schema import Environment, TuningRecord, succeeded
from retune.records.store import RecordStore
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.history import best_candidate
from retune.search.task import Task
from retune.targets.cpu.winograd import PREFIX
from tests.support.device_networks import write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write("square_windows", tmp_path_factory.mktemp("models")))


def task(model: str, *, max_error: float) -> Task:
    """The first convolution of the network."""
    tasks = import_network(model, max_error=max_error).network.tasks.values()
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


def test_a_space_holds_the_sketches_of_at_most_the_allowed_error(model: str):
    everything = task(model, max_error=1.0).space(GENERIC_CPU).sketches
    errors = {s.name: s.error for s in everything}
    assert 0 < errors[f"{PREFIX}2"] < errors[f"{PREFIX}4"] <= DEFAULT_MAX_ERROR
    for limit in (0.0, errors[f"{PREFIX}2"], DEFAULT_MAX_ERROR):
        names = {s.name for s in task(model, max_error=limit).space(GENERIC_CPU).sketches}
        assert names == {name for name, error in errors.items() if error <= limit}
    direct = {s.name for s in task(model, max_error=0.0).space(GENERIC_CPU).sketches}
    assert direct == {name for name in errors if not name.startswith(PREFIX)}


def test_records_of_larger_errors_are_not_chosen(model: str, tmp_path: Path):
    """However many of them are faster than everything else."""
    allowed, plain = (task(model, max_error=e) for e in (DEFAULT_MAX_ERROR, 0.0))
    assert allowed.key == plain.key
    store = RecordStore(tmp_path)
    store.append([recorded(allowed, PREFIX, 1.0 + i, i) for i in range(8)])
    store.append([recorded(plain, "cpu.v", 50.0, 9)])
    here = {"device": GENERIC_CPU.fingerprint}
    best = best_candidate(store, plain.key, here, plain.space(GENERIC_CPU))
    assert best is not None and best[1].run_id == "run-9"
    best = best_candidate(store, plain.key, here, allowed.space(GENERIC_CPU))
    assert best is not None and best[1].run_id == "run-0"


def test_a_plan_notes_its_largest_error_and_refuses_larger_ones(model: str):
    allowed = import_network(model).network
    some = next(t for t in allowed.tasks.values() if t.tunable)
    space = some.space(GENERIC_CPU)
    number = next(i for i, s in enumerate(space.sketches) if s.name.startswith(PREFIX))
    rows = space.sketches[number].sample(1, np.random.default_rng(0))
    chosen = {some.key: space.candidate(space.population(number, rows), 0)}
    notes = {MAX_ERROR_NOTE: "1e-05"}
    plan = build_plan(allowed, chosen, GENERIC_CPU, model_key="", notes=notes)
    assert plan.notes[MAX_ERROR_NOTE] == "1e-05"
    assert 0 < float(plan.notes[LARGEST_ERROR_NOTE].split(" in ")[0]) <= DEFAULT_MAX_ERROR
    refused = import_network(model, max_error=0.0).network
    plan = build_plan(refused, {}, GENERIC_CPU, model_key="", notes={})
    assert plan.notes == {LARGEST_ERROR_NOTE: "0"}
    with pytest.raises(ScheduleError, match=f"no sketch '{PREFIX}"):
        build_plan(refused, chosen, GENERIC_CPU, model_key="", notes={})


def test_a_run_with_another_error_is_another_run(model: str, tmp_path: Path):
    request = TuneRequest(model=model, out="out", records="records", work=str(tmp_path), trials=1)
    network = stage_import(request)
    runs = {
        run_id(replace(request, max_error=error), network, GENERIC_CPU) for error in (0.0, 1e-5)
    }
    assert len(runs) == 2
