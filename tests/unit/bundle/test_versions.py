"""OUT/module is a sound bundle from the first publication on, whatever is done and whoever dies."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.format import pack_zip, program_key, read_bundle, steps_key, write_bundle
from retune.bundle.versions import (
    KEEP,
    MODULE,
    REPORT,
    Gain,
    Version,
    add_version,
    check_publishable,
    current,
    promote,
    prune,
    restate,
    rollback,
    take_over,
    version_folder,
    versions,
)
from retune.core import replacing
from retune.core.errors import InputError, RecordError
from tests.support.killing import killed_at_each_change
from tests.support.programs import kernels_of, texts_of
from tests.support.versions import PLAN, made, old_publication, plan_named, publish


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def published(out: Path) -> str:
    """The name of the sound bundle that is published, whose report is beside it."""
    name = read_bundle(out / MODULE).name
    assert (out / REPORT).read_text() == f"report of {name}"
    return name


def leftovers(out: Path) -> list[Path]:
    return [path for path in out.rglob(".*") if path.name != ".lock"]


def test_what_is_promoted_is_published(out: Path):
    assert current(out) is None and versions(out) == []
    first = add_version(out, made("one"))
    assert current(out) is None and not (out / MODULE).exists()
    promote(out, first.number)
    assert published(out) == "one"
    assert publish(out, "two") == 2
    assert published(out) == "two"
    assert [v.number for v in versions(out)] == [1, 2]
    assert current(out) == versions(out)[1]
    assert sorted(p.name for p in out.iterdir()) == [
        "current",
        "module",
        "report.html",
        "retune.lock",
        "versions",
    ]


def test_a_version_comes_back_as_it_was_stated(out: Path):
    gain = Gain(over=3, ratio=0.9, low=0.8, high=0.95)

    def make(folder: Path) -> Version:
        return replace(made("one")(folder), gain=gain, deviation=1e-6, run="night", notes="why")

    version = add_version(out, make)
    assert versions(out) == [version] and version.created
    assert (version.gain, version.run) == (gain, "night")
    later = replace(version, conditions="today", gain=None)
    restate(out, later, b"report of tonight")
    assert versions(out) == [later]
    assert (version_folder(out, 1) / REPORT).read_bytes() == b"report of tonight"
    with pytest.raises(InputError, match=r"expected one of its versions \(1\), got 2"):
        restate(out, replace(later, number=2))


def test_a_failed_addition_leaves_nothing(out: Path):
    publish(out, "one")

    def make(folder: Path) -> Version:
        made("two")(folder)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        add_version(out, make)
    assert published(out) == "one" and len(versions(out)) == 1 and not leftovers(out)


def test_rolling_back_twice_goes_two_back(out: Path):
    for name in ("one", "two", "three"):
        publish(out, name)
    assert rollback(out).number == 2
    assert published(out) == "two"
    assert rollback(out).number == 1
    assert published(out) == "one"
    with pytest.raises(InputError, match="none to go back to"):
        rollback(out)
    assert publish(out, "four") == 4, "no number is used twice"
    assert rollback(out).number == 1, "what was taken back is not gone back to"


def test_a_version_that_never_was_current_is_not_gone_back_to(out: Path):
    publish(out, "one")
    add_version(out, made("loser"))
    publish(out, "three")
    assert rollback(out).number == 1


def test_only_the_expected_champion_is_replaced(out: Path):
    publish(out, "one")
    challenger = add_version(out, made("two")).number
    publish(out, "meanwhile")
    assert not promote(out, challenger, over=1)
    assert published(out) == "meanwhile"
    assert promote(out, challenger, over=3)
    assert published(out) == "two"


def test_a_damaged_version_is_not_published(out: Path):
    publish(out, "one")
    publish(out, "two")
    (version_folder(out, 1) / MODULE / "kernels.cl").write_text("changed")
    with pytest.raises(RecordError, match=r"kernels\.cl"):
        rollback(out)
    with pytest.raises(RecordError, match=r"kernels\.cl"):
        promote(out, 1)
    with pytest.raises(InputError, match=r"expected one of its versions \(1, 2\), got 7"):
        promote(out, 7)
    assert published(out) == "two"
    shutil.rmtree(version_folder(out, 1))
    with pytest.raises(InputError, match="none to go back to"):
        rollback(out)


def test_a_damaged_current_version_gives_way(out: Path):
    publish(out, "one")
    publish(out, "two")
    shutil.rmtree(version_folder(out, 2) / MODULE)
    assert rollback(out).number == 1
    assert published(out) == "one"


def test_the_current_version_and_the_one_before_it_are_never_pruned(out: Path):
    publish(out, "one")
    publish(out, "two")
    for number in range(5):
        add_version(out, made(f"loser {number}"))
    assert prune(out) == ()
    assert prune(out, keep=2) == (3, 4, 5)
    assert [v.number for v in versions(out)] == [1, 2, 6, 7]
    assert published(out) == "two" and rollback(out).number == 1
    assert add_version(out, made("next")).number == 8
    with pytest.raises(InputError, match="at least one"):
        prune(out, keep=0)
    assert KEEP == 10


def test_what_an_older_retune_published_is_the_first_version(out: Path):
    old_publication(out, "old")
    before = {p.name: p.read_bytes() for p in (out / MODULE).iterdir()}
    take_over(out)
    assert published(out) == "old" and (out / MODULE).is_symlink()
    assert {p.name: p.read_bytes() for p in (out / MODULE).iterdir()} == before
    (version,) = versions(out)
    assert (version.number, version.verdict) == (1, "taken over")
    assert version.target == PLAN.device.fingerprint and version.program
    assert publish(out, "new") == 2
    assert rollback(out).number == 1 and published(out) == "old"
    assert not leftovers(out)


def test_a_bundle_that_was_written_over_the_name_is_a_version_too(out: Path):
    publish(out, "one")
    old_publication(out, "two")
    assert publish(out, "three") == 3
    assert rollback(out).number == 2 and published(out) == "two"
    assert rollback(out).number == 1 and published(out) == "one"
    old_publication(out, "two")
    take_over(out)
    assert [v.number for v in versions(out)] == [1, 2, 3], "it is known already"
    assert published(out) == "two"


def test_a_damaged_old_bundle_is_taken_over_and_told(out: Path):
    old_publication(out, "old")
    manifest = out / MODULE / "module.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "name": "edited"}))
    publish(out, "new")
    assert "damaged" in versions(out)[0].notes
    assert published(out) == "new"


@pytest.mark.parametrize("name", ["module", "versions", "current", "report.html"])
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_not_ours_is_left_as_it_is(out: Path, name: str, kind: str):
    mine, target = out / name, out.parent / "elsewhere"
    out.mkdir()
    match kind:
        case "folder":
            mine.mkdir()
            (mine / "mine").write_text("1")
        case "file":
            mine.write_text("1")
        case _:
            mine.symlink_to(target)
    ours = (name, kind) in {
        ("versions", "folder"),
        ("report.html", "file"),
        ("report.html", "link"),
    }
    if ours:
        publish(out, "one")
        assert name != "versions" or (mine / "mine").read_text() == "1"
        return
    for call in (check_publishable, lambda folder: publish(folder, "one")):
        with pytest.raises(InputError, match=f"{name}: expected .* left as it is"):
            call(out)
    assert [p.name for p in out.iterdir()] == [name]


def test_an_empty_folder_is_replaced(out: Path):
    (out / MODULE).mkdir(parents=True)
    publish(out, "one")
    assert published(out) == "one"


def test_a_bundle_is_read_and_packed_through_the_link(out: Path, tmp_path: Path):
    publish(out, "one")
    packed = pack_zip(out / MODULE, tmp_path / "packed.zip")
    assert read_bundle(packed).name == "one"
    shutil.copytree(out, tmp_path / "moved", symlinks=True)
    assert published(tmp_path / "moved") == "one"


def test_a_reader_gets_one_version_whole(out: Path, monkeypatch: pytest.MonkeyPatch):
    """The pointer moves after the manifest was read, and before the other parts are."""
    publish(out, "one")
    add_version(out, made("two"))
    from retune.bundle import format as bundle_format

    read_manifest = bundle_format._read_values

    def then_move(parts: object) -> object:
        manifest = read_manifest(parts)  # type: ignore[arg-type]
        monkeypatch.setattr(bundle_format, "_read_values", read_manifest)
        promote(out, 2)
        return manifest

    monkeypatch.setattr(bundle_format, "_read_values", then_move)
    assert read_bundle(out / MODULE).name == "one"
    assert read_bundle(out / MODULE).name == "two"


def test_a_program_is_the_same_whatever_is_noted_in_it(tmp_path: Path):
    keys = {
        what: program_key(write_bundle(plan, tmp_path / what))
        for what, plan in {
            "plain": PLAN,
            "noted": replace(PLAN, notes={"variant": "tuned"}, name="other"),
            "moved": replace(PLAN, device=replace(PLAN.device, host="another machine")),
            "driver": replace(PLAN, device=replace(PLAN.device, driver="2")),
            "weights": plan_named("other"),
            "kernels": replace(
                PLAN, kernels=kernels_of({k: f"{t}\n" for k, t in texts_of(PLAN).items()})
            ),
            "plan": replace(PLAN, form="inline"),
        }.items()
    }
    assert keys["plain"] == keys["noted"] == keys["moved"]
    assert len(set(keys.values())) == 5
    steps = {what: steps_key(tmp_path / what) for what in keys}
    same = {what for what in steps if steps[what] == steps["plain"]}
    assert same == {"plain", "noted", "moved", "plan"}, "in whatever form"


def test_a_verdict_of_earlier_versions_has_its_name(out: Path):
    publish(out, "one")
    card = version_folder(out, 1) / "version.json"
    stated = json.loads(card.read_text())
    assert stated["verdict"] == "as asked for"
    card.write_text(json.dumps({**stated, "verdict": "ordered"}, indent=1))
    assert versions(out)[0].verdict == "as asked for"


def test_a_damaged_card_is_named(out: Path):
    publish(out, "one")
    (version_folder(out, 1) / "version.json").write_text("{}")
    with pytest.raises(RecordError, match=r"0001/version\.json: expected what is known"):
        versions(out)


# -- processes that die ------------------------------------------------------------------------


def nothing(out: Path) -> None:
    """No publication yet."""


def two_versions(out: Path) -> None:
    publish(out, "one")
    publish(out, "two")


def a_loser_between(out: Path) -> None:
    publish(out, "one")
    add_version(out, made("loser"))
    publish(out, "two")


def one_old(out: Path) -> None:
    old_publication(out, "old")


def one_written_over(out: Path) -> None:
    publish(out, "one")
    old_publication(out, "old")


ADD = lambda out: publish(out, "new")  # noqa: E731 - a table of actions reads better so
CASES = {
    "the first version": (nothing, ADD, {"new"}),
    "a further version": (two_versions, ADD, {"two", "new"}),
    "taking over": (one_old, ADD, {"old", "new"}),
    "taking over again": (one_written_over, ADD, {"old", "new"}),
    "rolling back": (two_versions, rollback, {"one", "two"}),
    "pruning": (a_loser_between, lambda out: prune(out, 1), {"two"}),
    "restating": (
        two_versions,
        lambda out: restate(out, replace(versions(out)[1], run="new"), b"report of two"),
        {"two"},
    ),
}


@pytest.mark.parametrize(
    ("case", "able"),
    [*((case, True) for case in CASES), ("taking over", False), ("taking over again", False)],
)
def test_a_kill_at_any_point_leaves_a_sound_bundle(
    out: Path, monkeypatch: pytest.MonkeyPatch, case: str, able: bool
):
    before, action, allowed = CASES[case]
    if not able:
        monkeypatch.setattr(replacing, "exchange", lambda first, second: False)
    able = able and _can_exchange(out.parent)

    out.mkdir()
    before(out)
    prepared = shutil.copytree(out, out.parent / "prepared", symlinks=True)

    def setup() -> None:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(prepared, out, symlinks=True)

    kills = 0
    for _ in killed_at_each_change(monkeypatch, setup, lambda: action(out)):
        kills += 1
        if before is not nothing and (able or "taking over" not in case):
            assert published(out) in allowed
        elif (out / MODULE).exists():
            read_bundle(out / MODULE)
        was = current(out)
        publish(out, "next")  # the next call works, and mends what is left
        assert published(out) == "next" and not leftovers(out)
        numbers = [v.number for v in versions(out)]
        assert len(numbers) == len(set(numbers))
        for version in versions(out):
            read_bundle(version_folder(out, version.number) / MODULE)
        if was is not None and before is not one_written_over:
            assert rollback(out).number == was.number
    assert kills > 1


def test_going_back_is_counted_once_whenever_it_was_killed(
    out: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whether the pointer had moved decides whether the killed step counts."""

    def setup() -> None:
        shutil.rmtree(out, ignore_errors=True)
        for name in ("one", "two", "three", "four"):
            publish(out, name)

    for _ in killed_at_each_change(monkeypatch, setup, lambda: rollback(out)):
        was = current(out)
        assert was is not None and was.number in (3, 4)
        assert rollback(out).number == was.number - 1


def _can_exchange(folder: Path) -> bool:
    for name in ("x", "y"):
        (folder / name).mkdir(exist_ok=True)
    return replacing.exchange(folder / "x", folder / "y")
