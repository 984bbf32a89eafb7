"""What is published is right, and given up only for what is faster beyond doubt."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from retune.bundle import versions
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.verify.bench import Benchmark, Speedup, known_times
from retune.bundle.versions import current, rollback, version_folder
from retune.core.errors import DeviceError, RecordError
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.pipeline import publishing, validation
from retune.pipeline.manifest import CompileManifest, PublishedManifest, VerifyManifest
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from tests.support.versions import NAMED, old_publication, plan_named


def ratio(middle: float, low: float, high: float) -> Speedup:
    """Time of the champion over that of the challenger."""
    return Speedup(name="tuned", baseline="untuned", ratio=middle, low=low, high=high)


FASTER, SLOWER = ratio(1.25, 1.1, 1.4), ratio(0.9, 0.8, 0.95)
UNCLEAR = ratio(1.005, 0.99, 1.02)
RIGHT = VerifyManifest(
    oracle="onnxruntime", samples=2, max_abs=0.0, max_rel=1e-6, tolerance=1e-4, passed=True
)
WRONG = replace(RIGHT, max_rel=0.25, passed=False)


class World:
    """A device, how the bundles on it compare, and whether champions are right."""

    def __init__(self) -> None:
        self.spec: DeviceSpec = GENERIC_CPU
        self.compare: Callable[[], Speedup] = lambda: FASTER
        self.verify: Callable[[], VerifyManifest] = lambda: RIGHT
        self.compared: list[tuple[Path, Path]] = []
        self.verified: list[Path] = []

    def compare_bundles(
        self, request, before: CompileManifest, after: CompileManifest
    ) -> Benchmark:
        assert (before.variant, after.variant) == ("untuned", "tuned")
        folders = tuple(made.file(made.module) for made in (before, after))
        self.compared.append(folders)
        for folder in folders:
            read_bundle(folder)
        found = self.compare()
        seconds = {"untuned": 1.0, "tuned": 1 / found.ratio}
        return replace(known_times(seconds), ratios=(found,))

    def stage_verify(self, request, network, compiled: CompileManifest) -> VerifyManifest:
        self.verified.append(compiled.file(compiled.module))
        read_bundle(compiled.file(compiled.module))
        return self.verify()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(publishing, "compare_bundles", made.compare_bundles)
    monkeypatch.setattr(validation, "stage_verify", made.stage_verify)
    monkeypatch.setattr(publishing, "spec_of", lambda name: made.spec)
    monkeypatch.setattr(publishing, "_report", lambda request, run, why: f"why: {why}".encode())
    return made


@pytest.fixture
def request_(tmp_path: Path, world: World) -> TuneRequest:
    folders = {name: str(tmp_path / name) for name in ("out", "records", "work")}
    return TuneRequest(model="zoo:fake", **folders)


def run_of(
    request: TuneRequest, name: str, verified: VerifyManifest = RIGHT, model_key: str = ""
) -> FinishedRun:
    """What is asked of a run whose bundle is of that plan."""
    plan = plan_named(name)
    folder = write_bundle(plan, Path(request.work) / name / "module").parent
    compiled = CompileManifest(
        folder=str(folder), variant="tuned", module="module", target=plan.device.fingerprint,
        kernels=2, launches=4, weight_bytes=0, arena_bytes=0, least_bytes=0, from_records=1,
        from_defaults=0,
    )  # fmt: skip
    network = SimpleNamespace(model_key=model_key or plan.model_key)
    searched = SimpleNamespace(run_id=f"night of {name}", complete=True)
    found = SimpleNamespace(
        network=network, tuned=compiled, verified=verified, searched=searched, chosen=()
    )
    return cast(FinishedRun, found)


def night(request: TuneRequest, name: str, **changes) -> PublishedManifest:
    return publishing.stage_promote(request, run_of(request, name, **changes))


def published(request: TuneRequest) -> str:
    """What the published bundle was called when it was compiled."""
    return read_bundle(request.module).notes[NAMED]


def test_the_first_right_bundle_is_published(request_: TuneRequest, world: World):
    done = night(request_, "one")
    assert done.promoted and (done.number, done.current) == (1, 1)
    assert published(request_) == "one" and not world.compared
    plan = read_bundle(request_.module)
    assert (plan.name, plan.notes["model"]) == ("fake", "zoo:fake"), "as the request has it"
    assert request_.report.read_text() == f"why: {done.why}"
    version = current(Path(request_.out))
    assert version is not None and (version.verdict, version.run) == ("first", "night of one")
    assert version.deviation == RIGHT.max_rel and version.conditions


def test_a_faster_one_takes_its_place_and_can_be_taken_back(request_: TuneRequest, world: World):
    night(request_, "one")
    done = night(request_, "two")
    assert done.promoted and (done.number, done.current) == (2, 2)
    assert done.why == "0.800x the time of version 1, 95 % interval 0.714 to 0.909: faster"
    assert done.ratio == pytest.approx((0.8, 1 / 1.4, 1 / 1.1))
    assert done.champion is not None and done.champion.median_us == pytest.approx(1e6)
    assert done.challenger is not None and done.challenger.median_us == pytest.approx(8e5)
    assert published(request_) == "two"
    ((before, after),) = world.compared
    assert before == version_folder(Path(request_.out), 1) / "module"
    assert after.parts[-2:] == ("two", "module")
    version = current(Path(request_.out))
    assert version is not None and version.gain is not None
    assert (version.gain.over, version.gain.ratio) == (1, pytest.approx(0.8))
    assert rollback(Path(request_.out)).number == 1 and published(request_) == "one"


@pytest.mark.parametrize("times", [SLOWER, UNCLEAR])
def test_one_that_is_not_faster_beyond_doubt_is_kept_and_not_published(
    request_: TuneRequest, world: World, times: Speedup
):
    night(request_, "one")
    world.compare = lambda: times
    done = night(request_, "two")
    assert not done.promoted and (done.number, done.current) == (2, 1)
    assert done.why.endswith("not faster beyond the noise, version 1 stays")
    assert published(request_) == "one"
    loser = versions.versions(Path(request_.out))[1]
    assert (loser.verdict, loser.notes) == ("not faster", done.why)
    report = version_folder(Path(request_.out), 2) / "report.html"
    assert report.read_text() == f"why: {done.why}", "its own report says why"


@pytest.mark.parametrize("champion", [True, False])
def test_a_wrong_bundle_is_never_published(request_: TuneRequest, *, champion: bool):
    if champion:
        night(request_, "one")
    done = night(request_, "two", verified=WRONG)
    assert not done.promoted and done.number is None
    assert done.why.startswith("2.5e-01 of the range from onnxruntime's outputs, 1e-04 is allowed")
    assert done.current == (1 if champion else None)
    assert request_.module.exists() == champion


def test_the_same_program_is_not_published_twice(request_: TuneRequest, world: World):
    night(request_, "one")
    done = night(request_, "one")
    assert not done.promoted and done.why == "version 1 is the same program: it stays"
    assert len(versions.versions(Path(request_.out))) == 1 and not world.compared


def test_a_loser_that_wins_later_keeps_its_number(request_: TuneRequest, world: World):
    night(request_, "one")
    world.compare = lambda: UNCLEAR
    night(request_, "two")
    world.compare = lambda: FASTER
    done = night(request_, "two")
    assert done.promoted and done.number == 2
    kept = versions.versions(Path(request_.out))
    assert [(v.number, v.verdict) for v in kept] == [(1, "first"), (2, "faster")]


def changed(spec: DeviceSpec, what: str) -> DeviceSpec:
    return replace(spec, affinity="0-1", **{what: "another"})


@pytest.mark.parametrize("what", ["driver", "opencl", "host"])
def test_a_champion_of_another_driver_compiler_or_processor_is_verified_anew(
    request_: TuneRequest, world: World, what: str
):
    world.spec = replace(world.spec, affinity="0-1")
    night(request_, "one")
    world.compare = lambda: UNCLEAR
    world.spec = changed(world.spec, what)
    night(request_, "two")
    assert world.verified == [version_folder(Path(request_.out), 1) / "module"]
    assert published(request_) == "one"
    night(request_, "three")
    assert len(world.verified) == 1, "from then on it is trusted"
    world.verify = lambda: WRONG
    world.spec = replace(world.spec, driver="a third")
    done = night(request_, "four")
    assert done.promoted and published(request_) == "four"
    assert "version 1 is not: it is 2.5e-01 of the range from onnxruntime's outputs" in done.why
    assert "not verified on this device as it is today" in done.why


def test_the_same_program_is_trusted_by_its_challenger(request_: TuneRequest, world: World):
    night(request_, "one")
    world.spec = replace(world.spec, driver="another")
    night(request_, "one")
    night(request_, "two")
    assert not world.verified


def test_a_damaged_champion_loses(request_: TuneRequest, world: World):
    night(request_, "one")
    (version_folder(Path(request_.out), 1) / "module" / "kernels.cl").write_text("changed")
    world.compare = lambda: SLOWER
    done = night(request_, "two")
    assert done.promoted and published(request_) == "two"
    assert "version 1 is not: it cannot be loaded" in done.why
    version = current(Path(request_.out))
    assert version is not None and version.verdict == "only right one" and version.gain is None


def test_a_champion_that_the_device_refuses_loses(request_: TuneRequest, world: World):
    night(request_, "one")

    def refused() -> Speedup:
        if len(world.compared) == 1:
            raise DeviceError("out of resources")
        return FASTER

    def lost() -> VerifyManifest:
        raise DeviceError("it hangs")

    world.compare, world.verify = refused, lost
    done = night(request_, "two")
    assert done.promoted and "it does not run (it hangs)" in done.why
    assert len(world.verified) == 2, "it was tried twice"


def test_where_the_device_fails_both_the_champion_stays(request_: TuneRequest, world: World):
    night(request_, "one")

    def lost() -> Speedup:
        raise DeviceError("no answer")

    world.compare = lost
    for verify in (lambda: RIGHT, lost):
        world.verify = verify
        with pytest.raises(DeviceError, match="no answer"):
            night(request_, "two")
        assert published(request_) == "one"


def test_another_model_in_the_same_folder_is_published(request_: TuneRequest, world: World):
    night(request_, "one")
    done = night(request_, "two", model_key="another")
    assert done.promoted and "version 1 is of another model" in done.why and not world.compared


def test_what_was_published_meanwhile_is_not_replaced(request_: TuneRequest, world: World):
    night(request_, "one")

    def meanwhile() -> Speedup:
        publishing.stage_report(request_, run_of(request_, "asked for"))
        return FASTER

    world.compare = meanwhile
    done = night(request_, "two")
    assert not done.promoted and done.why.endswith("another version was published meanwhile")
    assert published(request_) == "asked for"


def test_what_an_older_retune_published_is_the_champion(request_: TuneRequest, world: World):
    old_publication(Path(request_.out), "old")
    world.compare = lambda: SLOWER
    done = night(request_, "new")
    assert (done.promoted, done.number, done.current) == (False, 2, 1)
    assert published(request_) == "old" and len(world.verified) == 1


def test_what_was_asked_for_is_published_whatever_was_before(request_: TuneRequest, world: World):
    night(request_, "one")
    done = publishing.stage_report(request_, run_of(request_, "two"))
    assert (done.module, done.report) == (str(request_.module), str(request_.report))
    assert published(request_) == "two" and not world.compared
    version = current(Path(request_.out))
    assert version is not None and (version.number, version.verdict) == (2, "as asked for")
    publishing.stage_report(request_, run_of(request_, "two"))
    assert len(versions.versions(Path(request_.out))) == 2, "the same program is kept once"
    rollback(Path(request_.out))
    publishing.stage_report(request_, run_of(request_, "two"))
    assert published(request_) == "two"


def test_a_damaged_version_of_the_same_program_is_written_anew(request_: TuneRequest):
    publishing.stage_report(request_, run_of(request_, "one"))
    (version_folder(Path(request_.out), 1) / "module" / "kernels.cl").write_text("changed")
    publishing.stage_report(request_, run_of(request_, "one"))
    assert published(request_) == "one"
    version = current(Path(request_.out))
    assert version is not None and version.number == 2


def test_old_versions_go_and_the_published_one_stays(request_: TuneRequest, world: World):
    night(request_, "champion")
    world.compare = lambda: UNCLEAR
    for number in range(versions.KEEP + 2):
        night(request_, f"loser {number}")
    kept = [version.number for version in versions.versions(Path(request_.out))]
    assert kept == [1, *range(4, versions.KEEP + 4)] and published(request_) == "champion"


def test_a_damaged_card_is_named(request_: TuneRequest):
    night(request_, "one")
    (version_folder(Path(request_.out), 1) / "version.json").write_text("{")
    with pytest.raises(RecordError, match=r"0001/version\.json"):
        night(request_, "two")
