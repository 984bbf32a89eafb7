"""Which failures of a stage may pass by themselves."""

from retune.core.errors import DeviceError


def may_pass(error: Exception) -> bool:
    """True if another try may succeed."""
    return isinstance(error, DeviceError | OSError)
