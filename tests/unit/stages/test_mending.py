"""A record that is wrong in its network is found, put away, and never wins again."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import DeviceError
from retune.pipeline import mending
from retune.pipeline import selection as selecting
from retune.pipeline.manifest import (
    CompileManifest,
    FinalistsManifest,
    MendedManifest,
    Selection,
    SettledManifest,
    VerifyManifest,
)
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.selection import best_record
from retune.pipeline.settling import stated_errors
from retune.records import ranking
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from tests.unit.search.fakes import HERE
from tests.unit.stages.test_settling import World as Settling
from tests.unit.stages.test_settling import recorded

__all__ = ["recorded"]


class World(Settling):
    """Bundles whose outputs are wrong with some records."""

    def __init__(self) -> None:
        super().__init__()
        self.guilty: set[str] = set()
        self.fails: Callable[[], None] = lambda: None
        self.verified = 0
        self.tolerance = 1e-4
        self.settling: Callable[[Selection], Selection] = lambda selection: selection
        self.deviation = lambda s: 0.5 if self.guilty & {b.record_id for b in s.best} else 1e-6

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().install(monkeypatch)
        for name in ("stage_compile", "stage_verify", "stage_settle"):
            monkeypatch.setattr(mending, name, getattr(self, name))

    def stage_settle(self, request, network, tasks, selection: Selection) -> SettledManifest:
        """Finds nothing to object to, see test_settling."""
        return SettledManifest(selection=self.settling(selection))

    def stage_verify(self, request, network, compiled: CompileManifest) -> VerifyManifest:
        self.verified += 1
        found = super().stage_verify(request, network, compiled)
        found = replace(found, tolerance=self.tolerance)
        if found.max_rel > found.tolerance:
            self.fails()
        return replace(found, passed=found.max_rel <= found.tolerance)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    return made


@pytest.fixture
def request_(recorded: TuneRequest, tmp_path: Path, world: World) -> TuneRequest:
    """A recorded network, of which nothing is settled or in quarantine yet."""
    shutil.copytree(recorded.records, tmp_path / "records")
    return replace(recorded, records=str(tmp_path / "records"), work=str(tmp_path / "work"))


def selected(request: TuneRequest) -> Selection:
    tasks = stage_extract(request, stage_import(request))
    return selecting.stage_select(request, tasks, FinalistsManifest())


def mended(request: TuneRequest, chosen: Selection | None = None) -> MendedManifest:
    network = stage_import(request)
    tasks = stage_extract(request, network)
    return mending.stage_mend(request, network, tasks, chosen or selected(request))


def ids(selection: Selection) -> set[str]:
    return {best.record_id for best in selection.best}


def test_a_right_network_stays_as_it_was_settled(request_: TuneRequest, world: World):
    chosen = selected(request_)
    done = mended(request_)
    assert done.settled.selection == chosen and done.convicted == ()
    assert quarantined(Path(request_.records)) == ()


@pytest.mark.parametrize("count", [1, 2])
def test_the_guilty_are_replaced_by_the_next_best_and_never_win_again(
    request_: TuneRequest, world: World, count: int
):
    chosen = selected(request_)
    guilty = chosen.best[1 : 1 + count]
    world.guilty = {best.record_id for best in guilty}
    done = mended(request_)
    assert {c.record_id for c in done.convicted} == world.guilty
    assert "wrong: 5.0e-01 of the range" in done.convicted[0].reason
    assert {e.record_id for e in quarantined(Path(request_.records))} == world.guilty
    after = done.settled.selection
    assert not ids(after) & world.guilty
    assert ids(chosen) - world.guilty <= ids(after), "the others keep theirs"
    assert {b.task_key for b in after.best} == {b.task_key for b in chosen.best}
    store = RecordStore(request_.records)
    for best in guilty:
        found = ranking.top(store, best.task_key, HERE, 1000)
        assert found and best.record_id not in {record.record_id for record in found}
        (entry,) = [e for e in quarantined(store.root) if e.record_id == best.record_id]
        assert entry.config_hash not in {record.config_hash for record in found}
    world.guilty = set()
    assert not ids(selected(request_)) & {best.record_id for best in guilty}, "nor tomorrow"


def test_the_others_keep_their_inexact_strategies(request_: TuneRequest, world: World):
    """Settling would take a wrong record for inexact ones, and give these up."""
    chosen = selected(request_)
    errors = stated_errors(request_, chosen)
    inexact, *others = [b for b in chosen.best if b.task_key in errors]
    world.guilty = {inexact.record_id}
    settled = mended(request_).settled.selection
    assert {b.record_id for b in others} <= ids(settled) and others
    given_up = {key for key, limit in settled.limits if limit < request_.max_error}
    assert not given_up


def test_what_stated_errors_explain_is_left_to_settling(request_: TuneRequest, world: World):
    chosen = selected(request_)
    explained = max(stated_errors(request_, chosen).values())
    world.deviation = lambda s: explained if s.best else 1e-9
    world.tolerance = explained / 2
    done = mended(request_)
    assert done.convicted == () and done.settled.selection == chosen


def test_what_settling_chose_may_be_guilty_as_well(request_: TuneRequest, world: World):
    chosen = selected(request_)
    first = chosen.best[0]
    _, second = ranking.top(RecordStore(request_.records), first.task_key, HERE, 2)
    other = replace(chosen, best=(best_record(first.task_key, second), *chosen.best[1:]))
    world.guilty = {second.record_id}
    world.settling = lambda s: other if s == chosen else s
    done = mended(request_)
    assert {c.record_id for c in done.convicted} == world.guilty
    assert ids(done.settled.selection) == ids(chosen)


def test_where_the_next_best_is_wrong_too_it_goes_as_well(request_: TuneRequest, world: World):
    task_key = selected(request_).best[0].task_key
    wrong = ranking.top(RecordStore(request_.records), task_key, HERE, 2)
    world.guilty = {record.record_id for record in wrong}
    done = mended(request_)
    assert {c.record_id for c in done.convicted} == world.guilty
    assert not ids(done.settled.selection) & world.guilty


def test_nobody_is_guilty_where_default_schedules_are_wrong_as_well(
    request_: TuneRequest, world: World
):
    world.deviation = lambda s: 0.5
    done = mended(request_)
    assert done.convicted == () and quarantined(Path(request_.records)) == ()


def test_a_record_that_takes_the_device_down_is_guilty(request_: TuneRequest, world: World):
    world.guilty = {selected(request_).best[0].record_id}

    def lost() -> None:
        raise DeviceError("the device did not answer")

    world.fails = lost
    done = mended(request_)
    assert {entry.record_id for entry in done.convicted} == world.guilty
    assert "does not run: the device did not answer" in done.convicted[0].reason


def test_a_device_that_is_lost_once_convicts_nobody(request_: TuneRequest, world: World):
    world.guilty = {selected(request_).best[0].record_id}

    def lost() -> None:
        world.guilty = set()
        raise DeviceError("the device did not answer")

    world.fails = lost
    assert mended(request_).convicted == ()


def test_a_process_that_was_killed_after_the_verdict_goes_on(request_: TuneRequest, world: World):
    """The same call again: it is given the selection with the guilty, who are in quarantine."""
    chosen = selected(request_)
    world.guilty = {chosen.best[0].record_id}
    first = mended(request_)
    again = mended(replace(request_, work=f"{request_.work}-again"), chosen)
    assert first.convicted and not again.convicted
    assert ids(again.settled.selection) == ids(first.settled.selection)


def test_after_some_attempts_default_schedules_take_their_places(
    request_: TuneRequest, world: World
):
    chosen = selected(request_)
    task_key = chosen.best[0].task_key
    every = ranking.top(RecordStore(request_.records), task_key, HERE, 1000)
    world.guilty = {record.record_id for record in every}
    assert len(every) > 3
    done = mended(request_)
    assert len(done.convicted) == 3
    assert task_key not in {best.task_key for best in done.settled.selection.best}
    assert {best.task_key for best in chosen.best if best.task_key != task_key} == {
        best.task_key for best in done.settled.selection.best
    }


def test_it_is_mended_once(request_: TuneRequest, world: World):
    chosen = selected(request_)
    world.guilty = {chosen.best[0].record_id}
    first, verified = mended(request_, chosen), world.verified
    assert mended(request_, chosen) == first and world.verified == verified
