"""The process that reads mutated files: `python -m tests.fuzz.reader`.

For each line on stdin, a kind and a path, it answers with a line of JSON: `ok`, `refused` with the
sentence, or `defect` with a traceback. Its memory is limited.
"""

import json
import logging
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from retune.bundle.format import read_bundle
from retune.bundle.memory import plan_memory
from retune.bundle.runtime.placement import lay_out
from retune.cli.commands.run import read_arrays
from retune.core.errors import RetuneError
from retune.core.schema import from_json
from retune.core.target import DeviceSpec
from retune.device.remote.revoked import read_revoked
from retune.device.remote.security import check_certs
from retune.device.simulated.board import read_board
from retune.frontend.gguf.folder import import_gguf
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.ir.stored import from_text
from retune.nightly.config import load_config
from retune.pipeline.lock import read_lock
from retune.pipeline.request import check_request
from retune.records.arrow import to_records
from retune.records.distilled import merge
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from retune.search.extract import extract
from tests.fuzz.jobs import Board
from tests.fuzz.small import CERTIFIED, EXPRESSION

MOST_BYTES = 4 << 30
"""Address space of this process."""
LONGEST = 1000
"""Characters of a sentence. What a network has and nobody supports is listed below it, indented."""


def read_model(path: Path) -> None:
    """As `retune tasks` reads it."""
    extract(optimise(load_file(path)))


def read_module(path: Path) -> None:
    """As `Module.load` reads it, up to the device."""
    plan = read_bundle(path)
    lay_out(plan, plan_memory(plan))


def read_records(path: Path) -> None:
    """As reports, searches and people read them."""
    store = RecordStore(path)
    store.scan()
    store.summary()
    store.tasks()
    to_records(store.table())


@cache
def board() -> Board:
    """The process's own, which lives on."""
    return Board()


def read_job(path: Path) -> None:
    """As a board of a farm takes it."""
    board().carry_out(path.read_bytes())


def read_decoder(path: Path) -> None:
    """As `retune import-gguf` reads it."""
    import_gguf(path, path.parent / "decoder")


def read_locked(path: Path) -> None:
    """As `retune build --locked` reads it, up to the device."""
    lock = read_lock(path)
    check_request(replace(lock.request, model="zoo:mlp", out="out"))
    merge(RecordStore(path.parent / "records"), lock.records)


READERS: Mapping[str, Callable[[Path], object]] = {
    "onnx": read_model,
    "folder": read_module,
    "zip": read_module,
    "parquet": read_records,
    "job": read_job,
    "nightly": load_config,
    "board": read_board,
    "certs": lambda path: check_certs(path, CERTIFIED),
    "revoked": read_revoked,
    "quarantine": lambda path: quarantined(path.parent),
    "expression": lambda path: from_text(path.read_bytes(), EXPRESSION.key, str(path)),
    "device": lambda path: from_json(DeviceSpec, path.read_bytes(), where=str(path)),
    "arrays": read_arrays,
    "gguf": read_decoder,
    "lock": read_locked,
}


def answer(kind: str, path: Path) -> dict[str, str]:
    """What becomes of a file."""
    try:
        READERS[kind](path)
    except RetuneError as error:
        text = str(error)
        first, *listed = text.split("\n")
        if not first or len(first) > LONGEST or not all(line.startswith("  ") for line in listed):
            return {"status": "defect", "text": f"no sentence of {type(error).__name__}: {text}"}
        return {"status": "refused", "text": text}
    except BaseException:  # noqa: BLE001  what ends the process otherwise is a defect too
        return {"status": "defect", "text": traceback.format_exc()}
    return {"status": "ok", "text": ""}


def main() -> None:
    """Answers until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    logging.disable()
    for line in sys.stdin:
        kind, _, path = line.rstrip("\n").partition(" ")
        sys.stdout.write(json.dumps(answer(kind, Path(path))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
