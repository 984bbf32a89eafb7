"""Fixtures that every test may use: golden files, seeded generators, folders, devices."""

import contextlib
import gc
import hashlib
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from retune.__main__ import SEARCHED_AFTER
from retune.core.errors import BusyError, InputError
from retune.core.locking import exclusive
from retune.device.opencl.catalogue import device_spec
from tests.support.one_thread import use_one_thread
from tests.support.shared import FOUND, SHARED, copy_files
from tests.support.tests_fixtures import Golden

GOLDEN_ROOT = Path(__file__).parent / "golden"

# Where bytecode is not kept, each process that a test starts compiles all that it imports again,
# which takes it longer than what it is for.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # a width that is stated would leave columns out of tables
use_one_thread()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="write what the tests produce to tests/golden; read the diff before you commit it",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """One process collects before the others, which read what it compiles.

    What is collected lasts until the end, so that searches for garbage may leave it out.
    """
    gc.disable()
    try:
        with _first(SHARED / "collection.lock"):
            return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(SEARCHED_AFTER)


@contextlib.contextmanager
def _first(lock: Path) -> Iterator[None]:
    """Holds the lock, or has waited until nobody does."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(lock, wait=False))
        except BusyError:
            _probe_once()
            with exclusive(lock, quiet_s=3600.0):
                pass
        yield


def _probe_once() -> None:
    """What PoCL can do is kept for all processes."""
    lock = exclusive(SHARED / "probing.lock", quiet_s=3600.0)
    with lock, pytest.MonkeyPatch.context() as patch, contextlib.suppress(InputError):
        patch.setenv("RETUNE_LOCKS", str(FOUND))
        device_spec("pocl")


class FileScheduling(LoadFileScheduling):
    """Each file goes to one process, and those that start Prefect servers together: a server, and
    the database that the first one makes, take ten seconds of processor time each."""

    def _split_scope(self, nodeid: str) -> str:
        with_servers = nodeid.startswith(("tests/flows/", "tests/prefect/"))
        return "tests/prefect" if with_servers else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Which process takes which tests."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


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


@pytest.fixture(scope="session", autouse=True)
def worker_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the tests of one process share: locks, and what was probed of the devices.

    What earlier processes found out is there already, and its own is kept for later ones. Locks are
    those of the process, so that no test waits for one that measures in another process.
    """
    folder = tmp_path_factory.mktemp("worker")
    copy_files(FOUND, folder / "locks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETUNE_LOCKS", str(folder / "locks"))
        patch.setenv("RETUNE_PROGRAMS", "off")
        patch.setenv("RETUNE_SHIPPED_RECORDS", "none")
        _keep_below(folder / "shared", patch)
        yield folder
    copy_files(folder / "locks", FOUND)


@pytest.fixture(autouse=True)
def own_folders(
    request: pytest.FixtureRequest, worker_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test writes into the checkout: default stores and caches lie in the test's folder.

    One that asks for no folder has one that is made when something is written.
    """
    if "tmp_path" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path")
    else:
        folder = worker_folder / hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    _keep_below(folder, monkeypatch)


def _keep_below(folder: Path, patch: pytest.MonkeyPatch) -> None:
    for name in ("RECORDS", "CACHE", "JOURNAL"):
        patch.setenv(f"RETUNE_{name}", str(folder / name.lower()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many of ONNX's node tests passed, and why others are excluded."""
    from tests.external.summary import summary_lines

    reports = terminalreporter.stats
    ids = {key: [report.nodeid for report in reports.get(key, ())] for key in ("passed", "failed")}
    for line in summary_lines(**ids):
        terminalreporter.write_line(line)
