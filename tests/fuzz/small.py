"""Small files that people or machines of a farm hand on, sound and mutated.

Read `SmallFile`. A mutated one has other bytes, other values, or other values in the place of
those that it had.
"""

import io
import json
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retune.core.keys import CODE_VERSION
from retune.core.schema import to_json
from retune.core.target import GENERIC_CPU
from retune.farm.certs import make_certs
from retune.ir.stored import to_text
from retune.pipeline.lock import Lock
from retune.pipeline.manifest import BestRecord, Selection
from retune.pipeline.request import TuneRequest
from retune.records.origins import keep_spec
from retune.records.quarantine import FILE, quarantine
from tests.fuzz.mutations import json_text, mutated_bytes, mutated_json
from tests.support.dags import conv2d
from tests.support.gguf_files import PAIRS, tiny_decoder
from tests.support.store import record

Change = Callable[[bytes, random.Random], bytes]

NIGHTLY = """name = "fleet"
out = "out"
records = "records"
work = "work"
minutes = 60
window = { start = "22:00", end = "06:00", timezone = "Europe/Berlin" }
cron = "0 22 * * *"
quantize = { scheme = "int8", method = "kl", skip = ["softmax"] }
keep = 10
[[model]]
model = "zoo:mlp"
name = "mlp"
runs_per_day = 1_000_000
calibration = "random"
shapes = { x = [1, 784] }
[[device]]
name = "board"
device = "pocl"
repeats = 5
[retrain]
every = 7
[notify.webhook]
url = "https://example.org/hook"
"""
BOARD = """name = "board"
seed = 3
model = "A board"
noise = 0.02
speed = 2.0
[[fault]]
kind = "hang"
at = 3
[[fault]]
kind = "slow"
share = 0.1
factor = 5.0
"""
LITERALS = (
    *("0", "-1", "1e400", "nan", "inf", "true", '""', '"a\\nb"', "[]", "{}", "[[]]", "1979-05-27"),
    *("9" * 30, '"' + "x" * 3000 + '"', "[" * 3000 + "]" * 3000, '"\\u0000"', '"../../x"', "25:00"),
)
METADATA = (
    *(
        0,
        1,
        3,
        7,
        40,
        255,
        (1 << 31) - 1,
        (1 << 32) - 1,
        True,
        0.0,
        -1.0,
        1e-30,
        math.inf,
        math.nan,
    ),
    *(
        "",
        "x",
        "llama",
        "gpt2",
        "é\n\0",
        "%s" * 300,
        ["x"],
        ["a", "a"],
        [" ", "a b c"],
        [-1],
        [1] * 99,
    ),
)
"""Values of a decoder's metadata."""
CERTIFIED = "board"
"""The role of the certificate."""
EXPRESSION = conv2d(1, 9, 7, 4, 8)


@dataclass(frozen=True)
class SmallFile:
    """A sound file, and how it is mutated."""

    parts: Mapping[str, bytes]
    """Name -> content; a reader is given the folder if there are several, else the file."""
    change: Change

    def write(self, folder: Path, rng: random.Random) -> Path:
        """Its mutated form in that folder; what a reader is given."""
        chosen = rng.choice(sorted(self.parts))
        for name, content in self.parts.items():
            changed = self.change if rng.random() < 0.6 else mutated_bytes
            (folder / name).write_bytes(changed(content, rng) if name == chosen else content)
        return folder if len(self.parts) > 1 else folder / chosen


def mutated_toml(data: bytes, rng: random.Random) -> bytes:
    """The file with one to three of its lines changed, removed, repeated or exchanged."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        key, equals, value = lines[at].partition("=")
        match rng.randrange(5):
            case 0:
                lines[at] = f"{key}{equals or '='} {rng.choice(LITERALS)}"
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                del lines[at]
                lines = lines or [""]
            case 3:
                other = rng.choice(lines).partition("=")[0]
                lines[at] = f"{other}{equals}{value}"
            case _:
                lines[at] = re.sub(r"\d+", rng.choice(("0", "-7", "9" * 20)), lines[at])
    return "\n".join(lines).encode()


def mutated_text_json(data: bytes, rng: random.Random) -> bytes:
    """The file with other values."""
    return json_text(mutated_json(json.loads(data), rng))


def mutated_pem(data: bytes, rng: random.Random) -> bytes:
    """Base64 of other bytes, or lines in another order."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines[at] = lines[at][::-1]
        case 1:
            del lines[at]
        case _:
            lines[at:at] = rng.choice((["AAAA"], lines, ["-----BEGIN CERTIFICATE-----"]))
    return "\n".join(lines).encode()


def mutated_gguf(data: bytes, rng: random.Random) -> bytes:
    """A decoder with another value of its metadata, or with other bytes, most of them in its head.

    Behind the head are the tensors' values, of which any bytes are sound.
    """
    if rng.random() < 0.5:
        changed = {
            rng.choice(sorted(PAIRS)): rng.choice(METADATA) for _ in range(rng.choice((1, 2)))
        }
        kind, architecture = rng.choice(("Q4_0", "Q8_0", "F16")), rng.choice(("llama", "qwen3"))
        return tiny_decoder(kind, architecture=architecture, pairs=changed)
    end = data.index(b"blk.1.ffn_down.weight") + 60
    return mutated_bytes(data[:end], rng) + data[end:]


def _lock() -> bytes:
    """A lock file as `retune tune` leaves it."""
    selection = Selection(
        target="board", best=(BestRecord(task_key="0", record_id="1", time_us=9.0),)
    )
    lock = Lock(
        retune="1",
        code=CODE_VERSION,
        name="mlp",
        model="zoo:mlp",
        model_key="0",
        device="board",
        conditions="0",
        request=TuneRequest(model="zoo:mlp", out="out", records="records", work="work"),
        form="queued",
        chosen=(selection,),
        records=(record(1),),
        complete=True,
        digest="0",
        files={"module.json": "0"},
    )
    return to_json(lock).encode()


def small_files(folder: Path, zips: Change) -> dict[str, SmallFile]:
    """A sound file of each kind; `folder` holds them while they are made, `zips` mutates a zip."""
    (home,) = make_certs(folder / "certs", ["board1"], CERTIFIED)
    certs = {path.name: path.read_bytes() for path in home.iterdir()}
    quarantine(folder, [record(1)], "wrong")
    key = keep_spec(folder, GENERIC_CPU)
    device = (folder / "origins" / f"device-{key}.json").read_bytes()
    arrays = io.BytesIO()
    np.savez_compressed(arrays, x=np.arange(12.0).reshape(3, 4), y=np.arange(3, dtype=np.int8))
    expression = (to_text(EXPRESSION) or "").encode()
    revoked = json.dumps({"1F": "board", "2A": "client"}).encode()
    return {
        "nightly": SmallFile({"fleet.toml": NIGHTLY.encode()}, mutated_toml),
        "board": SmallFile({"board.toml": BOARD.encode()}, mutated_toml),
        "certs": SmallFile(certs, mutated_pem),
        "revoked": SmallFile({"revoked.json": revoked}, mutated_text_json),
        "quarantine": SmallFile({FILE: (folder / FILE).read_bytes()}, mutated_text_json),
        "expression": SmallFile({"expression.json": expression}, mutated_text_json),
        "device": SmallFile({"device.json": device}, mutated_text_json),
        "arrays": SmallFile({"in.npz": arrays.getvalue()}, zips),
        "gguf": SmallFile({"tiny.gguf": tiny_decoder()}, mutated_gguf),
        "lock": SmallFile({"retune.lock": _lock()}, mutated_text_json),
    }
