"""Mutual TLS within a farm: only owners of its authority's certificates may talk.

Read `security_of`. A certificate says what its owner is, and nobody talks with another than those
of PEERS: a board hands out no work, and cannot pass for the scheduler. Certificates are made by
`retune farm certs`.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from distributed import Security

from retune.core.config import knob
from retune.core.errors import InputError

Role = Literal["scheduler", "board", "client"]
ROLES: tuple[Role, ...] = get_args(Role)
PEERS: Mapping[Role, frozenset[str]] = {
    "scheduler": frozenset({"board", "client"}),
    "board": frozenset({"scheduler"}),
    "client": frozenset({"scheduler"}),
}
"""Whom each of them talks with."""

AUTHORITY, CERTIFICATE, PRIVATE_KEY = "ca.pem", "cert.pem", "key.pem"
"""Files of a folder that lets its owner into a farm."""

_ROLE_FIELD = "organizationalUnitName"
_FLIGHTS = 6
"""Messages of a handshake at most, to and fro."""


def security_of(address: str, role: Role, certs: Path | None = None) -> Security | None:
    """What a connection to that address goes by; None for one without TLS, on this machine.

    `certs` is the folder with the certificate of that role; RETUNE_CERTS by default. Raises:
    InputError if it is missing, or its files do not belong together.
    """
    if not address.startswith("tls://"):
        return None
    folder = certs_folder(certs)
    if folder is None:
        raise InputError(
            f"{address}: expected a folder with the farm's certificates, got none; give --certs "
            "DIR (see `retune farm certs`), or set RETUNE_CERTS"
        )
    check_certs(folder, role)
    files = {"cert": str(folder / CERTIFICATE), "key": str(folder / PRIVATE_KEY)}
    parts = ("client", "scheduler", "worker")
    own = {f"tls_{part}_{what}": path for part in parts for what, path in files.items()}
    return Security(
        tls_ca_file=str(folder / AUTHORITY),
        require_encryption=True,
        tls_min_version=ssl.TLSVersion.TLSv1_2,
        **own,
    )


def certs_folder(given: Path | None) -> Path | None:
    """The folder of a member's certificate: the given one, or RETUNE_CERTS."""
    return given or (Path(named) if (named := knob("RETUNE_CERTS")) else None)


def check_certs(folder: Path, role: Role) -> None:
    """Raises: InputError if the folder lets nobody of that role into a farm."""
    for name in (AUTHORITY, CERTIFICATE, PRIVATE_KEY):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder}: expected {AUTHORITY}, {CERTIFICATE} and {PRIVATE_KEY} of the farm, got "
                f"no {name}; `retune farm certs DIR` makes such folders"
            )
    try:
        found = role_of(_as_others_see_it(folder))
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{folder}: expected a certificate and its own private key, got files that do not "
            f"belong together or cannot be read ({error}); copy the whole folder again"
        ) from None
    if found != role:
        raise InputError(
            f"{folder}: expected the certificate of a {role}, got that of a "
            f"{found or 'stranger'}; `retune farm certs DIR --role {role}` makes one"
        )


def role_of(certificate: Mapping[str, Any]) -> str:
    """What its owner is, of a certificate as `getpeercert` shows it; empty if it says nothing."""
    named = {key: value for part in certificate.get("subject", ()) for key, value in part}
    return str(named.get(_ROLE_FIELD, ""))


def _as_others_see_it(folder: Path) -> Mapping[str, Any]:
    """The folder's certificate, after its own authority has let it in.

    Raises: ssl.SSLError where that fails; OSError for a file that cannot be read.
    """
    host = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    host.verify_mode = ssl.CERT_REQUIRED
    host.load_verify_locations(cafile=str(folder / AUTHORITY))
    guest = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    guest.check_hostname, guest.verify_mode = False, ssl.CERT_NONE
    for side in (host, guest):
        side.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    inside = host.wrap_bio(up, down, server_side=True)
    waiting = [guest.wrap_bio(down, up), inside]
    for _ in range(_FLIGHTS):
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    return inside.getpeercert() or {}
