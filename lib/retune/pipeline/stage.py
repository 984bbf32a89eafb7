"""A stage: a step of a run whose output is made once, in a folder named by the key of its inputs.

Read `stage` and `run_once`. The output appears whole or not at all (temporary folder, then rename),
carries a manifest with the hash of every file, and is checked against it before it is used again.
What is missing or damaged is made anew. This file knows no stage in particular.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import logging
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Concatenate, Generic, ParamSpec, TypeVar

from retune.core.errors import RecordError
from retune.core.keys import CODE_VERSION, content_key
from retune.core.locking import QUIET_S, exclusive
from retune.core.replacing import remove_leftovers, whole_folder
from retune.core.schema import from_json, to_json
from retune.pipeline.manifest import Manifest, OutputFile
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.watch import tell

M = TypeVar("M", bound=Manifest)
P = ParamSpec("P")

Inputs = tuple[object, ...]
"""What a stage's output follows from: plain data, see `content_key`."""

MANIFEST = "manifest.json"
_SEAL = "manifest.sha256"
"""The hash of the manifest itself: a changed name or digit in it would be believed without."""

_log = logging.getLogger("retune.pipeline")


class Stage(Generic[P, M]):
    """A function from a request and manifests to a manifest; what it made is stored below `work`.

    Calling it gives the manifest of the finished output, which is made only if there is none.
    """

    def __init__(
        self,
        kind: type[M],
        name: str,
        inputs: Callable[Concatenate[TuneRequest, P], Inputs],
        body: Callable[Concatenate[Path, TuneRequest, P], M],
        doing: str = "",
    ) -> None:
        self.name = name
        self.__doc__ = body.__doc__
        self.__signature__ = _without_folder(body)
        self._kind = kind
        self._inputs = inputs
        self._body = body
        self._doing = doing

    def key(self, request: TuneRequest, *args: P.args, **kwargs: P.kwargs) -> str:
        """The content key of what the output follows from."""
        return stage_key(self.name, *self._inputs(request, *args, **kwargs))

    def __call__(self, request: TuneRequest, *args: P.args, **kwargs: P.kwargs) -> M:
        key, work = self.key(request, *args, **kwargs), Path(request.work)

        def body(folder: Path) -> M:
            if self._doing:
                tell(TuneEvent(stage=self.name, text=self._doing))
            return self._body(folder, request, *args, **kwargs)

        return run_once(self._kind, stage=self.name, key=key, work=work, body=body)


def stage(
    kind: type[M],
    name: str,
    inputs: Callable[Concatenate[TuneRequest, P], Inputs],
    *,
    doing: str = "",
) -> Callable[[Callable[Concatenate[Path, TuneRequest, P], M]], Stage[P, M]]:
    """Decorates the body of a stage: what it does with a folder for its files, see `run_once`.

    `inputs` says what the output follows from, of the same arguments without the folder. Those who
    watch are told that it is `doing` something, before a body that may last.
    """
    return lambda body: Stage(kind, name, inputs, body, doing)


def _without_folder(body: Callable[..., object]) -> inspect.Signature:
    whole = inspect.signature(body)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def stage_key(stage: str, *inputs: object) -> str:
    """The content key of a stage's inputs, of the stage's name, and of this code's version."""
    return content_key(stage, CODE_VERSION, inputs)


def run_once(kind: type[M], *, stage: str, key: str, work: Path, body: Callable[[Path], M]) -> M:
    """The manifest of the stage's finished output, which `body` makes only if there is none.

    `body` writes its files below the folder that it is given and returns a manifest; the fields of
    the base class are filled in here. A second process that wants the same output waits for the
    first. An exception of `body` leaves nothing behind, nor does a manifest that is `stopped`: it
    is returned, and the next call runs `body` again.
    """
    folder = stage_folder(work, stage, key)
    if (found := load(kind, folder)) is not None:
        return found
    with exclusive(_lock_of(folder), f"stage {stage} is being run", quiet_s=QUIET_S):
        if (found := load(kind, folder)) is not None:
            return found
        return _make(stage, key, folder, body)


