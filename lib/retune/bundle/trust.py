"""Whom a bundle is from: its digest, its signature, and a copy of one that was found right.

A bundle is a program. Read `admitted`: what it yields is what was checked, as nobody else can write
to it. Digest and signature are of module.json, from which the hashes of all other parts follow.
Signatures are Ed25519's, keys are PEM files as `openssl genpkey -algorithm ed25519` writes them.
"""

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from retune.bundle.archive import open_parts
from retune.bundle.format import (
    KERNELS,
    MANIFEST,
    MANIFEST_LIMIT_BYTES,
    SAMPLES,
    SIGNATURE,
    WEIGHTS,
)
from retune.core.errors import InputError
from retune.core.names import how_to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

T = TypeVar("T")

_PURPOSE = b"retune bundle\n"
"""Before what is signed: no signature of something else is one of a bundle."""
_SIGNATURE_BYTES = 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILES = (MANIFEST, KERNELS, WEIGHTS, SAMPLES, SIGNATURE)
_PART = re.compile("|".join([*map(re.escape, _FILES), r"host\d+\.[a-z]+"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a bundle has to be, to be run; all of it that is given."""

    digest: str = ""
    """As `digest_of` tells it."""
    keys: tuple[Path, ...] = ()
    """Files of public keys, of which one has signed it."""


def digest_of(bundle: Path) -> str:
    """SHA-256 of the bundle's module.json, in hexadecimal. Raises: RecordError if there is none."""
    return hashlib.sha256(_read(bundle, MANIFEST, MANIFEST_LIMIT_BYTES) or b"").hexdigest()


def signature_of(bundle: Path, key: Path) -> bytes:
    """The bundle's signature by the owner of that private key. Raises: InputError for no key."""
    manifest = _read(bundle, MANIFEST, MANIFEST_LIMIT_BYTES) or b""
    return _private(key).sign(_PURPOSE + manifest)


@contextmanager
def admitted(bundle: Path, trust: Trust) -> Generator[Path]:
    """The bundle to run, for the time of the context: a copy, if something is asked of it.

    Raises: InputError if it is not what is asked; RecordError if it is none.
    """
    if not trust.digest and not trust.keys:
        yield bundle
        return
    if trust.digest and not _DIGEST.fullmatch(trust.digest):
        raise InputError(
            f"digest {trust.digest!r}: expected 64 hexadecimal digits, as `retune pack` prints them"
        )
    with tempfile.TemporaryDirectory(prefix="retune-trusted-") as folder:
        copy = _copied(bundle, Path(folder))
        _check(bundle, copy, trust)
        yield copy


def _check(bundle: Path, copy: Path, trust: Trust) -> None:
    found = digest_of(copy)
    if trust.digest and found != trust.digest:
        raise InputError(
            f"{bundle}: expected the bundle with digest {trust.digest}, got one with {found}; "
            "nothing of it was run"
        )
    if trust.keys:
        signature = _read(copy, SIGNATURE, _SIGNATURE_BYTES)
        manifest = _read(copy, MANIFEST, MANIFEST_LIMIT_BYTES) or b""
        if not _is_signed(_PURPOSE + manifest, signature, trust.keys):
            owners = ", ".join(map(str, trust.keys))
            got = "none" if signature is None else "one by somebody else, or of another bundle"
            raise InputError(
                f"{bundle}: expected a signature by the owner of {owners}, got {got}; nothing of "
                "it was run"
            )


def _is_signed(data: bytes, signature: bytes | None, keys: Sequence[Path]) -> bool:
    owners = [_public(key) for key in keys]  # one that cannot be read is said, signed or not
    return signature is not None and any(_verifies(owner, signature, data) for owner in owners)


def _verifies(owner: "Ed25519PublicKey", signature: bytes, data: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        owner.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _read(bundle: Path, part: str, limit: int) -> bytes | None:
    with open_parts(bundle) as parts:
        data = parts.read(part, limit)
        return None if data is None else bytes(data)


def _copied(bundle: Path, folder: Path) -> Path:
    """The bundle in that folder; of one that is a folder its parts alone."""
    copy = folder / "bundle"
    if not bundle.is_dir():
        return Path(shutil.copyfile(bundle, copy)) if bundle.is_file() else bundle
    copy.mkdir()
    for part in bundle.resolve().iterdir():
        if _PART.fullmatch(part.name) and part.is_file():
            shutil.copyfile(part, copy / part.name)
    return copy


def _private(path: Path) -> "Ed25519PrivateKey":
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    return _key(path, "private", lambda pem: load_pem_private_key(pem, None), Ed25519PrivateKey)


def _public(path: Path) -> "Ed25519PublicKey":
    _check_installed()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return _key(path, "public", load_pem_public_key, Ed25519PublicKey)


def _key(path: Path, side: str, read: Callable[[bytes], object], kind: type[T]) -> T:
    """The key of that kind in a PEM file. Raises: InputError."""
    try:
        key = read(path.read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise _no_key(path, side, _unreadable(error)) from None
    if not isinstance(key, kind):
        raise _no_key(path, side, "a key of another kind")
    return key


def _unreadable(error: Exception) -> str:
    """What there was instead of a key, in a few words; libraries give a page of reasons."""
    match error:
        case FileNotFoundError():
            return "no file"
        case IsADirectoryError():
            return "a folder"
        case OSError():
            return f"a file that cannot be read ({error.strerror})"
        case _:
            return "something else"


def _no_key(path: Path, side: str, got: str) -> InputError:
    return InputError(
        f"{path}: expected a {side} Ed25519 key as a PEM file without a password, got {got}; "
        "`openssl genpkey -algorithm ed25519` makes a private one, `openssl pkey -pubout` the "
        "public one of it"
    )


def _check_installed() -> None:
    if find_spec("cryptography") is None:
        raise InputError(f"signatures need more than is installed; {how_to_install('sign')}")
