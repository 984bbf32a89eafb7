"""The Prefect server that a run reports to: the user's own, or a private one that dies with us.

Read `prefect_api`. The private server listens on the loopback address only, keeps its database in
the workspace, and tells nobody anything.
"""

import ctypes
import errno
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from retune.core.errors import InputError, RetuneError
from retune.core.files import check_folder
from retune.pipeline.results import TuneEvent
from retune.pipeline.watch import tell
from retune.prefect.database import keep_database, provide_database

START_DEADLINE_S = 600.0
"""A user's first start creates the database: half a minute on a slow machine, and minutes on one
that works for others. A server that ends is noticed at once."""

DATABASE = "prefect.db"
"""Of the private server, in its folder."""

LEAST_FREE_BYTES = 4 << 20
"""Where a private server fails and a disk has less left, that is why: its database has 2 MB, and is
written anew by each version of Prefect."""

WATCH_S = 1.0
"""A server that has ended is noticed after so long."""
MOST_STARTS = 5
"""A server that ends so often again is left alone."""

_LOG = logging.getLogger(__name__)
_PR_SET_PDEATHSIG = 1

QUIET: Mapping[str, str] = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "retune",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
}
"""No telemetry; retune's lines go to the run's log, and the command line says what failed. A client
that retries five times waits for a minute at the end of a run whose server has died."""

IDLE: Mapping[str, str] = {
    f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false"
    for name in (
        "CANCELLATION_CLEANUP",
        "FOREMAN",
        "LATE_RUNS",
        "PAUSE_EXPIRATIONS",
        "SCHEDULER",
        "TRIGGERS",
    )
}
"""What a server without schedules does not need; it would only disturb the measurements."""


class ServerError(RetuneError):
    """The private Prefect server did not start, or the user's own does not answer."""


def default_home() -> Path:
    """Where the private server keeps its database: below the folder that retune is run in."""
    return Path(os.environ.get("PREFECT_HOME", ".retune/prefect")).absolute()


@contextmanager
def prefect_api(home: Path | None = None, *, schedules: bool = False) -> Generator[str]:
    """The address of a Prefect API, set in this process's environment while the context lasts.

    The one that Prefect's own settings name is used: PREFECT_API_URL, prefect.toml, or the profile
    in use. Otherwise a server is started, and it ends with the context or with this process,
    however that ends; if it is killed meanwhile, another one replaces it. It starts what is
    scheduled only if that is asked for.

    Raises: ServerError with the server's last words, or where a caller's request finds no server;
    OSError if it is a private one whose disk is full. InputError if PREFECT_HOME is unusable.
    """
    with _environment(QUIET), _unsent_lines_unsaid():
        if given := configured_api():
            with _silence_explained(given):
                yield given
            return
        folder = home or default_home()
        check_folder("PREFECT_HOME", folder)
        folder.mkdir(parents=True, exist_ok=True)
        tell(TuneEvent(stage="prefect", text="a private Prefect server is started for the run"))
        port = _free_port()
        url = f"http://127.0.0.1:{port}/api"
        has_database = provide_database(folder / DATABASE)
        reached = {"PREFECT_HOME": str(folder), "PREFECT_API_URL": url, "NO_PROXY": _no_proxy()}
        with (
            _PrivateServer(port, folder, url, {} if schedules else IDLE),
            _environment(reached, force=True),
            _silence_explained(url, folder),
        ):
            if not has_database:
                keep_database(folder / DATABASE)
            yield url


def configured_api() -> str | None:
    """The address of the API that Prefect's settings name, wherever they do; None: nowhere."""
    if os.environ.get("PREFECT_API_URL"):
        return os.environ["PREFECT_API_URL"]
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


@contextmanager
def configured_server() -> Generator[str]:
    """As `prefect_api`, for the user's own server alone.

    Raises: InputError if Prefect's settings name none.
    """
    if configured_api() is None:
        raise InputError(
            "expected the address of a Prefect server, got none: set PREFECT_API_URL, such as "
            "http://127.0.0.1:4200/api, or `prefect config set PREFECT_API_URL=...`"
        )
    with prefect_api() as url:
        yield url


