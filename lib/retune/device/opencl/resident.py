"""A list of kernels on a GPU as one launch of a persistent kernel."""

from collections.abc import Sequence

from retune.codegen.network import resident
from retune.codegen.network.extents import SizesAt
from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.network.resident import WAYS
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel


def way_of(spec: DeviceSpec) -> str | None:
    """How persistent groups synchronize there: the first way found to work; None without one."""
    return next((name for name in WAYS if name in spec.instructions), None)


class Resident:
    """Steps over a few base buffers, compiled into one kernel. One launch at a time may run."""

    def __init__(
        self,
        device: Device,
        texts: Sequence[str],
        options: Sequence[str],
        tiles: Sequence[Callee],
        steps: Sequence[CalleeLaunch],
        bases: int,
        *,
        groups: int | None = None,
        way: str | None = None,
        sizes: SizesAt | None = None,
    ) -> None:
        """The program is built when the call returns; drivers may compile at the first launch.

        `texts` define the functions of `tiles`; `bases` buffers hold the steps' arguments.
        `groups` and `way` are otherwise what the device has; `sizes` say what groups of tiles
        depend on. Raises: BuildFailed.
        """
        found = WAYS[way or way_of(device.spec) or next(iter(WAYS))]
        self._device, self._steps = device, len(steps)
        units, most = max(1, device.spec.compute_units), device.spec.max_work_group
        local = device.spec.local_memory_bytes
        self._shape = (
            resident.shape_of(tiles, groups, most, local)
            if groups
            else resident.best_shape(tiles, units, most, local)
        )
        own = resident.resident_text(tiles, steps, bases, self._shape, found, sizes, local)
        self._program = device.build("\n".join([*texts, own]), options=(*options, *found.options))
        self._state = device.allocate(resident.state_bytes(self._steps))

    def launch(
        self, bases: Sequence[DeviceMemory], *, first: int = 0, last: int | None = None
    ) -> PreparedKernel:
        """The steps from `first` up to, but not including, `last`.

        Steps before `first` are taken to be complete.
        """
        items = self._shape.items
        return self._device.prepare(
            self._program,
            resident.NAME,
            (*bases, self._state),
            (self._shape.groups * items, 1, 1),
            (items, 1, 1),
            (first, self._steps if last is None else last),
        )
