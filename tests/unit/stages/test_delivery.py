"""The bundle holds the records that were selected, whatever the store thinks of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle
from retune.core.errors import RecordError
from retune.core.target import GENERIC_CPU
from retune.records.ranking import best, top
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore
from retune.search.history import candidate_of
from retune.search.session import RunSettings, Session, search_all
from retune.stages import delivery, selection
from retune.stages.manifest import BestRecord, FinalistsManifest, Selection, TuneRequest, Winner
from retune.stages.network import open_network, stage_extract, stage_import
from tests.device.networks import write
from tests.unit.search.fakes import HERE, FakeRunner, measured


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TuneRequest:
    """A network of which some trials are recorded."""
    for module in (delivery, selection):
        monkeypatch.setattr(module, "device_spec", lambda name: GENERIC_CPU)
    folders = {name: str(tmp_path / name) for name in ("out", "records", "work")}
    request = TuneRequest(model=str(write("bottleneck", tmp_path)), **folders, trials=80)
    tasks = [t for t in open_network(request).network.tasks.values() if t.tunable]
    settings = RunSettings(run_id="run", model="m", layout="NHWC", trials=80)
    session = Session(tasks, FakeRunner(measured), RecordStore(request.records), settings)
    search_all(session)
    return request


def slowest(request: TuneRequest) -> dict[str, TuningRecord]:
    """The last of each task in the store's order."""
    store, network = RecordStore(request.records), open_network(request).network
    tops = {key: top(store, key, HERE, 1000) for key, task in network.tasks.items() if task.tunable}
    assert any(len(records) > 10 for records in tops.values())
    return {key: records[-1] for key, records in tops.items()}


def chosen(records: dict[str, TuningRecord]) -> tuple[BestRecord, ...]:
    return tuple(
        BestRecord(task_key=key, record_id=r.record_id, time_us=r.measurement.median_us or 0.0)
        for key, r in records.items()
    )


def test_a_bundle_has_the_selected_schedule_of_each_task(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    chosen_ = Selection(target=GENERIC_CPU.fingerprint, best=chosen(records))
    made = delivery.stage_compile(request_, network, tasks, chosen_, "tuned")
    assert (made.from_records, made.from_defaults) == (len(records), 0)
    imported = open_network(request_).network
    picks = {
        key: candidate_of(record, imported.tasks[key].space(GENERIC_CPU))
        for key, record in records.items()
    }
    plan = build_plan(imported, picks, GENERIC_CPU, model_key="", notes={})
    assert read_bundle(Path(made.folder) / made.module).kernels == plan.kernels


def test_a_selected_record_that_is_gone_is_an_error(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    lost = {key: replace(record, record_id=f"no-{key}") for key, record in records.items()}
    chosen_ = Selection(target=GENERIC_CPU.fingerprint, best=chosen(lost))
    with pytest.raises(RecordError, match=r"the chosen record no-.* is gone"):
        delivery.stage_compile(request_, network, tasks, chosen_, "tuned")


def test_a_winner_is_selected_unless_its_record_is_gone(request_: TuneRequest):
    network, records = stage_import(request_), slowest(request_)
    tasks = stage_extract(request_, network)
    (first, *_), winners = records, chosen(records)
    given = tuple(
        Winner(task_key=w.task_key, record_id="no" if w.task_key == first else w.record_id)
        for w in winners
    )
    selected = selection.stage_select(request_, tasks, FinalistsManifest(winners=given)).best
    ids = {entry.task_key: entry.record_id for entry in selected}
    found = best(RecordStore(request_.records), first, HERE)
    assert found is not None and ids.pop(first) == found.record_id
    assert ids == {key: record.record_id for key, record in records.items() if key != first}
