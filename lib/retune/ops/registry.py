"""The registry of ops: for each one its shape rule and its meaning in numpy.

`OpDef` says what an op is, `op` registers one, `lookup` finds one. An op's attributes are plain
values that were made canonical by the importer (positive axes, complete shapes, explicit pads).
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from retune.core.dtypes import Array, TensorType
from retune.core.errors import LookupFailed, ModelError

AttrValue: TypeAlias = bool | int | float | str | bytes | tuple[int, ...] | tuple[float, ...]
Attrs: TypeAlias = Mapping[str, AttrValue]
OpKind = Literal[
    "elementwise", "broadcast", "table", "reduction", "heavy", "injective", "opaque", "host",
    "offload",
]  # fmt: skip
"""How an op is fused. `table`: element by element of its first input, by other inputs whose shapes
have nothing to do with it. `host`: never, as it runs in numpy between the kernels; it alone may
have several outputs, and outputs of unknown extents. `offload`: never, an accelerator runs it."""

Infer: TypeAlias = Callable[[Sequence[TensorType | None], Attrs], tuple[TensorType, ...]]
Reference: TypeAlias = Callable[[Sequence[Array | None], Attrs], tuple[Array, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op: what it makes of types (`infer`) and of arrays (`reference`)."""

    name: str
    kind: OpKind
    infer: Infer
    reference: Reference
    doc: str


OPS: dict[str, OpDef] = {}


def register(definition: OpDef) -> OpDef:
    """The definition, now found by `lookup`. Raises: ValueError if the name is taken."""
    if definition.name in OPS:
        raise ValueError(f"op {definition.name} is registered twice")
    OPS[definition.name] = definition
    return definition


def op(name: str, *, kind: OpKind, infer: Infer) -> Callable[[Reference], Reference]:
    """Decorator: the function is the numpy meaning of op `name`, its docstring the op's."""

    def wrap(reference: Reference) -> Reference:
        register(
            OpDef(
                name=name, kind=kind, infer=infer, reference=reference, doc=reference.__doc__ or ""
            )
        )
        return reference

    return wrap


def lookup(name: str) -> OpDef:
    """The op of that name. Raises: LookupFailed naming close ones."""
    if name in OPS:
        return OPS[name]
    close = difflib.get_close_matches(name, OPS, n=3)
    raise LookupFailed(f"op '{name}' is not known; close names: {', '.join(close) or 'none'}")


def ints(attrs: Attrs, key: str) -> tuple[int, ...]:
    """The attribute as a tuple of integers."""
    return cast("tuple[int, ...]", attrs[key])


def integer(attrs: Attrs, key: str) -> int:
    """The attribute as an integer."""
    return cast("int", attrs[key])


def number(attrs: Attrs, key: str) -> float:
    """The attribute as a float."""
    return float(cast("float", attrs[key]))


def present(items: Sequence[Any], index: int = 0) -> Any:
    """The input at `index`, which the op does not allow to be omitted. Raises: ModelError."""
    item = items[index]
    if item is None:
        raise ModelError(f"input {index} is missing; the op does not allow that")
    return item
