"""Records that travel: the best few of each task, as JSON lines that people keep and share.

Read `distill`, `write_records`, `read_records` and `merge`. The first line says what the file is;
each other line is a record without its features, which follow from its trace, and without single
repeats. A hundred tasks take half a megabyte.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date
from pathlib import Path

from retune import __version__
from retune.core.errors import InputError, RecordError
from retune.core.replacing import replacing
from retune.core.schema import from_json, plain
from retune.records.arrow import check_storable
from retune.records.conditions import ALONE
from retune.records.ranking import Where, top
from retune.records.schema import TuningRecord
from retune.records.store import RecordStore

FORMAT = 1
"""Of these files. Fields are only ever added; a file of a newer format is refused."""
BEST = 4
"""Records of each task and device that a file has, where nothing else is asked for."""
_MOST_BYTES = 1 << 20
"""Of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstLine:
    """The first line."""

    retune_records: int
    """The format."""
    retune: str = ""
    """Version that wrote it."""


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


def write_records(records: Iterable[TuningRecord], path: Path) -> int:
    """The file holds these records, whole or not at all; gives their number."""
    lines = [json.dumps(plain(_FirstLine(retune_records=FORMAT, retune=__version__)))]
    lines += [json.dumps(plain(record), allow_nan=False) for record in records]
    with replacing(path) as stream:
        stream.write("".join(f"{line}\n" for line in lines).encode())
    return len(lines) - 1


def read_records(path: Path) -> tuple[TuningRecord, ...]:
    """The records of a file. Raises: InputError where it is none, RecordError for a bad line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_file(path) from error
    if not lines or '"retune_records"' not in lines[0]:
        raise _no_file(path)
    header = from_json(_FirstLine, lines[0], where=f"{path}: line 1")
    if header.retune_records > FORMAT:
        raise RecordError(
            f"{path}: expected records of format {FORMAT} at most, got {header.retune_records}; "
            "install a newer retune"
        )
    numbered = [(f"{path}: line {number}", line) for number, line in enumerate(lines[1:], 2)]
    return tuple(_record(where, line) for where, line in numbered if line.strip())


def _record(where: str, line: str) -> TuningRecord:
    """Raises: RecordError naming the line, also where a store cannot hold the record."""
    found = from_json(TuningRecord, line, where=where, most_bytes=_MOST_BYTES)
    check_storable(found, where)
    return found


def _no_file(path: Path) -> InputError:
    return InputError(
        f"{path}: expected a file of records, got none that can be read; `retune records distill "
        "FILE` writes one"
    )


def merge(store: RecordStore, records: Sequence[TuningRecord]) -> int:
    """The store has these records; gives the number of those that are new to it."""
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
