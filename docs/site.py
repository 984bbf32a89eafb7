"""Pages of the site that are made when it is built: those outside of docs/, and the reference.

MkDocs calls `on_files` (mkdocs.yml names this file as a hook) and `on_page_markdown`. The reference
follows from the code, so it cannot be out of date.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "BENCHMARKS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
}
"""Page of the repository -> page of the site."""


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages, and the examples that pages link to."""
    from mkdocs.structure.files import File

    made = {there: _moved((ROOT / here).read_text("utf-8")) for here, there in OUTSIDE.items()}
    made["reference/command-line.md"] = command_line()
    made["reference/records.md"] = record_columns()
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".toml", ".yaml", ".md"):
            made[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8")
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Links from docs/ to files beside it point to their copies in the site."""
    return markdown if page.file.src_uri in OUTSIDE.values() else markdown.replace("](../", "](")


def _moved(markdown: str) -> str:
    """A page of the repository's root, as one that lies beside those of docs/."""
    text = re.sub(r"(\]\(|src(?:set)?=\")docs/", r"\1", markdown)
    for here, there in OUTSIDE.items():
        text = text.replace(f"]({here}", f"]({there}")
    return text


def command_line() -> str:
    """Every command with its help, as it is printed at 80 columns."""
    from typer.main import get_command

    from retune.cli.main import app

    parts = ["# Command line", "", "Made from the code. `retune COMMAND --help` prints the same."]
    for words, command in _commands(get_command(app), ()):
        context = command.make_context(" ".join(("retune", *words)), [], resilient_parsing=True)
        parts += ["", f"## {' '.join(words) or 'retune'}", "", "```text"]
        parts += [command.get_help(context).strip(), "```"]
    return "\n".join(parts) + "\n"


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, (*words, name))


def record_columns() -> str:
    """The columns of a record, with their types and units."""
    from retune.records.arrow import READ_SCHEMA

    parts = [
        "# Columns of a record",
        "",
        "Made from the code; [Records](../records.md) explains them.",
    ]
    parts += ["", "| column | type | unit or meaning |", "|---|---|---|"]
    for field in READ_SCHEMA:
        unit = (field.metadata or {}).get(b"unit", b"").decode().replace("|", "\\|")
        parts.append(f"| `{field.name}` | {field.type} | {unit} |")
    return "\n".join(parts) + "\n"
