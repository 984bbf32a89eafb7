"""The activation functions that a recurrent layer names in its attributes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode


class Put(Protocol):
    """Emits a graph op, and answers the value that it makes."""

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str: ...


KINDS: dict[str, tuple[str, dict[str, float]]] = {
    "relu": ("relu", {}),
    "tanh": ("tanh", {}),
    "sigmoid": ("sigmoid", {}),
    "affine": ("", {"alpha": 1.0, "beta": 0.0}),
    "leakyrelu": ("leaky_relu", {"alpha": 0.01}),
    "thresholdedrelu": ("", {"alpha": 1.0}),
    "scaledtanh": ("", {"alpha": 1.0, "beta": 1.0}),
    "hardsigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "elu": ("elu", {"alpha": 1.0}),
    "softsign": ("softsign", {}),
    "softplus": ("softplus", {}),
}
"""Name in small letters -> graph op ('' where it takes several), and parameters with defaults."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function of KINDS with its parameters."""

    name: str
    parameters: Mapping[str, float]

    def apply(self, put: Put, value: str, emit: Emitter) -> str:
        """The function of the value, element by element."""
        op, alpha = KINDS[self.name][0], self.parameters.get("alpha", 1.0)
        if op:
            return put(op, value, **self.parameters)
        if self.name == "thresholdedrelu":
            limit = emit.scalar(alpha, value, "threshold")
            below = put("less", value, limit)
            return put("where", below, emit.scalar(0.0, value, "nothing"), value)
        beta = self.parameters["beta"]
        if self.name == "scaledtanh":
            value = put("tanh", put("multiply", value, emit.scalar(beta, value, "beta")))
            return put("multiply", value, emit.scalar(alpha, value, "alpha"))
        scaled = put("multiply", value, emit.scalar(alpha, value, "alpha"))
        return put("add", scaled, emit.scalar(beta, value, "beta"))


def activations_of(
    node: OnnxNode, defaults: Sequence[str], directions: int
) -> list[tuple[Activation, ...]]:
    """The functions of each direction.

    Parameters are taken from the attributes' lists in the order of the functions that have them.
    Raises: ModelError for an unknown name, or too few of them.
    """
    names = [str(name) for name in node.attrs.get("activations", [*defaults] * directions)]
    count = len(defaults)
    if len(names) < count * directions:
        raise ModelError(
            f"activations {names}: expected {count} for each of {directions} directions"
        )
    given = {key: iter(node.attrs.get(f"activation_{key}", ())) for key in ("alpha", "beta")}
    found = [_activation(name, given) for name in names[: count * directions]]
    return [tuple(found[d * count : (d + 1) * count]) for d in range(directions)]


def _activation(name: str, given: Mapping[str, Iterator[float]]) -> Activation:
    kind = name.lower()
    if kind not in KINDS:
        raise ModelError(f"activation '{name}' is not known; expected one of {', '.join(KINDS)}")
    defaults = KINDS[kind][1]
    return Activation(
        kind, {key: float(next(given[key], default)) for key, default in defaults.items()}
    )
