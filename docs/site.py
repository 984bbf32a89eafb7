"""Pages of the site that are made when it is built: those outside of docs/, and the reference.

MkDocs calls `on_files` (mkdocs.yml names this file as a hook) and `on_page_markdown`. The reference
follows from the code, so it cannot be out of date.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
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
    made["reference/python.md"] = python_interface()
    made["reference/records.md"] = record_columns()
    made["reference/json.md"] = json_outputs()
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and path.suffix in (".py", ".ipynb", ".toml", ".yaml", ".md"):
            made[path.relative_to(ROOT).as_posix()] = path.read_text("utf-8")
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Links from docs/ to files beside it point to their copies in the site."""
    made = page.file.src_uri in OUTSIDE.values()
    return markdown if made else _renamed(markdown.replace("](../", "]("))


def _moved(markdown: str) -> str:
    """A page of the repository's root, as one that lies beside those of docs/."""
    return _renamed(re.sub(r"(\]\(|src(?:set)?=\")docs/", r"\1", markdown))


def _renamed(text: str) -> str:
    """The text with links to pages of the root as links to their copies in the site."""
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


PUBLIC = {
    "retune.api": ("tune_network", "import_network", "extract_tasks", "compile_network"),
    "retune": ("tune", "measure", "template", "space_for", "Schedule"),
    "retune.bundle.runtime.module": ("Module",),
    "retune.bundle.runtime.session": ("Session",),
    "retune.language.loading": ("decoder_of",),
    "retune.records": (
        *("load", "best", "curve", "failures", "compare", "importance", "tuners"),
        *("load_nights", "summary"),
    ),
    "retune.report.plots": ("plot", "Plot"),
}
"""Module -> what users import from it."""


def python_interface() -> str:
    """Signature and docstring of what users import; of classes also their public methods."""
    from importlib import import_module

    parts = ["# Python", "", "Made from the code."]
    for module, names in PUBLIC.items():
        parts += ["", f"## {module}"]
        for name in names:
            parts += _described(f"{module}.{name}", getattr(import_module(module), name))
    return "\n".join(parts) + "\n"


def _described(name: str, found: Any) -> list[str]:
    """A section about a function or class."""
    parts = ["", f"### {name}", "", *_signature(name.rpartition(".")[2], found)]
    for method, own in sorted(vars(found).items()) if inspect.isclass(found) else ():
        if method.startswith("_") or not inspect.getdoc(own):
            continue
        if isinstance(own, property):
            parts += ["", f"#### {method}", "", inspect.getdoc(own) or ""]
        elif callable(getattr(own, "__func__", own)):
            parts += ["", f"#### {method}", ""]
            parts += _signature(f"{found.__name__}.{method}", getattr(found, method))
    return parts


def _signature(name: str, found: Any) -> list[str]:
    """The call, and what the docstring says of it, as it stands in the code."""
    with suppress(TypeError, ValueError):
        text = _call(name, inspect.signature(found))
        return ["```python", text, "```", "", "```text", inspect.getdoc(found) or "", "```"]
    return ["```text", inspect.getdoc(found) or "", "```"]


def _call(name: str, signature: inspect.Signature) -> str:
    """A line, or a line for each parameter; types without their modules and limits."""
    text = f"{name}{signature}"
    if len(text) > _WIDE:
        parts, named = list[str](), False
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and not named:
                parts, named = [*parts, "*"], True
            parts.append(str(parameter))
        end = "" if signature.return_annotation is signature.empty else str(signature)
        end = end.rpartition(" -> ")[2] if end else "None"
        text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {end}"
    text = re.sub(r"Annotated\[(\w+), [\w.]*Meta\([^)]*\)\]", r"\1", re.sub(_MODULE, "", text))
    return text.replace("'", "") if "'_" in text else text


_WIDE = 96
_MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")


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


def json_outputs() -> str:
    """What each command prints with `--json`: its keys and their types, and of what is in them."""
    from retune.cli.outputs import OUTPUTS
    from retune.core.schema import json_schemas

    schemas, records = json_schemas(OUTPUTS.values())
    parts = ["# Output of --json", "", "Made from the code. Each command prints one document."]
    parts += ["", "| command | prints |", "|---|---|"]
    parts += [
        f"| `{command}` | {_json_type(schema)} |"
        for command, schema in zip(OUTPUTS, schemas, strict=True)
    ]
    for name, record in sorted((name.lstrip("_"), record) for name, record in records.items()):
        always = record.get("required", ())
        parts += ["", f"## {name}", "", "| key | type |", "|---|---|"]
        for key, kind in record["properties"].items():
            missing = "" if key in always else ", may be missing"
            parts.append(f"| `{key}` | {_json_type(kind)}{missing} |")
    return "\n".join(parts) + "\n"


def _json_type(schema: Mapping[str, Any]) -> str:
    """A type of JSON in words, with links to the records in it."""
    match schema:
        case {"$ref": place}:
            name = place.lstrip("#_")
            return f"[{name}](#{name.lower()})"
        case {"anyOf": kinds}:
            return " or ".join(map(_json_type, kinds))
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": "array", "prefixItems": kinds}:
            return f"list of {', '.join(map(_json_type, kinds))}"
        case {"type": "array", "items": kind} if kind:
            return f"list of {_json_type(kind)}"
        case {"type": "object", "additionalProperties": kind} if isinstance(kind, dict):
            return f"map to {_json_type(kind)}"
        case {"type": kind}:
            return str(kind)
        case _:
            return "any"
