"""Matrix instructions as data, and their registry.

An `Intrinsic` declares what an instruction multiplies: its extents M, N and K, the types of its
operands and of its accumulators, and its scope, which is where operands and accumulators are held.
An `Implementation` is one instruction that computes it: its text for each renderer, what a device
needs for it, and what it costs. Which implementations a device has is probed: built, run and
compared, see `device.opencl.probing`.

A new instruction is one entry; `tests/support/toy_instruction.py` registers one on 16-bit floats.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property
from typing import Literal

from retune.core.dtypes import BFLOAT16, INT7, INT8, INT32, UINT7, UINT8, DType
from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, Var, cast
from retune.ir.te import Axis, Compute, Tensor, compute, placeholder, reduce_axis

TILE_STEPS = ("REGISTER", "CONFIGURE", "RELEASE", "ZERO", "LOAD", "DOT", "STORE")
"""What is done with tile registers, see `tile8` for an entry that has them."""

Residence = Literal["vector lane", "register tile", "warp"]
"""Where an instruction holds its accumulators: one in each lane of a vector; all in a register of
two dimensions; or spread over the registers of the work-items of a warp."""

FIRST, SECOND = Var("item.first"), Var("item.second")
"""The number of a work-item among those of its warp along local.0, and along local.1."""

_LETTER = {UINT8: "u", INT8: "s", INT7: "n", UINT7: "m", BFLOAT16: "b"}
"""Type -> its letter in a function's name: unsigned, signed, narrow, masked, brain. Others: their
names."""
_LANES = (1, 2, 4, 8, 16)
_WORD = 4
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """What each work-item of a warp reads of an operand, in terms of `FIRST` and `SECOND`.

    An item reads for all items of its warp, and not what its own results are made of.
    """

    steps: tuple[Expr, ...]
    """Along K, in packs: where each read of the item starts."""
    rows: tuple[Expr, ...] = ()
    """Which rows of an item's share it reads at each step, one by one; (): all of them, in vector
    lanes."""
    owner: Expr | None = None
    """The item, along the operand's own axis of items, whose share it reads; None: its own."""

    @property
    def reads(self) -> int:
        """How many packs, or vectors of them, an item reads."""
        return len(self.steps) * max(1, len(self.rows))


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """An operand: M x K elements of the first one, and K x N of the second one.

    Packs are elements that lie side by side along K: four bytes, or a pair of 16-bit floats. The
    first operand has rows of packs. The second one has rows of N packs, one for each column.
    """

    name: str
    dtypes: tuple[DType, ...]
    """The types that it may have in memory."""
    pack: int
    """Elements of a pack, or of several packs that are read as one."""
    fragment: Fragment | None = None
    """Of an instruction of warps: which of its elements each work-item reads."""


@dataclass(frozen=True, slots=True, order=True)
class Signature:
    """One function of an intrinsic: the types of its operands, and its vector lanes."""

    dtypes: tuple[DType, ...]
    lanes: int

    def __str__(self) -> str:
        return f"{''.join(_LETTER.get(dtype, dtype) for dtype in self.dtypes)}_{self.lanes}"


@dataclass(frozen=True, slots=True)
class Implementation:
    """One instruction that computes an intrinsic."""

    name: str
    """Unique among the implementations of its intrinsic, such as `avx2`."""
    takes: Callable[[Signature], bool]
    """Whether there is a text for that signature."""
    text: Mapping[str, Callable[[Signature], Sequence[str]]]
    """Renderer's name -> its text. In vector lanes: the body of a function of a pack of each
    operand and of the sum so far, called `sum`, which returns the new one. On register tiles: what
    each of `TILE_STEPS` with its arguments is replaced by. Of a warp: the body of a function that
    adds to an item's results, see `warp8`."""
    _: KW_ONLY
    slots: float = 1.0
    """Time on a vector's results, or a tile's, in that of a multiply-add of a vector of float32."""
    first_slots: float = 0.0
    """Time on an operand that all lanes share, once for all functions that read it."""
    second_slots: float = 0.0
    """Time on the other operand, once for all functions that read it."""
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Of sums in parts: renderer's name -> the body of a function of vectors `sum` of those, which
    returns the sums themselves."""
    options: tuple[str, ...] = ()
    """Build options without which compilers do not know its text."""
    permission: bool = False
    """Whether a process has to ask its operating system before it may use the registers."""
    registers: int = 1
    """Registers that each operand takes while it is used."""
    vectors: float = 1.0
    """Vectors that are read for an operand."""
    read: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Of a warp: renderer's name -> the body of a function by which items read sixteen bytes each,
    at `at` in local memory, for each other; without one, each gets what it reads."""
    exchanged: int = 0
    """Of a warp: integers in local memory by which each item tells the others what it read."""
    tolerance: float = 0.0
    """Largest error that its probe allows, relative to the largest result; 0: it is exact."""


@dataclass(frozen=True, slots=True)
class Warp:
    """Work-items of a group that execute an instruction together, each for results of its own.

    They are neighbours: the first ones along local.0, and those in turn along local.1.
    """

    first: int
    """Items along local.0, which have rows of the first operand."""
    second: int
    """Items along local.1, which have columns of the second operand."""

    @property
    def items(self) -> int:
        """How many they are."""
        return self.first * self.second


def multiplied(a: Expr, b: Expr, accumulator: DType) -> Expr:
    """The product of two elements, each of the accumulator's type."""
    return cast(a, accumulator) * cast(b, accumulator)


