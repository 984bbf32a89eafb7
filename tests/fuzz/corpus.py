"""Whole files to mutate, small and of every kind, and the mutated ones that follow from them.

Read `Corpus.mutated`: the number of a file says which it is, for ever. Bundles are changed on two
levels: any bytes of any part, which a hash gives away; and the plan or a part with its hashes made
right again, so that what is behind them is reached.
"""

import io
import json
import random
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq

from retune.bundle.format import MANIFEST, WEIGHTS, pack_zip, write_bundle
from retune.bundle.plan import NetworkPlan, PlanHost
from retune.codegen.source import ProgramBuffer, Role
from retune.core.keys import content_key
from retune.records.files import list_files
from retune.records.store import RecordStore
from retune.targets.vta.lower import lower
from tests.fuzz.jobs import make_jobs, mutated_job
from tests.fuzz.mutations import json_text, mutated_bytes, mutated_json, mutated_message
from tests.fuzz.small import SmallFile, small_files
from tests.support.bundle_fixtures import make_plan
from tests.support.device_networks import NETWORKS, write
from tests.support.hosts import plan_of
from tests.support.store import record
from tests.unit.device import test_accelerator as accelerator

FILES = Path(onnx.__file__).parent / "backend/test/data"
KINDS = (
    *("onnx", "onnx", "onnx", "folder", "zip", "parquet", "job"),
    *("nightly", "board", "certs", "revoked", "quarantine", "expression", "device", "arrays"),
    *("gguf", "lock"),
)
"""How often each kind comes: three of seventeen files are networks."""


@dataclass(frozen=True)
class Corpus:
    """The whole files, by kind."""

    models: tuple[bytes, ...]
    bundles: tuple[Mapping[str, bytes], ...]
    """Part -> its bytes."""
    records: bytes
    jobs: tuple[bytes, ...]
    """What a client of a farm sends to a board."""
    small: Mapping[str, SmallFile]
    """By kind."""

    def mutated(self, number: int, folder: Path) -> tuple[str, Path]:
        """The kind of that file, and where it lies: in `folder`, which is made for it."""
        rng = random.Random(number)
        kind = KINDS[number % len(KINDS)]
        folder.mkdir(parents=True)
        makers: Mapping[str, Callable[[random.Random, Path], Path]] = {
            "onnx": self._onnx,
            "folder": self._folder,
            "zip": self._zip,
            "parquet": self._parquet,
            "job": self._job,
        }
        if kind in self.small:
            return kind, self.small[kind].write(folder, rng)
        return kind, makers[kind](rng, folder)

    def _onnx(self, rng: random.Random, folder: Path) -> Path:
        data = rng.choice(self.models)
        change = rng.choice((mutated_message, mutated_message, mutated_message, mutated_bytes))
        path = folder / "model.onnx"
        path.write_bytes(change(data, rng))
        return path

    def _parts(self, rng: random.Random) -> dict[str, bytes]:
        """The parts of a mutated bundle."""
        parts = dict(rng.choice(self.bundles))
        name = rng.choice((MANIFEST, MANIFEST, MANIFEST, *parts))
        if rng.random() < 0.2:
            return {**parts, name: mutated_bytes(parts[name], rng)}
        manifest = json.loads(parts[MANIFEST])
        if name == MANIFEST:
            changed = mutated_json(manifest, rng)
            return {**parts, MANIFEST: _signed(changed)}
        parts[name] = _change_of(name)(parts[name], rng)
        facts = {
            "bytes": len(parts[name]),
            "blake2b": blake2b(parts[name], digest_size=16).hexdigest(),
        }
        manifest["files"][name] = facts
        return {**parts, MANIFEST: _signed(manifest)}

    def _folder(self, rng: random.Random, folder: Path) -> Path:
        for name, data in self._parts(rng).items():
            if rng.random() > 0.02:  # a part may be missing
                (folder / name).write_bytes(data)
        return folder

    def _zip(self, rng: random.Random, folder: Path) -> Path:
        path, buffer = folder / "net.zip", io.BytesIO()
        parts = self._parts(rng) if rng.random() < 0.5 else dict(rng.choice(self.bundles))
        with zipfile.ZipFile(
            buffer, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        ) as z:
            for name, data in parts.items():
                if rng.random() > 0.02:
                    z.writestr(rng.choice((name, name, name, name, f"../{name}")), data)
        data = buffer.getvalue()
        path.write_bytes(data if rng.random() < 0.3 else _bent_zip(data, rng))
        return path

    def _parquet(self, rng: random.Random, folder: Path) -> Path:
        path = folder / "v1/target=t/model=m/date=2026-01-02/part-1-x-1.parquet"
        path.parent.mkdir(parents=True)
        if rng.random() < 0.5:
            path.write_bytes(_bent_parquet(self.records, rng))
        else:
            pq.write_table(_foreign(pq.read_table(io.BytesIO(self.records)), rng), path)
        return folder

    def _job(self, rng: random.Random, folder: Path) -> Path:
        path = folder / "job"
        path.write_bytes(mutated_job(rng.choice(self.jobs), rng, _bent_weights, _bent_zip))
        return path


