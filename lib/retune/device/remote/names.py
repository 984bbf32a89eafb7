"""Names of farms and boards: `farm:KEY@ADDRESS` as a device, addresses, keys.

Read `FarmName`. This file knows no network.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from retune.core.config import knob
from retune.core.errors import InputError

FARM = "farm:"
"""Before the key of its boards, the name of a device in a farm."""
DEFAULT_PORT = 8786

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SCHEMES = ("tls", "tcp")


@dataclass(frozen=True, slots=True)
class FarmName:
    """A device `farm:KEY@ADDRESS`: any board of that key behind the scheduler there."""

    key: str
    scheduler: str
    """`tls://HOST:PORT`; `tcp` only where the host is this machine."""

    def __str__(self) -> str:
        return f"{FARM}{self.key}@{self.scheduler}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """How the boards of a key stand."""

    key: str
    total: int
    free: int
    pending: int
    """Jobs that wait."""


def is_farm(device: str) -> bool:
    """Whether the device of that name is a farm's."""
    return device.startswith(FARM)


def farm_name(device: str) -> FarmName:
    """What the name says; without an address that of RETUNE_SCHEDULER. Raises: InputError."""
    key, _, address = device.removeprefix(FARM).partition("@")
    address = address or knob("RETUNE_SCHEDULER")
    if not address:
        raise InputError(
            f"device {device!r}: expected the address of the farm's scheduler, got none; write "
            "--scheduler tls://HOST:8786, or set RETUNE_SCHEDULER"
        )
    return FarmName(check_key(key), check_address(address))


def check_key(key: str) -> str:
    """The key. Raises: InputError if boards cannot be called so."""
    if not _KEY.fullmatch(key):
        raise InputError(
            f"key {key!r}: expected letters, digits, '.', '_' or '-', at most 64; such as rk3399"
        )
    return key


def check_address(address: str) -> str:
    """The address with its port.

    Raises: InputError if it is none, or leads off this machine without TLS.
    """
    whole = address if "://" in address else f"tls://{address}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError as error:
        raise _bad_address(address, str(error)) from None
    if parts.scheme not in _SCHEMES or not host or parts.path or parts.username:
        raise _bad_address(address, "something else")
    if parts.scheme != "tls" and not is_loopback(host):
        raise InputError(
            f"scheduler {address!r}: expected tls:// off this machine, got {parts.scheme}://; "
            "anyone who reaches a farm without it can run programs there: see `retune farm certs`"
        )
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def loopback_of(address: str) -> str | None:
    """The address's host where only this machine can reach it; None for any other."""
    host = urlsplit(address).hostname or ""
    return host if is_loopback(host) else None


def _bad_address(address: str, got: str) -> InputError:
    return InputError(f"scheduler {address!r}: expected tls://HOST:PORT, got {got}")
