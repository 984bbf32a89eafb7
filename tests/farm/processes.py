"""A farm of real processes on loopback, whose logs are read as they are written."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from retune.device.remote.link import Link
from retune.device.remote.names import FarmName
from retune.device.remote.runner import FarmRunner
from retune.farm.certs import make_certs

DEADLINE_S = 300.0
"""Nothing here takes a tenth of it on a machine that does nothing else."""
KEY = "sim"


class Process:
    """A process whose lines of stderr can be waited for."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, python: str = sys.executable
    ) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [python, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "RETUNE_LOCKS": str(folder)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def matching(self, pattern: str) -> list[str]:
        """The lines so far that have it."""
        with self._changed:
            return [line for line in self.lines if re.search(pattern, line)]

    def wait_for(self, pattern: str, times: int = 1) -> str:
        """The line by which the pattern was there so often."""
        with self._changed:
            found: list[str] = []

            def there() -> bool:
                found[:] = [line for line in self.lines if re.search(pattern, line)]
                return len(found) >= times

            text = "\n".join(self.lines[-20:])
            assert self._changed.wait_for(there, DEADLINE_S), f"no {pattern!r} in:\n{text}"
            return found[times - 1]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """It is gone when the call returns, as by kill -9."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._closed()

    def stop(self) -> int:
        """Its exit code, after it was asked to stop."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        code = self._process.wait(DEADLINE_S)
        self._closed()
        return code

    def _closed(self) -> None:
        self._reader.join(DEADLINE_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None


class Farm:
    """A scheduler over TLS and simulated boards; all that runs is ended after the context."""

    def __init__(self, folder: Path, *, most_mb: float = 64.0) -> None:
        self.folder = folder
        self.most_mb = most_mb
        self.certs = folder / "certs"
        make_certs(self.certs)
        self.processes: list[Process] = []
        self.port = 0
        self.scheduler = self.start_scheduler()

    def start_scheduler(self) -> Process:
        """Again at the port where it was before."""
        command = (
            "from retune.farm.logs import log_lines; from retune.farm.scheduler import "
            "run_scheduler; from pathlib import Path; import sys; log_lines(); run_scheduler("
            "port=int(sys.argv[1]), certs=Path(sys.argv[2]), board_timeout_s=5.0, "
            "most_bytes=int(float(sys.argv[3]) * 2**20))"
        )
        certs = str(self.certs / "scheduler")
        found = self._started(["-c", command, str(self.port), certs, str(self.most_mb)])
        line = found.wait_for("scheduler at tls://")
        self.port = int(line.rpartition(":")[2])
        self.scheduler = found
        return found

    @property
    def address(self) -> str:
        return f"tls://127.0.0.1:{self.port}"

    def start_board(
        self,
        name: str,
        text: str = "measure_s = 0.1\n",
        key: str = KEY,
        *,
        member: str = "board",
    ) -> Process:
        """A board that serves; `text` is what else its file says, `member` whose certificate it
        shows."""
        path = self.folder / f"{name}.toml"
        path.write_text(f'name = "{name}"\nmodel = "farmed"\n{text}', encoding="utf-8")
        board = self.begin_board(name, f"sim:{path}", key, member=member)
        board.wait_for(f"board {name} serves")
        return board

    def begin_board(
        self,
        name: str,
        device: str,
        key: str = KEY,
        python: str = sys.executable,
        *,
        member: str = "board",
    ) -> Process:
        """A board that is not there yet."""
        arguments = ["-m", "retune.farm.serve", "--key", key, "--scheduler", self.address]
        arguments += ["--device", device, "--name", name, "--certs", str(self.certs / member)]
        return self._started([*arguments, "--most-mb", str(self.most_mb)], python)

    def link(self) -> Link:
        return Link(self.address, certs=self.certs / "client")

    def runner(self, link: Link, key: str = KEY) -> FarmRunner:
        return FarmRunner(FarmName(key, self.address), link=link)

    def _started(self, arguments: Sequence[str], python: str = sys.executable) -> Process:
        process = Process(arguments, self.folder, python)
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.processes):
            if process.alive:
                process.signal(signal.SIGCONT)
                process.kill()


def until(condition: Callable[[], bool], changed: threading.Event) -> None:
    """The condition holds, which is looked at after each change."""
    while not condition():
        assert changed.wait(DEADLINE_S)
        changed.clear()
