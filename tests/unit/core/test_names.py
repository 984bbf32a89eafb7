"""The distribution has a name of its own, and messages and pages advise no other one."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from retune.core.extras import EXTRAS
from retune.core.names import how_to_install

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TAKEN = "retune"
"""An unrelated project of the package index."""
ADVICE = r"how_to_install\(['\"](\w+)"
WRITTEN = ("lib", "flows", "tasks", "benchmarks", "examples", "docs")


def strangers(text: str) -> Iterator[str]:
    """What the text advises to install by the name of the unrelated project."""
    name = rf"{TAKEN}(?![\w-])"
    for found in re.finditer(rf"pip (?:install|download)[^\n`;&|]*[\s'\"]{name}|{name}\[\w", text):
        yield found[0]


@pytest.mark.parametrize(
    "text",
    ["pip install 'retune[sign]'", "pip install -U retune", "needs `retune[farm]`"],
)
def test_advice_to_install_the_unrelated_project_is_found(text: str):
    assert list(strangers(text))


@pytest.mark.parametrize(
    "text", ["pip install '.[sign]'", "pip install retune-opencl", "retune run"]
)
def test_other_advice_is_not(text: str):
    assert not list(strangers(text))


def test_nothing_advises_to_install_the_unrelated_project():
    assert PROJECT["name"] != TAKEN
    folders = [path for folder in WRITTEN for path in (ROOT / folder).rglob("*")]
    paths = [*ROOT.glob("*.md"), ROOT / "Makefile", *folders]
    texts = [path for path in paths if path.suffix in {"", ".py", ".md", ".toml"}]
    found = {
        str(path.relative_to(ROOT)): advice
        for path in texts
        if path.is_file()
        for advice in strangers(path.read_text(encoding="utf-8"))
    }
    assert not found


def test_an_extra_that_is_advised_exists():
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "lib").rglob("*.py"))
    advised = {found[1] for text in texts for found in re.finditer(ADVICE, text)}
    advised |= set(EXTRAS.values())
    assert {"farm", "peers", "sign"} <= advised <= set(PROJECT["optional-dependencies"])
    assert how_to_install("sign").endswith("pip install '.[sign]'")
