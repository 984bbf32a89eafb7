"""Frozen dataclasses of plain data to JSON, TOML and binary frames and back, by their annotations.

Read `to_json`, `from_json`, `from_toml`, `pack` and `unpack`. msgspec converts; this file adds the
project's sentences to its errors, refuses unknown keys and numbers that are not finite in files
that people write, and bounds what is read. A field's limits stand in its annotation, as
`Annotated[int, Meta(ge=1)]`; one whose metadata has `stated` False is not a key of files. Nothing
in a file chooses a type, so reading executes nothing.
"""

import dataclasses
import functools
import json
import math
import re
import sys
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from difflib import get_close_matches
from pathlib import Path
from threading import Lock
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from retune.core.errors import InputError, RecordError, RetuneError

T = TypeVar("T")

_KNOWN: set[object] = set()
"""Types that msgspec has looked at."""
_LOOKING = Lock()

Text = Annotated[str, Meta(min_length=1)]
"""A text that is not empty."""
Above0 = Annotated[float, Meta(gt=0)]
AtLeast0 = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

MOST_BYTES = 64 << 20
"""No file that is read whole is larger; JSON takes some ten times as much memory."""

_MOST_SHOWN = 80
"""Characters of a value that is quoted: it may be a whole file."""
_REMEDY = "delete the file to make it anew"
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "bytes": "bytes",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_AT = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_EXPECTED = re.compile(r"Expected `([^`]+)`([^,]*)(?:, got .*)?")
_LIMITS = {">=": "of at least", ">": "above", "<=": "of at most", "<": "below"}

_Path = tuple[str | int, ...]


def plain(value: object) -> object:
    """The value as JSON has it: objects, lists, texts, numbers, truth values and None."""
    return _listed(msgspec.to_builtins(value, enc_hook=_plainer))


def to_json(value: object) -> str:
    """Deterministic JSON text of plain data; ends with a newline.

    Raises: ValueError for a number that is not finite, which JSON cannot say.
    """
    return json.dumps(plain(value), indent=1, allow_nan=False) + "\n"


def from_json(
    kind: type[T],
    text: str | bytes,
    *,
    where: str = "",
    closed: bool = False,
    most_bytes: int = MOST_BYTES,
    error: type[RetuneError] = RecordError,
) -> T:
    """The value that `to_json` wrote. Unknown fields are ignored, as a newer program wrote them.

    `where` names the source in errors, by default the type. `closed`: unknown fields are errors.
    Raises: `error` naming the field that is missing or has another type.
    """
    named = where or kind.__name__
    if len(text) > most_bytes:
        raise error(f"{named}: expected at most {most_bytes} bytes, got {len(text)}")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as caught:
        raise error(f"{named}: expected JSON, got text that is not: {caught}") from caught
    return from_plain(kind, data, where=named, closed=closed, error=error, remedy=_REMEDY)


def read_toml(kind: type[T], path: Path, what: str = "a TOML file") -> T:
    """The value of a TOML file that people write: unknown keys are errors.

    `what` says in errors which file was expected.

    Raises: InputError for a file that cannot be read; else as `from_toml`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: expected {what}, got no file; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected text in UTF-8, got other bytes ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: expected {what}, got none ({error.strerror})") from None
    return from_toml(kind, text, where=str(path))


def from_toml(kind: type[T], text: str, *, where: str) -> T:
    """The value of that TOML text. Raises: InputError naming the table, the key, expected, got."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where}: expected TOML, got text that is not: {error}") from None
    return from_plain(kind, data, where=where, closed=True, style="toml", error=InputError)


def from_plain(
    kind: type[T],
    data: object,
    *,
    where: str,
    closed: bool = False,
    style: Literal["json", "toml"] = "json",
    error: type[RetuneError] = InputError,
    remedy: str = "",
) -> T:
    """The value of plain data, such as JSON, TOML or a parsed command line gives.

    `style` says how errors name a location: `file.fault[0].at`, or `file: fault 1: at` for people.
    Raises: `error` as a sentence: where, what was expected, what was found.
    """
    try:
        found = msgspec.convert(data, _known(kind))
    except UnicodeEncodeError as caught:
        raise error(f"{where}: expected text of Unicode, got {caught}{_then(remedy)}") from None
    except (msgspec.ValidationError, RecursionError) as caught:
        raise error(_sentence(kind, data, where, style, str(caught)) + _then(remedy)) from None
    if problem := _beyond(found, data, (), closed=closed):
        path, why = problem
        raise error(f"{_location(where, path, style)}: {why}{_then(remedy)}")
    return found


def _known(kind: type[T]) -> type[T]:
    """The type, after msgspec has looked at all of it, and at what it is made of.

    Two threads that let it look at one dataclass at once end the process by SIGSEGV (0.22): the
    second one finds what the first has begun.
    """
    if kind not in _KNOWN:
        with _LOOKING:
            msgspec.msgpack.Decoder(kind, dec_hook=_unpacked)
            _KNOWN.add(kind)
    return kind


