"""The lock file of a bundle: its sources, from which it can be compiled again to the byte.

Read `lock_of` and `build_locked`. A lock holds the request, the chosen schedules as records, how
the bundle runs, and the hashes of its files. Building from it searches and times nothing: it either
gives these bytes or says what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retune import __version__
from retune.bundle.format import (
    MANIFEST,
    program_key,
    read_outline,
    stated_hashes,
    write_bundle,
)
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.trust import digest_of
from retune.bundle.versions import LOCK, MODULE, Version, add_version, promote, prune, take_over
from retune.core.errors import InputError, RecordError, ShapesMissing, refuse_newer
from retune.core.keys import CODE_VERSION
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.core.target import model_of
from retune.device.opening import spec_of
from retune.pipeline.delivery import device_conditions, selected_plan
from retune.pipeline.manifest import ImportManifest, Selection
from retune.pipeline.network import stage_import
from retune.pipeline.precision import mixed_network, stage_precision
from retune.pipeline.programs import planned_programs
from retune.pipeline.quantization import quantized_network, stage_quantize
from retune.pipeline.request import MIXED, TuneRequest, check_request
from retune.pipeline.results import FinishedRun
from retune.pipeline.sizes import usual_request
from retune.records.arrow import check_storable
from retune.records.distilled import merge, travelling
from retune.records.schema import TuningRecord
from retune.records.shared import records_named
from retune.records.store import RecordStore

FORMAT = 2
"""Of lock files. Fields are only ever added; a file of a newer format is refused."""
_PATHS = ("model", "out", "records", "work")
"""Fields of a request that are of one checkout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The sources of a bundle."""

    lock: int = FORMAT
    retune: str
    """Version that made it."""
    code: str
    """See `core.keys.CODE_VERSION`."""
    name: str
    """Of the network."""
    model: str
    """As the run named it: a built-in model, or the file's path then."""
    model_key: str
    """Of the imported network."""
    device: str
    """Fingerprint."""
    conditions: str
    """Key of what times depend on besides: driver, processor, cores in use."""
    request: TuneRequest
    """Without the paths of one checkout."""
    form: Form
    """How the bundle runs, as it was the fastest."""
    chosen: tuple[Selection, ...]
    """The record of each task, at each of the sizes; other tasks have their default schedule."""
    records: tuple[TuningRecord, ...]
    """The chosen schedules, with their hashes and conditions."""
    complete: bool
    """Whether little was expected of searching on."""
    digest: str
    """Of the bundle, as `retune verify --digest` takes it."""
    files: Mapping[str, str]
    """SHA-256 of each of its files."""


def lock_of(request: TuneRequest, run: FinishedRun, bundle: Path) -> Lock:
    """The lock of that bundle of the run, as it is to be published."""
    ids = {best.record_id: best.task_key for each in run.chosen for best in each.best}
    known = records_named(RecordStore(request.records), ids)
    paths: dict[str, Any] = dict.fromkeys(_PATHS, "")
    return Lock(
        retune=__version__,
        code=CODE_VERSION,
        name=request.name,
        model=request.model,
        model_key=run.network.model_key,
        device=run.tuned.target,
        conditions=device_conditions(request).key,
        request=replace(request, **paths, campaign=""),
        form=read_outline(bundle).form,
        chosen=run.chosen,
        records=tuple(travelling(known[key]) for key in sorted(known)),
        complete=run.searched.complete,
        digest=digest_of(bundle),
        files=_hashes(bundle),
    )


def _hashes(bundle: Path) -> Mapping[str, str]:
    """Hashes of the files by their names; for parts, the hashes that a reader checks them by."""
    return dict(sorted({MANIFEST: digest_of(bundle), **stated_hashes(bundle)}.items()))


def write_lock(lock: Lock, path: Path) -> None:
    """The lock is at the path, whole or not at all."""
    with replacing(path) as stream:
        stream.write(to_json(lock).encode())


