"""A lock file gives the same bundle again, byte for byte, or says what differs."""

import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from retune.bundle.format import restate_bundle, write_bundle
from retune.bundle.versions import LOCK, current
from retune.core.errors import InputError, RecordError, ShapesMissing
from retune.core.schema import to_json
from retune.core.target import GENERIC_CPU
from retune.pipeline import delivery, lock, selection
from retune.pipeline.manifest import Constraints
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.records.store import RecordStore
from tests.support.search_fakes import measured
from tests.support.searched import searched_request


@pytest.fixture(scope="module")
def patched() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (delivery, selection, lock):
            patch.setattr(module, "spec_of", lambda _: GENERIC_CPU)
        yield patch


@pytest.fixture(scope="module")
def locked(patched: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneRequest, Path]:
    """A run's request, and the folder that has its bundle and its lock."""
    folder = tmp_path_factory.mktemp("locked")
    request = searched_request("bottleneck", folder, measured, trials=24)
    network = stage_import(request)
    chosen = selection.stage_choose(request, stage_extract(request, network), Constraints())
    assert chosen.best
    plan = delivery.selected_plan(request, network, chosen, "tuned")
    write_bundle(replace(plan, form="inline"), folder / "compiled")

    def named(written: Any) -> Any:
        return replace(written, name=request.name, notes={**written.notes, "model": request.model})

    published = folder / "published" / "module"
    restate_bundle(folder / "compiled", published, named)
    run = SimpleNamespace(
        network=network,
        chosen=(chosen,),
        tuned=SimpleNamespace(target=GENERIC_CPU.fingerprint),
        searched=SimpleNamespace(complete=True),
    )
    made = lock.lock_of(request, cast(FinishedRun, run), published)
    lock.write_lock(made, published.parent / LOCK)
    return request, published.parent


def elsewhere(request: TuneRequest, folder: Path) -> TuneRequest:
    """A request of another checkout: another place of the model, nothing measured."""
    model = folder / Path(request.model).name
    shutil.copy(request.model, model)
    folders = {name: str(folder / name) for name in ("out", "records", "work")}
    return TuneRequest(model=str(model), **folders)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_locked_build_has_the_same_bytes_in_another_checkout(
    locked: tuple[TuneRequest, Path], tmp_path: Path
):
    request, published = locked
    stated = lock.read_lock(published / LOCK)
    files = contents(published / "module")
    assert stated.files == {name: sha256(data).hexdigest() for name, data in files.items()}
    other = elsewhere(request, tmp_path)
    version = lock.build_locked(other, stated)
    assert contents(Path(other.out) / "module") == contents(published / "module")
    assert (Path(other.out) / LOCK).read_bytes() == (published / LOCK).read_bytes()
    assert current(Path(other.out)) == version and version.complete
    lock.build_locked(other, stated)
    found = RecordStore(other.records).scan({}, ["record_id"])["record_id"].tolist()
    assert sorted(found) == [record.record_id for record in stated.records], "each once"


def test_a_locked_build_has_the_same_bytes_while_the_machine_has_less_memory_left(
    locked: tuple[TuneRequest, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    request, published = locked
    for module in (delivery, selection, lock):
        monkeypatch.setattr(
            module, "spec_of", lambda _: replace(GENERIC_CPU, global_memory_bytes=1)
        )
    other = elsewhere(request, tmp_path)
    lock.build_locked(other, lock.read_lock(published / LOCK))
    assert contents(Path(other.out) / "module") == contents(published / "module")


def _open_dimensions(_: TuneRequest) -> Any:
    raise ShapesMissing("an input has open dimensions", ["--shape", "x=1"])


def test_another_model_or_device_is_refused(
    locked: tuple[TuneRequest, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    request, published = locked
    stated = lock.read_lock(published / LOCK)
    other = elsewhere(request, tmp_path)
    with pytest.raises(InputError, match=r"expected the network \w+ as it is locked, got another"):
        lock.build_locked(other, replace(stated, model_key="x"))
    with pytest.raises(InputError, match=r"device pocl: expected another, as it is locked, got "):
        lock.build_locked(other, replace(stated, device="another"))
    monkeypatch.setattr(lock, "stage_import", _open_dimensions)
    with pytest.raises(InputError, match="got another one: it leaves dimensions open"):
        lock.build_locked(other, stated)
    assert not (Path(other.out) / "module").exists()


def test_other_bytes_are_not_published_and_their_files_are_named(
    locked: tuple[TuneRequest, Path], tmp_path: Path
):
    request, published = locked
    stated = lock.read_lock(published / LOCK)
    other = elsewhere(request, tmp_path)
    with pytest.raises(RecordError, match=r"got other bytes in module.json from retune"):
        lock.build_locked(
            other,
            replace(stated, form="queued", digest="0", files={**stated.files, "module.json": "0"}),
        )
    assert current(Path(other.out)) is None


def test_a_lock_of_another_code_version_is_refused_as_such(
    locked: tuple[TuneRequest, Path], tmp_path: Path
):
    stated = replace(lock.read_lock(locked[1] / LOCK), code="0", model_key="x")
    with pytest.raises(
        RecordError, match=r"expected a lock of code version \w+, got one of 0, made"
    ):
        lock.build_locked(elsewhere(locked[0], tmp_path), stated)


def test_a_lock_without_selections_or_with_huge_numbers_is_refused(
    locked: tuple[TuneRequest, Path], tmp_path: Path
):
    stated = lock.read_lock(locked[1] / LOCK)
    lock.write_lock(replace(stated, chosen=()), tmp_path / LOCK)
    with pytest.raises(RecordError, match=r"chosen: expected a selection, got none"):
        lock.read_lock(tmp_path / LOCK)
    huge = tuple(replace(record, trial=1 << 80) for record in stated.records)
    lock.write_lock(replace(stated, records=huge), tmp_path / LOCK)
    with pytest.raises(RecordError, match=r"records: 0: expected numbers of 64 bits"):
        lock.read_lock(tmp_path / LOCK)


def test_a_lock_that_cannot_be_read_is_refused(locked: tuple[TuneRequest, Path], tmp_path: Path):
    with pytest.raises(InputError, match=r"expected a lock file, got none .* writes DIR/retune"):
        lock.read_lock(tmp_path / LOCK)
    newer = replace(lock.read_lock(locked[1] / LOCK), lock=lock.FORMAT + 1)
    (tmp_path / LOCK).write_text(to_json(newer), encoding="utf-8")
    with pytest.raises(RecordError, match=r"of format 2 at most, got 3; install a newer retune"):
        lock.read_lock(tmp_path / LOCK)
