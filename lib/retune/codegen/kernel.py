"""Kernels between loops and text: values and statements of no language.

What loops, tiles and addresses come to is stated here in full: names are given, unrolled loops
written out, addresses are sums. A renderer says how each node is written, and decides nothing.
Values compare by content. Integers narrower than 32 bits calculate as int32; `wrap` is what makes
one of them of the result. Read `Operation`, then `Kernel`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Self

from retune.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT32,
    INT7,
    INT8,
    INT32,
    UINT7,
    UINT8,
    DType,
    packed,
)
from retune.intrinsics import Signature
from retune.intrinsics.attention import Attention
from retune.ir.nodes import IRNode, node

VECTOR_LANES = (2, 4, 8, 16)
"""Lanes of vectors (3 is left out: its form in memory is another)."""
TABLE_BYTES, TABLE_LANES = 256, 16
"""Of a table that is read at several indices at once, and these indices."""
ROUNDED_LANES: Mapping[DType, tuple[int, ...]] = {BFLOAT16: (8, 16)}
"""Small float -> the vectors that devices may round to it by an instruction."""
VECTOR_TYPES = frozenset({FLOAT32, INT32, INT8, INT7, UINT8, UINT7, BOOL})
"""Types of elements, or of what is packed in words, whose blocks are vectorized.
Vectors of bytes are moved, converted and compared for the larger; nothing calculates with them.
A vector of truths is one of INT32, -1 or 0 in each lane, as comparisons make it; a single truth is
1 or 0, and so are those in memory."""


COPIED_BYTES = (4, 8, 16)
"""What a copy that is waited for later takes at once."""


class Tile(DType):
    """The type of what a matrix register holds: rows of adjacent elements."""

    __slots__ = ("columns", "pitch", "rows")
    rows: int
    columns: int
    pitch: int
    """Elements from a row to the next where it is loaded or stored."""

    def __new__(cls, element: DType, rows: int, columns: int, pitch: int) -> Self:
        tile = cls.like(element, f"{element}[{rows}x{columns}/{pitch}]")
        tile.rows, tile.columns, tile.pitch = rows, columns, pitch
        return tile

    def __reduce__(self) -> tuple[type[DType], tuple[Any, ...]]:
        return Tile, (self.element, self.rows, self.columns, self.pitch)


class Share(DType):
    """The type of a word that an item of a warp reads by the function of an intrinsic."""

    __slots__ = ("op",)
    op: str
    """The intrinsic's name."""

    def __new__(cls, word: DType, op: str) -> Self:
        share = cls.like(word.element, f"{word} by {op}")
        share.bits, share.elements, share.op = word.bits, word.elements, op
        return share

    def __reduce__(self) -> tuple[type[DType], tuple[Any, ...]]:
        return Share, (packed(self.element, self.elements), self.op)


def vectorizes(dtype: DType) -> bool:
    """Whether vectors hold elements of the type, or words of them."""
    return tile_type(dtype) is None and dtype.element.compute in VECTOR_TYPES


def tile_type(dtype: DType) -> Tile | None:
    """The type if it is one of tiles; None for one of elements or words."""
    return dtype if isinstance(dtype, Tile) else None


_SYMBOLS: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "sum": "+", "product": "*",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "and", "or": "or", "all": "and",
}  # fmt: skip


# -- values ------------------------------------------------------------------------------------


@node
class Literal(IRNode):
    """A number."""

    value: float | bool
    dtype: DType
    lanes: ClassVar[int] = 1

    def __str__(self) -> str:
        return str(self.value)


@node
class Name(IRNode):
    """A variable or a register; no two of a kernel have one name."""

    name: str
    dtype: DType = field(compare=False)
    lanes: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return self.name


@node
class Memory(IRNode):
    """An array: an argument of the kernel, memory of its work-group, or its own."""

    name: str
    dtype: DType = field(compare=False)
    scope: str = field(compare=False)
    image: tuple[int, int] | None = field(default=None, compare=False)
    """Texels of a row, and rows, of an image that is read instead of an array."""


@node
class At(IRNode):
    """`lanes` adjacent elements of memory from `base + offset`."""

    memory: Memory
    base: "Value | None"
    offset: int
    lanes: int = 1
    aligned: bool = False
    """Whether to access them as one vector that starts on a multiple of its size."""

    def __str__(self) -> str:
        index = f"{self.base} + {self.offset}" if self.base is not None else str(self.offset)
        return f"{self.memory.name}[{index}]" + (f".x{self.lanes}" if self.lanes > 1 else "")


