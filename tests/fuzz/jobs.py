"""Jobs of a farm to mutate, and a board without a device that answers them.

Read `make_jobs`, `mutated_job` and `Board`. Digests are made right again, so that what is
behind them is reached; processes that would build and run kernels are only pretended.
"""

import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retune.bundle.verify.bench import Benchmark, Timing
from retune.bundle.verify.examination import (
    Compare,
    FindForm,
    Forms,
    ListForms,
    Open,
    Opened,
    Outputs,
    Profile,
    Profiled,
    Run,
)
from retune.bundle.verify.examiner import Examiner
from retune.bundle.verify.remote_requests import BundleJob, SentBundle, input_arrays
from retune.core.errors import RetuneError
from retune.core.schema import to_json
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions
from retune.device.remote.batches import pack_batch, pack_workload
from retune.device.remote.wire import (
    WIRE,
    Envelope,
    MessageParts,
    RefusedError,
    Reply,
    digest_of,
    pack,
    pack_arrays,
    unpack,
    unpack_arrays,
)
from retune.farm.bundles import Bundles
from retune.farm.measuring import Measuring
from retune.farm.service import Service
from tests.fuzz.mutations import json_text, mutated_bytes, mutated_json
from tests.support.measure import WORKLOAD, FakeChild, program

RESOURCE = "key/kind"
_HEAD, _BLOB = "head", "blob/"

Bend = Callable[[bytes, random.Random], bytes]


def make_jobs(bundles: Sequence[bytes]) -> tuple[bytes, ...]:
    """Sound jobs of every kind, with these bundles as zips."""
    return (_batch(), *(_bundle_job(deed, bundles) for deed in ("run", "compare", "profile")))


def _batch() -> bytes:
    blob = pack_workload(WORKLOAD)
    digest = digest_of(blob)
    body, arrays = pack_batch(WORKLOAD, digest, [program("a"), program("b")], MeasureOptions())
    head = Envelope(wire=WIRE, kind="measure", board=RESOURCE, needs=(digest,), body=body)
    return pack(head, MessageParts(arrays=arrays, blobs={digest: blob}))


def _bundle_job(deed: Any, bundles: Sequence[bytes]) -> bytes:
    blobs = {digest_of(data): data for data in bundles[: 2 if deed == "compare" else 1]}
    sent = tuple(SentBundle(name=f"b{n}", digest=digest) for n, digest in enumerate(blobs))
    body = to_json(BundleJob(deed=deed, bundles=sent, repeat=2))
    head = Envelope(wire=WIRE, kind="bundle", board=RESOURCE, needs=tuple(blobs), body=body)
    arrays = input_arrays({"x": np.ones((4, 8), np.float32)}) if deed == "run" else {}
    return pack(head, MessageParts(arrays=arrays, blobs=blobs))


def mutated_job(job: bytes, rng: random.Random, arrays: Bend, archive: Bend) -> bytes:
    """The job with another head, body, blob or array, or other bytes.

    `arrays` and `archive` bend a blob of the kind.
    """
    if rng.random() < 0.15:
        return mutated_bytes(job, rng)
    if rng.random() < 0.15:
        return arrays(job, rng)
    parts = unpack_arrays(job)
    head = json.loads(parts.pop(_HEAD).tobytes())
    match rng.randrange(4):
        case 0:
            head = mutated_json(head, rng)
        case 1 | 2:
            head["body"] = json_text(mutated_json(json.loads(head["body"]), rng)).decode(
                "utf-8", "replace"
            )
        case _:
            name = rng.choice([name for name in parts if name.startswith(_BLOB)])
            blob = parts.pop(name).tobytes()
            bent = (archive if blob.startswith(b"PK") else arrays)(blob, rng)
            parts[f"{_BLOB}{digest_of(bent)}"] = np.frombuffer(bent, np.uint8)
            renamed = json.dumps(head).replace(name.removeprefix(_BLOB), digest_of(bent))
            head = json.loads(renamed)
    return pack_arrays({_HEAD: np.frombuffer(json_text(head), np.uint8), **parts})


class Board:
    """A board that lives on, whatever it is sent."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp())
        self._service = Service("board", RESOURCE, "none", folder)
        handlers = {
            "measure": Measuring(
                LocalRunner("none", builders=1, make_child=lambda *_: FakeChild(lambda _: None))  # type: ignore[arg-type,return-value]
            ),
            "bundle": Bundles(folder, lambda: Examiner("none", make_child=_BundleChild)),  # type: ignore[arg-type]
        }
        self._service._handlers.update(handlers)

    def carry_out(self, job: bytes) -> None:
        """Raises: RefusedError with what the board says to it; AssertionError for a bug in it."""
        reply, _ = unpack(Reply, self._service.carry_out(job))
        if reply.state in ("refused", "missing"):
            raise RefusedError(reply.why or "expected blobs, got none")
        assert reply.state == "done", reply


class _BundleChild(FakeChild):
    """Answers an Examiner without running anything."""

    def __init__(self, device: str, *, entry: str, replies: Sequence[type]) -> None:
        super().__init__(lambda _: None)

    def request(self, request: Any, deadline_s: float) -> Any:
        assert deadline_s > 0
        match request:
            case Open():
                return Opened(call_s=1e-3)
            case Run():
                return Outputs(arrays={})
            case Compare():
                return Benchmark(rounds=1, timings=tuple(map(_timing, request.bundles)), ratios=())
            case Profile():
                return Profiled(steps=())
            case ListForms() | FindForm():
                return Forms(forms=("queued",))
            case _:
                raise RetuneError(f"expected a request of an examiner, got {request}")


def _timing(name: str) -> Timing:
    return Timing(
        name=name,
        times_s=(1e-3,),
        calls_per_sample=1,
        median_s=1e-3,
        first_quartile_s=1e-3,
        third_quartile_s=1e-3,
    )
