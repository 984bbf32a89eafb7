"""Host steps: parts of a network that run in numpy, between its kernels.

Read `host_attrs`, then `open_host`. A step is a small ONNX model, kept as its serialised bytes:
what has sizes that depend on the data (NonMaxSuppression, NonZero, Unique, ...) and what follows
from it. `runner` says what its nodes mean. The types of the outputs stand in the model; UNKNOWN
extents are left open there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from retune.core.dims import is_fixed
from retune.core.dtypes import UNKNOWN, TensorType
from retune.core.errors import ModelError
from retune.ir.plan import quiet
from retune.ops.registry import HOST, Array, Attrs, OpDef, ints, present, register

if TYPE_CHECKING:
    import onnx

    from retune.frontend.host.runner import Body

_SHOWN_OPS = 4
_KEPT = 512
"""Steps that are kept ready: every pass over a graph asks for each of its steps."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostModel:
    """A host step, ready to run."""

    ops: tuple[str, ...]
    """Types of its nodes, each once, in order."""
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Element types of the inputs; '' where the model does not state one."""
    outputs: tuple[str, ...]
    types: tuple[TensorType, ...]
    """Of the outputs; extents that depend on the data are UNKNOWN."""
    body: "Body"

    @property
    def title(self) -> str:
        """Its ops in one line for people."""
        more = [f"{len(self.ops) - _SHOWN_OPS} more"] if len(self.ops) > _SHOWN_OPS else []
        return ", ".join([*self.ops[:_SHOWN_OPS], *more])

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The outputs, in arrays of their own and of the stated types.

        Raises: ModelError if the step cannot work with these inputs, or makes something else.
        """
        feeds = dict(zip(self.inputs, arrays, strict=True))
        try:
            with quiet():
                results = self.body(feeds)
        except ModelError as error:
            reason = " ".join(str(error).split())
            given = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in feeds.items())
            raise ModelError(
                f"host step {self.title}: it cannot work with {given} ({reason}); check the model "
                "with onnx.checker"
            ) from error
        made = zip(self.outputs, self.types, results, strict=True)
        with quiet():
            return tuple(self._checked(name, kind, result) for name, kind, result in made)

    def _checked(self, name: str, kind: TensorType, result: object) -> Array:
        if isinstance(result, np.ndarray | np.generic):
            array = np.array(result, kind.dtype, order="C")
            fits = len(array.shape) == len(kind.shape) and all(
                expected in (UNKNOWN, extent)
                for expected, extent in zip(kind.shape, array.shape, strict=True)
            )
            if fits:
                return array
        got = getattr(result, "shape", type(result).__name__)
        raise ModelError(
            f"host step {self.title}: output '{name}': expected {kind}; got {got}; the model's "
            "shapes do not hold for these inputs"
        )


def host_attrs(model: "onnx.ModelProto", types: Sequence[TensorType]) -> Attrs:
    """The attributes of a host node: the model, whose outputs are of these types.

    The model stands for itself: inner constants are initializers, its inputs and outputs are in the
    order of the node's. It is not changed. Extents in terms of sizes stand beside it, one output's
    after the other's. Raises: ModelError if it cannot be a host step.
    """
    import onnx

    from retune.proto.file import value_info

    own = onnx.ModelProto()
    own.CopyFrom(model)
    if len(types) != len(own.graph.output):
        raise ModelError(
            f"host step {own.graph.name}: expected a type for each of its "
            f"{len(own.graph.output)} outputs; got {len(types)}"
        )
    for value, kind in zip(own.graph.output, types, strict=True):
        value.CopyFrom(value_info(value.name, kind))
    data = own.SerializeToString(deterministic=True)
    open_host(data)
    extents = tuple(extent for kind in types for extent in kind.shape)
    return {"model": data, **({} if all(map(is_fixed, extents)) else {"extents": extents})}


@lru_cache(maxsize=_KEPT)
def open_host(model: bytes) -> HostModel:
    """The step with these serialised bytes; made once for each.

    Raises: ModelError if they are not a model, or one that cannot be a host step.
    """
    import onnx
    from google.protobuf.message import DecodeError

    from retune.frontend.host.runner import open_body
    from retune.frontend.onnx.functions import functions_of
    from retune.proto.file import check_names, initializer_names, initializers, tensors_of
    from retune.proto.scope import opsets_of

    try:
        proto = onnx.ModelProto.FromString(model)
    except DecodeError as error:
        raise _unusable("", f"bytes that are not an ONNX model ({error})") from error
    check_names(proto, "host step")
    graph = proto.graph
    if not graph.node or not graph.output:
        raise _unusable(graph.name, "a model without nodes or outputs")
    for tensor in tensors_of(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise _unusable(graph.name, f"data outside of it, of tensor '{tensor.name}'")
    stored = initializer_names(graph)
    inputs = [value for value in graph.input if value.name not in stored]
    outputs = tuple(value.name for value in graph.output)
    body = open_body(
        graph.node,
        outputs,
        opsets_of(proto),
        functions_of(proto),
        dict(initializers(graph, Path(), lambda _: True)),
    )
    return HostModel(
        ops=tuple(dict.fromkeys(node.op_type for node in graph.node)),
        inputs=tuple(value.name for value in inputs),
        dtypes=tuple(_input_dtype(value) for value in inputs),
        outputs=outputs,
        types=tuple(_output_type(value, graph.name) for value in graph.output),
        body=body,
    )


def step_of(attrs: Attrs) -> HostModel:
    """The step with a host node's attributes."""
    return open_host(cast("bytes", attrs["model"]))


def _unusable(name: str, got: str) -> ModelError:
    return ModelError(
        f"host step {name or '(unnamed)'}: expected a model that stands for itself, with types of "
        f"its outputs; got {got}"
    )


def _input_dtype(value: "onnx.ValueInfoProto") -> str:
    from retune.proto.file import element_type

    number = value.type.tensor_type.elem_type
    return element_type(number, f"host step: input '{value.name}'") if number else ""


def _output_type(value: "onnx.ValueInfoProto", where: str) -> TensorType:
    from retune.proto.file import stated_tensor

    kind = stated_tensor(value, f"host step: output '{value.name}'")
    if kind is None:
        raise _unusable(where, f"output '{value.name}' without a shape")
    if min(kind.shape, default=0) < UNKNOWN:
        raise _unusable(where, f"output '{value.name}' of extents {list(kind.shape)}")
    return kind


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    step = step_of(attrs)
    if len(types) != len(step.inputs) or None in types:
        raise ModelError(
            f"host step {step.title}: expected the inputs {', '.join(step.inputs) or 'none'}; got "
            f"{', '.join(map(str, types)) or 'none'}"
        )
    for name, dtype, kind in zip(step.inputs, step.dtypes, types, strict=True):
        if kind is not None and dtype not in ("", kind.dtype):
            raise ModelError(
                f"host step {step.title}: input '{name}': expected {dtype}; got {kind}"
            )
    if "extents" not in attrs:
        return step.types
    extents = iter(ints(attrs, "extents"))
    return tuple(
        TensorType(tuple(next(extents) for _ in kind.shape), kind.dtype) for kind in step.types
    )


def host(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """What the ONNX model in `model` makes of its inputs, in numpy."""
    step = step_of(attrs)
    return step.run([present(arrays, index) for index in range(len(arrays))])


register(OpDef(name=HOST, kind="host", infer=_infer, numpy=host, doc=host.__doc__ or ""))
