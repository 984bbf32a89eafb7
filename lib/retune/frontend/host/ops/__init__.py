"""Operators with a numpy function on the host, by family: importing this registers them all."""

from retune.frontend.host.ops import control, data_dependent
from retune.frontend.host.ops.registry import HostFunction, NodeCall, Value, host_function, host_ops

__all__ = [
    "HostFunction",
    "NodeCall",
    "Value",
    "control",
    "data_dependent",
    "host_function",
    "host_ops",
]
