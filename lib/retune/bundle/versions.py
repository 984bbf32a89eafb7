"""Bundles in a user's folder OUT, beside their predecessors; one pointer says which is current.

    OUT/versions/0003/module/        a bundle
    OUT/versions/0003/report.html    its report
    OUT/versions/0003/retune.lock    what it was compiled from; not of versions of an older retune
    OUT/versions/0003/version.json   what is known of it, see Version
    OUT/versions/history.json        which were current, see core.succession
    OUT/current -> versions/0003     the pointer
    OUT/module -> current/module     the names that people and programs use; they never change
    OUT/report.html -> current/report.html
    OUT/retune.lock -> current/retune.lock

Read `add_version` and `promote`. Whoever moves the pointer publishes bundle and report together, by
one rename: there is no moment without a bundle, whatever kills the process. Before the pointer is
moved, the history says what is to become current; where the two do not agree, a process was killed
in between, and the pointer is right. One lock guards all changes of a folder; readers need none.

What an older retune left, a real folder `module` and a real `report.html`, becomes a version first.
"""

import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from retune.bundle.format import (
    MANIFEST,
    check_replaceable,
    is_bundle,
    program_key,
    read_bundle,
)
from retune.core.errors import InputError, RecordError
from retune.core.locking import exclusive
from retune.core.replacing import (
    discard,
    link_or_copy,
    point,
    put_in_place,
    remove_folder,
    remove_leftovers,
    replacing,
    whole_folder,
)
from retune.core.schema import from_json, to_json
from retune.core.succession import Succession, read_succession, write_succession

MODULE, REPORT, LOCK, CURRENT = "module", "report.html", "retune.lock", "current"
KEEP = 10
"""Versions that are kept, beside the current one and the one before it."""

_VERSIONS, _CARD, _HISTORY = "versions", "version.json", "history.json"
_RENAMED = ('"verdict": "ordered"', '"verdict": "as asked for"')
"""In a card: what earlier versions wrote, and its name."""

Verdict = Literal["as asked for", "first", "faster", "only right one", "not faster", "taken over"]
"""Why a version became current, or did not: a person asked for it; there was none to compare it
with; it is faster than the current one beyond doubt; the current one does not run or verify any
more; it is not faster; an older retune had published it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Time of a version over that of another one, measured in turns: below 1, it is faster."""

    over: int
    """Number of the other version: the current one of that moment."""
    ratio: float
    low: float
    """Bounds of the 95 % interval."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What is known of a version."""

    number: int = 0
    """Given by `add_version`, rising; none is given twice."""
    created: str = ""
    """ISO time, UTC."""
    model_key: str
    """Content key of the model that it was compiled from."""
    target: str
    """Fingerprint of the device that it was compiled for."""
    program: str
    """See `format.program_key`; empty if the bundle is damaged."""
    conditions: str = ""
    """Key of the conditions under which it was verified last; empty: not known."""
    run: str = ""
    """The run or night that made it, or judged it last."""
    deviation: float | None = None
    """From the oracle, as a part of the outputs' range; None: not known."""
    gain: Gain | None = None
    """None: it was compared with no other."""
    verdict: Verdict
    notes: str = ""
    """The verdict as a sentence."""
    complete: bool | None = None
    """Whether little was expected of searching on; None: an earlier version did not say."""


def check_publishable(out: Path) -> None:
    """Raises: InputError if publishing to the folder would replace something else.

    What a version's own folder holds is not looked at: a damaged one gives way to the next.
    """
    module, pointer, kept, report = (out / n for n in (MODULE, CURRENT, _VERSIONS, REPORT))
    if not _is_name(out, MODULE):
        check_replaceable(module)
        if module.is_symlink() and not module.exists():
            raise _foreign(module, "a bundle")
    if os.path.lexists(pointer) and _pointed(out) is None:
        raise _foreign(pointer, "a link to one of its versions")
    if os.path.lexists(kept) and (kept.is_symlink() or not kept.is_dir()):
        raise _foreign(kept, "a folder")
    if report.is_dir():
        raise _foreign(report, "a file")


def version_folder(out: Path, number: int) -> Path:
    """Where that version lies, with MODULE and REPORT."""
    return out / _VERSIONS / f"{number:04d}"


