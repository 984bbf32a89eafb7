"""Permissions that a process requests from the system before it uses matrix registers.

Linux saves matrix registers (AMX) for those processes alone that have asked. A process that opens a
CPU device asks; without the permission, or without such registers, the first instruction would end
the process that probes, and the device does not offer them.
"""

import ctypes
import functools
import platform
import sys

from retune.core.errors import DeviceError
from retune.core.target import DeviceSpec
from retune.device.opencl.remembered import remembered

_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XTILEDATA = 18


@functools.cache
def ask_for_matrix_registers() -> bool:
    """Whether this process, with all threads that it has and makes, may use matrix registers.

    Source: Linux, Documentation/arch/x86/xstate.rst.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    asked = libc.syscall(
        ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XTILEDATA)
    )
    return asked == 0


def asking_implementations() -> frozenset[str]:
    """The full names of the implementations of intrinsics that need the permission."""
    return frozenset(remembered("asking", _asking))


def _asking() -> list[str]:
    from retune.intrinsics import intrinsics

    every = ((entry, one) for entry in intrinsics() for one in entry.implementations)
    return sorted(entry.full_name(one) for entry, one in every if one.permission)


def require_registers(spec: DeviceSpec) -> None:
    """This process may use the registers of a CPU device.

    Raises: DeviceError where kernels for the device would end this process.
    """
    if spec.device_class != "cpu" or ask_for_matrix_registers():
        return
    if needs := sorted(asking_implementations().intersection(spec.instructions)):
        raise DeviceError(
            f"{spec.name} offers {', '.join(needs)}, and this process may not use matrix "
            "registers; does a thread of it have a small alternate signal stack, or a filter "
            "forbid arch_prctl?"
        )