@node
class MemoryLoad(IRNode):
    """A load from an address; float16 may be read as float32."""

    at: At
    dtype: DType

    @property
    def lanes(self) -> int:
        """Lanes of the vector that is read."""
        return self.at.lanes

    def __str__(self) -> str:
        return str(self.at)


@node
class LookedUp(IRNode):
    """Elements of a table of `TABLE_BYTES`, one for each of `TABLE_LANES` indices."""

    memory: Memory
    indices: "Value"
    dtype: DType

    @property
    def lanes(self) -> int:
        """Lanes of the vector that is read."""
        return self.indices.lanes

    def __str__(self) -> str:
        return f"{self.memory.name}[{self.indices}]"


@node
class Operation(IRNode):
    """An operator, a function or a conversion of values.

    Those of expressions have their names there (`add`, `exp`, `isnan`, ...), and intrinsics theirs
    (`dot4`, of words and the sum so far). Besides:
    - `sum`, `product`: of any number of integers, for addresses;
    - `rem`, and `div` of integers: rounding toward zero;
    - `neg`; `all`: the conjunction of any number of tests;
    - `choose`: by one test, or by a literal mask, what follows first, or else second; `select`: by
      a test in each lane;
    - `convert`, `bitcast`, `wrap` (to a narrow type), `long` (of an int32);
    - `float_of_bits`: of words, a shift and a mask of at most a byte;
    - `of_halves`: float32 of the words that two float16 each lie in;
    - `splat`: a scalar in every lane; `vector`: of scalars, or of vectors side by side;
    - `low`, `high`: half of the lanes.
    """

    op: str
    args: "tuple[Value, ...]"
    dtype: DType
    lanes: int = 1

    def __str__(self) -> str:
        if self.op in _SYMBOLS:
            return f"({f' {_SYMBOLS[self.op]} '.join(map(str, self.args))})"
        kind = f".x{self.lanes}" if self.lanes > 1 else ""
        return f"{self.op}{kind}({', '.join(map(str, self.args))})"


@node
class Lanes(IRNode):
    """Some lanes of a vector, in that order."""

    value: "Value"
    numbers: tuple[int, ...]
    dtype: DType

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return len(self.numbers)

    def __str__(self) -> str:
        return f"{self.value}.{'.'.join(map(str, self.numbers))}"


Value = Literal | Name | MemoryLoad | LookedUp | Operation | Lanes


# -- statements --------------------------------------------------------------------------------


@node
class Declare(IRNode):
    """A name for a value, which stays as it is."""

    name: Name
    value: Value


@node
class Registers(IRNode):
    """Variables of one type, without a value yet."""

    names: tuple[Name, ...]


@node
class Array(IRNode):
    """Memory of the work-group, or of the item alone."""

    memory: Memory
    elements: int


@node
class SubArray(IRNode):
    """An array in the memory that the caller of a function gives it, from that byte on."""

    memory: Memory
    first: int


@node
class Assign(IRNode):
    """Registers set to one value."""

    targets: tuple[Name, ...]
    value: Value


@node
class Store(IRNode):
    """Memory set to a value; a float32 in memory of float16 is rounded."""

    at: At
    value: Value
    past: bool = False
    """Whether it goes past the caches, which its array would not stay in."""


@node
class CopyAhead(IRNode):
    """Starts a copy of a vector from one memory to another; zeros where the test does not hold."""

    to: At
    source: At
    test: Value | None = None
    near: bool = False
    """Whether what it reads is to stay in the first-level cache."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a batch of copies that were started, by which `Wait` counts them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A barrier: items wait until the memory of their group is as all of them left it."""

    pending: int | None = None
    """How many of the latest batches of copies need not have come; None: none was started."""
    in_warp: bool = False
    """Whether the group is a warp, or a part of one, beside others in a larger group."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Where all reads before it are under way: no compiler moves one across it."""


@node
class Prefetch(IRNode):
    """Asks for the line `beyond` elements after an address, which need not exist."""

    at: At
    beyond: int
    later: bool
    """For the second cache only."""


@node
class Number(IRNode):
    """The number of the group (kind `group`) or of the item in it (`local`) along an axis."""

    name: Name
    kind: str
    axis: int
    extent: int
    passed: bool
    """Whether it is an argument of the kernel's function, see `Kernel.single_item`."""
    notes: tuple[tuple[str, str | int], ...] = ()


