"""Fixtures that every test may use: golden files, seeded generators, folders, devices."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

GOLDEN_ROOT = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="write what the tests produce to tests/golden; read the diff before you commit it",
    )


@dataclass(eq=False)
class Golden:
    """A stored text; `text == golden` compares, or rewrites the file under --update-golden."""

    path: Path
    update: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        if self.update:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(other, encoding="utf-8")
            return True
        return self.text == other

    __hash__ = None  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """The stored text. A missing file fails the test and says how to make it."""
        if not self.path.is_file():
            pytest.fail(f"{self.path} does not exist; create it with: pytest --update-golden")
        return self.path.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return self.text if self.path.is_file() else f"Golden({self.path})"


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """A failed golden comparison reads as a unified diff."""
    if op != "==" or not (isinstance(left, Golden) or isinstance(right, Golden)):
        return None
    import difflib

    golden = left if isinstance(left, Golden) else right
    found = right if isinstance(left, Golden) else left
    assert isinstance(golden, Golden)
    diff = difflib.unified_diff(
        golden.text.splitlines(), str(found).splitlines(), "golden", "found", lineterm=""
    )
    return [f"text differs from {golden.path}", *diff, "accept with: pytest --update-golden"]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The text stored at tests/golden/<module>/<test>.txt; compare with `assert text == golden`."""
    module = Path(str(request.node.path)).stem.removeprefix("test_")
    name = request.node.name.removeprefix("test_")
    for character in "/\\:*?<>|\" '":
        name = name.replace(character, "_")
    update = bool(request.config.getoption("--update-golden"))
    return Golden(GOLDEN_ROOT / module / f"{name}.txt", update)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that is fixed for each test, and differs between tests; RETUNE_SEED overrides it."""
    given = os.environ.get("RETUNE_SEED")
    if given:
        return int(given)
    digest = hashlib.sha256(request.node.nodeid.encode()).digest()
    return int.from_bytes(digest[:4], "little")


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    """A seeded generator; a failing test prints the seed through `seed`."""
    return np.random.default_rng(seed)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The root of an empty record store."""
    root = tmp_path / "records"
    root.mkdir()
    return root


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout: default stores and caches lie in the test's folder."""
    monkeypatch.setenv("RETUNE_RECORDS", str(tmp_path / "records"))
    monkeypatch.setenv("RETUNE_CACHE", str(tmp_path / "cache"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many of ONNX's node tests passed, and why others are excluded."""
    from tests.external.summary import summary_lines

    reports = terminalreporter.stats
    ids = {key: [report.nodeid for report in reports.get(key, ())] for key in ("passed", "failed")}
    for line in summary_lines(**ids):
        terminalreporter.write_line(line)
