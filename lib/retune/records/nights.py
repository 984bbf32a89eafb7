"""The table of nights: how long each network took on each device, night after night, and why.

`records/nights/FLEET/NIGHT.parquet` lies beside the measurements: one row for each network and
device of that night. Read NightRow, `write_nights` and `read_nights`; `retune.records.load_nights`
gives the table to pandas.

Absolute times are taken beside two controls, in one run and in turns: a control network, which is
compiled once for a device and never again, and the calibration kernel. What moves all three is the
machine. Columns are only ever added; older files lack some, and read as if these were empty.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from retune.core.errors import refuse_newer
from retune.core.locking import exclusive
from retune.records.arrow import VERSION_KEY, as_frame, schema_version
from retune.records.files import write_table

if TYPE_CHECKING:
    from retune.records import Table

NIGHTS_VERSION = 1
"""Of the table's files; one of a newer version is refused."""

FOLDER = "nights"

NightVerdict = Literal["", "noise", "real", "hardware", "method"]
"""What is behind a change, see `retune.nightly.verdicts`. Empty: there is no time to judge."""

_LOG = logging.getLogger(__name__)
_UNREADABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError)
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRow:
    """A network on a device in a night. Times are of whole calls; `low` and `high` are the bounds
    of 95 % intervals."""

    fleet: str
    night: str
    network: str
    """Its name in the fleet; as `device` is."""
    device: str
    measured: datetime = _NEVER
    """UTC."""

    driver: str = ""
    """Of the device: it is what compiles kernels."""
    opencl: str = ""
    host: str = ""
    """The processor, its cores and caches."""
    retune: str = ""
    """Version."""
    commit: str = ""
    """Of retune, where it runs from a checkout."""
    budget: str = ""
    """How much the night may measure, and how."""
    control_program: str = ""
    """Program key of the control network."""

    version: int | None = None
    """Number of the bundle that was published when the night came to the network; None: there was
    none."""
    program: str = ""
    """Its program key."""
    rounds: int = 0
    """Turns in which bundle, control network and calibration kernel were timed."""
    time_us: float | None = None
    """Of the published bundle, in absolute time."""
    time_low_us: float | None = None
    time_high_us: float | None = None
    control_us: float | None = None
    """Of the control network."""
    control_low_us: float | None = None
    control_high_us: float | None = None
    kernel_us: float | None = None
    """Of the calibration kernel. None: the device has none."""
    kernel_low_us: float | None = None
    kernel_high_us: float | None = None
    ratio: float | None = None
    """Time of the bundle over that of the control network, both of the same turns."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    problem: str = ""
    """Why there is no absolute time; empty if there is one."""

    status: str = ""
    """What became of the tuning: done, failed, skipped."""
    promoted: bool = False
    """Another bundle was published, since it is faster."""
    gain: float | None = None
    """Its time over that of the one before, taken in turns."""
    gain_low: float | None = None
    gain_high: float | None = None

    verdict: NightVerdict = ""
    change: float | None = None
    """Time over what former nights let expect: below 1, it is faster."""
    change_low: float | None = None
    change_high: float | None = None
    why: str = ""
    """The verdict as a sentence."""
    new_level: bool = False
    """The change lasts: later nights are compared with nights from this one on."""

    @property
    def key(self) -> tuple[str, str]:
        """The key of the network on its device within the fleet."""
        return self.network, self.device


_TEXT = pa.string()
_KINDS: Mapping[object, pa.DataType] = {
    str: _TEXT,
    bool: pa.bool_(),
    int: pa.int32(),
    int | None: pa.int32(),
    float | None: pa.float64(),
    datetime: pa.timestamp("us", tz="UTC"),
    NightVerdict: _TEXT,
}

NIGHTS_SCHEMA = pa.schema(
    [
        pa.field(name, _KINDS[kind], metadata={"unit": "us" if name.endswith("_us") else ""})
        for name, kind in get_type_hints(NightRow).items()
    ],
    metadata={VERSION_KEY: str(NIGHTS_VERSION).encode(), b"retune.kind": b"nights"},
)
"""What a file of the table holds: the fields of NightRow."""


def write_nights(root: Path | str, rows: Sequence[NightRow]) -> None:
    """The table below `root` has these rows, durably, instead of those of the same night, network
    and device. Threads and processes may write at once."""
    files: dict[Path, dict[tuple[str, str], NightRow]] = {}
    for row in rows:
        path = Path(root) / FOLDER / _quoted(row.fleet) / f"{_quoted(row.night)}.parquet"
        files.setdefault(path, {})[row.key] = row
    for path, changed in files.items():
        with exclusive(path.with_name(f".{path.name}.lock"), f"{path} is being written"):
            known = {row.key: row for row in _rows(_readable(path))}
            write_table(_table([*(known | changed).values()]), path)


def read_nights(root: Path | str, fleet: str = "", night: str = "") -> list[NightRow]:
    """The rows of a fleet and a night, or of all of them: the oldest night first.

    Raises: RecordError for a file of a newer version. A damaged file is named in the log.
    """
    rows = _rows(_read_all(Path(root), fleet, night))
    begun: dict[tuple[str, str], datetime] = {}
    for row in rows:
        key = row.fleet, row.night
        begun[key] = min(begun.get(key, row.measured), row.measured)
    return sorted(rows, key=lambda r: (r.fleet, begun[r.fleet, r.night], r.night, r.device))


def nights_frame(root: Path | str, fleet: str = "") -> "Table":
    """The same rows, as a pandas table with arrow-typed columns. Raises: as `read_nights`."""
    return as_frame(_read_all(Path(root), fleet, "")).sort_values(
        by=["fleet", "measured", "network", "device"], ignore_index=True
    )


def _read_all(root: Path, fleet: str, night: str) -> pa.Table:
    pattern = f"{_quoted(fleet) or '*'}/{_quoted(night) or '[!.]*'}.parquet"
    paths = sorted((root / FOLDER).glob(pattern))
    return pa.concat_tables([NIGHTS_SCHEMA.empty_table(), *map(_readable, paths)])


def _readable(path: Path) -> pa.Table:
    """As `_read`; no rows if the file is missing, or damaged, which the log says."""
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except _UNREADABLE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        _LOG.warning("%s cannot be read and is left out (%s); delete it", path, reason)
    return NIGHTS_SCHEMA.empty_table()


def _read(path: Path) -> pa.Table:
    """The file's rows, with today's columns. Raises: RecordError if it is of a newer version."""
    file = pq.read_table(path)
    version = schema_version(file.schema.metadata)
    refuse_newer(str(path), "a table of nights of version", version, NIGHTS_VERSION)
    columns = [
        file.column(field.name).cast(field.type)
        if field.name in file.column_names
        else pa.nulls(file.num_rows, field.type)
        for field in NIGHTS_SCHEMA
    ]
    return pa.table(columns, schema=NIGHTS_SCHEMA)


def _table(rows: Sequence[NightRow]) -> pa.Table:
    return pa.Table.from_pylist([dataclasses.asdict(row) for row in rows], schema=NIGHTS_SCHEMA)


def _rows(table: pa.Table) -> list[NightRow]:
    return [_row(values) for values in table.to_pylist()]


def _row(values: Mapping[str, Any]) -> NightRow:
    """The row; a field that the file leaves out has its default."""
    return NightRow(**{name: value for name, value in values.items() if value is not None})


def _quoted(name: str) -> str:
    return quote(name, safe="")
