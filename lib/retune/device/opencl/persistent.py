"""A list of kernels on a device as one launch of persistent workers."""

from collections.abc import Sequence

from retune.codegen.network import persistent
from retune.codegen.network.extents import SizesAt
from retune.codegen.network.persistent import (
    Callee,
    CalleeLaunch,
    most_rounds,
    persistent_text,
)
from retune.codegen.opencl.kernels import callable_only
from retune.core.dims import most
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel


def can_persist(device: Device) -> bool:
    """Whether the device's threads all make progress, and it has the atomics for it."""
    return device.spec.device_class == "cpu" and device.has_atomics


class Persistent:
    """Steps over a few base buffers, compiled into one kernel. One launch at a time may run."""

    def __init__(
        self,
        device: Device,
        texts: Sequence[str],
        options: Sequence[str],
        callees: Sequence[Callee],
        steps: Sequence[CalleeLaunch],
        bases: int,
        *,
        moving: bool = False,
        sizes: SizesAt | None = None,
    ) -> None:
        """The program is built when the call returns; drivers may compile at the first launch.

        `texts` define the callees; `bases` buffers hold the steps' arguments. If `moving`, the
        first of them can hold others in each round. `sizes` say what groups depend on.
        Raises: BuildFailed.
        """
        self._device = device
        self._threads = max(1, device.spec.compute_units)
        self._steps = len(steps)
        self.most_rounds = most_rounds(max((most(callee.count) for callee in callees), default=1))
        self._moving = moving
        own = persistent_text(callees, steps, bases, self._threads, moving=moving, sizes=sizes)
        called = callable_only("\n".join(texts))
        self._program = device.build(
            f"{called}\n{own}", options=(*options, persistent.BUILD_OPTION)
        )
        self._state = device.allocate(persistent.state_bytes(self._steps, self._threads))

    def launch(
        self,
        bases: Sequence[DeviceMemory],
        *,
        first: int = 0,
        last: int | None = None,
        rounds: int = 1,
        windows: tuple[int, int] = (0, 1),
    ) -> PreparedKernel:
        """The steps from `first` up to, but not including, `last`, `rounds` times over.

        Steps before `first` are taken to be complete. `windows` of a moving first base: bytes from
        one to the next, a multiple of ALIGN_BYTES, and their number; each round takes the next, the
        first one that after the last launch's; of one window all rounds take that.
        """
        groups = persistent.workers(self._threads)
        stride, number = windows
        moves = (stride // persistent.ALIGN_BYTES, number) if self._moving else ()
        return self._device.prepare(
            self._program,
            persistent.NAME,
            (*bases, self._state),
            (groups, 1, 1),
            (1, 1, 1),
            (first, self._steps if last is None else last, rounds, *moves),
        )
