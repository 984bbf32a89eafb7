"""Who may talk in a farm: those with a certificate of its own authority, over TLS both ways.

Read `security_of`. Certificates are made by `retune farm certs`.
"""

import ssl
from pathlib import Path

from distributed import Security

from retune.core.config import knob
from retune.core.errors import InputError

AUTHORITY, CERTIFICATE, PRIVATE_KEY = "ca.pem", "cert.pem", "key.pem"
"""Files of a folder that lets its owner into a farm."""


def security_of(address: str, certs: Path | None = None) -> Security | None:
    """What a connection to that address goes by; None for one without TLS, on this machine.

    `certs` is the folder with the certificate; RETUNE_CERTS by default. Raises: InputError if it
    is missing, or its files do not belong together.
    """
    if not address.startswith("tls://"):
        return None
    folder = certs or (Path(given) if (given := knob("RETUNE_CERTS")) else None)
    if folder is None:
        raise InputError(
            f"{address}: expected a folder with the farm's certificates, got none; give --certs "
            "DIR (see `retune farm certs`), or set RETUNE_CERTS"
        )
    check_certs(folder)
    files = {"cert": str(folder / CERTIFICATE), "key": str(folder / PRIVATE_KEY)}
    roles = ("client", "scheduler", "worker")
    own = {f"tls_{role}_{what}": path for role in roles for what, path in files.items()}
    return Security(
        tls_ca_file=str(folder / AUTHORITY),
        require_encryption=True,
        tls_min_version=ssl.TLSVersion.TLSv1_2,
        **own,
    )


def check_certs(folder: Path) -> None:
    """Raises: InputError if the folder lets nobody into a farm."""
    for name in (AUTHORITY, CERTIFICATE, PRIVATE_KEY):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder}: expected {AUTHORITY}, {CERTIFICATE} and {PRIVATE_KEY} of the farm, got "
                f"no {name}; `retune farm certs DIR` makes such folders"
            )
    context = ssl.create_default_context(cafile=None)
    try:
        context.load_verify_locations(cafile=str(folder / AUTHORITY))
        context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{folder}: expected a certificate and its own private key, got files that do not "
            f"belong together or cannot be read ({error}); copy the whole folder again"
        ) from None
