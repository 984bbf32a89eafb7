"""One measurement on a device at a time, over all processes of this machine."""

from contextlib import AbstractContextManager
from pathlib import Path

from retune.core.locking import exclusive, machine_lock
from retune.core.target import DeviceSpec


def lock_path(spec: DeviceSpec) -> Path:
    """The device's lock file, the same for every process of this machine.

    Devices by different descriptions that one device computes for share it.
    """
    name, _, fingerprint = spec.computed_by.partition("|")
    if not name:
        name, fingerprint = spec.name, spec.fingerprint
    return machine_lock("device", name, fingerprint)


def lease(spec: DeviceSpec) -> AbstractContextManager[None]:
    """Holds the device for the time of the context; waits, and says so, while another has it.

    The lock is the operating system's: it is free again when its holder dies.
    """
    return exclusive(lock_path(spec), f"device {spec.name} is being measured")