def read_lock(path: Path) -> Lock:
    """The lock at the path. Raises: InputError where there is none, RecordError for a bad one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: expected a lock file, got none that can be read; `retune tune MODEL --out "
            f"DIR` writes DIR/{LOCK}"
        ) from error
    found = from_json(Lock, text, where=str(path))
    refuse_newer(str(path), "a lock file of format", found.lock, FORMAT)
    if not found.chosen:
        raise RecordError(f"{path}: chosen: expected a selection, got none; tune for a new lock")
    check_storable({f"{path}: records: {n}": record for n, record in enumerate(found.records)})
    return found


def build_locked(request: TuneRequest, lock: Lock) -> Version:
    """The locked bundle is published at the request's `out`; nothing is searched or timed.

    Of the request count the model and the folders. The records of the lock are in its record store
    afterwards. Raises: InputError for another model or device; RecordError for a lock of another
    code version, and where the bundle has other bytes, which says in which files.
    """
    _check_code(lock)
    asked = replace(lock.request, **{name: getattr(request, name) for name in _PATHS})
    check_request(asked)
    found = spec_of(asked.device).fingerprint
    if found != lock.device:
        raise InputError(
            f"device {asked.device}: expected {lock.device}, as it is locked, got {found}; build "
            f"on the device {model_of(lock.device)}, or tune for this one"
        )
    merge(RecordStore(asked.records), lock.records)
    plan = _plan(asked, lock)
    out = Path(asked.out)
    take_over(out)

    def make(folder: Path) -> Version:
        write_bundle(plan, folder / MODULE)
        _check_bytes(folder / MODULE, lock)
        write_lock(lock, folder / LOCK)
        return Version(
            model_key=lock.model_key,
            target=lock.device,
            program=program_key(folder / MODULE),
            verdict="as asked for",
            notes="as it is locked",
            complete=lock.complete,
        )

    version = add_version(out, make)
    promote(out, version.number)
    prune(out, asked.keep)
    return version


def _check_code(lock: Lock) -> None:
    """Raises: RecordError for a lock of another code version, under which all keys differ."""
    if lock.code != CODE_VERSION:
        raise RecordError(
            f"{lock.name}: expected a lock of code version {CODE_VERSION}, got one of "
            f"{lock.code}, made by retune {lock.retune}; use that version, or tune again for a new "
            "lock"
        )


def _plan(request: TuneRequest, lock: Lock) -> NetworkPlan:
    """The plan that the lock says. Raises: InputError for another model."""
    expected = f"{request.model}: expected the network {lock.name} as it is locked, got another one"
    try:
        network = _network(request)
    except ShapesMissing as error:
        raise InputError(
            f"{expected}: it leaves dimensions open that the lock does not bind; tune this one"
        ) from error
    if network.model_key != lock.model_key:
        raise InputError(
            f"{expected}: its key is {network.model_key}, and not {lock.model_key}; tune this one"
        )
    if lock.chosen[0].sizes.values:
        plan = planned_programs(request, network, lock.chosen, "tuned")
    else:
        plan = selected_plan(request, network, lock.chosen[0], "tuned")
    notes = {**plan.notes, "model": lock.model}
    return replace(plan, name=lock.name, form=lock.form, notes=notes)


def _network(request: TuneRequest) -> ImportManifest:
    """The network of the sizes that occur most, quantized or in mixed precision as asked for."""
    own = usual_request(request)
    network = stage_import(own)
    if own.quantize is not None:
        network = quantized_network(network, stage_quantize(own, network))
    if own.precision == MIXED:
        network = mixed_network(network, stage_precision(own, network))
    return network


def _check_bytes(bundle: Path, lock: Lock) -> None:
    """Raises: RecordError where the bundle is not the locked one."""
    if digest_of(bundle) == lock.digest:
        return
    made = _hashes(bundle)
    names = sorted({*made, *lock.files})
    differing = ", ".join(name for name in names if made.get(name) != lock.files.get(name))
    raise RecordError(
        f"{lock.name}: expected the locked bundle, made by retune {lock.retune} (code "
        f"{lock.code}), got other bytes in {differing} from retune {__version__} (code "
        f"{CODE_VERSION}) on {lock.device}; nothing was published: use that version, or tune again "
        "for a new lock"
    )
