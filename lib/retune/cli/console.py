"""Output of commands: tables for people, JSON for programs; data on stdout, notes on stderr."""

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_OF_WORD, _BETWEEN = 6, 3
"""Characters: longer words may be folded, into parts of so many; and what is beside a column."""
_PIPE = 160
"""Characters of a line where stdout is not a terminal, and COLUMNS does not say."""


def print_json(data: object) -> None:
    """The data on stdout; numbers keep all their digits."""
    from retune.core.schema import plain

    json.dump(plain(data), sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_line(text: str = "") -> None:
    """One line for people, on stdout."""
    sys.stdout.write(text + "\n")


def say(text: str) -> None:
    """One line beside the data, on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_table(
    rows: Sequence[Mapping[str, Any]], title: str = "", optional: Sequence[str] = ()
) -> None:
    """The rows on stdout; columns are the keys of the first row, numbers to the right.

    A terminal that is too narrow for all columns leaves out `optional` ones, in this order, and
    says which.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print_line(f"{title}: none" if title else "none")
        return
    if title:
        print_line(title)  # above the table, not wrapped to its width
    stated = os.environ.get("COLUMNS", "")
    piped = int(stated) if stated.isdecimal() and int(stated) else _PIPE
    width = Console().width if sys.stdout.isatty() else piped
    names = _fitting(rows, optional, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in names))
    least = sum(min(_word(name, rows), _MOST_OF_WORD) + _BETWEEN for name in names)
    Console(width=max(width, least)).print(table, markup=False)
    if left := [name for name in rows[0] if name not in names]:
        print_line(f"not shown at {width} columns: {', '.join(left)}")


def _fitting(rows: Sequence[Mapping[str, Any]], optional: Sequence[str], width: int) -> list[str]:
    """The columns, without as many of the optional ones as leaves words whole."""
    names = list(rows[0])
    going = [name for name in optional if name in names]
    while going and sum(_word(name, rows) + _BETWEEN for name in names) > width:
        names.remove(going.pop(0))
    return names


def _word(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Characters of the longest word of a column."""
    texts = (name, *(cell(row.get(name)) for row in rows))
    return max((len(word) for text in texts for word in text.split()), default=0)


def rounded(values: Iterable[Mapping[str, Any]], digits: int = 2) -> list[dict[str, Any]]:
    """Rows whose fractions have so many digits, for people."""
    return [
        {name: round(v, digits) if isinstance(v, float) else v for name, v in row.items()}
        for row in values
    ]


def cell(value: object) -> str:
    """A value as a table shows it."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.2f}"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
