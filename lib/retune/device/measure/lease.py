"""Leases of devices: one measurement at a time, over all processes of this machine.

A process that cannot be killed, as its driver does not let go of it, is abandoned: the device's
lease is marked (`abandon`), and nobody gets it while that process is there.
"""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retune.core.errors import DeviceError
from retune.core.locking import QUIET_S, exclusive, machine_lock, own_file
from retune.core.processes import Holder, is_alive, process_of
from retune.core.replacing import replacing
from retune.core.stopwatch import turn
from retune.core.target import DeviceSpec


def lock_path(spec: DeviceSpec) -> Path:
    """The device's lock file, the same for every process of this machine.

    Devices by different descriptions that one device computes for share it.
    """
    return machine_lock("device", *_identity(spec))


def _identity(spec: DeviceSpec) -> tuple[str, str]:
    """Name and fingerprint of what computes."""
    name, _, fingerprint = spec.computed_by.partition("|")
    return (name, fingerprint) if name else (spec.name, spec.fingerprint)


def abandon(spec: DeviceSpec, process: int) -> None:
    """Nobody leases the device, from now on until that process has ended."""
    with replacing(_mark(spec)) as stream:
        stream.write(process_of(process).to_line().encode())


def check_free(spec: DeviceSpec) -> None:
    """Raises: DeviceError if a process that was abandoned is still on the device."""
    path = _mark(spec)
    try:
        holder = Holder.from_line(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return
    if holder is None or not is_alive(holder):
        path.unlink(missing_ok=True)
        return
    raise DeviceError(
        f"device {spec.name}: expected one that nobody computes on, got one on which {holder} "
        "cannot be ended: its driver does not let go of it; reset the device, or restart the "
        "machine"
    )


def _mark(spec: DeviceSpec) -> Path:
    return own_file("abandoned", ".txt", *_identity(spec))


@contextmanager
def lease(spec: DeviceSpec) -> Generator[None]:
    """Holds the device for the time of the context; waits while another has it.

    That wait does not count as the run's time, and the log tells of one that lasts. The lock is the
    operating system's: it is free again when its holder dies. Raises: DeviceError as `check_free`.
    """
    with turn() as device:
        device.waits()
        with exclusive(lock_path(spec), f"device {spec.name} is used", quiet_s=QUIET_S):
            check_free(spec)
            device.is_ours()
            yield
