"""A bundle on disk: a folder (or a zip of it) with module.json, kernels.cl, weights.safetensors.

A network with host steps has one more file for each: host0.onnx, host1.onnx, and so on; steps of an
accelerator are host2.vta and the like.

Read `write_bundle` and `read_bundle`. Loading executes nothing: JSON, text and plain arrays. Every
part's size and hash stands in module.json, and module.json carries a key of itself, so that damage
is found at load and is one RecordError that names the part.
"""

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from retune.bundle.archive import BundleParts, damaged, machine_bytes, open_parts
from retune.bundle.hashing import hash_of, hashing
from retune.bundle.invariants import verify_plan
from retune.bundle.manifest import (
    BundleManifest,
    Json,
    Malformed,
    from_manifest,
    read_manifest,
    to_manifest,
)
from retune.bundle.memory import plan_memory
from retune.bundle.plan import Engine, NetworkPlan
from retune.bundle.weights import map_file, save_weights, view_weights
from retune.core.arrays import save_arrays, view_arrays
from retune.core.dims import is_fixed
from retune.core.errors import RecordError, VerifyError
from retune.core.files import check_replaces
from retune.core.keys import content_key
from retune.core.replacing import link_or_copy, replacing, whole_folder

FORMAT = "retune-bundle"
FORMAT_VERSION = 8
"""Raised when an older program could misread what this one writes."""

MANIFEST, KERNELS, WEIGHTS = "module.json", "kernels.cl", "weights.safetensors"
SAMPLES = "samples.safetensors"
"""The samples that the user gave, if any."""
BINARIES = "binaries.safetensors"
"""Compiled programs, if the bundle brings some along: each an array of bytes, by its key."""
SIGNATURE = "module.sig"
"""Whose it is, if somebody signed it: see `trust`."""

_ABOUT = ("name", "notes", "target", "properties")
"""Fields that say something of a program; for which target it is, its fingerprint says, and what
its kernels are like, their texts."""

MANIFEST_LIMIT_BYTES = 64 << 20
"""A manifest takes some kilobytes for each layer; a larger one is not a manifest."""
_KERNELS_LIMIT_BYTES = 256 << 20
_MODEL_LIMIT_BYTES = 2 << 30
"""Of a host step: no message of protobuf is larger."""

