"""Help texts in groups: options and commands under the headings of their `rich_help_panel`.

Plain text that fits 80 columns, without boxes: it can be searched, copied and pasted.
"""

import re
from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

Rows = list[tuple[str, str]]
_ALL = "Options"
_KINDS = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER"}
"""Types of options by typer's names for them; others, such as `path`, become capital."""

_SENTENCE = 1000
"""Characters of a first sentence, which is never cut off: it takes several lines."""
_STATED = re.compile(r"\[default: \(([^]]*)\)")
"""A default that is said in words: typer has it in parentheses."""
_SAID = re.compile(r" ?Default: (.+?)\.(?:  \[(.*)\])?$", re.DOTALL)
"""A default that the help's last sentence says; limits of the value may follow."""


class GroupedCommand(TyperCommand):
    """A command whose options are shown in groups; those without one come first.

    Arguments are capital in its usage, `MODEL` if required and `[MODEL]` otherwise, and options
    that are required stand there, too.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line, behind the command's name."""
        parameters: list[Any] = self.get_params(ctx)
        options = [each for each in parameters if each.param_type_name == "option"]
        required = [_named(each.get_help_record(ctx)[0]) for each in options if each.required]
        pieces = (*required, *super().collect_usage_pieces(ctx))
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options."""
        _write_parameters(self.get_params(ctx), ctx, formatter)


class GroupedCommands(TyperGroup):
    """The same of several commands, which are shown in groups, too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes commands and options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self.get_params(ctx), ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the commands, each with the first sentence of its help."""
        sections: dict[str, Rows] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                group = command.rich_help_panel or "Commands"
                text = command.get_short_help_str(_SENTENCE)
                sections.setdefault(group, []).append((name, text))
        _write(sections, formatter)


def _write_parameters(parameters: Iterable[Any], ctx: Any, formatter: Any) -> None:
    sections: dict[str, Rows] = {"Arguments": [], _ALL: []}
    for each in parameters:
        row = each.get_help_record(ctx)
        if row is not None:
            kind = "Arguments" if each.param_type_name == "argument" else _ALL
            sections.setdefault(each.rich_help_panel or kind, []).append(
                (_named(row[0]), _SAID.sub(_bracketed, _STATED.sub(r"[default: \1", row[1])))
            )
    _write(sections, formatter)


def _bracketed(said: re.Match[str]) -> str:
    """The default as typer shows those that it knows."""
    return f"  [{'; '.join(filter(None, (f'default: {said[1]}', said[2])))}]"


def _named(shown: str) -> str:
    """The name of a parameter as commands show it: `--input TEXT` for `--input <list[str]>`."""
    name, _, kind = shown.partition(" <")
    if not kind or not name.startswith("-"):
        return name
    kind = kind.removeprefix("list[").rstrip("]>").removesuffix(" range")
    return f"{name} {_KINDS.get(kind, kind.upper())}"


def _write(sections: dict[str, Rows], formatter: Any) -> None:
    for name, rows in sections.items():
        if rows:
            with formatter.section(name):
                formatter.write_dl(rows)