def pack(message: object) -> bytes:
    """A message of a process to another one, with its arrays, paths and ranges: for `unpack`."""
    return msgspec.msgpack.encode((type(message).__name__, message), enc_hook=_packed)


def unpack(kinds: Sequence[type[T]], frame: bytes | memoryview, most_bytes: int) -> T:
    """The message that was packed, one of these types; nothing in it chooses what is executed.

    Raises: RecordError for a frame that is longer, or is not such a message.
    """
    if len(frame) > most_bytes:
        raise RecordError(f"message: expected at most {most_bytes} bytes, got {len(frame)}")
    known = {kind.__name__: kind for kind in kinds}
    try:
        name, body = msgspec.msgpack.decode(frame, type=tuple[str, msgspec.Raw])
        if name not in known:
            raise RecordError(f"message: expected one of {', '.join(known)}, got {_shown(name)}")
        return msgspec.msgpack.decode(body, type=_known(known[name]), dec_hook=_unpacked)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RecordError(f"message: expected one of {', '.join(known)}; {error}") from None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question for the end of an error; empty if nothing that is known is near."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


_PIECE_BYTES = 1 << 30
"""msgpack holds no piece of 4 GiB or more."""
_ARRAY_KINDS = "biufV"
"""Of numpy's types, those that are numbers; V are the small floats of `ml_dtypes`."""


def _packed(value: object) -> object:
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, range):
        return (value.start, value.stop, value.step)
    import numpy as np

    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise TypeError(f"pack: {type(value).__name__} has no form as a message")
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    pieces = [flat[at : at + _PIECE_BYTES] for at in range(0, len(flat), _PIECE_BYTES)]
    return (value.dtype.name, value.shape, pieces)


def _unpacked(kind: type, data: object) -> object:
    if kind is Path:
        return Path(msgspec.convert(data, str))
    if kind is range:
        return range(*msgspec.convert(data, tuple[int, int, int]))
    import numpy as np

    if kind is not np.ndarray:
        raise TypeError(f"unpack: {kind} has no form as a message")
    return _unpacked_array(data)


def _unpacked_array(data: object) -> object:
    import numpy as np

    from retune.core.dtypes import ENTRIES, numpy_dtype

    name, shape, pieces = msgspec.convert(data, tuple[str, tuple[Count, ...], list[bytes]])
    try:
        dtype = numpy_dtype(name) if name in ENTRIES else np.dtype(name)
    except TypeError as error:
        raise ValueError(f"expected an array of numbers, got {_shown(name)}") from error
    if dtype.kind not in _ARRAY_KINDS or dtype.hasobject:
        raise ValueError(f"expected an array of numbers, got {_shown(name)}")
    return np.frombuffer(bytearray().join(pieces), dtype).reshape(shape)


def _refuse_constant(text: str) -> object:
    """JSON has no such number, and `to_json` writes none."""
    raise ValueError(f"{text} is not a number of JSON")


def _plainer(value: object) -> object:
    import numpy as np

    match value:
        case str() | Path() | datetime():  # a DType is a text; pandas has moments of its own
            return str(value)
        case np.generic():
            return value.item()
        case _:
            raise TypeError(f"JSON has no form for {type(value).__name__}")


