"""A kernel's work-group as a function, which a part of a larger group of items calls.

One kernel that runs many (`resident`) has groups of one size, and its callees were made for groups
of others. So each item is told which one it is, and whether it is one at all; those that are not
come to every barrier and do nothing else. A group of one warp waits for that warp alone. Local
memory is a part of what the caller has.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from retune.codegen.kernel import (
    Array,
    Assign,
    Declare,
    ForLoop,
    GroupCall,
    If,
    Kernel,
    Literal,
    LookedUp,
    MemoryLoad,
    Name,
    Number,
    Operation,
    Registers,
    Statement,
    SubArray,
    Value,
    Wait,
    parts,
)
from retune.core.dtypes import BOOL, INT32
from retune.core.errors import CodegenError
from retune.core.target import WARP

ITEM = Name("item", INT32)
"""Number of the item in its group; negative where it is not an item of the group at all."""
_WORKS = Operation("le", (Literal(0, INT32), ITEM), BOOL)
_ALIGN_BYTES = 64


def tile_function(kernel: Kernel) -> tuple[Kernel, int]:
    """The group of a kernel as a function, and the bytes of local memory that it is to be given.

    Rewrite, where item 5 waits for others:
        a = b                   if (0 <= item)
        barrier            ->     a = b
        c = a                   barrier
                                if (0 <= item)
                                  c = a
    Raises: CodegenError where a barrier stands behind a test.
    """
    arrays, arena = dict[Array, int](), 0
    for statement in kernel.body:
        if isinstance(statement, Array) and statement.memory.scope == "local":
            arrays[statement] = arena
            size = statement.elements * statement.memory.dtype.itemsize
            arena += -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
    body = _Guarding(kernel, arrays).guarded(kernel.body)
    return replace(kernel, body=body, called=True), arena


class _Guarding:
    """Puts what items do between barriers behind a test."""

    def __init__(self, kernel: Kernel, arrays: dict[Array, int]) -> None:
        self._sizes = kernel.local_size
        self._name = kernel.name
        self._arrays = arrays
        self._shared = kernel.sizes
        self._guarded = set[Name]()
        """Names that only working items give a value."""

    def guarded(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements of one scope."""
        made: list[Statement] = []
        run: list[Statement] = []

        def close() -> None:
            if run:
                made.append(If((_WORKS,), tuple(run)))
            run.clear()

        for statement in body:
            match statement:
                case Wait():
                    close()
                    made.append(replace(statement, in_warp=prod(self._sizes) <= WARP))
                case ForLoop(body=inside) if _waits(inside):
                    close()
                    made.append(replace(statement, body=self.guarded(inside)))
                case If() if _waits((statement,)):
                    raise CodegenError(f"{self._name}: a barrier behind a test")
                case Declare(name, value) if not (name in self._shared or self._is_free(value)):
                    self._guarded.add(name)
                    made.append(Registers((name,)))
                    run.append(Assign((name,), value))
                case Registers(names):
                    self._guarded.update(names)
                    made.append(statement)
                case Declare() | Array() | Number():
                    made.append(self._called(statement))
                case _:
                    run.append(self._called(statement))
        close()
        return tuple(made)

    def _is_free(self, value: Value) -> bool:
        """Whether any item may compute it: it is made of numbers that all items know."""
        return not any(
            isinstance(v, MemoryLoad | LookedUp) or v in self._guarded for v in parts(value)
        )

    def _called(self, statement: Statement) -> Statement:
        """The same by what the function is given: numbers of group and item, and memory."""
        match statement:
            case ForLoop(body=body):
                return replace(statement, body=tuple(map(self._called, body)))
            case If(then=then, otherwise=otherwise):
                then, otherwise = (tuple(map(self._called, part)) for part in (then, otherwise))
                return replace(statement, then=then, otherwise=otherwise)
            case Number(kind="group"):
                return replace(statement, passed=True)
            case Number(name, _, axis):
                return Declare(name, self._number(axis))
            case GroupCall():
                return replace(statement, beside=True)
            case Array() if statement in self._arrays:
                return SubArray(statement.memory, self._arrays[statement])
            case _:
                return statement

    def _number(self, axis: int) -> Value:
        """The item's number along an axis."""
        before = prod(self._sizes[:axis])
        number: Value = ITEM
        if before > 1:
            number = Operation("div", (number, Literal(before, INT32)), INT32)
        if any(size > 1 for size in self._sizes[axis + 1 :]):
            number = Operation("rem", (number, Literal(self._sizes[axis], INT32)), INT32)
        return number


def _waits(body: Sequence[Statement]) -> bool:
    """Whether a barrier stands somewhere in the statements."""
    return any(
        isinstance(s, Wait)
        or (isinstance(s, ForLoop) and _waits(s.body))
        or (isinstance(s, If) and _waits((*s.then, *s.otherwise)))
        for s in body
    )
