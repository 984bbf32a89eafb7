"""Nodes of trees: dataclasses with slots that nobody changes, and that know their own hash.

Trees share their parts, and nodes are keys of many tables: to hash one anew each time would be to
walk all that is below it. That nobody assigns to a field is for the type checker to see. A frozen
dataclass sees to it while it runs, and takes three times as long to make: a tenth of the time of
lowering.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, dataclass_transform


class IRNode:
    """Base of what `node` makes."""

    __slots__ = ("_hash",)
    _hash: int
    _content: ClassVar["attrgetter[Any]"]
    """The fields that count in comparisons, of one."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __match_args__: ClassVar[tuple[str, ...]]
    """The names of its fields."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = self._hash = hash(self._content(self))
            return value

    def __reduce__(self) -> tuple[Callable[..., "IRNode"], tuple[Any, ...]]:
        """Its fields alone: hashes of other processes are others."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)


N = TypeVar("N", bound=IRNode)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def node(cls: type[N]) -> type[N]:
    """The class as a dataclass with slots that is frozen to the type checker.

    It compares by content, and hashes so unless the class says how.
    """
    own_hash = "__hash__" in cls.__dict__
    made = dataclass(slots=True)(cls)
    if not own_hash:
        made._content = attrgetter(*(f.name for f in fields(made) if f.compare))  # noqa: SLF001
        made.__hash__ = IRNode.__hash__  # pyrefly: ignore[method-assign]
    return made
