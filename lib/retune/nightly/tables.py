"""Tables of a TOML file, read key by key; a mistake is one sentence that says where it is.

Read `Table`. It knows no key in particular: `retune.nightly.config` says which there are.
"""

import json
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import TypeGuard, TypeVar, cast

from retune.core.errors import InputError
from retune.core.layouts import SOLVER_REMOVED

Word = TypeVar("Word", bound=str)

_SHOWN_CHARS = 80
"""Of a wrong value in an error."""


def read_toml(path: Path, keys: Collection[str]) -> "Table":
    """The file's outermost table, in which these keys are known.

    Raises: InputError for a file that is not there, is not TOML, or has another key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected text in UTF-8, got other bytes ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: expected a TOML file, got none ({error.strerror})") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: expected TOML, got text that is not: {error}") from None
    return Table(values, keys, str(path))


class Table:
    """One table. Every method raises InputError that names file, table, key, expected and got."""

    def __init__(
        self, values: Mapping[str, object], keys: Collection[str] | None, where: str
    ) -> None:
        """`keys` are those that are known; any other is an error. None: the user chooses them."""
        self.where = where
        self._values = values
        known = tuple(values if keys is None else keys)
        for key in values:
            if key == "layout_solver" and key not in known:
                raise InputError(f"{where}: layout_solver: {SOLVER_REMOVED}")
            if key not in known:
                raise InputError(
                    f"{where}: expected keys among {', '.join(known)}, got "
                    f"{key}{did_you_mean(key, known)}"
                )

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty. Without a default the key is required."""
        value = self._get(key, default, "a text")
        if not isinstance(value, str) or (key in self and not value):
            raise self.wrong(key, "a text that is not empty", value)
        return value

    def number(self, key: str, default: float | None = None, least: float | None = None) -> float:
        """A number of at least `least`; without that, one above 0."""
        expected = "a number above 0" if least is None else f"a number of at least {least:g}"
        value = self._get(key, default, expected)
        if not is_number(value) or not (value > 0 if least is None else value >= least):
            raise self.wrong(key, expected, value)
        return float(value)

    def count(self, key: str, default: int, least: int = 0) -> int:
        """A whole number of at least `least`."""
        value = self._get(key, default, "")
        if type(value) is not int or value < least:
            raise self.wrong(key, f"a whole number of at least {least}", value)
        return value

    def choice(self, key: str, choices: Collection[Word], default: Word) -> Word:
        """One of these texts."""
        value = self._get(key, default, "")
        for known in choices:
            if value == known:
                return known
        raise self.wrong(key, f"one of {', '.join(choices)}", value, choices)

    def texts(self, key: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
        """A list of texts that are not empty, at least one. Without a default it is required."""
        expected = 'a list of texts, such as ["a", "b"]'
        value = self._get(key, default, expected)
        if key not in self:
            return tuple(default or ())
        items = cast(list[object], value) if isinstance(value, list) else []
        found = tuple(item for item in items if isinstance(item, str) and item)
        if not found or len(found) != len(items):
            raise self.wrong(key, expected, value)
        return found

    def clock(self, key: str) -> str:
        """A time of the clock as text, where the file has a text or TOML's own (22:00:00)."""
        value = self._get(key, None, 'a time such as "22:00"')
        return value.isoformat() if isinstance(value, time) else self.text(key)

    def table(self, key: str, keys: Collection[str] | None) -> "Table":
        """The table at that key; an empty one if there is none. `keys` as of a new Table."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            what = f"a table with {', '.join(keys)}" if keys else "a table"
            raise self.wrong(key, what, value)
        return Table(cast(Mapping[str, object], value), keys, f"{self.where}: [{key}]")

    def tables(self, key: str, keys: Collection[str]) -> tuple["Table", ...]:
        """The tables `[[key]]`, in the file's order, at least one."""
        expected = f"at least one table that begins with [[{key}]]"
        value = self._get(key, None, expected)
        items = cast(list[object], value) if isinstance(value, list) else []
        found = [cast(Mapping[str, object], item) for item in items if isinstance(item, dict)]
        if not found or len(found) != len(items):
            raise self.wrong(key, expected, value)
        return tuple(
            Table(item, keys, f"{self.where}: [[{key}]] number {number}")
            for number, item in enumerate(found, 1)
        )

    def wrong(
        self, key: str, expected: str, got: object, choices: Collection[str] = ()
    ) -> InputError:
        """The error of a value that is not what was expected; with the closest of the choices."""
        near = did_you_mean(got, choices) if isinstance(got, str) else ""
        return InputError(f"{self.where}: {key}: expected {expected}, got {shown(got)}{near}")

    def _get(self, key: str, default: object, expected: str) -> object:
        if key in self:
            return self._values[key]
        if default is None:
            raise InputError(f"{self.where}: {key}: expected {expected}, got nothing; add the key")
        return default


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite number that is no truth value."""
    return type(value) in (int, float) and math.isfinite(cast(float, value))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question for the end of an error; empty if nothing that is known is near."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def shown(value: object) -> str:
    """The value about as TOML writes it, cut if it is long."""
    match value:
        case bool() | str():
            text = json.dumps(value, ensure_ascii=False)
        case time() | date():
            text = value.isoformat()
        case dict():
            text = "a table"
        case list():
            text = f"[{', '.join(shown(item) for item in cast(list[object], value))}]"
        case _:
            text = str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