@contextmanager
def known_api() -> Generator[str | None]:
    """As `prefect_api`, but a private server is started only to look at what it has.

    None: none was ever used here.
    """
    if configured_api() is None and not (default_home() / DATABASE).is_file():
        yield None
        return
    with prefect_api() as url:
        yield url


@contextmanager
def _unsent_lines_unsaid() -> Generator[None]:
    """A line that the server does not take is said on stderr alone, and not that it was not sent.

    Prefect asks the flag of `logging` before it says so, for each batch of lines.
    """
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = before


@contextmanager
def _silence_explained(url: str, private: Path | None = None) -> Generator[None]:
    """Raises: ServerError instead of an error that says that the server did not answer; OSError
    if it is the `private` one in that folder, and the disk is full."""
    try:
        yield
    except Exception as error:
        from retune.prefect.contact import is_silence

        if not is_silence(error):
            raise
        if private is not None:
            _check_space(private)
        raise ServerError(
            f"the Prefect server {url} does not answer ({error}): start it, or unset "
            "PREFECT_API_URL; `retune tune --no-prefect` needs none"
        ) from error


def _check_space(folder: Path) -> None:
    """Raises: OSError if the disk with the folder is full, as the system says of a file in it."""
    if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


class _PrivateServer:
    """A server process for the time of a context; one that ends before is started again.

    It has the same address and database then, so that clients that try again go on.
    """

    def __init__(self, port: int, home: Path, url: str, settings: Mapping[str, str]) -> None:
        self._port = port
        self._url = url
        self._log = home / "server.log"
        self._environment = {**settings, **os.environ, "PREFECT_HOME": str(home)}
        self._leaving = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="prefect-server", daemon=True)

    def __enter__(self) -> Self:
        self._process = self._started()
        try:
            _wait_until_healthy(self._process, self._url, self._log)
        except BaseException:
            _stop(self._process)
            raise
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._watcher.join()
        _stop(self._process)

    def _watch(self) -> None:
        starts = 0
        while not self._leaving.wait(WATCH_S):
            if self._process.poll() is None:
                continue
            if starts == MOST_STARTS:
                _LOG.warning("the private Prefect server ended again; the run goes on without it")
                return
            starts += 1
            _LOG.warning("the private Prefect server ended (see %s); it is restarted", self._log)
            self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        """The kernel ends it with the thread that calls, which therefore has to stay."""
        command = [
            *(sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--log-level", "error"),
        ]
        with self._log.open("ab") as stream:
            return subprocess.Popen(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - two system calls, no more
                process_group=0,  # Ctrl-C is for us; the server hears of it when we are done
            )


def _die_with(parent: int) -> Callable[[], None]:
    """What the child runs first: ask the kernel to be terminated when its parent ends.

    Threads of OpenCL may run already. What they hold is held for ever in the child, so that the
    function is looked up here.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before we asked
            os._exit(1)

    return ask


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with opener.open(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    _check_space(log.parent)
    state = "ended" if process.poll() is not None else f"did not answer in {START_DEADLINE_S:.0f} s"
    words = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    raise ServerError(
        f"the private Prefect server {state}: {words[0]} (see {log}); "
        "run with --no-prefect, or set PREFECT_API_URL to a server of yours"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _no_proxy() -> str:
    given = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
    return f"{given},127.0.0.1" if given else "127.0.0.1"


@contextmanager
def _environment(values: Mapping[str, str], *, force: bool = False) -> Generator[None]:
    """Sets variables that are not set (or all, by force), and puts back what was there.

    Prefect reads its settings once, so it is made to read them again, at both ends.
    """
    before = {name: os.environ.get(name) for name in values if force or name not in os.environ}
    os.environ.update({name: values[name] for name in before})
    _read_settings()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_settings()


def _read_settings() -> None:
    """Prefect, where it was imported, has the settings of the environment of now."""
    if context := sys.modules.get("prefect.context"):
        context.refresh_global_settings_context()
