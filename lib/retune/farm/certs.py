"""A farm's own certificate authority, and certificates of those who take part.

Read `make_certs`. Whoever holds a certificate of the authority may hand out work and take it on, so
there is one authority for each farm, and its private key stays where it was made.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from retune.core.errors import InputError
from retune.core.replacing import whole_folder
from retune.device.farm.names import check_key
from retune.device.farm.security import AUTHORITY, CERTIFICATE, PRIVATE_KEY

ROLES = ("scheduler", "board", "client")
"""Folders that are made where nobody says which."""
AUTHORITY_KEY = "ca-key.pem"

_YEARS = 10
_SKEW = timedelta(days=1)
"""Clocks of boards without a battery are late."""


def make_certs(folder: Path, names: Sequence[str] = ROLES) -> tuple[Path, ...]:
    """A folder for each name with all that its owner needs, below `folder`; those that were made.

    The authority is that of `folder`, made if there is none. Folders that are there stay as they
    are. Raises: InputError for a name that is none, or an authority that cannot be read.
    """
    for name in names:
        check_key(name)
    key, authority = _authority(folder)
    missing = [folder / name for name in names if not (folder / name).exists()]
    for home in missing:
        own = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(f"retune {home.name}", own, key, authority)
        with whole_folder(home) as fresh:
            _write(fresh / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
            _write(fresh / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
            _write(fresh / PRIVATE_KEY, _private(own))
    return tuple(missing)


def _authority(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    paths = folder / AUTHORITY_KEY, folder / AUTHORITY
    if not any(path.exists() for path in paths):
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("retune farm", key, key, None)
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
) -> x509.Certificate:
    """Of the authority itself where there is no `authority`."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
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
    if authority is not None:
        made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
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