@node
class ForLoop(IRNode):
    """A loop in time from 0."""

    name: Name
    extent: "int | Value"
    unroll: int
    """How many iterations a compiler should write out; 1 where it may choose."""
    notes: tuple[tuple[str, str | int], ...]
    body: "tuple[Statement, ...]"


@node
class If(IRNode):
    """Statements where all tests hold, others where one does not."""

    tests: tuple[Value, ...]
    then: "tuple[Statement, ...]"
    otherwise: "tuple[Statement, ...]" = ()


@node
class TileConfiguration(IRNode):
    """Tile registers from here on, numbered, of so many rows of so many bytes each."""

    function: "Function"
    """Of what is done with them."""
    shapes: tuple[tuple[int, int], ...]


@node
class TileStep(IRNode):
    """A step on tile registers, see `intrinsics.TILE_STEPS`."""

    function: "Function"
    step: str
    registers: tuple[int, ...] = ()
    """The one that it changes or stores, and those that it reads."""
    at: At | None = None
    sizes: tuple[int, ...] = ()
    """What follows as arguments: a pitch in memory, in elements; rows; bytes or packs of a row."""


@node
class Together(IRNode):
    """An instruction of a whole warp, such as `mma.sync`: it adds to registers of its items."""

    function: "Function"
    targets: tuple[Name, ...]
    values: "tuple[Value, ...]"


@node
class GroupCall(IRNode):
    """What all work-items of a group do at once, such as attention: a function reads and writes
    memory from these addresses on."""

    function: Attention
    to: At
    starts: tuple[At, ...]
    """Where its operands start."""
    values: "tuple[Value, ...]"
    """Its numbers."""
    memory: Memory
    """What it has of the group's memory."""
    beside: bool = False
    """Whether other groups may run beside it in one larger group, see `tile_functions`."""


Statement = (
    Declare | Registers | Array | SubArray | Assign | Store | CopyAhead | Commit | Wait | Asked
    | Prefetch | Number | ForLoop | If | TileConfiguration | TileStep | Together | GroupCall
)  # fmt: skip


@node
class Function(IRNode):
    """An intrinsic as a function, which comes before the kernel that calls it."""

    op: str
    signature: Signature
    implementation: str = ""
    """Name of that one of its implementations."""


@node
class Parameter(IRNode):
    """An array that the kernel is given; none overlap."""

    memory: Memory
    written: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A function of its group's number, or of its item's: launched over groups of `local_size`."""

    name: str
    parameters: tuple[Parameter, ...]
    single_item: bool
    """Groups of one item; the group's number is an argument, so that others may call it."""
    based: bool = False
    """Its arguments are one address, and a structure of all parameters' distances from it."""
    local_size: tuple[int, int, int]
    body: tuple[Statement, ...]
    called: bool = False
    """No kernel, but a function that a part of a larger group calls, see `tile_functions`."""
    fetches: bool = False
    """Whether it asks for lines ahead of their use."""
    functions: tuple[Function, ...] = ()
    attention: str = ""
    """The name of the text by which it computes attention; '' where it does not."""
    copies_ahead: bool = False
    """Whether it starts copies that it waits for later."""
    converts: frozenset[DType] = frozenset()
    """Small floats that it rounds vectors to by an instruction, see `ROUNDED_LANES`."""
    sizes: frozenset[Name] = frozenset()
    """Names of the sizes that it reads at its start: they are the same for all items."""
    comment: tuple[str, ...] = ()


@cache
def _fields_of(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """What gives the fields of a node of that class, or a tuple's items; None: it has no parts."""
    if issubclass(kind, tuple):
        return tuple
    if not issubclass(kind, (IRNode, Wait, Commit, Asked)):
        return None
    names: tuple[str, ...] = kind.__match_args__
    if len(names) > 1:
        return attrgetter(*names)
    return lambda part: tuple(getattr(part, name) for name in names)


def parts(tree: "Statement | Value | tuple[Statement, ...]") -> "Iterator[Statement | Value | At]":
    """The statements, values and addresses in a tree, itself included."""
    stack: list[Any] = [tree]
    while stack:
        part = stack.pop()
        fields = _fields_of(type(part))
        if fields is not None:
            if not isinstance(part, tuple):
                yield part
            stack.extend(fields(part))
