"""Simulated boards: what a TOML file says of one, and which faults it shall have.

Read `Board`, `Fault` and `read_board`. How long kernels take on one says `simulation`; who applies
the faults, `faults`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Literal, cast, get_args

from retune.core.errors import InputError
from retune.core.target import DeviceSpec

SIMULATED = "sim:"
"""Before the path of its file, a simulated device's name."""

FaultKind = Literal["hang", "crash", "wrong_result", "launch_error", "lost", "slow", "wrong_bundle"]
"""What becomes of a measurement: a row of that reason (`hang`: timeout), or a time that is too long
(`slow`). `lost`: the driver is gone, and the batch with it. `wrong_bundle`: the candidate looks
right, and so fast that it is chosen, but every bundle that it is in computes something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of a board's script. Exactly one of `at`, `task` and `share` says whom it hits."""

    kind: FaultKind
    at: int | None = None
    """The measurement of that number, from 1 on, over the life of the board."""
    task: str | None = None
    """Candidates that have a kernel of a name like this (`conv2d*`), but for the first one of each
    task that a process measures: that is its default schedule, which a bundle falls back to."""
    share: float | None = None
    """This part of all candidates; equal candidates fare alike."""
    times: int | None = None
    """How many measurements it hits, from `at` on or as they come. None: one; all of a `share`."""
    factor: float = 10.0
    """Of `slow`: how many times as long the candidate seems to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A device that is simulated: it has the limits of a real one, and times that are made up."""

    path: Path
    """Its file; what happened to it so far lies beside it."""
    name: str
    """What the records call it."""
    model: str
    """Boards of one model are of one kind: they may share a run. By default its name."""
    base: str = "pocl"
    """The device whose limits it has, and on which bundles really run."""
    driver: str = "1"
    """Version of its driver: another one is another kind of device, with times of its own."""
    measure_s: float = 0.0
    """How long a measurement takes; nothing is computed meanwhile."""
    hang_s: float = 0.0
    """How long one waits for a kernel that hangs, whatever deadline its row names."""
    speed: float = 1.0
    """Times are divided by it."""
    noise: float = 0.0
    """Spread of a measurement's repeats, as a part of the time; 0: all are equal."""
    faults: tuple[Fault, ...] = ()
    """In order: of those that fit a measurement the first one hits it."""

    def described(self, base: DeviceSpec) -> DeviceSpec:
        """The board as a device, with the limits of `base`; it has cores of its own."""
        return replace(
            base,
            name=self.name,
            model=f"simulated {self.model}",
            platform="simulated",
            driver=self.driver,
            host="simulated",
            affinity="",
        )


_REQUIRED: dict[str, type] = {"name": str}
_OPTIONAL: dict[str, type] = {
    "model": str,
    "base": str,
    "driver": str,
    "measure_s": float,
    "hang_s": float,
    "speed": float,
    "noise": float,
    "fault": list,
}
_FAULT_OPTIONAL: dict[str, type] = {
    "at": int,
    "task": str,
    "share": float,
    "times": int,
    "factor": float,
}
_NOUNS: dict[type, str] = {
    str: "text",
    float: "a number",
    int: "a whole number",
    list: "[[fault]] tables",
}
_CHOICES = ("at", "task", "share")


def read_board(path: Path) -> Board:
    """The board of that TOML file. Raises: InputError naming the file, the fault and the key."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path}: expected the TOML file of a simulated device, got no file; check the path"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: expected a TOML file that can be read: {error}") from error
    where = str(path)
    fields = _checked(table, _REQUIRED, _OPTIONAL, where)
    faults = cast("Sequence[object]", fields.pop("fault", ()))
    for key, low, high in (
        ("speed", 0.0, inf),
        ("measure_s", None, inf),
        ("hang_s", None, inf),
        ("noise", None, 1.0),
    ):
        _check_range(fields, key, low, high, where)
    if fields["name"] == fields.get("base", "pocl"):
        raise InputError(
            f"{where}: name: expected one of its own, got {fields['name']!r}, the base's"
        )
    read = tuple(_fault(entry, f"{where}: fault {i}") for i, entry in enumerate(faults, 1))
    return Board(path=path, faults=read, **{"model": fields["name"], **fields})  # pyright: ignore[reportArgumentType]  checked


def _fault(entry: object, where: str) -> Fault:
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected a [[fault]] table, got {entry!r}")
    fields = _checked(cast("dict[str, object]", entry), {"kind": str}, _FAULT_OPTIONAL, where)
    kind, kinds = fields["kind"], get_args(FaultKind)
    if kind not in kinds:
        raise InputError(f"{where}: kind: expected one of {', '.join(kinds)}, got {kind!r}")
    given = [key for key in _CHOICES if key in fields]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise InputError(f"{where}: expected one of {', '.join(_CHOICES)}, got {got}")
    if kind == "wrong_bundle" and "share" in fields:
        raise InputError(
            f"{where}: share: expected `at` or `task` for wrong_bundle: a default schedule that "
            "was hit would leave no bundle that is right"
        )
    if kind != "slow" and "factor" in fields:
        raise InputError(f"{where}: factor: expected only where kind is slow, got {kind!r}")
    for key, low, high in (
        ("at", 0, inf),
        ("times", 0, inf),
        ("share", 0, 1.0),
        ("factor", 0, inf),
    ):
        _check_range(fields, key, low, high, where)
    return Fault(**fields)  # pyright: ignore[reportArgumentType]  checked


def _checked(
    table: Mapping[str, object],
    required: Mapping[str, type],
    optional: Mapping[str, type],
    where: str,
) -> dict[str, object]:
    """The table's entries, all of which are known and of their types."""
    known = {**required, **optional}
    for key, value in table.items():
        if key not in known:
            raise InputError(f"{where}: key {key!r} is not known; known are {', '.join(known)}")
        if not _is(value, known[key]):
            raise InputError(f"{where}: {key}: expected {_NOUNS[known[key]]}, got {value!r}")
        if value == "":
            raise InputError(f"{where}: {key}: expected a text that is not empty")
    for key in required:
        if key not in table:
            raise InputError(f"{where}: key {key!r} is missing; write {key} = ...")
    return dict(table)


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float if kind is float else kind)


def _check_range(
    fields: Mapping[str, object], key: str, above: float | None, most: float, where: str
) -> None:
    """The number is finite, above `above` (None: 0 or more) and at most `most`, if it is there."""
    if key not in fields:
        return
    value = cast("float", fields[key])
    fits = value >= 0 if above is None else value > above
    if not (fits and value <= most and isfinite(value)):
        least = "0 or more" if above is None else f"more than {above:g}"
        limit = f" and at most {most:g}" if isfinite(most) else ""
        raise InputError(f"{where}: {key}: expected {least}{limit}, got {value!r}")