_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The same bundle gives the same zip, byte for byte."""


def write_bundle(plan: NetworkPlan, folder: Path) -> Path:
    """`folder` holds the plan's bundle, whole or not at all; a bundle that was there is replaced.

    Raises: InputError if something else lies there. VerifyError if the plan is not valid.
    """
    verify_plan(plan)
    check_replaceable(folder)
    with whole_folder(folder) as fresh:
        _write_parts(plan, fresh)
    return folder


def restate_bundle(
    source: Path, folder: Path, change: Callable[[NetworkPlan], NetworkPlan]
) -> NetworkPlan:
    """`folder` holds the plan that `change` makes of the bundle in folder `source`; that plan.

    It has other words, numbers or form, and the same kernels, weights, samples and host steps: the
    files of these are shared with the source where the file system allows it, and are not read.
    What is damaged in them is found when the new bundle is read. Raises: InputError if something
    else lies there; RecordError if the source's manifest is damaged.
    """
    check_replaceable(folder)
    with open_parts(source) as parts:
        values, manifest = _read_values(parts), _manifest_of(parts)
        written = _plan_of(parts, manifest, _read_bytes(parts, manifest, WEIGHTS))
    plan = change(replace(written, weights={}))
    manifest = {**values, **to_manifest(plan)}
    with whole_folder(folder) as fresh:
        for name in cast("dict[str, Json]", values["files"]):
            link_or_copy(source / name, fresh / name)
        _write_manifest(manifest, fresh)
    return plan


def read_bundle(path: Path) -> NetworkPlan:
    """The plan of a bundle folder or zip; weights are views of the file, read when used.

    A link is followed once: all parts are of one bundle, also if it is made to point elsewhere now.
    Raises: RecordError if a part is missing, damaged, or of a newer format.
    """
    with open_bundle(path) as opened:
        return opened.plan


def read_outline(path: Path) -> NetworkPlan:
    """The plan of a bundle without its weights, whose content is neither read nor checked.

    It suffices for who does not run the bundle. Raises: as `read_bundle`, but for that content.
    """
    with open_parts(path) as parts:
        manifest = _manifest_of(parts)
        return replace(_plan_of(parts, manifest, _read_bytes(parts, manifest, WEIGHTS)), weights={})


def stated_hashes(path: Path) -> dict[str, str]:
    """The hash of each part of the bundle but its manifest, as that states it; none is read.

    Raises: as `read_bundle`, of the manifest alone.
    """
    with open_parts(path) as parts:
        return {name: facts.digest for name, facts in _manifest_of(parts).files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBundle:
    """A bundle whose weights are hashed while its plan is prepared to run."""

    plan: NetworkPlan
    """It is valid."""
    require_sound: Callable[[], None]
    """The weights are those that the bundle states when the call returns; nothing is to be
    launched before. Raises: RecordError for others."""


@contextmanager
def open_bundle(path: Path) -> Generator[OpenBundle]:
    """What `read_bundle` returns, for a context in which the weights are read.

    Raises: as `read_bundle`, for damaged weights when the context ends; RecordError also then if a
    file of the bundle was changed since its hash was taken.
    """
    with open_parts(path) as parts:
        manifest = _manifest_of(parts)
        weights = _read_bytes(parts, manifest, WEIGHTS)
        with hashing(weights, manifest.files[WEIGHTS].algorithm) as digest:

            def require_sound() -> None:
                _require_hash(parts, manifest, WEIGHTS, digest())

            try:
                plan = _plan_of(parts, manifest, weights)
            except RecordError:
                require_sound()  # says more than what follows from damage
                raise
            yield OpenBundle(plan=plan, require_sound=require_sound)
            require_sound()
            parts.check_unchanged()


def _manifest_of(parts: BundleParts) -> BundleManifest:
    try:
        return read_manifest(_read_values(parts))
    except Malformed as error:
        raise damaged(parts.path, MANIFEST, "a valid plan", str(error)) from error


def _plan_of(parts: BundleParts, manifest: BundleManifest, weights: memoryview) -> NetworkPlan:
    """The plan; all parts but the weights have been checked by their hashes."""
    kernels = _read_part(parts, manifest, KERNELS)
    names = [_host_part(number, host.engine) for number, host in enumerate(manifest.hosts)]
    models = [bytes(_read_part(parts, manifest, name)) for name in names]
    try:
        texts, arrays = _split_kernels(manifest, kernels), view_weights(weights)
        plan = from_manifest(manifest, texts, arrays, models)
        plan = replace(
            plan, samples=_read_samples(parts, manifest), binaries=_read_binaries(parts, manifest)
        )
        verify_plan(plan)
    except (Malformed, VerifyError, UnicodeDecodeError) as error:
        raise damaged(parts.path, MANIFEST, "a valid plan", str(error)) from error
    return plan


def program_key(path: Path) -> str:
    """Equal for bundles of one model and one target that run the same, whatever is noted in them.

    It follows from kernels, plan and weights, by what the manifest states. Raises: RecordError as
    `read_bundle` does, of the manifest alone.
    """
    return _key_without(_ABOUT, path)


def steps_key(path: Path) -> str:
    """Equal for bundles that run the same kernels on the same weights, in whatever form.

    Raises: as `program_key`.
    """
    return _key_without((*_ABOUT, "form"), path)


def _key_without(fields: Collection[str], path: Path) -> str:
    with open_parts(path) as parts:
        manifest = _read_values(parts)
    files = cast("dict[str, Json]", manifest["files"])
    beside = (SAMPLES, BINARIES)
    run = {**manifest, "files": {n: facts for n, facts in files.items() if n not in beside}}
    return content_key({name: run[name] for name in run if name not in fields})


def _read_samples(parts: BundleParts, manifest: BundleManifest) -> Mapping[str, np.ndarray]:
    if SAMPLES not in manifest.files:
        return {}
    return view_arrays(_read_part(parts, manifest, SAMPLES), error=Malformed)


def _read_binaries(parts: BundleParts, manifest: BundleManifest) -> Mapping[str, bytes]:
    if BINARIES not in manifest.files:
        return {}
    arrays = view_arrays(_read_part(parts, manifest, BINARIES), error=Malformed)
    return {key: array.tobytes() for key, array in arrays.items()}


def add_binaries(source: Path, folder: Path, binaries: Mapping[str, bytes]) -> Path:
    """`folder` holds the bundle in folder `source` with these compiled programs, by their keys.

    Those that it had are replaced; other files are shared with the source where that is possible.
    Raises: as `restate_bundle`.
    """
    check_replaceable(folder)
    with open_parts(source) as parts:
        values = _read_values(parts)
    facts = {n: f for n, f in cast("dict[str, Json]", values["files"]).items() if n != BINARIES}
    with whole_folder(folder) as fresh:
        for name in facts:
            link_or_copy(source / name, fresh / name)
        arrays = {key: np.frombuffer(binary, np.uint8) for key, binary in binaries.items()}
        save_arrays(arrays, fresh / BINARIES)
        files: dict[str, Json] = {**facts, BINARIES: _file_facts(fresh / BINARIES)}
        _write_manifest({**values, "files": files}, fresh)
    return folder


def is_bundle(folder: Path) -> bool:
    """True if the folder says that it is a bundle, sound or not."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and cast("dict[str, Json]", manifest).get("format") == FORMAT


