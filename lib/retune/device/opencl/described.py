"""A device under another description: kernels are made for the description, and run here."""

import functools
from typing import Any

from retune.core.target import DeviceSpec
from retune.device.opencl.catalogue import find_in_caller
from retune.device.opencl.runtime import Device


class DescribedDevice(Device):
    """An open device with another device's description; kernels run on the device itself."""

    def __init__(self, handle: Any, base: DeviceSpec, spec: DeviceSpec) -> None:
        """`base` and `handle` are as `catalogue.find_device` gives them."""
        super().__init__(handle, base)
        self._base = base
        self.spec = spec

    @functools.cached_property
    def in_caller(self) -> Device | None:
        """As Device: that of the device that computes."""
        found = find_in_caller(self._base)
        return Device(found[1], found[0]) if found else None
