"""Reads that an item has under way together, where it would wait for one after the other.

A kernel that reads weights once waits for memory, so an item should have many reads under way. A
compiler that saves registers puts them next to their uses instead: NVIDIA's has two vectors under
way, however far a loop is unrolled (H100: a product of one row by 5632 waits six times). Here loops
of a few reads are written out, and `Asked` stands behind a run of reads, which no compiler moves
across it. A run has about as many registers as there are beside accumulators and addresses where
1024 items share a unit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import count
from typing import Any

from retune.codegen.kernel import (
    Array,
    Asked,
    Assign,
    Declare,
    ForLoop,
    If,
    Kernel,
    Literal,
    Memory,
    MemoryLoad,
    Name,
    Number,
    Operation,
    Registers,
    Statement,
    Store,
    Value,
    Wait,
    parts,
)
from retune.core.dims import most
from retune.core.dtypes import FLOAT16, FLOAT32, INT32
from retune.ir.nodes import IRNode

_FAR_BYTES = 96
"""Of a run, that each item reads for itself: they come from far."""
_NEAR_BYTES = 64
"""Of a run, that others read as well: they come from a cache."""
_LEAST_BYTES = 8
"""Of a near one that is worth it."""
_WRITTEN_OUT = 32
"""Iterations of a loop that is written out, at most."""

_Declaration = Number | Registers | Array
_Straight = Declare | Assign | Store | Wait | Number | Registers | Array


def with_early_reads(kernel: Kernel) -> Kernel:
    """The same, with reads before the calculations that need them."""
    return replace(kernel, body=tuple(_Reads(kernel).early(kernel.body)))


class _Reads:
    """The reads of a kernel: where each comes from, and which may come early."""

    def __init__(self, kernel: Kernel) -> None:
        self._constants = {
            p.memory.name for p in kernel.parameters if not p.written and p.memory.image is None
        }
        taken = {part.name for part in parts(kernel.body) if isinstance(part, Name | Memory)}
        self._fresh = (name for n in count() if (name := f"early_{n}") not in taken)
        self._by_group, self._by_item = set[Name](), set[Name]()
        """Names of what differs between groups, and between neighbouring items."""
        numbers = [part for part in parts(kernel.body) if isinstance(part, Number)]
        self._alone = not any(n.kind == "group" and most(n.extent) > 1 for n in numbers)
        """Whether it has one group."""

    def early(self, body: Iterable[Statement]) -> Iterator[Statement]:
        """The statements of a scope."""
        run: list[Statement] = []
        for statement in body:
            self._note(statement)
            written_out = self._written_out(statement)
            if written_out is not None:
                run += written_out
                continue
            yield from self._run(run)
            run = []
            match statement:
                case ForLoop():
                    yield replace(statement, body=tuple(self.early(statement.body)))
                case If(_, then, otherwise):
                    scopes = (tuple(self.early(scope)) for scope in (then, otherwise))
                    then, otherwise = scopes
                    yield replace(statement, then=then, otherwise=otherwise)
                case _:
                    yield statement
        yield from self._run(run)

    def _written_out(self, statement: Statement) -> list[Statement] | None:
        """The statement if it is straight, or reads nothing from far, or all iterations of a loop
        of straight ones that does; None for others."""
        reads = (part for part in parts(statement) if isinstance(part, MemoryLoad))
        asks = any(self._is_early(read) and self._is_far(read) for read in reads)
        if isinstance(statement, _Straight) or (isinstance(statement, ForLoop | If) and not asks):
            return [statement]
        if not isinstance(statement, ForLoop) or not isinstance(statement.extent, int):
            return None
        body = [s for s in statement.body if isinstance(s, Declare | Assign | Store | Number)]
        if statement.extent > _WRITTEN_OUT or len(body) < len(statement.body):
            return None
        made: list[Statement] = [each for each in body if isinstance(each, Number)]
        for number in range(statement.extent):
            names: dict[Name, Value] = {statement.name: Literal(number, INT32)}
            for each in body:
                if isinstance(each, Declare):
                    renamed = replace(each.name, name=next(self._fresh))
                    made.append(Declare(renamed, _substituted(each.value, names)))
                    names[each.name] = renamed
                elif not isinstance(each, Number):
                    made.append(_substituted(each, names))
                self._note(made[-1])
        return made

    def _note(self, statement: Statement) -> None:
        """What a name depends on."""
        match statement:
            case Number(name, kind="group"):
                self._by_group.add(name)
            case Number(name, axis=0):
                self._by_item.add(name)
            case Declare(name, value):
                for names in (self._by_group, self._by_item):
                    if not _is_free(value, names):
                        names.add(name)
            case ForLoop(body=body):
                for each in body:
                    self._note(each)
            case If(_, then, otherwise):
                for each in (*then, *otherwise):
                    self._note(each)
            case _:
                pass

    def _reads(self, statements: Iterable[Statement]) -> list[MemoryLoad]:
        """What the statements read of constants, vector by vector; not what is read behind a test,
        which need not be there."""
        reads, tested = dict[MemoryLoad, None](), set[MemoryLoad]()
        for statement in statements:
            found, behind = self._reads_of(statement)
            reads |= dict.fromkeys(found)
            tested |= behind
        return [read for read in reads if read not in tested]

    def _reads_of(self, statement: Statement) -> tuple[list[MemoryLoad], set[MemoryLoad]]:
        """What one statement reads of constants, and all that it reads behind a test."""
        if not isinstance(statement, _Straight):
            return [], set()
        found = list(parts(statement))
        reads = [part for part in found if isinstance(part, MemoryLoad) and self._is_early(part)]
        chosen = [part for part in found if isinstance(part, Operation) and part.op == "choose"]
        tested = {part for each in chosen for part in parts(each) if isinstance(part, MemoryLoad)}
        return reads, tested

    def _is_early(self, load: MemoryLoad) -> bool:
        at, own = load.at, load.at.memory.dtype
        known = load.dtype == own or (own == FLOAT16 and load.dtype == FLOAT32 and at.aligned)
        return at.memory.name in self._constants and known and own.elements == 1

    def _is_far(self, load: MemoryLoad) -> bool:
        """Whether an item reads what no other one does."""
        base = load.at.base
        own = base is not None and (self._alone or not _is_free(base, self._by_group))
        return own and not _is_free(base, self._by_item)

    def _run(self, statements: Sequence[Statement]) -> Iterator[Statement]:
        """Straight statements: so many reads from far, and what is done with them, at a time."""
        piece, far, tested = list[Statement](), dict[MemoryLoad, None](), set[MemoryLoad]()
        for statement in statements:
            reads, behind = self._reads_of(statement)
            own = dict.fromkeys(read for read in reads if self._is_far(read))
            taken = [read for read in far | own if read not in tested and read not in behind]
            if _bytes(taken) > _FAR_BYTES and piece:
                yield from self._asked_first(piece)
                piece, far, tested = [], {}, set()
            piece.append(statement)
            far |= own
            tested |= behind
        yield from self._asked_first(piece)

    def _asked_first(self, statements: Sequence[Statement]) -> Iterator[Statement]:
        """The statements, with their reads first."""
        every = [part for statement in statements for part in parts(statement)]
        unknown = {part.name for part in every if isinstance(part, Declare)}
        unknown |= {name for part in every if isinstance(part, Assign) for name in part.targets}
        addresses: list[Statement] = []
        rest: list[Statement] = []
        for statement in statements:
            if isinstance(statement, _Declaration):
                addresses.append(statement)
            elif isinstance(statement, Declare) and _is_known(statement.value, unknown):
                addresses.append(statement)
                unknown.discard(statement.name)
            else:
                rest.append(statement)
        reads = [r for r in self._reads(rest) if r.at.base is None or _is_free(r.at.base, unknown)]
        far = [read for read in reads if self._is_far(read)]
        near = [r for r in reads if r not in far and _bytes([r]) >= _LEAST_BYTES]
        while _bytes(near) > _NEAR_BYTES:
            near.pop()
        if len(far) < 2:
            yield from statements
            return
        yield from addresses
        values: dict[Value, Value] = {}
        for read in (*far, *near):
            declared, values[read] = self._asked(read)
            yield declared
        yield Asked()
        for statement in rest:
            yield _substituted(statement, values)

    def _asked(self, read: MemoryLoad) -> tuple[Declare, Value]:
        """A read, and what its value is then; float16 is converted where it is used."""
        at, own = read.at, read.at.memory.dtype
        if read.dtype == own:
            name = Name(next(self._fresh), read.dtype, at.lanes)
            return Declare(name, read), name
        lanes = _bytes([read]) // INT32.itemsize
        words = replace(at, memory=Memory(at.memory.name, INT32, at.memory.scope), lanes=lanes)
        name = Name(next(self._fresh), INT32, lanes)
        value = Operation("of_halves", (name,), FLOAT32, at.lanes)
        return Declare(name, MemoryLoad(words, INT32)), value


def _bytes(reads: Iterable[MemoryLoad]) -> int:
    return sum(read.at.lanes * read.at.memory.dtype.itemsize for read in reads)


def _is_free(value: Value, unknown: Collection[Name]) -> bool:
    """Whether it needs none of these names."""
    return not any(part in unknown for part in parts(value) if isinstance(part, Name))


def _is_known(value: Value, unknown: Collection[Name]) -> bool:
    """Whether it is made of numbers that are known, and reads nothing."""
    reads = any(isinstance(part, MemoryLoad) for part in parts(value))
    return not reads and _is_free(value, unknown)


def _substituted(tree: Any, values: Mapping[Any, Value]) -> Any:
    """The tree with these values instead of others."""
    if isinstance(tree, tuple):
        return tuple(_substituted(part, values) for part in tree)
    if not isinstance(tree, IRNode):
        return tree
    if tree in values:
        return values[tree]
    own = {f.name: getattr(tree, f.name) for f in fields(tree) if f.init}
    made = {name: _substituted(part, values) for name, part in own.items()}
    return replace(tree, **made) if any(made[n] is not own[n] for n in own) else tree
