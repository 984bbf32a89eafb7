"""The pages: their links, the options on them, and the figures of the README.

`tests/device/test_pages.py` runs what is on them.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from benchmarks.chart import COLOURS, DATA, IMAGES, chart, read_rows
from retune.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples/README.md"]
README_LINES = 150
COMMAND = re.compile(r"^\$? *(?:\.venv/bin/)?retune (?P<words>.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)|src(?:set)?=\"([^\"]+)\"")


@cache
def command_line() -> Any:
    """The whole command line, as a tree of commands."""
    return get_command(app)


def commands(page: Path) -> Iterator[str]:
    """What follows `retune` on the lines of a page's blocks; a backslash joins lines."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for found in COMMAND.finditer(block.replace("\\\n", " ")):
            yield re.split(r"\s(?:&&|\||>|->)\s|\s{2,}->", found["words"])[0]


def fault(words: str) -> str:
    """What is wrong with a command line; empty for one that the command line takes."""
    tokens = shlex.split(words, comments=True)
    command = command_line()
    while tokens and (inner := getattr(command, "commands", {}).get(tokens[0])):
        command, tokens = inner, tokens[1:]
    if getattr(command, "commands", None) and tokens and not tokens[0].startswith("-"):
        return f"no command {tokens[0]}"
    taken = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = [token.partition("=")[0] for token in tokens if re.match(r"--?[a-z]", token)]
    unknown = [name for name in given if name not in taken | {"--help"}]
    needed = [each.opts[0] for each in command.params if each.required and each.opts[0][0] == "-"]
    missing = [name for name in needed if name not in given and "--help" not in given]
    wrong = [*(f"no option {name}" for name in unknown), *(f"{name} is needed" for name in missing)]
    return ", ".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_on_pages_are_those_of_the_command_line(page: Path):
    wrong = {words: why for words in commands(page) if (why := fault(words))}
    assert not wrong


def test_a_command_that_is_not_there_is_found():
    assert fault("tune model.onnx --out build") == ""
    assert fault("tune model.onnx --ouch build") == "no option --ouch, --out is needed"
    assert fault("nightly rum --config x") == "no command rum"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path):
    found = {one or two for one, two in LINK.findall(page.read_text(encoding="utf-8"))}
    assert not [link for link in found if not (page.parent / link).exists()]


def test_the_readme_fits_in_a_few_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


@pytest.mark.parametrize("theme", COLOURS)
def test_the_chart_is_drawn_from_the_figures(theme: str):
    """`python -m benchmarks.chart` draws it again."""
    drawn = (IMAGES / f"times_{theme}.svg").read_text(encoding="utf-8")
    assert drawn == chart(read_rows(), theme)


def test_every_figure_is_in_the_table_with_its_day():
    table = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    for row in json.loads(DATA.read_text(encoding="utf-8"))["rows"]:
        (processor, day), ratio = (row["processor"], row["stated"]), f"{row['ratio']:.2f}"
        lines = [line for line in table.splitlines() if processor in line and ratio in line]
        assert any(day in line for line in lines), row


def test_the_ratios_of_the_readme_are_figures():
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    known = {f"{row['ratio']:.2f}" for row in rows if "geometric" in row["label"]}
    shown = re.findall(r"\*\*([\d. to]+)\*\*", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert shown
    assert {number for each in shown for number in each.split(" to ")} <= known


@pytest.mark.parametrize("name", ["language", "sizes"])
def test_the_other_tables_are_there_for_programs(name: str):
    lines = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8").splitlines()
    tables = [line.replace("*", "") for line in lines if line.startswith("|")]
    for row in json.loads((DATA.parent / f"{name}.json").read_text(encoding="utf-8"))["rows"]:
        stated = {f"{float(part):g}" for part in row.values() if isinstance(part, int | float)}
        what = row.get("program") or row["network"]
        found = [{f"{float(n):g}" for n in re.findall(r"\d+(?:\.\d+)?", line)}
                 for line in tables if line.startswith(f"| {what} |")]  # fmt: skip
        assert any(stated <= numbers for numbers in found), row


@pytest.mark.process
def test_the_reference_is_made_without_the_extras_of_farms():
    """`make docs` does not install them."""
    code = (
        "import sys; sys.modules['distributed'] = None; import runpy; "
        "print(runpy.run_path('docs/site.py')['json_outputs']())"
    )
    made = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert "`devices --scheduler`" in made


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is an extra: pip install '.[docs]'")
def test_the_site_has_no_broken_link(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}", "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    reference = (tmp_path / "site/reference/command-line.html").read_text(encoding="utf-8")
    assert "retune nightly plan" in reference