def pack_zip(folder: Path, path: Path, signature: bytes | None = None) -> Path:
    """`path` is a zip of the bundle, which `read_bundle` reads as it reads the folder.

    It has this signature, or else the one of the folder. Raises: RecordError if the bundle is not
    sound.
    """
    folder = folder.resolve()
    plan = read_bundle(folder)
    hosts = (_host_part(number, host.engine) for number, host in enumerate(plan.hosts))
    beside = [name for name in (SAMPLES, BINARIES) if (folder / name).is_file()]
    with replacing(path) as whole_file, zipfile.ZipFile(whole_file, "w") as archive:
        for name in (MANIFEST, KERNELS, WEIGHTS, *beside, *hosts):
            with (folder / name).open("rb") as stream:
                _add(archive, name, stream, (folder / name).stat().st_size)
        if signature is None and (folder / SIGNATURE).is_file():
            signature = (folder / SIGNATURE).read_bytes()
        if signature is not None:
            _add(archive, SIGNATURE, io.BytesIO(signature), len(signature))
    return path


def _add(archive: zipfile.ZipFile, name: str, stream: BinaryIO, size: int) -> None:
    entry = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
    stored = name == WEIGHTS  # trained floats hardly compress
    entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    entry.file_size = size
    with archive.open(entry, "w") as sink:
        shutil.copyfileobj(stream, sink, 1 << 20)


def check_replaceable(folder: Path) -> None:
    """Raises: InputError if a bundle at `folder` would replace something else."""
    check_replaces(folder, "a bundle", is_bundle)


def _least_version(plan: NetworkPlan) -> int:
    """The oldest version that can hold the plan, so that older programs read it as well."""
    if not all(is_fixed(loop.times) for loop in plan.loops):
        return FORMAT_VERSION
    if plan.sizes or any(state.axis is not None for state in plan.states):
        return 7  # what grows lies in another order than the model has it
    if plan.loops:
        return 6
    if any(host.engine != "onnx" for host in plan.hosts):
        return 5
    storages = [alias.storage for alias in plan.aliases if alias.storage is not None]
    if storages:
        return 3 if all(storage.is_columns for storage in storages) else 4
    return 2 if plan.hosts else 1


def _write_parts(plan: NetworkPlan, folder: Path) -> None:
    kernels, pieces = _join_kernels({kernel.name: kernel.text for kernel in plan.kernels})
    (folder / KERNELS).write_bytes(kernels)
    save_weights(plan.weights, folder / WEIGHTS)
    hosts = {_host_part(i, host.engine): host.model for i, host in enumerate(plan.hosts)}
    for name, model in hosts.items():
        (folder / name).write_bytes(model)
    if plan.samples:
        save_arrays(plan.samples, folder / SAMPLES)
    files = (KERNELS, WEIGHTS, *([SAMPLES] if plan.samples else []), *hosts)
    memory = plan_memory(plan)
    manifest: dict[str, Json] = {
        "format": FORMAT,
        "format_version": _least_version(plan),
        **to_manifest(plan),
        "kernels": pieces,
        "memory": {
            "peak_bytes": memory.peak_bytes,
            "arena_bytes": memory.arena_bytes,
            "arena_lower_bound_bytes": memory.lower_bound_bytes,
            "weight_bytes": memory.weight_bytes,
            "io_bytes": memory.io_bytes,
        },
        "files": {name: _file_facts(folder / name) for name in files},
    }
    _write_manifest(manifest, folder)


