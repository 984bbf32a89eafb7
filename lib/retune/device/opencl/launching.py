"""Launches by name: what a plan's, a candidate's and a program's launches have in common."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from retune.device.opencl.runtime import Buffer, Device, Launch, Program


class NamedLaunch(Protocol):
    """One kernel launch as plain data."""

    @property
    def kernel(self) -> str:
        """Entry point."""
        ...

    @property
    def args(self) -> tuple[str, ...]:
        """Names of its buffers, in the order of the kernel's arguments."""
        ...

    @property
    def global_size(self) -> tuple[int, ...]:
        """Work-items along each axis."""
        ...

    @property
    def local_size(self) -> tuple[int, ...]:
        """Work-items of a group along each axis."""
        ...


def prepare_launches(
    device: Device,
    program: Program,
    launches: Iterable[NamedLaunch],
    buffers: Mapping[str, Buffer],
) -> tuple[Launch, ...]:
    """The launches in order, their arguments set once, ready to be enqueued any number of times.

    Raises: LaunchFailed for a kernel that the program lacks, or with other arguments. KeyError for
    a name that `buffers` lacks.
    """
    return tuple(
        device.prepare(
            program,
            launch.kernel,
            [buffers[name] for name in launch.args],
            launch.global_size,
            launch.local_size,
        )
        for launch in launches
    )