def make_corpus(folder: Path, models: Sequence[bytes] = ()) -> Corpus:
    """The whole files, and these networks; `folder` holds them while they are made."""
    models = [*models, *(path.read_bytes() for path in sorted(FILES.glob("*/*/model.onnx")))]
    models += [write(name, folder).read_bytes() for name in NETWORKS]
    bundles = [write_bundle(make_plan(), folder / "demo")]
    for name in ("detector", "both"):
        (folder / f"{name}.source").mkdir()
        bundles.append(write_bundle(plan_of(name, folder / f"{name}.source"), folder / name))
    bundles.append(write_bundle(accelerated_plan(), folder / "accelerated"))
    store = RecordStore(folder / "records")
    store.append([record(n) for n in range(20)])
    (path,) = list_files(store.root)
    zips = [pack_zip(bundle, folder / f"{bundle.name}.zip").read_bytes() for bundle in bundles]
    made = Corpus(
        models=tuple(models),
        bundles=tuple({p.name: p.read_bytes() for p in sorted(b.iterdir())} for b in bundles),
        records=path.read_bytes(),
        jobs=make_jobs(zips),
        small=small_files(folder, _bent_zip),
    )
    shutil.rmtree(folder)
    return made


def accelerated_plan() -> NetworkPlan:
    """One layer on an accelerator, and nothing else."""
    module = lower(accelerator.WORK, accelerator.GOOD.decisions, accelerator.CONFIG)
    shapes = accelerator.WORK.shapes(accelerator.CONFIG)
    roles: dict[str, Role] = {"data": "input", "weight": "weight", "output": "output"}
    buffers = tuple(
        ProgramBuffer(name=name, dtype=kind, elements=prod(shape), role=roles[name], shape=shape)
        for name, (shape, kind) in shapes.items()
    )
    step = PlanHost(
        label="layer",
        model=module.to_bytes(),
        inputs=tuple(buffer.name for buffer in module.inputs),
        outputs=("output",),
        after=0,
        engine="vta",
    )
    return replace(
        make_plan(),
        kernels=(),
        buffers=buffers,
        launches=(),
        inputs=("data",),
        outputs=("output",),
        weights={"weight": np.ones(prod(shapes["weight"][0]), np.int8)},
        aliases=(),
        hosts=(step,),
    )


def _change_of(part: str) -> Callable[[bytes, random.Random], bytes]:
    """What bends a part of that name, as far as its kind is known."""
    if part == WEIGHTS:
        return _bent_weights
    return {"onnx": mutated_message, "vta": _bent_zip}.get(part.rpartition(".")[2], mutated_bytes)


def _signed(manifest: object) -> bytes:
    """The manifest's text, with the key of what it says now."""
    if isinstance(manifest, dict):
        manifest.pop("key", None)
        try:
            manifest["key"] = content_key(manifest)
        except (TypeError, ValueError):  # it has no bytes, or no key: lone surrogates
            manifest["key"] = ""
    return json_text(manifest)


def _bent_weights(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with another header, or other bytes."""
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    length = int.from_bytes(data[:8], "little")
    text = json_text(mutated_json(json.loads(data[8 : 8 + length]), rng))
    stated = len(text) if rng.random() < 0.9 else rng.choice((0, 1, len(text) + 1, (1 << 63) - 1))
    return stated.to_bytes(8, "little") + text + data[8 + length :]


_FIELDS = ((b"PK\x01\x02", 46), (b"PK\x03\x04", 30), (b"PK\x05\x06", 22))
"""Heads of a zip's records and their sizes; Source: PKWARE's APPNOTE, 4.3."""


def _bent_zip(data: bytes, rng: random.Random) -> bytes:
    """Other bytes somewhere, or in the heads that say what lies where."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        mark, size = rng.choice(_FIELDS)
        starts = [i for i in range(len(out)) if out.startswith(mark, i)]
        if not starts or rng.random() < 0.3:
            out = bytearray(mutated_bytes(bytes(out), rng))
            continue
        at = rng.choice(starts) + rng.randrange(4, size)
        out[at : at + 2] = rng.choice((b"\0\0", b"\1\0", b"\xff\xff", rng.randbytes(2)))
    return bytes(out)


def _bent_parquet(data: bytes, rng: random.Random) -> bytes:
    """Other bytes, of which half are in the footer, where the file says what it is."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    if rng.random() < 0.3:
        return mutated_bytes(data, rng)
    head, tail = bytearray(data[:-footer]), bytearray(data[-footer:])
    part = rng.choice((head, tail, tail))
    for _ in range(rng.choice((1, 2, 4))):
        part[rng.randrange(len(part))] = rng.randrange(256)
    return bytes(head + tail)


def _foreign(table: pa.Table, rng: random.Random) -> pa.Table:
    """A sound Parquet file of somebody else: columns gone, null, of other types, or unknown."""
    names = table.column_names
    for _ in range(rng.choice((1, 2, 4))):
        name = rng.choice(names)
        if name not in table.column_names:
            continue
        at, rows = table.column_names.index(name), table.num_rows
        match rng.randrange(6):
            case 0:
                table = table.drop_columns([name])
            case 1:
                table = table.set_column(at, name, pa.nulls(rows, table.schema.field(name).type))
            case 2:
                kind = rng.choice((pa.int64(), pa.string(), pa.float64(), pa.list_(pa.string())))
                table = table.set_column(at, name, pa.nulls(rows, kind))
            case 3:
                values = pa.array([rng.choice(("x", "", "é", "1")) for _ in range(rows)])
                table = table.set_column(at, name, values)
            case 4:
                values = pa.array([rng.choice((0, -1, 1 << 62)) for _ in range(rows)])
                table = table.set_column(at, name, values)
            case _:
                version = rng.choice((b"1", b"999", b"", b"x", b"9" * 5000))
                known = table.schema.metadata or {}
                table = table.replace_schema_metadata({**known, b"retune.schema_version": version})
    return table
