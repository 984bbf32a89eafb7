"""Storage maps: how the elements of a buffer lie in an allocation.

An index is written in digits: `c` of NCHW16c as `c // 16` and `c % 16`. The digits of all indices,
in some order, are those of the address, each in a room that may be larger than the digit needs. So
orders of axes, tiles, pitches, halos and columns of a wider buffer are one notion, and no two
elements ever share an address. Read `AddressDigit`, then `row_major`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import prod
from operator import mul
from typing import Protocol, Self, TypeVar

import numpy as np

from retune.core.dims import (
    SizeValues,
    always_equal,
    at,
    is_fixed,
    least,
    most,
    never_above,
    remembered,
)


class Index(Protocol):
    """An index: a number, an array of numbers, or an expression."""

    def __floordiv__(self, other: int, /) -> "Self": ...

    def __mod__(self, other: int, /) -> "Self": ...


T = TypeVar("T", bound=Index)

Span = tuple[int, int, int]
"""A period, and what is meant of it: the addresses with `first <= address % period < end`."""


@dataclass(frozen=True, slots=True)
class AddressDigit:
    """One digit of an address: `index // divisor % extent` of a dimension, in a room of its own.

    Raises: ValueError if the room does not hold it.
    """

    dim: int
    divisor: int
    extent: int
    """Values of the digit."""
    first: int
    """Where in the room they begin."""
    room: int
    """Values that the address has in this position: `extent` where nothing else lies beside it."""

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.first + self.extent <= self.room:
            raise ValueError(
                f"storage: expected {self.extent} from {self.first} on to lie in a room of "
                f"{self.room}; choose a larger one"
            )

    def at(self, values: SizeValues) -> "AddressDigit":
        """The same for these sizes."""
        numbers = (self.divisor, self.extent, self.first, self.room)
        return AddressDigit(self.dim, *(at(number, values) for number in numbers))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage map of a buffer: how its elements lie in the allocation that holds them."""

    shape: tuple[int, ...]
    parts: tuple[AddressDigit, ...]
    """From the outermost digit of the address to the innermost."""
    strides: tuple[int, ...] = field(init=False, compare=False)
    """Of each part: elements from one of its values to the next."""

    def __post_init__(self) -> None:
        rooms = [part.room for part in self.parts[1:]]
        strides = tuple(accumulate(reversed(rooms), mul, initial=1))[::-1]
        object.__setattr__(self, "strides", strides if self.parts else ())

    @property
    def elements(self) -> int:
        """Size of the allocation."""
        return prod(part.room for part in self.parts)

    @property
    def offset(self) -> int:
        """The address of the first element."""
        return sum(p.first * stride for p, stride in zip(self.parts, self.strides, strict=True))

    def digit(self, part: AddressDigit, index: T) -> T:
        """The part's digit of an index of its dimension."""
        if part.divisor == 1 and part.extent == self.shape[part.dim]:
            return index
        index = index // part.divisor
        return index % part.extent if self._above(part) else index

    def address(self, indices: Sequence[int]) -> int:
        """The address of an element."""
        pairs = zip(self.parts, self.strides, strict=True)
        return self.offset + sum(self.digit(p, indices[p.dim]) * step for p, step in pairs)

    def spans(self, size: int = 1) -> tuple[Span, ...]:
        """Byte spans of the allocation that enclose all elements, of `size` bytes each.

        Parts that fill their rooms have none.
        """
        return tuple(
            (p.room * step * size, p.first * step * size, (p.first + p.extent) * step * size)
            for p, step in zip(self.parts, self.strides, strict=True)
            if not always_equal(p.extent, p.room)
        )

    def at(self, values: SizeValues) -> "Storage":
        """The same for these sizes, with fixed extents."""
        shape = tuple(at(extent, values) for extent in self.shape)
        return Storage(shape, tuple(part.at(values) for part in self.parts))

    def ordered(self, order: Sequence[int]) -> "Storage":
        """The parts in another order, by their numbers, from the outermost to the innermost.

        `row_major((n, c, h, w)).ordered((0, 2, 3, 1))` is NHWC.
        """
        if sorted(order) != list(range(len(self.parts))):
            raise ValueError(f"storage: expected an order of {len(self.parts)} parts; got {order}")
        return replace(self, parts=tuple(self.parts[number] for number in order))

    def tiled(self, part: int, size: int) -> "Storage":
        """Tiles of a part: their numbers replace it, positions in a tile are innermost.

        `row_major((n, c, h, w)).tiled(1, 16)` is NCHW16c. The last tile is as large as the others.
        """
        old = self.parts[part]
        if old.extent < old.room or (self._above(old) and old.extent % size):
            raise ValueError(
                f"storage: expected part {part} to consist of whole tiles of {size}, alone in its "
                f"room; got {old}"
            )
        tiles = -(-old.extent // size)
        outer = AddressDigit(old.dim, old.divisor * size, tiles, 0, tiles)
        inner = AddressDigit(old.dim, old.divisor, size, 0, size)
        return replace(self, parts=(*self.parts[:part], outer, *self.parts[part + 1 :], inner))

    def within(self, part: int, first: int, room: int) -> "Storage":
        """The same in a wider buffer: the part, with what lies beside it, from `first` on.

        Halos are such: `row_major((y, x)).within(0, 1, y + 2).within(1, 1, x + 2)`.
        """
        old = self.parts[part]
        if first < 0 or first + old.room > room:
            raise ValueError(f"storage: {old.room} from {first} on do not lie in a room of {room}")
        new = replace(old, first=first + old.first, room=room)
        number = part % len(self.parts)
        return replace(self, parts=(*self.parts[:number], new, *self.parts[number + 1 :]))

    def pitched(self, pitch: int) -> "Storage":
        """Rows, which are what the innermost part counts, begin `pitch` elements apart."""
        return self.within(-1, 0, pitch)

    def columns(self, offset: int, width: int) -> "Storage":
        """Columns of the rows of a wider buffer, from `offset` on."""
        return self.within(-1, offset, width)

    def coarsest(self, dim: int) -> int:
        """The number of the part that is the coarsest digit of a dimension."""
        numbers = (n for n, part in enumerate(self.parts) if part.dim == dim)
        return max(numbers, key=lambda n: (self.parts[n].divisor, self.parts[n].extent))

    def section(self, dim: int, first: int, extent: int) -> "Storage":
        """The elements whose index of a dimension is `first` or one of the `extent` from there on.

        They stay where they lie. Raises: ValueError where they are not whole tiles.
        """
        number = self.coarsest(dim)
        whole = self.parts[number]
        tile = whole.divisor
        if first % tile or extent % tile or first + extent > self.shape[dim]:
            raise ValueError(f"storage: {extent} from {first} on are not whole tiles of {tile}")
        own = replace(whole, first=whole.first + first // tile, extent=extent // tile)
        shape = (*self.shape[:dim], extent, *self.shape[dim + 1 :])
        return Storage(shape, (*self.parts[:number], own, *self.parts[number + 1 :]))

    @property
    def covers(self) -> bool:
        """Whether the parts of each dimension are all the digits of its index, each once.

        Digits of a single value say nothing.
        """
        for dim, extent in enumerate(self.shape):
            digits = sorted((p.divisor, p.extent) for p in self.parts if p.dim == dim)
            reach = 1
            for divisor, values in digits:
                if most(values) > 1 and not always_equal(divisor, reach):
                    return False
                reach *= values
            if not digits or not never_above(extent, reach):
                return False
        return all(0 <= part.dim < len(self.shape) for part in self.parts)

    @property
    def is_columns(self) -> bool:
        """Whether it is columns of rows that follow each other in row-major order."""
        plain, row = row_major(self.shape).parts, self.parts[-1:]
        own = tuple(replace(part, first=0, room=part.extent) for part in row)
        return bool(row) and (*self.parts[:-1], *own) == plain

    def reshaped(self, shape: tuple[int, ...]) -> "Storage":
        """The same elements at the same addresses, under a shape of as many in row-major order.

        Dimensions that are joined or split follow each other in the address, without gaps.

        Raises: ValueError where they do not, or the shape has another number of elements.
        """
        if (rows := self._rows_reshaped(shape)) is not None:
            return rows
        parts = list(self.parts)
        wholes = {AddressDigit(dim, 1, n, 0, n) for dim, n in enumerate(self.shape)}
        made: dict[AddressDigit, tuple[AddressDigit, ...]] = {
            p: () for p in parts if p in wholes and always_equal(p.room, 1)
        }
        for old, new in _matches(self.shape, shape):
            own = [part for part in parts if part.dim in old and part not in made]
            if len(old) == len(new) == 1:
                made |= {part: (replace(part, dim=new[0]),) for part in own}
                continue
            first = parts.index(own[0])
            together = [p for p in parts[first:] if p not in made][: len(own)]
            if together != sorted(own, key=lambda part: part.dim) or not wholes.issuperset(own):
                raise ValueError(f"storage: {self.shape}, {self}, cannot be one of {shape}")
            made |= dict.fromkeys(own, ())
            made[own[0]] = tuple(AddressDigit(dim, 1, shape[dim], 0, shape[dim]) for dim in new)
        single = [dim for dim, extent in enumerate(shape) if always_equal(extent, 1)]
        for part in [p for p in parts if p not in made]:  # a single column of a wider buffer, say
            if most(part.extent) > 1 or not single:
                raise ValueError(f"storage: {self.shape}, {self}, cannot be one of {shape}")
            made[part] = (replace(part, dim=single.pop()),)
        found = [part for old in parts for part in made[old]]
        for dim in range(len(shape)):
            if dim in single:  # where it would be in row-major order, if the rest is in that
                after = (n for n, part in enumerate(found) if part.dim > dim)
                found.insert(next(after, len(found)), AddressDigit(dim, 1, 1, 0, 1))
        return Storage(shape, tuple(found))

    def _rows_reshaped(self, shape: tuple[int, ...]) -> "Storage | None":
        """The same under another shape, of neighbours along the outermost axis of a wider buffer.

        None for any other storage, and where the shape's rows do not begin where these do.
        """
        first, *others = self.parts or (None,)
        if first is None or not shape or always_equal(first.extent, first.room):
            return None
        own = replace(first, first=0, room=first.extent)
        if (own, *others) != row_major(self.shape).parts or first.dim != 0:
            return None
        inner, rest = prod(self.shape[1:]), prod(shape[1:])
        if not always_equal(prod(self.shape), prod(shape)) or not most(rest) or least(rest) < 1:
            return None
        factor = inner // rest
        if not always_equal(factor * rest, inner):
            return None
        outer = AddressDigit(0, 1, shape[0], first.first * factor, first.room * factor)
        return Storage(shape, (outer, *row_major(shape).parts[1:]))

    def can_be(self, shape: tuple[int, ...]) -> bool:
        """Whether it can be `reshaped` so."""
        try:
            self.reshaped(shape)
        except ValueError:
            return False
        return True

    def pack(self, array: np.ndarray) -> np.ndarray:
        """The allocation with the array in it, and zeros beside it: [elements]."""
        ends = [self._padded(dim) for dim in range(len(self.shape))]
        margins = [(0, end - n) for end, n in zip(ends, self.shape, strict=True)]
        digits = np.pad(array.reshape(self.shape), margins).reshape(self._digits())
        flat = np.zeros(self.elements, array.dtype)
        self._box(flat)[...] = digits.transpose(np.argsort(self._positions()))
        return flat

    def unpack(self, flat: np.ndarray) -> np.ndarray:
        """The array that lies in an allocation: `unpack(pack(x)) == x`. [shape]"""
        digits = self._box(flat).transpose(self._positions())
        ends = [self._padded(dim) for dim in range(len(self.shape))]
        return digits.reshape(ends)[tuple(slice(n) for n in self.shape)]

    def __str__(self) -> str:
        """The difference from row-major order, as a word: `at3of8` are columns."""
        plain = [(p.dim, p.divisor) for p in self.parts] == [(d, 1) for d in range(len(self.shape))]
        words: list[str] = []
        for number, part in enumerate(self.parts):
            last = number == len(self.parts) - 1
            within = not always_equal(part.extent, part.room)
            position = f"at{part.first}of{part.room}" if within else ""
            name = f"d{part.dim}" + (f"by{part.divisor}" if part.divisor > 1 else "")
            if not plain or (position and not last):
                words.append(name + position)
            elif position:
                words.append(position)
        return "_".join(words)

    def _above(self, part: AddressDigit) -> bool:
        """Whether the dimension has digits above this one."""
        return part.divisor * part.extent < self.shape[part.dim]

    def _padded(self, dim: int) -> int:
        """The dimension's extent in whole tiles."""
        return prod(part.extent for part in self.parts if part.dim == dim)

    def _positions(self) -> list[int]:
        """The parts' numbers, those of each dimension together, its coarsest digit first."""
        found = enumerate(self.parts)
        return [n for n, _ in sorted(found, key=lambda pair: (pair[1].dim, -pair[1].divisor))]

    def _digits(self) -> list[int]:
        return [self.parts[number].extent for number in self._positions()]

    def _box(self, flat: np.ndarray) -> np.ndarray:
        """The elements' part of an allocation, as an array with an axis for each part."""
        rooms = flat.reshape([part.room for part in self.parts])
        return rooms[tuple(slice(p.first, p.first + p.extent) for p in self.parts)]


def _matches(
    some: tuple[int, ...], others: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Dimensions of two shapes that count the same elements, from the outermost; no single ones.

    Raises: ValueError if the shapes have different numbers of elements, or none.
    """
    if not always_equal(prod(some), prod(others)) or not most(prod(some)):
        raise ValueError(f"storage: {some} and {others} do not hold the same elements")
    left = [dim for dim, n in enumerate(some) if most(n) > 1]
    right = [dim for dim, n in enumerate(others) if most(n) > 1]
    while left:
        a, b = [left.pop(0)], [right.pop(0)]
        have, want = some[a[0]], others[b[0]]
        while not always_equal(have, want):
            if not right or (left and _is_less(have, want)):
                a.append(left.pop(0))
                have = have * some[a[-1]]
            else:
                b.append(right.pop(0))
                want = want * others[b[-1]]
        yield a, b


def _is_less(a: int, b: int) -> bool:
    """Whether a product of extents is less than another one, or a part of it for all sizes."""
    if is_fixed(a) and is_fixed(b):
        return a < b
    return always_equal(b // a * a, b)


@remembered(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> Storage:
    """Rows one after the other, as numpy and C have them."""
    return Storage(shape, tuple(AddressDigit(dim, 1, n, 0, n) for dim, n in enumerate(shape)))