def stage_folder(work: Path, stage: str, key: str) -> Path:
    """The path of that stage's output for that key, whether it exists or not."""
    return work / stage / key


def _lock_of(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """A finished output of some stage."""

    folder: Path
    bytes: int
    """On the disk, less what is shared with published versions."""

    @property
    def lock(self) -> Path:
        """The lock under which a process makes the output."""
        return _lock_of(self.folder)


def outputs_unused_since(work: Path, moment: datetime) -> tuple[Output, ...]:
    """The outputs below `work` that were last made or loaded before that moment."""
    found: list[Output] = []
    for seal in sorted(work.glob(f"*/*/{_SEAL}")):
        folder = seal.parent
        with contextlib.suppress(FileNotFoundError):  # another process removes it just now
            if seal.stat().st_mtime < moment.timestamp() and (folder / MANIFEST).is_file():
                files = [path.lstat() for path in folder.rglob("*")]
                found.append(Output(folder, sum(f.st_size for f in files if f.st_nlink == 1)))
    return tuple(found)


def load(kind: type[M], folder: Path) -> M | None:
    """The manifest of a finished, undamaged output; None if there is none of that kind.

    That it was used is noted, see `outputs_unused_since`.
    """
    try:
        manifest = from_json(kind, (folder / MANIFEST).read_text(encoding="utf-8"))
        if sha256(folder / MANIFEST) != (folder / _SEAL).read_text(encoding="ascii"):
            raise RecordError("it has changed since it was written")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, RecordError) as error:
        _log.warning("%s: manifest not readable (%s); the stage runs again", folder, error)
        return None
    if (manifest.stage, manifest.key) != (folder.parent.name, folder.name):
        _log.warning("%s: its manifest is another output's; the stage runs again", folder)
        return None
    manifest = dataclasses.replace(manifest, folder=str(folder))
    for output in manifest.outputs:
        if (fault := _fault(manifest.file(output.path), output)) is not None:
            _log.warning("%s: %s %s; the stage runs again", folder, output.path, fault)
            return None
    with contextlib.suppress(OSError):  # of another user, or gone in the meantime
        os.utime(folder / _SEAL)
    return manifest


def stage_intact(manifest: Manifest) -> bool:
    """True if the output that the manifest is of is at its path, with nothing changed since.

    What `run_once` did not store, as it was cut short or lies in the user's folder, has nothing
    that could be missing.
    """
    if manifest.stopped or not manifest.key:
        return True
    stored = load(type(manifest), Path(manifest.folder))
    if stored is not None and to_json(stored) == to_json(manifest):
        return True
    _log.warning("%s: expected the output of before; got another or none", manifest.folder)
    return False


def _make(stage: str, key: str, folder: Path, body: Callable[[Path], M]) -> M:
    remove_leftovers(folder)
    started = perf_counter()
    with whole_folder(folder) as fresh:
        made = body(fresh)
        seconds = perf_counter() - started
        manifest = dataclasses.replace(made, stage=stage, key=key, seconds=seconds)
        if made.stopped:
            shutil.rmtree(fresh)
            return manifest
        manifest = dataclasses.replace(manifest, folder="", outputs=_outputs(fresh))
        (fresh / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
        (fresh / _SEAL).write_text(sha256(fresh / MANIFEST), encoding="ascii")
    return dataclasses.replace(manifest, folder=str(folder))


def _outputs(folder: Path) -> tuple[OutputFile, ...]:
    return tuple(
        OutputFile(
            path=path.relative_to(folder).as_posix(),
            sha256=sha256(path),
            bytes=path.stat().st_size,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fault(path: Path, expected: OutputFile) -> str | None:
    try:
        if path.stat().st_size != expected.bytes:
            return f"has {path.stat().st_size} bytes where {expected.bytes} were written"
        return None if sha256(path) == expected.sha256 else "has changed since it was written"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
