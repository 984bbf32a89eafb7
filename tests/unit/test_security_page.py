"""docs/security.md names tests that exist, and a test for each limit that it states."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names_in(file: str) -> frozenset[str]:
    """The tests of a file that are not skipped wherever they run."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    skipped = {"pytest.mark.skip", "pytest.mark.xfail"}
    return frozenset(
        node.name
        for node in found
        if not skipped & {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
    )


def test_every_test_that_the_page_names_is_there():
    named = set(NAMED.findall(PAGE))
    assert len(named) > 20
    assert not [(file, name) for file, name in named if name not in names_in(file)]


def test_a_limit_has_a_test():
    """A row of a table with something in `they cannot`, or a rule, names one."""
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    limits = [
        row for row in rows if row[0].strip() not in {"rule", "with", "planted"} and row[-2].strip()
    ]
    assert len(limits) > 10
    assert not [row[0] for row in limits if not NAMED.search(row[-1])]


def test_what_a_planted_fault_makes_the_program_say_is_what_its_test_expects():
    rows = re.findall(r'^\| .* \| "([^"]+)" \| `(tests/[\w/]+\.py)::\w+` \|$', PAGE, re.MULTILINE)
    assert len(rows) > 12
    assert not [said for said, file in rows if said not in (ROOT / file).read_text("utf-8")]
