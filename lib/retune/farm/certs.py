"""A farm's own certificate authority, and certificates of those who take part.

Read `make_certs`. A certificate says what its owner is: a scheduler, a board, or a client, which
hands out work. There is one authority for each farm, and its private key stays where it was made.
"""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retune.core.errors import InputError
from retune.core.replacing import replacing, whole_folder
from retune.device.remote.names import check_key
from retune.device.remote.revoked import REVOKED, read_revoked
from retune.device.remote.security import AUTHORITY, CERTIFICATE, PRIVATE_KEY, ROLES, Role

AUTHORITY_KEY = "ca-key.pem"
_LEAST_SERIAL = 16
"""Digits of a serial number at least: those made here are of 160 bits."""

_YEARS = 10
_SKEW = timedelta(days=1)
"""Clocks of boards without a battery are late."""
_CONNECTS, _LISTENS = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
_USES: Mapping[Role, tuple[x509.ObjectIdentifier, ...]] = {
    "scheduler": (_CONNECTS, _LISTENS),
    "board": (_CONNECTS, _LISTENS),
    "client": (_CONNECTS,),
}
"""A scheduler fetches answers from boards; nobody connects to a client."""


def make_certs(
    folder: Path, names: Sequence[str] = ROLES, role: Role | None = None
) -> tuple[Path, ...]:
    """A folder for each name with all that its owner needs, below `folder`; those that were made.

    The owners are of that role; without one, what their names say. The authority is that of
    `folder`, made if there is none. Folders that are there stay as they are. Raises: InputError for
    a name that is none or says no role, or an authority that cannot be read.
    """
    roles: dict[str, Role] = {check_key(name): role or _role_named(name) for name in names}
    key, authority = _authority(folder)
    missing = [folder / name for name in roles if not (folder / name).exists()]
    for home in missing:
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(home.name, own, key, authority, roles[home.name])
        with whole_folder(home) as fresh:
            _write(fresh / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
            _write(fresh / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
            _write(fresh / PRIVATE_KEY, _private(own))
    return tuple(missing)


def revoke(folder: Path, names: Sequence[str]) -> tuple[Path, ...]:
    """The certificates of these names are revoked for all who have the list; its copies.

    The list lies beside the authority, and in the folders of its schedulers below. A name is that
    of a folder as `make_certs` made it, or a serial number in hexadecimal digits. Raises:
    InputError for a name of neither, the authority's folder without one, or a list that is none.
    """
    if not (folder / AUTHORITY_KEY).is_file():
        raise InputError(
            f"{folder}: expected the folder of a farm's authority, got one without {AUTHORITY_KEY}"
        )
    listed = read_revoked(folder / REVOKED) if (folder / REVOKED).exists() else {}
    listed |= {_serial_in(folder, name): name for name in names}
    schedulers = sorted(home.parent for home in folder.glob(f"*/{CERTIFICATE}") if _schedules(home))
    copies = tuple(home / REVOKED for home in (folder, *schedulers))
    for path in copies:
        with replacing(path) as stream:
            stream.write(json.dumps(listed, indent=1, sort_keys=True).encode() + b"\n")
    return copies


def _serial_in(folder: Path, name: str) -> str:
    """The serial number of the certificate of that name, or that number itself."""
    if (path := folder / check_key(name) / CERTIFICATE).is_file():
        return f"{_read_certificate(path).serial_number:X}"
    if len(name) >= _LEAST_SERIAL and not set(name.upper()) - set("0123456789ABCDEF"):
        return name.upper().lstrip("0")
    raise InputError(
        f"{name}: expected a certificate at {path}, or its serial number in hexadecimal digits "
        "(`openssl x509 -noout -serial -in cert.pem`), got neither"
    )


def _schedules(path: Path) -> bool:
    """Whether it is the certificate of a scheduler."""
    field = NameOID.ORGANIZATIONAL_UNIT_NAME
    named = _read_certificate(path).subject.get_attributes_for_oid(field)
    return any(entry.value == "scheduler" for entry in named)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a certificate that can be read ({error})") from None


def _role_named(name: str) -> Role:
    """Raises: InputError for a name that is not a role."""
    for role in ROLES:
        if name == role:
            return role
    raise InputError(
        f"--name {name}: expected --role with it, one of {', '.join(ROLES)}, got none; a "
        "certificate says what its owner is"
    )


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    paths = folder / AUTHORITY_KEY, folder / AUTHORITY
    if not any(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("farm", key, key, None)
        _write(paths[0], _private(key))
        _write(paths[1], authority.public_bytes(serialization.Encoding.PEM))
        return key, authority
    try:
        found = serialization.load_pem_private_key(paths[0].read_bytes(), None)
        authority = x509.load_pem_x509_certificate(paths[1].read_bytes())
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{folder}: expected {AUTHORITY} and {AUTHORITY_KEY} of a farm's authority, got files "
            f"that cannot be read ({error}); name another folder"
        ) from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise InputError(f"{paths[0]}: expected a key that retune made, got one of another kind")
    return found, authority


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
    role: Role | None = None,
) -> x509.Certificate:
    """Of the authority itself where there is no `authority`, and no role then."""
    named = [x509.NameAttribute(NameOID.COMMON_NAME, f"retune {name}")]
    if role is not None:
        named.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    subject = x509.Name(named)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(_usage(signs=authority is None), critical=True)
    )
    if role is not None:
        made = made.add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=True)
    return made.sign(signer, hashes.SHA256())


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    """For its owner alone."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