def _write_manifest(manifest: Mapping[str, Json], folder: Path) -> None:
    keyed = {**manifest, "key": content_key(manifest)}
    (folder / MANIFEST).write_text(json.dumps(keyed, indent=1) + "\n", encoding="utf-8")


def _host_part(number: int, engine: Engine) -> str:
    """Name of the file with the model of that host step, or the module of an accelerator."""
    return f"host{number}.{engine}"


def _file_facts(path: Path) -> dict[str, Json]:
    """Size and hashes; programs from before there was a SHA-256 read the other one."""
    data = map_file(path)
    return {
        "bytes": len(data),
        "blake2b": hash_of(data, "blake2b"),
        "sha256": hash_of(data, "sha256"),
    }


def _join_kernels(kernels: Mapping[str, str]) -> tuple[bytes, list[Json]]:
    """One file of all texts, each distinct text once, and where each one lies in it."""
    entries: dict[str, list[Json]] = {}
    for entry, source in kernels.items():
        entries.setdefault(source, []).append(entry)
    joined, pieces = bytearray(), list[Json]()
    for source, names in entries.items():
        joined += f"// kernel {', '.join(map(str, names))}\n".encode()
        raw = source.encode()
        pieces.append({"entries": names, "first": len(joined), "bytes": len(raw)})
        joined += raw + b"\n"
    return bytes(joined), pieces


def _split_kernels(manifest: BundleManifest, joined: memoryview) -> dict[str, str]:
    kernels: dict[str, str] = {}
    end = 0
    for piece in manifest.kernels:
        first, size = piece.first, piece.bytes
        if not end <= first <= first + size <= len(joined):
            expected = f"texts of {KERNELS} one behind the other, below {len(joined)}"
            raise Malformed(f"kernels: expected {expected}; got {size} bytes from {first} on")
        end = first + size
        kernels.update(dict.fromkeys(piece.entries, str(joined[first:end], "utf-8")))
    return kernels


def _read_values(parts: BundleParts) -> dict[str, Json]:
    """The manifest, of a version that this program reads, and unchanged since it was written."""
    raw = parts.read(MANIFEST, MANIFEST_LIMIT_BYTES)
    if raw is None:
        raise damaged(parts.path, MANIFEST, "a part of that name", "none")
    try:
        manifest = json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise damaged(parts.path, MANIFEST, "JSON", str(error)) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise damaged(parts.path, MANIFEST, f'"format": "{FORMAT}"', "another kind of file")
    values = cast("dict[str, Json]", manifest)
    version = values.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise RecordError(
            f"{parts.path}: {MANIFEST}: expected format version {FORMAT_VERSION} or older; "
            f"got {version}; install a newer retune, or write the bundle again with this one"
        )
    key = values.pop("key", None)
    if key != content_key(values):
        raise damaged(parts.path, MANIFEST, f"content with key {key}", "changed content")
    return values


def _read_part(parts: BundleParts, manifest: BundleManifest, name: str) -> memoryview:
    """The part's bytes, with the size and hash that the manifest states."""
    raw = _read_bytes(parts, manifest, name)
    _require_hash(parts, manifest, name, hash_of(raw, manifest.files[name].algorithm))
    return raw


def _read_bytes(parts: BundleParts, manifest: BundleManifest, name: str) -> memoryview:
    """The part's bytes, with the size that the manifest states."""
    if name not in manifest.files:
        raise damaged(parts.path, MANIFEST, f"facts of {name}", "none")
    size, most = manifest.files[name].bytes, _most_bytes(name)
    if size > most:
        raise damaged(parts.path, MANIFEST, f"{name} of at most {most} bytes", str(size))
    raw = parts.read(name, size)
    if raw is None:
        raise damaged(parts.path, name, "a part of that name", "none")
    if len(raw) != size:
        got = "more" if len(raw) > size else str(len(raw))
        raise damaged(parts.path, name, f"{size} bytes", got)
    return raw


def _require_hash(parts: BundleParts, manifest: BundleManifest, name: str, found: str) -> None:
    expected = manifest.files[name].digest
    if found != expected:
        raise damaged(parts.path, name, f"content with hash {expected}", found)


def _most_bytes(name: str) -> int:
    """How large a part may be, whatever the manifest says of it."""
    if name in (WEIGHTS, SAMPLES):
        return machine_bytes()
    return _KERNELS_LIMIT_BYTES if name in (KERNELS, BINARIES) else _MODEL_LIMIT_BYTES