def versions(out: Path) -> list[Version]:
    """All versions that are kept, the oldest first. Raises: RecordError for a damaged card."""
    found = (_card(version_folder(out, number)) for number in _numbers(out))
    return [version for version in found if version is not None]


def current(out: Path) -> Version | None:
    """The version that OUT/module is; None if there is none, or what it was is gone.

    Raises: RecordError for a damaged card.
    """
    number = _pointed(out)
    return None if number is None else _card(version_folder(out, number))


def add_version(out: Path, make: Callable[[Path], Version]) -> Version:
    """A new version, complete or not at all; it is not current yet.

    `make` writes MODULE and REPORT below the folder that it is given, and says what is known of
    them but for number and time. Raises: InputError if something else lies where they belong.
    """
    with _changing(out):
        return _add(out, make)


def restate(out: Path, version: Version, report: bytes | None = None) -> None:
    """From now on this is known of a version that is kept, and this is its report if one is given.

    Raises: InputError if it is not kept any more.
    """
    with _changing(out):
        folder = version_folder(out, version.number)
        if _card(folder) is None:
            raise _unknown(out, version.number)
        if report is not None:
            with replacing(folder / REPORT) as stream:
                stream.write(report)
        with replacing(folder / _CARD) as stream:
            stream.write(to_json(version).encode())


def promote(out: Path, number: int, *, over: int | None = None) -> bool:
    """The version is current; its bundle is sound.

    False, and nothing has changed, if another than `over` is current meanwhile. Raises: InputError
    if it is not kept; RecordError if its bundle is damaged.
    """
    with _changing(out):
        if over is not None and _pointed(out) != over:
            return False
        if _pointed(out) != number:
            _check(out, number)
            _move(out, _history(out).promoted(number, _now()), number)
        return True


def rollback(out: Path) -> Version:
    """What was current before is current again, and given: twice in a row goes two back.

    Raises: InputError if there is none; RecordError if its bundle is damaged.
    """
    with _changing(out):
        history = _history(out)
        number = history.before(_numbers(out))
        if number is None:
            raise InputError(
                f"{out}: expected a version before the current one, got none to go back to; "
                f"`retune versions {out}` lists what is kept"
            )
        version = _check(out, number)
        _move(out, history.taken_back(number, _now()), number)
        return version


def prune(out: Path, keep: int = KEEP) -> tuple[int, ...]:
    """The newest `keep` versions are left, the current one and the one before it; numbers removed.

    Raises: InputError if `keep` is not positive.
    """
    if keep < 1:
        raise InputError(f"{out}: expected to keep at least one version, got {keep}")
    with _changing(out):
        numbers = _numbers(out)
        left = {*numbers[-keep:], _pointed(out), _history(out).before(numbers)}
        removed = tuple(number for number in numbers if number not in left)
        for number in removed:
            remove_folder(version_folder(out, number))
        return removed


def take_over(out: Path) -> None:
    """What an older retune published at OUT, if anything, is a version, and current."""
    with _changing(out):
        pass


@contextmanager
def _changing(out: Path) -> Generator[None, None, None]:
    """This process alone changes the folder; what killed ones left undone is done or undone."""
    check_publishable(out)
    with exclusive(out / _VERSIONS / ".lock"):
        for name in (MODULE, REPORT, LOCK, CURRENT):
            remove_leftovers(out / name)
        for pattern in (".*.*.tmp", "[0-9]*/.*.*.tmp"):
            for left in (out / _VERSIONS).glob(pattern):
                discard(left)
        _take_over(out)
        if _pointed(out) is not None:
            _name(out)
        yield


def _take_over(out: Path) -> None:
    """A bundle that lies at OUT/module itself is the current version; its name is still the folder.

    A process that was killed at it has made the version already, or the pointer as well.
    """
    module = out / MODULE
    if _is_name(out, MODULE) or not is_bundle(module):
        return
    taken = _taken_over(module)
    same = [v for v in versions(out) if taken.program and v.program == taken.program]

    def make(folder: Path) -> Version:
        shutil.copytree(module, folder / MODULE, copy_function=link_or_copy)
        if (out / REPORT).is_file() and not _is_name(out, REPORT):
            shutil.copy2(out / REPORT, folder / REPORT)
        return taken

    number = (same[-1] if same else _add(out, make)).number
    if _pointed(out) != number:
        write_succession(_history_path(out), _history(out).promoted(number, _now()))
        point(out / CURRENT, f"{_VERSIONS}/{number:04d}")


