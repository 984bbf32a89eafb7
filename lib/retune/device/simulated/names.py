"""Names of simulated devices: known without what simulates them."""

NAME = "vta-sim"
"""Of the simulated accelerator."""
BASE = "pocl"
"""The device that the accelerator stands beside."""


def is_accelerator(device: str) -> bool:
    """Whether the name is that of a simulated accelerator."""
    return device.partition(":")[0] == NAME
