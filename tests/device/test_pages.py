"""Every command and program on a page does what the page says, or a mark says why it is not run.

`tests.support.pages` has the marks. Pages that tune networks take minutes and are slow tests.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from retune.core.config import records_root
from retune.frontend.onnx.ops.registry import CLAIMS, HANDLERS
from retune.intrinsics.intrinsic import _KNOWN
from retune.ops.registry import OPS
from retune.targets.devices import _CLASSES
from retune.targets.template import _TEMPLATES
from tests.support.page_files import BEFORE, GIVEN, write_files, write_records
from tests.support.pages import ROOT, Session, assert_printed, blocks, faults, masked

pytestmark = pytest.mark.device

PAGES = {
    path.stem: path
    for path in (ROOT / "README.md", ROOT / "BENCHMARKS.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.stem != "design"  # tests/unit/test_design.py compares its blocks
}
LIGHT = ("BENCHMARKS", "benchmarks", "development", "farm", "networks", "records", "schedules")
REGISTRIES = (OPS, HANDLERS, CLAIMS, _TEMPLATES, _KNOWN, _CLASSES)
"""What a page registers goes with it."""


def run(page: Path) -> None:
    """Runs a page in the current folder."""
    write_files(Path.cwd())
    if page.stem == "records":
        write_records(records_root())
    with ExitStack() as changed:  # what a page registers or exports goes with it
        for each in (*REGISTRIES, os.environ):
            changed.enter_context(patch.dict(each))
        session = Session(GIVEN.get(page.stem, GIVEN[""]))
        session.commands(BEFORE.get(page.stem, ()), "before the page")
        for block in blocks(page):
            session.block(block)


@pytest.fixture
def as_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder in which records and caches have their usual names."""
    monkeypatch.chdir(tmp_path)
    for name in ("RETUNE_RECORDS", "RETUNE_CACHE", "RETUNE_JOURNAL"):
        monkeypatch.setenv(name, str(tmp_path / "artifacts" / name.removeprefix("RETUNE_").lower()))


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_page_does_what_it_says(name: str, as_a_user: None):
    run(PAGES[name])


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in PAGES if name not in LIGHT])
def test_a_page_does_what_it_says(name: str, as_a_user: None):
    run(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_run_or_says_why_not(name: str):
    assert not list(faults(PAGES[name]))


def page_of(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text)
    return path


def test_marks_without_a_reason_or_a_line_are_found(tmp_path: Path):
    text = '<!-- not run -->\n```\nx\n```\n<!-- not run "y": late -->\n```\nx\n```\n```toml\n```\n'
    assert len(list(faults(page_of(tmp_path, text)))) == 3


@pytest.mark.parametrize(
    "text",
    [
        "```\nretune records best --of nothing\n```\n",
        "```\nfalse\n```\n",
        "```python\n1 + 1\n```\n```text\n2 and more\n```\n",
        "```\n$ echo 4 files\n3 folders\n```\n",
        "<!-- fails -->\n```python\n1 + 1\n```\n",
    ],
)
def test_a_page_that_is_wrong_fails(text: str, tmp_path: Path, as_a_user: None):
    with pytest.raises(AssertionError):
        run(page_of(tmp_path, text))


def test_what_a_page_shows_is_compared_but_for_numbers():
    printed = "took 3.1 ms, 17 tasks\n ─────\nname dense_add_fdea6ba9\nend\n"
    assert_printed("took 170 µs, 4 tasks\n...\nend", printed, "")
    assert masked("at 12:30, 1.5e-07 of 5 s") == "at #, # of #"
    with pytest.raises(AssertionError):
        assert_printed("end\n...\ntook 1 ms", printed, "")
