"""Matrix registers by number: statements on values that are tiles become steps on registers.

What a kernel holds throughout, its accumulators, comes first. Operands get the registers that are
left, one after the other, and then again those whose last use has been: a load need not wait for
the product before it. A register keeps the shape that it is configured for. Read `by_number`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from retune.codegen.kernel import (
    Assign,
    Declare,
    Function,
    If,
    Literal,
    Load,
    Loop,
    Matrices,
    Name,
    OnMatrices,
    Operation,
    Registers,
    Statement,
    Store,
    Tile,
    Value,
    parts,
    tile_type,
)
from retune.core.errors import CodegenError
from retune.intrinsics.tile8 import REGISTERS

_Shape = tuple[int, int]
"""Rows, and bytes of each."""


def by_number(statements: Sequence[Statement], function: Function) -> tuple[Statement, ...]:
    """The body of a kernel on matrix registers by number, configured and released.

    Raises: CodegenError where there are too few.
    """
    numbers = _Numbers(function)
    body = tuple(numbers.of(statements))
    return (
        Matrices(function, tuple(numbers.shapes)),
        *body,
        OnMatrices(function, "RELEASE"),
    )


@dataclass
class _Numbers:
    """The registers in use."""

    function: Function
    shapes: list[_Shape] = field(default_factory=list[_Shape])
    """Of each register so far."""
    _free: list[int] = field(default_factory=list[int])
    """Those that may be used again, the first ones to become free first."""
    _held: dict[str, int] = field(default_factory=dict[str, int])
    """Name -> its register."""

    def of(self, statements: Sequence[Statement]) -> Iterable[Statement]:
        """The statements with registers by number; those that they declare are free afterwards."""
        last = {n: i for i, s in enumerate(statements) for n in _names(s)}
        own: dict[str, int] = {}
        for i, statement in enumerate(statements):
            if isinstance(statement, Declare) and tile_type(statement.name.dtype):
                own[statement.name.name] = last[statement.name.name]
            yield from self._one(statement)
            for name in [n for n, end in own.items() if end == i]:
                del own[name]
                self._free.append(self._held.pop(name))

    def _one(self, statement: Statement) -> Iterable[Statement]:
        match statement:
            case Registers(names) if tile_type(names[0].dtype):
                for name in names:
                    self._hold(name)
            case Declare(name, Load() as load) if tile_type(name.dtype):
                yield self._load(self._hold(name), load)
            case Assign(targets, Literal()) if tile_type(targets[0].dtype):
                for name in targets:
                    yield OnMatrices(self.function, "ZERO", (self._held[name.name],))
            case Assign((target,), Operation(args=args)) if kind := tile_type(target.dtype):
                yield from self._product(target, kind, args)
            case Store(at, Name(dtype=dtype) as name) if kind := tile_type(dtype):
                sizes = (kind.pitch, kind.rows)
                yield OnMatrices(self.function, "STORE", (self._held[name.name],), at, sizes)
            case Loop(name, extent, unroll, notes, body):
                yield Loop(name, extent, unroll, notes, tuple(self.of(body)))
            case If(tests, then, otherwise):
                yield If(tests, tuple(self.of(then)), tuple(self.of(otherwise)))
            case _:
                yield statement

    def _product(self, target: Name, kind: Tile, args: Sequence[Value]) -> Iterable[Statement]:
        """The step that adds a product, after loads of operands that have no name."""
        registers: list[int] = []
        for number, arg in enumerate(args[:2]):
            if isinstance(arg, Load):
                name = Name(f"operand {number}", arg.dtype)
                registers.append(self._hold(name))
                yield self._load(registers[-1], arg)
            else:
                registers.append(self._held[str(arg)])
        words = self.shapes[registers[1]][0]
        numbers = (self._held[target.name], *registers)
        yield OnMatrices(self.function, "DOT", numbers, sizes=(kind.rows, words))
        for number, arg in enumerate(args[:2]):
            if isinstance(arg, Load):
                self._free.append(self._held.pop(f"operand {number}"))

    def _load(self, register: int, load: Load) -> Statement:
        kind = tile_type(load.dtype)
        assert kind is not None, "its register holds a tile"
        sizes = (kind.pitch, *_shape(kind))
        return OnMatrices(self.function, "LOAD", (register,), load.at, sizes)

    def _hold(self, name: Name) -> int:
        """A register for that name."""
        kind = tile_type(name.dtype)
        assert kind is not None, "whoever asks has looked"
        shape = _shape(kind)
        if len(self.shapes) < REGISTERS:
            self.shapes.append(shape)
            register = len(self.shapes) - 1
        else:
            register = next((n for n in self._free if self.shapes[n] == shape), None)
            if register is None:
                raise CodegenError(f"{name.name}: more than {REGISTERS} matrix registers")
            self._free.remove(register)
        self._held[name.name] = register
        return register


def _shape(kind: Tile) -> _Shape:
    return kind.rows, kind.columns * kind.itemsize


def _names(statement: Statement) -> set[str]:
    """The tiles that a statement touches."""
    return {p.name for p in parts(statement) if isinstance(p, Name) and tile_type(p.dtype)}
