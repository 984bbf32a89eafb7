"""Plain frozen dataclasses to JSON and back, by their annotations.

Read `to_json` and `from_json`. Known: None, bool, int, float, str, Literal, tuples, unions with
None, and dataclasses of these. Nothing in a file chooses a type, so reading executes nothing.
"""

import dataclasses
import json
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from retune.core.errors import RecordError

T = TypeVar("T")

_MOST_SHOWN = 200
"""Characters of a value that is quoted: it may be a whole file."""


def to_json(value: object) -> str:
    """Deterministic JSON text of a dataclass of plain data; ends with a newline."""
    assert dataclasses.is_dataclass(value)
    assert not isinstance(value, type)
    return json.dumps(dataclasses.asdict(value), indent=1, allow_nan=False) + "\n"


def from_json(kind: type[T], text: str) -> T:
    """The value that `to_json` wrote. Unknown fields are ignored, as a newer program wrote them.

    Raises: RecordError naming the field that is missing or has another type.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{kind.__name__}: expected JSON, got text that is not: {error}"
        ) from error
    return cast(T, _decode(kind, data, kind.__name__))


def _refuse_constant(text: str) -> object:
    """JSON has no such number, and `to_json` writes none."""
    raise ValueError(f"{text} is no number")


def _decode(kind: object, data: object, where: str) -> object:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, where)
    if origin is Literal:
        if data in get_args(kind):
            return data
        raise _wrong(where, f"one of {get_args(kind)}", data)
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, where)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if kind is float and type(data) in (int, float):
        return _finite(cast("float", data), where)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise _wrong(where, getattr(kind, "__name__", str(kind)), data)


def _finite(number: float, where: str) -> float:
    """JSON writes numbers beyond those of a float, and `to_json` none of them."""
    if not abs(number) <= sys.float_info.max:
        raise _wrong(where, "a finite number", f"{str(number)[:20]}")
    return float(number)


def _decode_union(choices: Sequence[object], data: object, where: str) -> object:
    if data is None and type(None) in choices:
        return None
    rest = [choice for choice in choices if choice is not type(None)]
    if len(rest) != 1:
        raise TypeError(f"{where}: only unions of one type with None can be stored")
    return _decode(rest[0], data, where)


def _decode_tuple(kinds: Sequence[object], data: object, where: str) -> tuple[object, ...]:
    if not isinstance(data, list):
        raise _wrong(where, "a list", data)
    items = cast(list[object], data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(items))
    if len(items) != len(kinds):
        raise _wrong(where, f"{len(kinds)} items", data)
    pairs = enumerate(zip(kinds, items, strict=True))
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in pairs)


def _decode_dataclass(kind: type, data: object, where: str) -> object:
    if not isinstance(data, dict):
        raise _wrong(where, "an object", data)
    stored = cast(Mapping[str, object], data)
    hints = get_type_hints(kind)
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        if field.name in stored:
            values[field.name] = _decode(
                hints[field.name], stored[field.name], f"{where}.{field.name}"
            )
        elif field.default is dataclasses.MISSING:
            raise _wrong(f"{where}.{field.name}", "a value", None)
    return kind(**values)


def _wrong(where: str, expected: str, got: object) -> RecordError:
    shown = repr(got)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[:_MOST_SHOWN]}..."
    return RecordError(
        f"{where}: expected {expected}, got {shown}; delete the file to make it anew"
    )
