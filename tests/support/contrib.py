"""Cases of onnxruntime's own operators: one node each, with its inputs.

`CASES` names all of them, `model_of` makes a case's model. Where onnxruntime's CPU provider has no
kernel, a case states its meaning in numpy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from retune.proto.scope import MICROSOFT
from tests.support.networks import node
from tests.support.peer import typed_model

Array = np.ndarray
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One node, by the names of its inputs ('' for those that are omitted)."""

    op: str
    inputs: Arrays
    """In the node's order, but for what `reads` says."""
    known: tuple[str, ...] = ()
    """Inputs that are initializers."""
    reads: tuple[str, ...] = ()
    """The node's inputs with those that are omitted; () for all inputs in their order."""
    outputs: tuple[str, ...] = ("y",)
    inner: tuple[str, ...] = ()
    """Outputs of the node that are not the network's."""
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    meaning: Callable[..., Any] | None = None
    """The outputs made of the inputs, where onnxruntime's CPU has no kernel."""
    tolerance: float = 1e-5
    domain: str = MICROSOFT

    @property
    def fed(self) -> dict[str, Array]:
        """What is fed when the network runs."""
        return {name: array for name, array in self.inputs.items() if name not in self.known}

    def expected(self) -> dict[str, Array] | None:
        """What the meaning makes; None where onnxruntime is the judge."""
        if self.meaning is None:
            return None
        made = self.meaning(**self.inputs)
        made = made if isinstance(made, tuple) else (made,)
        return dict(zip(filter(None, self.outputs), made, strict=True))


def model_of(case: Case) -> onnx.ModelProto:
    """The model of a case."""
    reads = list(case.reads or case.inputs)
    proto = node(case.op, reads, list(case.outputs), domain=case.domain, **case.attrs)
    weights = {name: case.inputs[name] for name in case.known}
    outputs = [name for name in case.outputs if name and name not in case.inner]
    made = typed_model([proto], case.fed, outputs, weights, opset=20)
    made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


CASES: dict[str, Case] = {}


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Normal numbers of float32."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def add(name: str, op: str, inputs: Arrays, **options: Any) -> None:
    """A case of that name. Options that a case does not have are attributes of the node."""
    own = {key: options.pop(key) for key in list(options) if key in Case.__dataclass_fields__}
    assert name not in CASES, name
    CASES[name] = Case(op=op, inputs=inputs, attrs=options, **own)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def malformed(case: Case, rng: np.random.Generator) -> Case:
    """The case with one input omitted, or of another shape or type, or without an attribute."""
    kind = rng.integers(3)
    reads = list(case.reads or case.inputs)
    if kind == 0:
        reads[rng.integers(len(reads))] = ""
        return replace(case, reads=tuple(reads))
    if kind == 1 and case.attrs:
        left_out = rng.choice(list(case.attrs))
        return replace(case, attrs={k: v for k, v in case.attrs.items() if k != left_out})
    name = str(rng.choice(list(case.inputs)))
    array = case.inputs[name]
    others = [array.reshape(-1), array[None], array.reshape(-1)[:1].reshape(()), array != 0]
    return replace(case, inputs={**case.inputs, name: others[rng.integers(len(others))]})
