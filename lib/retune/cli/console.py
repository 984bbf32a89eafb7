"""What commands print: tables for people, JSON for programs. Data on stdout, talk on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MOST_OF_WORD, _BETWEEN = 6, 3
"""Characters: longer words may be folded, into parts of so many; and what is beside a column."""


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


def print_table(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """The rows on stdout; columns are the keys of the first row, numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print_line(f"{title}: none" if title else "none")
        return
    if title:
        print_line(title)  # above the table, not wrapped to its width
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(row.get(name)) for name in rows[0]))
    console = Console() if sys.stdout.isatty() else Console(width=160)
    least = sum(_least_width(name, rows) for name in rows[0])
    Console(width=max(console.width, least)).print(table, markup=False)


def _least_width(name: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Of a column that can be read: of a narrower one it is letters; terminals wrap lines."""
    texts = (name, *(cell(row.get(name)) for row in rows))
    longest = max((len(word) for text in texts for word in text.split()), default=0)
    return min(longest, _MOST_OF_WORD) + _BETWEEN


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