def _taken_over(module: Path) -> Version:
    """What its manifest says; of a damaged one next to nothing is known."""
    created = datetime.fromtimestamp((module / MANIFEST).stat().st_mtime, UTC)
    known = Version(
        created=created.isoformat(timespec="seconds"),
        model_key="",
        target="",
        program="",
        verdict="taken over",
        notes="published by a retune that kept no versions",
    )
    try:
        plan = read_bundle(module)
        return replace(
            known,
            model_key=plan.model_key,
            target=plan.device.fingerprint,
            program=program_key(module),
        )
    except RecordError as error:
        return replace(known, notes=f"{known.notes}; damaged: {error}")


def _add(out: Path, make: Callable[[Path], Version]) -> Version:
    given = (change.number or 0 for change in _history(out).changes)
    number = 1 + max((*_numbers(out), *given), default=0)
    with whole_folder(version_folder(out, number), replace=False) as fresh:
        made = make(fresh)
        version = replace(made, number=number, created=made.created or _now())
        (fresh / _CARD).write_text(to_json(version), encoding="utf-8")
    return version


def _check(out: Path, number: int) -> Version:
    """The version. Raises: InputError if it is not kept, RecordError if its bundle is damaged."""
    version = _card(version_folder(out, number))
    if version is None:
        raise _unknown(out, number)
    read_bundle(version_folder(out, number) / MODULE)
    return version


def _move(out: Path, history: Succession, number: int) -> None:
    """The pointer is at that version, and the history says why."""
    write_succession(_history_path(out), history)
    _name(out)
    point(out / CURRENT, f"{_VERSIONS}/{number:04d}")


def _name(out: Path) -> None:
    """OUT/module, OUT/report.html and OUT/retune.lock are links through the pointer.

    A real folder that lies there is exchanged for the link; where the system cannot exchange names
    there is a moment with nothing at OUT/module, once, when the folder is taken over.
    """
    for name in (MODULE, REPORT, LOCK):
        if not _is_name(out, name):
            fresh = out / f".{name}.link.tmp"
            discard(fresh)
            fresh.symlink_to(_name_of(name))
            put_in_place(fresh, out / name)


def _is_name(out: Path, name: str) -> bool:
    link = out / name
    return link.is_symlink() and str(link.readlink()) == _name_of(name)


def _name_of(name: str) -> str:
    return f"{CURRENT}/{name}"


def _pointed(out: Path) -> int | None:
    """The number that the pointer says; None if there is no pointer of ours."""
    try:
        found = re.fullmatch(rf"{_VERSIONS}/(\d+)", str((out / CURRENT).readlink()))
    except OSError:
        return None
    return int(found[1]) if found else None


def _history(out: Path) -> Succession:
    """Which versions were current, so that the pointer is at the last one.

    The last change counts as not made if its process was killed before it moved the pointer. A
    pointer that was moved by hand counts as a promotion.
    """
    history = read_succession(_history_path(out)) or Succession()
    number = _pointed(out)
    if history.present == number:
        return history
    undone = Succession(changes=history.changes[:-1])
    if undone.present == number:
        return undone
    return history if number is None else history.promoted(number, _now())


def _history_path(out: Path) -> Path:
    return out / _VERSIONS / _HISTORY


def _numbers(out: Path) -> list[int]:
    """Of all folders of versions, rising."""
    folders = (out / _VERSIONS).glob("[0-9]*")
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def _card(folder: Path) -> Version | None:
    """What is known of the version in the folder; None if there is none."""
    try:
        text = (folder / _CARD).read_text(encoding="utf-8")
        return from_json(Version, text.replace(*_RENAMED))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise RecordError(
            f"{folder / _CARD}: expected what is known of a version; {error}"
        ) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _unknown(out: Path, number: int) -> InputError:
    kept = ", ".join(map(str, _numbers(out))) or "none"
    return InputError(f"{out}: expected one of its versions ({kept}), got {number}")


def _foreign(path: Path, expected: str) -> InputError:
    return InputError(
        f"{path}: expected nothing, or {expected}; got something else, which is left as it is; "
        "name another folder"
    )
