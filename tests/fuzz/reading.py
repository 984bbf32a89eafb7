"""Reading mutated files in a process that may hang, crash, or be ended for its memory."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.fuzz.corpus import Corpus
from tests.support.processes import busy_s

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 10.0
"""Of processor time: no file takes longer to be read or refused."""
WAITING = 30
"""Times the deadline that a reader may take on a busy machine, or hang without computing."""
START_S = 600.0


@dataclass
class Outcome:
    """What became of some files."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind and status -> how many."""
    defects: dict[int, str] = field(default_factory=dict)
    """Number of a file -> what it did to its reader."""


class Reader:
    """A process that reads files; after one that it does not survive there is a new one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def read(self, kind: str, path: Path, deadline_s: float | None = None) -> dict[str, str]:
        """What the process answers; a defect if it does not."""
        process, deadline_s = self._process or self._start(), deadline_s or DEADLINE_S
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(f"{kind} {path}\n")
            process.stdin.flush()
            if not _answers(process, deadline_s):
                return self._lost(f"no answer in {deadline_s:g} s of processor time")
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return self._lost("the process ended")
        return json.loads(line)

    def _start(self) -> subprocess.Popen[str]:
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        self._process = process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.fuzz.reader"],
            cwd=ROOT,
            env={**os.environ, **threads, "PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # The first answer waits for imports, which a busy machine may take long for.
        self.read("onnx", Path("/nowhere.onnx"), START_S)
        return process

    def _lost(self, why: str) -> dict[str, str]:
        code = self._end()
        return {"status": "defect", "text": f"{why} (exit code {code})"}

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _answers(process: subprocess.Popen[str], deadline_s: float) -> bool:
    """Whether it says something, or ends, before it has computed for so long."""
    until, most_s = time.monotonic() + WAITING * deadline_s, busy_s(process.pid) + deadline_s
    while time.monotonic() < until and busy_s(process.pid) < most_s:
        if select.select([process.stdout], [], [], deadline_s / 10)[0]:
            return True
    return False


def read_all(corpus: Corpus, numbers: Iterable[int], folder: Path) -> Outcome:
    """What becomes of the mutated files of these numbers."""
    outcome = Outcome()
    with Reader() as reader:
        for number in numbers:
            kind, path = corpus.mutated(number, folder / str(number))
            reply = reader.read(kind, path)
            outcome.counts[kind, reply["status"]] += 1
            if reply["status"] == "defect":
                outcome.defects[number] = f"{kind}: {reply['text']}"
            shutil.rmtree(folder / str(number))
    return outcome