@dataclass(frozen=True, kw_only=True, eq=False)
class Intrinsic:
    """What an instruction computes: y[m, n] += a[m, k] * b[k, n], in types of its own.

    Of a warp, M and N are the share of one work-item.
    """

    name: str
    m: int = 1
    n: int = 1
    k: int
    operands: tuple[MatrixOperand, ...]
    accumulator: DType = INT32
    """Type of the results."""
    residence: Residence = "vector lane"
    implementations: tuple[Implementation, ...]
    """The best first; the last one takes any signature and needs nothing of a device."""

    fewer: tuple[str, ...] = ()
    """Which of `m` and `k` may be smaller than declared; `k` by whole packs."""
    registers: int = 0
    """Tile registers that there are, for accumulators and operands together."""
    configuration: Callable[[Sequence[tuple[int, int]]], Sequence[int]] | None = None
    """Bytes that configure tile registers of so many rows of so many bytes; None: they need no
    configuration."""
    warp: Warp | None = None
    """The work-items of an instruction of warps."""
    most: int = 0
    """Of one whose lanes hold sums in parts: how large the products of a sum may be, all of their
    magnitudes together; 0: lanes hold the sums themselves."""
    combine: Callable[[Expr, Expr, DType], Expr] = multiplied
    """What an element of each operand contributes to a result of the accumulator's type: their
    product, or that of what an instruction rounds them to."""

    @property
    def pack(self) -> int:
        """Elements that one result reads side by side."""
        return min(operand.pack for operand in self.operands)

    @cached_property
    def pattern(self) -> Tensor:
        """Its tensor expression. In vector lanes it is that of one lane."""
        first, second = self.operands
        pack, lane = self.pack, self.residence == "vector lane"
        shapes = ((self.k,),) * 2 if lane else ((self.m, self.k), (self.k // pack, self.n * pack))
        a, b = (
            placeholder(operand.name, shape, operand.dtypes[0])
            for operand, shape in zip((first, second), shapes, strict=True)
        )
        steps = reduce_axis("k", self.k if lane else self.k // pack)
        near = [] if lane or pack == 1 else [reduce_axis("q", pack)]

        def element(*at: Expr) -> Expr:
            if lane:
                return self.combine(a[steps.var], b[steps.var], self.accumulator)
            i, j = at
            along: Expr = steps.var
            if near:
                along, j = along * pack + near[0].var, j * pack + near[0].var
            return self.combine(a[i, along], b[steps.var, j], self.accumulator)

        shape = () if lane else (self.m, self.n)
        names = () if lane else ("i", "j")
        return compute("y", shape, element, [a, b], reduce=[steps, *near], axes=names)

    @property
    def reads_locally(self) -> bool:
        """Whether some implementation reads operands from local memory by a function of its own."""
        return any(implementation.read for implementation in self.implementations)

    @property
    def bytes(self) -> bool:
        """Whether it takes packs of four bytes in vector lanes, which may be parts of words."""
        four = all(o.pack * o.dtypes[0].itemsize == _WORD for o in self.operands)
        return four and self.operands[0].dtypes[0] == UINT8 and self.residence == "vector lane"

    @property
    def op(self) -> Compute:
        """The pattern's definition."""
        assert isinstance(self.pattern.op, Compute)
        return self.pattern.op

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The loops that it replaces, from the outermost: m, k, n, and those inside a pack."""
        if not self.op.axes:
            return self.op.reduce_axes
        (rows, columns), (steps, *near) = self.op.axes, self.op.reduce_axes
        return (rows, steps, columns, *near)

    def least(self, axis: Axis) -> int:
        """The fewest iterations that a loop over an axis may have."""
        known = {"m": self.axes[0], "k": self.op.reduce_axes[0]}
        return 2 if any(known[name] == axis for name in self.fewer) else axis.extent

    def implementation(self, signature: Signature, offered: Sequence[str]) -> Implementation:
        """The best one for a signature among those that a device offers, by their full names."""
        *others, last = self.implementations
        fits = (x for x in others if self.full_name(x) in offered and x.takes(signature))
        return next(fits, last)

    def implementation_named(self, name: str) -> Implementation:
        """The implementation of that name."""
        return next(x for x in self.implementations if x.name == name)

    def signatures(self, implementation: Implementation) -> list[Signature]:
        """All that an implementation takes, of any types that the operands may have."""
        kinds: list[tuple[DType, ...]] = [()]
        for operand in self.operands:
            kinds = [(*kind, dtype) for kind in kinds for dtype in operand.dtypes]
        every = (Signature(kind, lanes) for kind in kinds for lanes in _LANES)
        return [signature for signature in every if implementation.takes(signature)]

    def full_name(self, implementation: Implementation) -> str:
        """The implementation's name among those of all intrinsics, such as `dot4.avx2`."""
        return f"{self.name}.{implementation.name}"


_KNOWN: dict[str, Intrinsic] = {}


def register_intrinsic(entry: Intrinsic) -> Intrinsic:
    """The entry, which `tensorize` takes from now on. Raises: ValueError if its name is taken."""
    if entry.name in _KNOWN:
        raise ValueError(f"intrinsic {entry.name!r} exists already; choose another name")
    _KNOWN[entry.name] = entry
    build_options.cache_clear()
    return entry


def intrinsics() -> tuple[Intrinsic, ...]:
    """All that are registered."""
    return tuple(_KNOWN.values())


@cache
def build_options(offered: tuple[str, ...]) -> tuple[str, ...]:
    """What the best implementations that a device offers need of its compiler."""
    found = [
        option
        for entry in intrinsics()
        for x in entry.implementations
        if x.options and any(entry.implementation(s, offered) is x for s in entry.signatures(x))
        for option in x.options
    ]
    return tuple(dict.fromkeys(found))


def intrinsic(name: str) -> Intrinsic:
    """The one of that name. Raises: ScheduleError naming those that there are."""
    if name not in _KNOWN:
        raise ScheduleError(f"no intrinsic {name!r}; there are {', '.join(sorted(_KNOWN))}")
    return _KNOWN[name]
