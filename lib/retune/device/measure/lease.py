"""One measurement on a device at a time, over all processes of this machine."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retune.core.locking import exclusive, machine_lock
from retune.core.stopwatch import turn
from retune.core.target import DeviceSpec

QUIET_S = 5.0
"""Waits of less than this are not told: runs that share a device take turns at every batch."""


def lock_path(spec: DeviceSpec) -> Path:
    """The device's lock file, the same for every process of this machine.

    Devices by different descriptions that one device computes for share it.
    """
    name, _, fingerprint = spec.computed_by.partition("|")
    if not name:
        name, fingerprint = spec.name, spec.fingerprint
    return machine_lock("device", name, fingerprint)


@contextmanager
def lease(spec: DeviceSpec) -> Generator[None]:
    """Holds the device for the time of the context; waits while another has it.

    That wait does not count as the run's time, and the log tells of one that lasts. The lock is the
    operating system's: it is free again when its holder dies.
    """
    with turn() as device:
        device.waits()
        with exclusive(lock_path(spec), f"device {spec.name} is being measured", quiet_s=QUIET_S):
            device.is_ours()
            yield
