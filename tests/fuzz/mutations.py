"""Mutations of files, by a seeded generator: of bytes, of JSON, of protobuf fields.

Read `mutated_bytes`, `mutated_json` and `mutated_message`. The same seed gives the same file.
"""

import copy
import json
import random
from typing import Any, TypeAlias

from tests.fuzz import wire

Json: TypeAlias = Any

NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 32)
EXTREMES = (*NUMBERS, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -(1 << 63))
WORDS = (b"", b"\0", b"\xff\xfe", b"../../etc/passwd", b"a" * 300, "é\n".encode(), b"%s%n", b"-1")
DEEP = "a list in a list, a hundred thousand times"
VALUES: tuple[Json, ...] = (
    *(None, True, False, "", "x", "\0", "a\nb", "\ud800", "../x", [], {}, [[]], [None], [-1]),
    *(DEEP, 0, 1, -1, 2, 1.5, 1e308, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), "1", "float32", "bool"),
)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """The data with one to eight changes to its bytes; sometimes cut off."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 2, 4, 8, 64)))
        match rng.randrange(7):
            case 0 if out:
                out[min(at, len(out) - 1)] ^= 1 << rng.randrange(8)
            case 1:
                out[at:end] = rng.randbytes(end - at)
            case 2:
                del out[at:end]
            case 3:
                out[at:at] = rng.randbytes(rng.choice((1, 4, 16)))
            case 4:
                out[at:at] = out[at:end]
            case 5:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(EXTREMES) & ((1 << 8 * size) - 1)
                out[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
            case _:
                del out[rng.randrange(len(out) + 1) if rng.random() < 0.3 else len(out) :]
    return bytes(out)


def mutated_json(value: Json, rng: random.Random) -> Json:
    """The value with one to four of its parts changed, removed, repeated or exchanged."""
    root = {"root": copy.deepcopy(value)}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(root))
        owner, key = rng.choice(places)
        match rng.randrange(6):
            case 0 if isinstance(owner, list) or len(owner) > 1:
                del owner[key]
            case 1 if isinstance(owner, list):
                owner.insert(key, copy.deepcopy(owner[key]))
            case 2:
                other, place = rng.choice(places)
                owner[key] = copy.deepcopy(_found(other, place))
            case 3 if isinstance(_found(owner, key), int):
                owner[key] = rng.choice(EXTREMES)
            case 4:
                nested: Json = owner[key]
                for _ in range(rng.choice((1, 3))):
                    nested = [nested]
                owner[key] = nested
            case _:
                owner[key] = copy.deepcopy(rng.choice(VALUES))
    return root.get("root")


def json_text(value: Json) -> bytes:
    """The value as a file holds it, whatever it is."""
    deep = "[" * 100_000 + "]" * 100_000
    text = json.dumps(value).replace(json.dumps(DEEP), deep)
    return text.encode("utf-8", "surrogatepass")


def _places(owner: Json) -> Any:
    items = owner.items() if isinstance(owner, dict) else enumerate(owner)
    for key, value in list(items):
        yield owner, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _found(owner: Json, key: Json) -> Json:
    try:
        return owner[key]
    except (KeyError, IndexError):
        return None


def mutated_message(data: bytes, rng: random.Random) -> bytes:
    """The protobuf message with one to four fields changed, dropped, repeated or exchanged."""
    fields = wire.read(data)
    if not fields:
        return mutated_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        inside = [m for m in wire.messages(fields) if m]
        if not inside:
            break
        message = rng.choice(inside)
        at = rng.randrange(len(message))
        field = message[at]
        match rng.randrange(8):
            case 0:
                del message[at]
            case 1:
                message.insert(at, copy.deepcopy(field))
            case 2:
                other = rng.choice(rng.choice(inside))
                message[at] = wire.Field(field.number, other.kind, copy.deepcopy(other.value))
            case 3:
                message.insert(at, copy.deepcopy(rng.choice(rng.choice(inside))))
            case 4:
                field.number = rng.choice((1, 2, 3, 4, 5, 7, 8, 20, 999))
            case 5:
                rng.shuffle(message)
            case _:
                _change(field, rng)
    return wire.write(fields)


def _change(field: wire.Field, rng: random.Random) -> None:
    match field.value:
        case int():
            field.value = rng.choice((*EXTREMES, field.value + 1, field.value - 1))
        case bytes() if field.kind == wire.BYTES:
            bent = mutated_bytes(field.value, rng)
            field.value = rng.choice((bent, bent, rng.choice(WORDS)))
        case bytes():
            field.value = rng.randbytes(len(field.value))
        case list():
            field.value = mutated_bytes(wire.write(field.value), rng)
