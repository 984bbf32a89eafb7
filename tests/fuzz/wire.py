"""Protobuf messages as trees of fields, read without a schema, and written back.

A field of bytes may be a message, text or numbers: it is read as a message where it reads as one.
Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LARGEST_FIELD = 1 << 16
_DEEPEST = 12


@dataclass
class Field:
    """A field; `value` is a number, bytes, or the fields of a message."""

    number: int
    kind: int
    value: "int | bytes | list[Field]"


def read(data: bytes, depth: int = 0) -> list[Field] | None:
    """The fields of the message, or None if it is none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < _LARGEST_FIELD or at > len(data):
            return None
        if kind == VARINT:
            value, at = _varint(data, at)
        elif kind in _FIXED:
            value, at = data[at : at + _FIXED[kind]], at + _FIXED[kind]
        elif kind == BYTES:
            length, at = _varint(data, at)
            raw, at = data[at : at + length], at + length
            inner = read(raw, depth + 1) if raw and depth < _DEEPEST else None
            value = raw if inner is None else inner
        else:
            return None
        if at > len(data):
            return None
        fields.append(Field(number, kind, value))
    return fields


def write(fields: list[Field]) -> bytes:
    """The message of the fields, whatever they are."""
    out = bytearray()
    for field in fields:
        out += _written((field.number << 3) | field.kind)
        match field.value:
            case int():
                out += _written(field.value)
            case bytes() if field.kind == BYTES:
                out += _written(len(field.value)) + field.value
            case bytes():
                out += field.value
            case list():
                inner = write(field.value)
                out += _written(len(inner)) + inner
    return bytes(out)


def messages(fields: list[Field]) -> Iterator[list[Field]]:
    """The message, and all messages in it."""
    yield fields
    for field in fields:
        if isinstance(field.value, list):
            yield from messages(field.value)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & ((1 << 64) - 1), at
    return 0, len(data) + 1


def _written(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
