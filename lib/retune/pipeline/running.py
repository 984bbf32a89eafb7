"""A run as a whole: one process at a time has it, and what becomes of it is written down.

Read `recorded_run`. A run is a request; its record, `runs/NAME/run.json` below the request's work
folder, says what was asked for, who runs it and how far it is, so that the run can be listed and
started again. What was made is not there but in the stages' manifests and in the record store.
"""

import json
import logging
import re
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from retune.core.errors import LookupFailed, RecordError, RunStopped, sentence
from retune.core.keys import content_key
from retune.core.locking import exclusive_once, machine_lock
from retune.core.names import is_built_in, model_name
from retune.core.processes import Holder, is_alive, now, this_process
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.pipeline.request import TuneRequest, renamed
from retune.search.owner import own_run

State = Literal["running", "finished", "failed", "stopped"]
Standing = Literal[State, "died"]

LAST = "last"
"""Instead of a name: the run that was the latest to change."""

_FOLDER = "runs"
_FILE = "run.json"
_STEM_CHARS = 40
_KEY_DIGITS = 8

_LOG = logging.getLogger("retune.pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a run on disk."""

    name: str
    request: TuneRequest
    folder: str
    """The folder it was started in, which the request's relative paths start from."""
    holder: Holder
    """Who runs it, or was the last to do so."""
    started: str
    """When the holder began. ISO 8601, UTC."""
    changed: str
    """When it came to this state and stage."""
    state: State
    stage: str = ""
    """The latest one that began."""
    error: str = ""
    """Why it failed or stopped."""

    @property
    def standing(self) -> Standing:
        """The state; `died` if it was left running by a process that is gone."""
        return "died" if self.state == "running" and not is_alive(self.holder) else self.state


class RecordedRun:
    """The run that this process has. `recorded_run` makes it."""

    def __init__(self, record: RunRecord, held: ExitStack, *, wait: bool) -> None:
        """`held` ends with the run; `wait` says what to do about others who are in the way."""
        self.lasts = True
        self._record = record
        self._held = held
        self._wait = wait
        self._cut_short = ""
        _write(record)

    @property
    def name(self) -> str:
        """The run's name for people."""
        return self._record.name

    def entered(self, stage: str) -> None:
        """The record says that this stage has begun."""
        self._change(replace(self._record, stage=stage))

    def claim(self, run_id: str) -> None:
        """No other run of that id in the request's store proposes until this one ends.

        To be called as soon as the id is known, and before anything is proposed; a request for no
        trials proposes nothing. Raises: BusyError if there is one, and this one is not to wait.
        """
        request = self._record.request
        if request.trials != 0:
            owned = own_run(Path(request.records), run_id, self.name, wait=self._wait)
            self._held.enter_context(owned)

    def cut_short(self, reason: str) -> None:
        """Marks the run to count as stopped at its end, not as finished: less was done than
        requested."""
        self._cut_short = reason

    def end(self, error: BaseException | None) -> None:
        """The record says how it ended."""
        self.lasts = False
        if error is None:
            state: State = "stopped" if self._cut_short else "finished"
        else:
            failed = isinstance(error, Exception) and not isinstance(error, RunStopped)
            state = "failed" if failed else "stopped"
        reason = self._cut_short if error is None else sentence(error)
        self._change(replace(self._record, state=state, error=reason))

    def _change(self, record: RunRecord) -> None:
        self._record = replace(record, changed=now())
        _write(self._record)


_CURRENT: ContextVar[RecordedRun | None] = ContextVar("retune_run", default=None)


@contextmanager
def recorded_run(request: TuneRequest, *, wait: bool = True) -> Generator[RecordedRun]:
    """The run of that request, from its import to its report; its record follows what happens.

    Runs that publish to the same folder exclude each other, and so do runs that share records, from
    `RecordedRun.claim` on: the call waits for the other one, and says on the log who has it, or
    raises BusyError without `wait`. Where the caller's own context has this run already, as a flow
    has it that was started for it, the context is a part of that run. The request is one that
    `check_request` has passed.
    """
    name = run_name(request)
    outer = _CURRENT.get()
    if outer is not None and outer.lasts and outer.name == name:
        yield outer
        return
    out = Path(request.out).resolve()
    doing = f"{out}: a run that publishes there is carried out"
    with ExitStack() as held:
        held.enter_context(exclusive_once(machine_lock("out", out), doing, wait=wait))
        run = RecordedRun(_begun(name, request), held, wait=wait)
        _CURRENT.set(run)
        try:
            yield run
        except BaseException as error:
            run.end(error)
            raise
        else:
            run.end(None)
        finally:
            _CURRENT.set(outer)


def run_name(request: TuneRequest) -> str:
    """`MODEL-KEY`: the same request from the same folder has the same name, as nothing else has."""
    built_in = is_built_in(request.model)
    paths = ("out", "records", "work") if built_in else ("model", "out", "records", "work")
    whole: dict[str, Any] = {name: str(Path(getattr(request, name)).resolve()) for name in paths}
    key = content_key(replace(request, **whole))[:_KEY_DIGITS]
    return f"{_readable(model_name(request.model))}-{key}"


def runs(work: Path) -> tuple[RunRecord, ...]:
    """The runs whose records lie below that work folder, the latest to change at the end.

    Of a record that cannot be read the log says so.
    """
    found = (_read(path) for path in (work / _FOLDER).glob(f"*/{_FILE}"))
    return tuple(sorted((r for r in found if r is not None), key=lambda r: (r.changed, r.name)))


def find_run(work: Path, name: str) -> RunRecord:
    """The run of that name, or the only one whose name begins so; see also `LAST`.

    Raises: LookupFailed naming the runs there are.
    """
    known = runs(work)
    if not known:
        raise LookupFailed(f"run {name!r}: no run is recorded in {work / _FOLDER}")
    if name == LAST:
        return known[-1]
    exact = [run for run in known if run.name == name]
    begun = exact or [run for run in known if run.name.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    which = "begins the names of several" if begun else "is not known"
    names = ", ".join(run.name for run in begun or known)
    raise LookupFailed(f"run {name!r} {which}; write one of: {names}")


def find_runs_before(work: Path, moment: datetime) -> tuple[Path, ...]:
    """Folders of records of runs that ended, and changed last before that moment."""
    running = {run.name for run in runs(work) if run.standing == "running"}
    found: list[Path] = []
    for folder in sorted((work / _FOLDER).glob("*")):
        with suppress(FileNotFoundError):  # another process changes it just now
            if folder.is_dir() and folder.name not in running:
                changed = max((file.stat().st_mtime for file in folder.iterdir()), default=0.0)
                found += [folder] if changed < moment.timestamp() else []
    return tuple(found)


def _begun(name: str, request: TuneRequest) -> RunRecord:
    holder = this_process()
    return RunRecord(
        name=name,
        request=request,
        folder=str(Path.cwd()),
        holder=holder,
        started=holder.since,
        changed=holder.since,
        state="running",
    )


def _write(record: RunRecord) -> None:
    """The record is on disk. A run does not fail for the lack of it, as on a full disk."""
    path = Path(record.folder) / record.request.work / _FOLDER / record.name / _FILE
    try:
        with replacing(path) as stream:
            stream.write(to_json(record).encode())
    except OSError as error:
        _LOG.warning(
            "%s cannot be written (%s); `retune resume` may not know", path, error.strerror
        )


def _read(path: Path) -> RunRecord | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(stored, dict) and isinstance(stored.get("request"), dict):
            stored["request"] = renamed(stored["request"])
        record = from_json(RunRecord, json.dumps(stored))
    except (OSError, ValueError, RecursionError, RecordError) as error:
        _LOG.warning("%s: the record of a run cannot be read (%s); left out", path, error)
        return None
    return replace(record, name=path.parent.name)


def _readable(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:_STEM_CHARS] or "model"
