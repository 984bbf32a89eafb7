"""What an intrinsic is, and the registry of them.

An intrinsic is a pattern, a small tensor expression, that devices compute at once, and the ways in
which they do: each way has its own text for each renderer, and says what it costs. Which ways a
device has is probed: built, run and compared, see `device.probing`. Another intrinsic, or another
way, is one entry; `tests/unit/intrinsics/test_toy.py` adds one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from retune.core.dtypes import INT7, INT8, UINT8, DType
from retune.core.errors import ScheduleError
from retune.ir.te import Axis, Compute, Tensor

TILE_STEPS = ("REGISTER", "CONFIGURE", "RELEASE", "ZERO", "LOAD", "DOT", "STORE")
"""What is done with matrix registers, see `tile8` for one that has them."""

_LETTER = {UINT8: "u", INT8: "s", INT7: "n"}
"""Type -> its letter in a function's name: unsigned, signed, narrow."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What the pattern reads under a name."""

    name: str
    dtypes: tuple[DType, ...]
    """The types that it may have, whatever the pattern's own."""
    word: int
    """Elements that lie side by side along the pattern's last axis and are read as one."""


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One function of an intrinsic: the types of its operands, and how many results it makes."""

    dtypes: tuple[DType, ...]
    lanes: int

    def __str__(self) -> str:
        return f"{''.join(_LETTER[dtype] for dtype in self.dtypes)}_{self.lanes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in which devices compute an intrinsic."""

    name: str
    """Unique among the ways of its intrinsic, such as `avx2`."""
    takes: Callable[[Shape], bool]
    """Whether there is a text for that shape."""
    text: Mapping[str, Callable[[Shape], Sequence[str]]]
    """Renderer's name -> its text. Of an intrinsic in lanes: the body of a function of the words of
    its operands, in the pattern's order, and the sum so far, called `sum`, which returns the new
    one. Of one of tiles: what each of `TILE_STEPS` with its arguments is replaced by. Of one of
    warps: the body of a function that adds to an item's results, see `warp8`."""
    slots: float = 1.0
    """Time on a vector's results, or a tile's, in that of a multiply-add of a vector of float32."""
    first_slots: float = 0.0
    """Time on an operand that all lanes share, once for all functions that read it."""
    second_slots: float = 0.0
    """Time on the other operand, once for all functions that read it."""
    options: tuple[str, ...] = ()
    """Build options without which compilers do not know its text."""
    registers: int = 1
    """Registers that each operand takes while it is used."""
    vectors: float = 1.0
    """Vectors that are read for an operand."""
    exchanged: int = 0
    """Of one of warps: integers in local memory by which each item tells the others what it read.
    """


@dataclass(frozen=True, slots=True)
class Warp:
    """Items of a group that do an intrinsic together, each for results of its own.

    They are neighbours: the first ones along local.0, and those in turn along local.1. Each item
    reads a share of the operands, not that which its own results are made of.
    """

    first: int
    """Items along local.0: they choose rows of the first operand, and none of the second."""
    second: int
    """Items along local.1: they choose columns of the second operand, and none of the first."""

    @property
    def items(self) -> int:
        """How many they are."""
        return self.first * self.second


@dataclass(frozen=True, slots=True, kw_only=True)
class Intrinsic:
    """What an instruction computes."""

    name: str
    pattern: Tensor
    """A reduction; its axes are the loops that the instruction does. Of a single number, which it
    does in each lane of a vector; or of two axes, a tile, which a matrix register holds. Then the
    operands have two axes as well, of which the first one may be at any distance."""
    operands: tuple[Operand, ...]
    ways: tuple[Way, ...]
    """The best first; the last one takes any shape and needs nothing, so that all devices have it.
    """

    order: tuple[str, ...] = ()
    """The pattern's axes by name as the loops are nested, from the outermost; as it has them
    without. The last one is along words."""
    fewer: tuple[str, ...] = ()
    """Axes that may have fewer iterations than the pattern."""
    warp: Warp | None = None
    """The items that do it together, the pattern being the share of one; None: each by itself."""

    @property
    def op(self) -> Compute:
        """The pattern's definition."""
        assert isinstance(self.pattern.op, Compute)
        return self.pattern.op

    @property
    def of_tiles(self) -> bool:
        """Whether its results are tiles, which matrix registers hold."""
        return bool(self.op.axes) and self.warp is None

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The loops that it does, from the outermost."""
        known = {axis.var.name: axis for axis in (*self.op.axes, *self.op.reduce_axes)}
        return tuple(known[name] for name in self.order or known)

    def way(self, shape: Shape, offered: Sequence[str]) -> Way:
        """The best way for that shape among those that a device offers, as `full_name` has them."""
        fits = (w for w in self.ways[:-1] if self.full_name(w) in offered and w.takes(shape))
        return next(fits, self.ways[-1])

    def shapes(self, way: Way) -> list[Shape]:
        """All that the way takes, of any types that the operands may have."""
        kinds: list[tuple[DType, ...]] = [()]
        for operand in self.operands:
            kinds = [(*kind, dtype) for kind in kinds for dtype in operand.dtypes]
        return [s for s in (Shape(k, n) for k in kinds for n in _LANES) if way.takes(s)]

    def full_name(self, way: Way) -> str:
        """The way's name among those of all intrinsics, such as `dot4.avx2`."""
        return f"{self.name}.{way.name}"


_LANES = (1, 2, 4, 8, 16)

_KNOWN: dict[str, Intrinsic] = {}


def register_intrinsic(entry: Intrinsic) -> Intrinsic:
    """The entry, which `tensorize` takes from now on. Raises: ValueError if its name is taken."""
    if entry.name in _KNOWN:
        raise ValueError(f"intrinsic {entry.name!r} exists already")
    _KNOWN[entry.name] = entry
    build_options.cache_clear()
    return entry


def intrinsics() -> tuple[Intrinsic, ...]:
    """All that are registered."""
    return tuple(_KNOWN.values())


@cache
def build_options(offered: tuple[str, ...]) -> tuple[str, ...]:
    """What the best ways among those that a device offers need of its compiler."""
    found = [
        option
        for entry in intrinsics()
        for way in entry.ways
        if way.options and any(entry.way(s, offered) is way for s in entry.shapes(way))
        for option in way.options
    ]
    return tuple(dict.fromkeys(found))


def intrinsic(name: str) -> Intrinsic:
    """The one of that name. Raises: ScheduleError naming those that there are."""
    if name not in _KNOWN:
        raise ScheduleError(f"no intrinsic {name!r}; there are {', '.join(sorted(_KNOWN))}")
    return _KNOWN[name]
