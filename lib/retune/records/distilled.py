"""Records that travel: the best few of each task, as JSON lines that people keep and share.

Read `distill`, `write_records`, `read_records` and `merge`. The first line says what the file is,
and describes the devices that took the times; each other line is a record without its features,
which follow from its trace, and without single repeats. A hundred tasks take half a megabyte, or,
compressed as a file whose name ends in `.gz` is, a twentieth of it.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date
from pathlib import Path

from retune import __version__
from retune.core.errors import InputError, RecordError, refuse_newer
from retune.core.replacing import replacing
from retune.core.schema import from_json, plain
from retune.core.target import DeviceSpec
from retune.records.arrow import check_storable
from retune.records.conditions import ALONE
from retune.records.origins import keep_spec, read_spec, spec_key
from retune.records.ranking import Where, top
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore

FORMAT = 1
"""Of these files. Fields are only ever added; a file of a newer format is refused."""
BEST = 4
"""Records of each task and device that a file has, where nothing else is asked for."""
_MOST_BYTES = 1 << 20
"""Of a line."""
_MOST_FILE_BYTES = 1 << 28
"""Of a file, uncompressed."""
_COMPRESSED = b"\x1f\x8b"
"""How gzip's files begin (RFC 1952, 2.3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstLine:
    """The first line."""

    retune_records: int
    """The format."""
    retune: str = ""
    """Version that wrote it."""
    devices: tuple[DeviceSpec, ...] = ()
    """Those that took the times, as far as the writer knew them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingRecords:
    """The content of a file of distilled records."""

    records: tuple[TuningRecord, ...] = ()
    """The fastest of a task and device first."""
    devices: Mapping[str, DeviceSpec] = field(default_factory=dict[str, DeviceSpec])
    """By what records call them, `TuningRecord.spec`."""


def distill(
    store: RecordStore, best: int = BEST, model: str = "", device: str = ""
) -> tuple[TuningRecord, ...]:
    """The `best` fastest right configurations of each task on each device, each once.

    Those that won in a network go first: that is where they run. `model` is the network and
    `device` the fingerprint of records that count; empty: all.
    """
    where = {"model": model} if model else {}
    found: dict[tuple[str, str], list[TuningRecord]] = {}
    for key, where_taken, conditions in _groups(store):
        if device in ("", where_taken):
            filters: Where = {**where, "device": where_taken, "conditions": [conditions]}
            mine = found.setdefault((key, where_taken), [])
            known = {record.config_hash for record in mine}
            fastest = top(store, key, filters, best)
            mine += [record for record in fastest if record.config_hash not in known]
    return tuple(travelling(record) for mine in found.values() for record in mine[:best])


def _groups(store: RecordStore) -> list[tuple[str, str, str | None]]:
    """Task, device and conditions of all records, those in a network first."""
    rows = store.tasks()
    columns = (rows[name].tolist() for name in ("task_key", "device", "conditions", "place"))
    groups = [
        (
            not isinstance(place, str) or place == ALONE,
            (str(key), str(device), one if isinstance(one, str) else None),
        )
        for key, device, one, place in zip(*columns, strict=True)
    ]
    return [group for _, group in sorted(groups, key=lambda pair: pair[0])]


def travelling(record: TuningRecord) -> TuningRecord:
    """The record without what follows from its trace, or matters only where it was taken."""
    measured = replace(record.measurement, run_times_us=(), error="")
    return replace(record, features=(), feature_set="", measurement=measured)


def devices_of(store: RecordStore, records: Iterable[TuningRecord]) -> tuple[DeviceSpec, ...]:
    """The devices that took these records, as far as the store describes them."""
    keys = dict.fromkeys(record.spec for record in records if record.spec)
    found = [read_spec(store.root, key) for key in keys]
    return tuple(spec for spec in found if spec is not None)


def write_records(
    records: Iterable[TuningRecord], path: Path, devices: Sequence[DeviceSpec] = ()
) -> int:
    """The file holds these records and devices, whole or not at all; gives the records' number.

    The same records give the same bytes. A name that ends in `.gz` asks for compression.
    """
    lasting = tuple(spec.lasting for spec in devices)
    first = _FirstLine(retune_records=FORMAT, retune=__version__, devices=lasting)
    lines = [json.dumps(plain(first))]
    lines += [json.dumps(plain(record), allow_nan=False) for record in records]
    data = "".join(f"{line}\n" for line in lines).encode()
    with replacing(path) as stream:
        stream.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return len(lines) - 1


def read_records(path: Path) -> TravellingRecords:
    """The content of a file. Raises: InputError where it is none, RecordError for a bad line."""
    try:
        lines = _text(path).splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _no_file(path) from error
    if not lines or '"retune_records"' not in lines[0]:
        raise _no_file(path)
    header = from_json(_FirstLine, lines[0], where=f"{path}: line 1")
    refuse_newer(str(path), "records of format", header.retune_records, FORMAT)
    numbered = [(f"{path}: line {number}", line) for number, line in enumerate(lines[1:], 2)]
    found = {where: _record(where, line) for where, line in numbered if line.strip()}
    check_storable(found)
    return TravellingRecords(
        records=tuple(found.values()),
        devices={spec_key(spec): spec for spec in header.devices},
    )


def _text(path: Path) -> str:
    """The file's text. Raises: what reading and decompressing raise, RecordError for too much."""
    with path.open("rb") as file:
        compressed = file.read(len(_COMPRESSED)) == _COMPRESSED
        file.seek(0)
        source = gzip.GzipFile(fileobj=file) if compressed else file
        data = source.read(_MOST_FILE_BYTES + 1)
    if len(data) > _MOST_FILE_BYTES:
        raise RecordError(f"{path}: expected at most {_MOST_FILE_BYTES >> 20} MiB of records")
    return data.decode()


def _record(where: str, line: str) -> TuningRecord:
    """Raises: RecordError naming the line."""
    return from_json(TuningRecord, line, where=where, most_bytes=_MOST_BYTES)


def _no_file(path: Path) -> InputError:
    return InputError(
        f"{path}: expected a file of records, got none that can be read; `retune records distill "
        "FILE` writes one"
    )


def merge(
    store: RecordStore, records: Sequence[TuningRecord], devices: Iterable[DeviceSpec] = ()
) -> int:
    """The store has these records and devices; gives the number of records that are new to it."""
    for spec in devices:
        keep_spec(store.root, spec)
    known = store.named({record.record_id: record.task_key for record in records})
    groups: dict[tuple[str, str, date], dict[str, TuningRecord]] = {}
    for record in records:
        if record.record_id not in known:
            day = record.measurement.timestamp.astimezone(UTC).date()
            group = groups.setdefault((record.target, record.model, day), {})
            group[record.record_id] = record
    for group in groups.values():
        store.append(list(group.values()))
    return sum(len(group) for group in groups.values())
