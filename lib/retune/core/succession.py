"""The history of which numbered thing was in use: versions, cost models.

Read Succession. Its file only ever gets longer, and is replaced in one step; who is next in line
when the present one is taken back follows from it.
"""

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from retune.core.errors import RecordError
from retune.core.replacing import replacing
from retune.core.schema import from_json, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something else is in use from then on."""

    number: int | None
    """Which; None: nothing is."""
    when: str
    """ISO time, UTC."""
    back: bool = False
    """True: what came after `number` was taken back. False: `number` was promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """Every change, the oldest first."""

    changes: tuple[Change, ...] = ()

    @property
    def line(self) -> tuple[int, ...]:
        """What is in use, last, and before it what each would give way to if it were taken back.

        A number may be in it twice, but not twice in a row.
        """
        line: list[int] = []
        for change in self.changes:
            if change.back:
                while line and line[-1] != change.number:
                    line.pop()
            elif change.number is not None and change.number not in line[-1:]:
                line.append(change.number)
        return tuple(line)

    @property
    def present(self) -> int | None:
        """The number that is in use."""
        return self.line[-1] if self.line else None

    def before(self, there: Container[int]) -> int | None:
        """What was in use before the present one, among those that are still there."""
        line = self.line
        return next((n for n in line[-2::-1] if n in there and n != line[-1]), None)

    def promoted(self, number: int, when: str) -> "Succession":
        """With that number in use from then on."""
        return self._with(Change(number=number, when=when))

    def taken_back(self, number: int | None, when: str) -> "Succession":
        """With what came after that number taken back."""
        return self._with(Change(number=number, when=when, back=True))

    def until(self, moment: datetime) -> "Succession":
        """The changes up to that moment."""
        known = (c for c in self.changes if datetime.fromisoformat(c.when) <= moment)
        return Succession(changes=tuple(known))

    def _with(self, change: Change) -> "Succession":
        return Succession(changes=(*self.changes, change))


def read_succession(path: Path) -> Succession | None:
    """What `write_succession` wrote; None where there is no file.

    Raises: RecordError if it is another kind of file, or damaged.
    """
    try:
        return from_json(Succession, path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise RecordError(f"{path}: expected a history of promotions; {error}") from error


def write_succession(path: Path, succession: Succession) -> None:
    """The file holds the succession, durably; until then it holds what it held."""
    with replacing(path) as stream:
        stream.write(to_json(succession).encode())