def _listed(value: object) -> object:
    """JSON has no tuples."""
    match value:
        case dict():
            return {key: _listed(item) for key, item in cast("dict[str, object]", value).items()}
        case tuple() | list():
            return [_listed(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


def _then(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""


def _sentence(kind: object, data: object, where: str, style: str, message: str) -> str:
    """msgspec's message as the project's: where, expected, got."""
    found = _AT.fullmatch(message)
    stated, steps = (found[1], found[2]) if found else (message, "")
    asked, got, path = _resolve(kind, data, steps)
    if missing := re.search(r"missing required field `(.*)`", stated):
        add = _then("add the key" if style == "toml" else "")
        return f"{_location(where, (*path, missing[1]), style)}: expected a value, got nothing{add}"
    location = _location(where, path, style)
    if stated.startswith("Invalid enum value"):
        choices = tuple(map(str, _choices(asked)))
        near = did_you_mean(got, choices) if isinstance(got, str) else ""
        return f"{location}: expected one of {', '.join(choices)}, got {_shown(got)}{near}"
    if stated == "Number out of range":
        return f"{location}: expected a finite number, got {_shown(got)}"
    if not (expected := _EXPECTED.fullmatch(stated)):
        return f"{location}: {stated}"
    return f"{location}: expected {_noun(expected[1], style, expected[2])}, got {_shown(got)}"


def _choices(kind: object) -> tuple[object, ...]:
    """What a Literal admits, also beside other types."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(choice for each in get_args(kind) for choice in _choices(each))


def _noun(kinds: str, style: str, limit: str) -> str:
    """Such as `a number above 0`."""
    toml = style == "toml"  # it has no null
    nouns = {**_NOUNS, "object": "a table"} if toml else _NOUNS
    names = [nouns.get(k, k) for k in kinds.split(" | ") if not (toml and k == "null")]
    noun = " or ".join(names)
    if not limit:
        return noun
    sign, *number = limit.split()
    if sign == "of":
        least = number[-1]
        return f"{noun} that is not empty" if ">=" in number else f"{noun} of {least} items"
    return f"{noun} {_LIMITS.get(sign, sign)} {float(number[0]):g}"


def _resolve(kind: object, data: object, steps: str) -> tuple[object, object, _Path]:
    """Type, value and path that msgspec's steps lead to; it does not name the keys of mappings."""
    path: list[str | int] = []
    for name, index in _STEP.findall(steps):
        kind = bare_type(kind)
        step = name or index
        if name:
            kind = get_type_hints(kind, include_extras=True).get(name)
            data = cast("Mapping[str, object]", data).get(name)
        elif index == "...":
            kind = get_args(kind)[1]
            step, data = _wrong_item(kind, cast("Mapping[str, object]", data))
        else:
            step, kinds = int(index), get_args(kind)
            kind = kinds[step] if step < len(kinds) and Ellipsis not in kinds else kinds[:1][0]
            data = cast("Sequence[object]", data)[step]
        path.append(step)
    return bare_type(kind), data, tuple(path)


def _wrong_item(kind: object, items: Mapping[str, object]) -> tuple[str, object]:
    """The first item of a mapping that is not of that type."""
    for key, item in items.items():
        try:
            msgspec.convert(item, kind)
        except msgspec.ValidationError:
            return key, item
    return "...", items


def bare_type(kind: Any) -> Any:
    """The type below annotations, such as limits, and beside None."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        rest = [choice for choice in get_args(kind) if choice is not type(None)]
        return bare_type(rest[0]) if len(rest) == 1 else kind
    return kind


@functools.cache
def _stated(kind: type[Any]) -> tuple[str, ...]:
    """The fields of that dataclass that its data may state."""
    fields = dataclasses.fields(kind)
    return tuple(f.name for f in fields if f.metadata.get("stated", True))


_SOUND = frozenset((str, int, bool, type(None)))
"""Types of which msgspec has seen all."""


def _beyond(found: object, data: object, path: _Path, *, closed: bool) -> tuple[_Path, str] | None:
    """What msgspec lets pass: keys that are not fields, and numbers that are not finite."""
    match found:
        case float():
            if math.isfinite(found):
                return None
            return path, f"expected a finite number, got {_shown(data)}"
        case tuple() | list():
            pairs = enumerate(zip(found, cast("Sequence[object]", data), strict=True))
        case dict():
            stored = cast("Mapping[str, object]", data)
            pairs = ((key, (item, stored.get(key))) for key, item in found.items())
        case _ if dataclasses.is_dataclass(found) and isinstance(data, Mapping):
            stored = cast("Mapping[str, object]", data)
            names = _stated(type(found))
            if closed and (unknown := [key for key in stored if key not in names]):
                near = did_you_mean(unknown[0], names)
                known = ", ".join(names)
                return path, f"expected keys among {known}, got {unknown[0]}{near}"
            pairs = ((n, (getattr(found, n), stored[n])) for n in names if n in stored)
        case _:
            return None
    for step, (item, raw) in pairs:
        if type(item) in _SOUND:
            continue
        if problem := _beyond(item, raw, (*path, step), closed=closed):
            return problem
    return None


def _location(where: str, path: _Path, style: str) -> str:
    if style == "json":
        return where + "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path)
    return where + "".join(f" {s + 1}" if isinstance(s, int) else f": {s}" for s in path)


def _shown(value: object) -> str:
    """The value about as its file writes it, cut if it is long."""
    match value:
        case None:
            text = "nothing"
        case bool():
            text = str(value).lower()
        case time() | date():
            text = value.isoformat()
        case dict():
            text = "a table"
        case int() if abs(value) > sys.float_info.max:
            text = "a number of more than 300 digits"
        case list() | tuple():
            items = cast("Sequence[object]", value)[:_MOST_SHOWN]
            text = f"[{', '.join(_shown(item) for item in items)}]"
        case _:
            text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def extended(name: str, kind: type | None, /, **fields: Any) -> Any:
    """A type of that name: the fields of a dataclass and others beside them, and no other keys."""
    own = get_type_hints(kind, include_extras=True) if kind else {}
    return msgspec.defstruct(name, list({**own, **fields}.items()), forbid_unknown_fields=True)


def json_schemas(kinds: Iterable[object]) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """The JSON schema of each type, and of the records in them by name, to which `#NAME` refers."""
    return msgspec.json.schema_components(kinds, ref_template="#{name}")
