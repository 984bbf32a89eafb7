"""Configurations that were right alone and wrong in their network: a fact beside the records.

Read `quarantine`. No row is deleted or rewritten: the store reads the right records of such a
configuration as wrong ones (`as_wrong`), so whoever asks it for the best, learns from it or counts
does not see them succeed. What was wrong on one device says nothing of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from retune.core.errors import RecordError
from retune.core.locking import exclusive
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json
from retune.records.schema import TuningRecord

FILE = "quarantine.json"
"""Beside the folder of the records. Deleting it, or an entry, allows the configuration again."""
NAMING = ("task_key", "config_hash", "device")
"""Columns that say which configuration a record is of, and where it ran."""
JUDGED = ("status", "error", "median_us")
"""Columns that read otherwise for one in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """A configuration of a task that must not be used on a device."""

    record_id: str
    """The offending record; others of the configuration share its fate."""
    task_key: str
    config_hash: str
    device: str
    reason: str
    when: str
    """ISO time, UTC."""

    @property
    def named(self) -> tuple[str, str, str]:
        """Values of NAMING."""
        return self.task_key, self.config_hash, self.device


@dataclass(frozen=True, slots=True, kw_only=True)
class _QuarantineFile:
    """The content of the file."""

    quarantined: tuple[Quarantined, ...] = ()


def quarantined(root: Path) -> tuple[Quarantined, ...]:
    """All that are in quarantine in the store at `root`, the oldest first.

    Raises: RecordError if the file is damaged: nobody knows then what is not to be used.
    """
    path = root / FILE
    try:
        return from_json(_QuarantineFile, path.read_text(encoding="utf-8")).quarantined
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise RecordError(f"{path}: expected the configurations in quarantine; {error}") from error


def quarantine(root: Path, records: Sequence[TuningRecord], reason: str) -> None:
    """Quarantine the records' configurations: on their device they no longer count as right.

    The file is replaced in one step; what is in quarantine already is left as it is.
    """
    when = datetime.now(UTC).isoformat(timespec="seconds")
    with exclusive(root / f".{FILE}.lock"):
        entries = list(quarantined(root))
        known = {entry.named for entry in entries}
        for record in records:
            entry = Quarantined(
                record_id=record.record_id,
                task_key=record.task_key,
                config_hash=record.config_hash,
                device=record.device,
                reason=reason,
                when=when,
            )
            if entry.named not in known:
                entries.append(entry)
                known.add(entry.named)
        with replacing(root / FILE) as stream:
            stream.write(to_json(_QuarantineFile(quarantined=tuple(entries))).encode())


def as_wrong(table: pa.Table, entries: Sequence[Quarantined]) -> pa.Table:
    """The table, in which right records of these configurations are wrong results without a time.

    It has the columns NAMING and JUDGED.
    """
    names = pa.array(["\n".join(entry.named) for entry in entries], pa.string())
    reasons = pa.array([f"quarantined: {entry.reason}" for entry in entries], pa.string())
    of_rows = pc.binary_join_element_wise(*(table.column(name) for name in NAMING), "\n")
    which = pc.index_in(of_rows, names)
    right = pc.fill_null(pc.equal(table.column("status"), "ok"), False)
    denied = pc.and_(pc.is_valid(which), right)
    instead = (pa.scalar("wrong_result"), pc.take(reasons, which), pa.scalar(None, pa.float64()))
    for name, value in zip(JUDGED, instead, strict=True):
        changed = pc.if_else(denied, value, table.column(name))
        table = table.set_column(
            table.schema.get_field_index(name), table.schema.field(name), changed
        )
    return table
