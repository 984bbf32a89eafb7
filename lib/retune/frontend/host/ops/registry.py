"""The registry of operators that have a numpy function of their own on the host.

Read `host_op`. All other operators mean there what their import says (`programs`). An operator is
here if no graph of fixed shapes states it: its sizes depend on the data, it takes or makes
sequences and optionals, or it runs bodies.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import OnnxNode
from retune.ops import Array

Value: TypeAlias = Any
"""What a name stands for: an array, a tuple of values (a sequence), or None: an input that is
omitted, or an optional that holds nothing."""


class BodyCall(Protocol):
    """A body inside a node, which sees the values around the node."""

    @property
    def stated(self) -> Sequence[Any]:
        """The ONNX types of its outputs, as far as the model states them."""
        ...

    def __call__(self, *inputs: Value) -> tuple[Value, ...]:
        """The body's outputs for these inputs."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One call of a node on the host."""

    node: OnnxNode
    args: Sequence[Value]
    """The inputs; those that the node leaves out at the end are not there."""
    bodies: Mapping[str, BodyCall] = field(default_factory=dict[str, BodyCall])
    """By attribute."""

    def given(self, index: int) -> Value:
        """The input, or None if it is omitted."""
        return self.args[index] if index < len(self.args) else None

    def array(self, index: int) -> Array:
        """An input that has to be a tensor. Raises: ModelError."""
        value = self.given(index)
        if not isinstance(value, np.ndarray):
            got = "a sequence" if isinstance(value, tuple) else "nothing"
            raise ModelError(f"input {index}: expected a tensor, got {got}")
        return value

    def sequence(self, index: int) -> tuple[Value, ...]:
        """An input that has to be a sequence. Raises: ModelError."""
        value = self.given(index)
        if not isinstance(value, tuple):
            got = "nothing" if value is None else "a tensor"
            raise ModelError(f"input {index}: expected a sequence, got {got}")
        return value


HostFunction = Callable[[NodeCall], Sequence[Value]]
"""The outputs of a call, all that the operator may have. Raises: ModelError."""

_FUNCTIONS: dict[str, dict[int, HostFunction]] = {}


def host_op(*names: str, since: int = 1) -> Callable[[HostFunction], HostFunction]:
    """Decorator: the function runs these ONNX operators on the host, from opset `since` on.

    Names are those of `onnx_op`. Raises: ValueError if there is one for that opset already.
    """

    def wrap(function: HostFunction) -> HostFunction:
        for name in names:
            versions = _FUNCTIONS.setdefault(name, {})
            if since in versions:
                raise ValueError(f"ONNX op {name} since {since} has two functions on the host")
            versions[since] = function
        return function

    return wrap


def host_function(op_type: str, opset: int) -> HostFunction | None:
    """The newest function of the operator that is not newer than `opset`, or None."""
    versions = _FUNCTIONS.get(op_type, {})
    fitting = [since for since in versions if since <= opset]
    return versions[max(fitting)] if fitting else None


def host_ops() -> dict[str, tuple[int, ...]]:
    """The operators that have a function, with the opsets from which each is right."""
    return {name: tuple(sorted(versions)) for name, versions in _FUNCTIONS.items()}
