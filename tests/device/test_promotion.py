"""Bundles that really run: the offending record is found, and the better bundle is published."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from retune.bundle.versions import rollback
from retune.device.opening import open_runner
from retune.pipeline import publishing
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import select
from retune.pipeline.delivery import stage_compile, stage_verify
from retune.pipeline.manifest import (
    Constraints,
    ImportManifest,
    PublishedManifest,
    Selection,
    TaskManifest,
)
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.publishing import stage_promote
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.selection import stage_choose
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from tests.support.boards import fault, written
from tests.support.device_networks import write

pytestmark = [pytest.mark.slow, pytest.mark.device]


class Nights:
    """A network that is searched for on a simulated board, whose bundles run on PoCL."""

    def __init__(self, folder: Path, script: str = "") -> None:
        self.board = written(folder, script)
        folders = {name: str(folder / name) for name in ("out", "records", "work")}
        model = str(write("bottleneck", folder))
        device = f"sim:{self.board}"
        self.request = TuneRequest(model=model, device=device, samples=1, **folders)
        self.network: ImportManifest = stage_import(self.request)
        self.tasks: TaskManifest = stage_extract(self.request, self.network)

    def search(self, name: str, trials: int = 24) -> Selection:
        """So many further trials; the best of all that is known."""
        tasks = [t for t in open_network(self.request).network.tasks.values() if t.tunable]
        settings = RunSettings(run_id=name, model="m", layout="NHWC", trials=trials)
        runner = open_runner(self.request.device)
        session = Session(tasks, runner, RecordStore(self.request.records), settings)
        search_all(session)
        runner.close()
        return stage_choose(self.request, self.tasks)

    def promote(self, selection: Selection, name: str = "night") -> PublishedManifest:
        """As the chain does with a selection."""
        made = stage_compile(self.request, self.network, self.tasks, selection, "tuned")
        verified = stage_verify(self.request, self.network, made)
        searched = SimpleNamespace(run_id=name)
        run = SimpleNamespace(
            network=self.network, tuned=made, verified=verified, searched=searched
        )
        return stage_promote(self.request, cast(FinishedRun, run))


@pytest.fixture(autouse=True)
def _plain_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_report", lambda request, run, why: why.encode())


def test_a_record_that_is_wrong_in_its_bundle_never_wins_again(tmp_path: Path):
    nights = Nights(tmp_path, fault("wrong_bundle", task="conv2d*"))
    request, network, tasks = nights.request, nights.network, nights.tasks
    chosen = nights.search("first")
    assert not stage_verify(
        request, network, stage_compile(request, network, tasks, chosen, "tuned")
    ).passed
    done, constraints = select(request, network, tasks, Constraints(), InProcess())
    ((task_key, offending),) = constraints.denied
    assert offending in {best.record_id for best in chosen.best}
    (entry,) = quarantined(Path(request.records))
    assert entry.record_id == offending
    published = nights.promote(done)
    assert published.promoted and published.current == 1
    again = nights.search("second", 8)
    (allowed,) = [best for best in again.best if best.task_key == task_key]
    asked = {allowed.record_id: allowed.task_key}
    record = RecordStore(request.records).named(asked)[allowed.record_id]
    assert record.config_hash != entry.config_hash


def test_a_faster_bundle_takes_the_place_of_the_published_one(tmp_path: Path):
    nights = Nights(tmp_path)
    tuned = nights.search("first")
    untuned = replace(tuned, best=())
    assert nights.promote(untuned).why == "correct; no version before it to compare with"
    done = nights.promote(tuned)
    assert done.promoted and done.current == 2 and done.ratio is not None
    assert max(done.ratio) < 1
    back = nights.promote(untuned)
    assert not back.promoted and "not faster" in back.why and back.current == 2
    assert nights.promote(tuned).why == "version 2 is the same program: it stays"
    assert rollback(tmp_path / "out").number == 1
