"""`python run_killed.py FOLDER [WHEN WHAT]`: a run that ends itself by SIGKILL at that point.

WHEN is `inside` or `after` (a stage, by its name), or `append` (to the record store, by its number;
WHAT is `3` or `3+`: before or after it). Without them it runs to its end.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retune.pipeline import stage
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from retune.records.store import RecordStore

TRIALS = 24


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_stage(when: str, name: str) -> None:
    """The process ends when that stage's body is done, or its output is there."""
    make = stage._make

    def made(of: str, key: str, folder: Path, body: Callable[[Path], Any]) -> Any:
        def dying(fresh: Path) -> Any:
            found = body(fresh)
            if when == "inside" and of == name:
                die()
            return found

        found = make(of, key, folder, dying)
        if when == "after" and of == name:
            die()
        return found

    stage._make = made


def kill_at_append(which: str) -> None:
    """The process ends before (`3`) or after (`3+`) the records of that batch are stored."""
    append, done = RecordStore.append, [0]

    def appended(store: RecordStore, records: Any) -> Any:
        done[0] += 1
        if which == str(done[0]):
            die()
        found = append(store, records)
        if which == f"{done[0]}+":
            die()
        return found

    RecordStore.append = appended


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:]:
        when, what = sys.argv[2:]
        if when == "append":
            kill_at_append(what)
        else:
            kill_at_stage(when, what)
    request = TuneRequest(
        model="zoo:mlp",
        out=str(folder / "out"),
        records=str(folder / "records"),
        work=str(folder / "work"),
        device=f"sim:{folder / 'board.toml'}",
        trials=TRIALS,
    )
    run_chain(request, InProcess())


if __name__ == "__main__":
    main()
