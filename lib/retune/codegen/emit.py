"""Emission of one loop nest as the statements of one kernel.

The emitter walks the nest once. Serial loops stay loops; unrolled loops and vector lanes are
expanded into statements over named registers; addresses are strength-reduced: every index is a
sum whose terms are added once, in the outermost scope where they are known, so inner statements
see `base + constant`. Values read more than once by neighbouring statements are read once.

Read `KernelBody.emit` first, then `frame.py` and `addresses.Addresses`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import gcd
from types import MappingProxyType

from retune.codegen.addresses import Address, Instance
from retune.codegen.expressions import Expressions, copied_ahead
from retune.codegen.frame import Frame, Scope
from retune.codegen.kernel import (
    VECTOR_LANES,
    Array,
    Assign,
    At,
    Commit,
    Declare,
    ForLoop,
    If,
    Memory,
    MemoryLoad,
    Name,
    Number,
    Prefetch,
    Registers,
    Statement,
    Value,
    Wait,
    tile_type,
)
from retune.codegen.names import Identifiers, identifier
from retune.codegen.passes import gathers, streams
from retune.codegen.registers import register_lanes, vectorizable
from retune.codegen.spreading import spread_copies
from retune.codegen.target import PAST_BYTES, Groups
from retune.core.dims import is_fixed, most
from retune.core.dtypes import BOOL, FLOAT32, INT32
from retune.core.errors import CodegenError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Expr, Var, conjuncts, const, variables
from retune.ir.flat import FlatIndices, elements
from retune.ir.simplify import range_below
from retune.ir.stmt import (
    AHEAD,
    NEAR,
    STRAIGHT,
    Barrier,
    Block,
    For,
    Seq,
    Stmt,
    blocks,
    inside,
    loops,
    paths,
    touched,
)


class KernelBody:
    """The statements of one nest, with its launch size and the buffers that it touches."""

    def __init__(
        self,
        nest: Stmt,
        groups: Groups,
        arguments: Sequence[Buffer],
        packed: Collection[str] = (),
        reserved: Collection[str] = (),
        images: Mapping[str, tuple[int, int]] = MappingProxyType({}),
        *,
        panels: bool = False,
        copies_ahead: bool = False,
        past_bytes: int = PAST_BYTES,
    ) -> None:
        """`packed` names the constants that lie in the order of their reads; with `panels`, those
        of one vector do, and others lie elsewhere. With `copies_ahead`, the device has copies that
        items wait for later. Arrays of `past_bytes` are stored past the caches.

        `reserved` are the words that no name may be; `images` says which constants are images, and
        of how many texels and rows.
        """
        self.nest = nest
        self._packed, self._panels, self._copying = packed, panels, False
        self.copies_ahead = copies_ahead and any(AHEAD in dict(n.notes) for n in loops(nest))
        """Whether it starts copies that items wait for later."""
        self._loops: list[For] = []
        """Those in time around the statements at hand, from the outermost."""
        self.streams = False
        """Whether it fetches ahead."""
        self._shares = any(b.buffer.scope == "local" for b in blocks(nest))
        self.sizes: dict[str, Memory] = {}
        """Where it reads sizes from, by their names: arguments behind the others."""
        self.global_size = [1, 1, 1]
        self.local_size = [1, 1, 1]
        names, flat = Identifiers(reserved), FlatIndices()
        for buffer in arguments:
            names.of(buffer.name)
        self.lanes = {n.var: evaluate_int(n.extent) for n in _vector_loops(nest, flat)}
        self.frame = Frame(
            groups=groups,
            names=names,
            integer=lambda expr: Expressions(self.frame).integer(expr),
            flat=flat,
            registers=_registers(nest, frozenset(self.lanes), flat),
            images=images,
        )
        self._scopes = self.frame.scopes
        self._established: list[Expr] = []
        self._homes = {b: _home(nest, b) for b in self.frame.registers}
        large = streams.large(nest, past_bytes) if groups.prefetch else frozenset[Buffer]()
        self._large = large - self.frame.registers.keys()

    def emit(self) -> tuple[Statement, ...]:
        """The kernel's body."""
        written = {b.buffer for b in blocks(self.nest)}  # words of an array are read under its name
        for buffer in sorted((b for b in written if b.scope == "local"), key=str):
            self._add(Array(self.frame.memory(buffer), most(elements(buffer))))
        self._declare(self.nest, first=True)
        self._walk(self.nest, {})
        return (*self._read_sizes(), *self._scopes[0].statements)

    def _read_sizes(self) -> Iterator[Statement]:
        """Declarations of the sizes that the kernel needs, which are arguments."""
        for size, name in self.frame.sizes.items():
            memory = Memory(self.frame.names.fresh(f"{name}_size"), INT32, "global")
            self.sizes[size] = memory
            yield Declare(name, MemoryLoad(At(memory, None, 0), INT32))

    def _add(self, statement: Statement) -> None:
        self._scopes[-1].statements.append(statement)

    # -- statements ----------------------------------------------------------------------------

    def _walk(self, stmt: Stmt, env: dict[str, int]) -> None:
        if inside(stmt).straight:
            self._statements(self._instances(stmt, env, None))
            return
        match stmt:
            case Seq(stmts):
                self._sequence(stmts, env)
            case For() if AHEAD in dict(stmt.notes) and self.copies_ahead and not self._copying:
                self._copying = True
                self._loop(stmt, env)
                self._copying = False
                self._add(Commit())
            case For():
                self._loop(stmt, env)
            case Barrier(pending):
                self._add(Wait(pending if self.copies_ahead else None))
            case Block():
                raise CodegenError(
                    f"{stmt.name}: expected a block in straight-line code, got one beside loops"
                )

    def _sequence(self, stmts: tuple[Stmt, ...], env: dict[str, int]) -> None:
        """Statements in order; adjacent ones without loops or waits share what they read."""
        for straight, group in groupby(stmts, lambda stmt: inside(stmt).straight):
            if straight:
                self._statements([i for s in group for i in self._instances(s, env, None)])
                continue
            for stmt in group:
                self._walk(stmt, env)

    def _loop(self, loop: For, env: dict[str, int]) -> None:
        if loop.kind in STRAIGHT:
            extent = evaluate_int(loop.extent)
            for i in range(extent):
                self._walk(loop.body, {**env, loop.var.name: i})
            return
        self.frame.ranges[loop.var] = range_below(loop.extent)
        if loop.kind == "serial":
            terms = [] if inside(loop).waits else self._invariant_guards(loop)
            if terms:
                self._under(terms, loop, env)
            elif loop.extent == const(1):  # around a copy, see `FEW`
                self._declare(loop)
                self._walk(loop.body, {**env, loop.var.name: 0})
            elif usual := self._usual_guards(loop, env):
                self._versions(usual, loop, env)
            else:
                self._serial(loop, env)
            return
        kind, dim = loop.kind.split(".")
        sizes = self.global_size if kind == "group" else self.local_size
        sizes[int(dim)] = extent = evaluate_int(loop.extent)
        scope = self._scopes[-1]
        if loop.var not in scope.variables:  # a copy of it, where an unrolled loop is around
            scope.variables.add(loop.var)
            name, passed = self.frame.variable(loop.var), self.frame.groups.single_item
            self._add(Number(name, kind, int(dim), extent, passed, tuple(loop.notes)))
        self._declare(loop)
        self._walk(loop.body, env)

    def _serial(self, loop: For, env: dict[str, int]) -> None:
        """A loop in time."""
        name, extent = self.frame.variable(loop.var), evaluate_int(loop.extent)
        bound = extent if is_fixed(extent) else Expressions(self.frame).integer(loop.extent)
        scope = Scope({loop.var})
        self._scopes.append(scope)
        self._declare(loop)
        self._loops.append(loop)
        self._walk(loop.body, env)
        self._loops.pop()
        self._scopes.pop()
        count = 1
        if loop.unroll is not None and is_fixed(extent):
            count = gcd(extent, evaluate_int(loop.unroll))
        # PoCL takes a minute over a count that does not divide the extent
        body = spread_copies(scope.statements)
        self._add(ForLoop(name, bound, count, tuple(loop.notes), body))

    def _usual_guards(self, loop: For, env: dict[str, int]) -> dict[Expr, list[Value]]:
        """Guards of an innermost reduce loop that its iterations do not change, with their tests.

        Each copy of its body has tests of its own, as the pixels of a tile at a border have.
        """
        if self._shares or not loop.reduce or not inside(loop.body).straight:
            return {}
        if all(block.guard is None for block in blocks(loop.body)):
            return {}
        printer = Expressions(self.frame)
        found: dict[Expr, set[Value] | None] = {}
        for instance in self._instances(loop.body, env, None):
            for term in conjuncts(instance.block.guard):
                if term not in self._established and loop.var not in variables(term):
                    test, before = printer.condition([term], instance), found.get(term, set())
                    found[term] = None if test is None or before is None else before | {*test}
        return {term: sorted(tests, key=str) for term, tests in found.items() if tests}

    def _versions(self, usual: dict[Expr, list[Value]], loop: For, env: dict[str, int]) -> None:
        """The loop without these guards where all of them hold, or else with them.

        Left to itself, LLVM takes tests out of a loop if they are few; a tile of several rows and
        columns has too many (measured: a loop with them inside took twice as long, or more).
        """
        tests = dict.fromkeys(test for tests in usual.values() for test in tests)
        self._established.extend(usual)
        without = self._apart(loop, env)
        del self._established[-len(usual) :]
        self._add(If(tuple(tests), without, self._apart(loop, env)))

    def _apart(self, loop: For, env: dict[str, int]) -> tuple[Statement, ...]:
        """A loop in time, in a scope of its own."""
        self._scopes.append(Scope(set()))
        self._serial(loop, env)
        return tuple(self._scopes.pop().statements)

    def _invariant_guards(self, loop: For) -> list[Expr]:
        """Parts of the guard that all blocks inside share and that the loop does not change."""
        own = {n.var for n in loops(loop)}
        guards = [conjuncts(block.guard) for block in blocks(loop)]
        return [
            term
            for term in guards[0]
            if term not in self._established
            and all(term in other for other in guards)
            and own.isdisjoint(variables(term))
        ]

    def _under(self, terms: list[Expr], loop: For, env: dict[str, int]) -> None:
        """The loop inside one test of the terms; without it if they never hold."""
        condition = Expressions(self.frame).condition(terms, Instance(blocks(loop)[0], env, None))
        if condition is None:
            return
        self._established.extend(terms)
        if condition:
            self._scopes.append(Scope(set()))
        self._loop(loop, env)
        del self._established[-len(terms) :]
        if condition:
            self._add(If(condition, tuple(self._scopes.pop().statements)))

    def _declare(self, stmt: Stmt, *, first: bool = False) -> None:
        """Registers and private arrays whose innermost common scope this is."""
        for buffer, home in self._homes.items():
            if home is not (None if first else stmt):
                continue
            size = most(elements(buffer))
            lanes = self.frame.registers[buffer]
            if lanes:
                self._add(
                    Registers(tuple(self.frame.register(buffer, i) for i in range(size // lanes)))
                )
            else:
                self._add(Array(self.frame.memory(buffer), size))

    def _instances(
        self, stmt: Stmt, env: dict[str, int], lane: tuple[Var, int] | None
    ) -> list[Instance]:
        """The blocks of a straight-line statement, in order, once for each unrolled iteration."""
        match stmt:
            case Seq(stmts):
                return [one for child in stmts for one in self._instances(child, env, lane)]
            case Block():
                return [Instance(stmt, env, lane)]
            case Barrier():
                raise CodegenError("a wait inside straight-line code")
            case For():
                extent = evaluate_int(stmt.extent)
                if stmt.var in self.lanes:
                    return self._instances(stmt.body, env, (stmt.var, extent))
                return [
                    one
                    for i in range(extent)
                    for one in self._instances(stmt.body, {**env, stmt.var.name: i}, lane)
                ]

    def _statements(self, instances: list[Instance]) -> None:
        """Statements for the instances; repeated reads of unwritten memory are named once."""
        printer = Expressions(self.frame)
        tests = [printer.guard(i, self._established) for i in instances]
        live = [(i, t) for i, t in zip(instances, tests, strict=True) if t is not None]
        written = {i.block.buffer for i, _ in live}
        reads = {id(i): printer.certain_reads(i, written) for i, _ in live}
        counts = Counter(read for found in reads.values() for read in found)
        certain = {read for i, t in live if not t for read in reads[id(i)]}
        shared = {read for read, count in counts.items() if read and count > 1 and read in certain}
        apart = {
            id(i): list(printer.scattered_reads(i, written))
            for i, t in live
            if not t and None in reads[id(i)]
        }
        runs = gathers.vectors_of(address for found in apart.values() for address in found)
        large = [printer.address(i) for i, t in live if not t and i.block.buffer in self._large]
        printer.past = streams.whole_lines(large, self._loops)
        lines = self._scopes[-1].statements
        lines.extend(self._rows_ahead(read for found in reads.values() for read in found))
        for start, group in groupby(live, lambda pair: printer.start_value(pair[0])):
            if start is not None:
                targets = tuple(printer.target(instance) for instance, _ in group)
                lines.append(Assign(targets, start))
                continue
            for test, same in groupby(group, lambda pair: pair[1]):
                body: list[Statement] = []
                own = [instance for instance, _ in same]
                words = self._words(read for i in own for read in reads[id(i)])
                joined = {**runs, **words}
                for instance in own:
                    found = reads[id(instance)]
                    named = self._name_reads(printer, found, shared - words.keys())
                    (lines if test else body).extend(named)
                    for address in (*apart.get(id(instance), ()), *found):
                        body.extend(self._name_run(printer, address, joined))
                    made = printer.statements(instance)
                    body.extend(self._copied(made) if self._copying else made)
                if test:
                    printer.forget(words)
                lines.extend([If(test, tuple(body))] if test else body)

    def _copied(self, statements: Iterable[Statement]) -> Iterator[Statement]:
        """The statements of a copy that is waited for later."""
        near = any(NEAR in dict(loop.notes) for loop in self._loops)
        return (copied_ahead(statement, near=near) for statement in statements)

    def _words(self, reads: Iterable[Address | None]) -> gathers.Runs:
        """Of the elements that items read beside each other: what they are lanes of."""
        if not self.frame.groups.aligned_vectors:
            return {}
        return gathers.words_of(read for read in reads if read and _is_element(read))

    def _name_reads(
        self, printer: Expressions, found: list[Address | None], shared: set[Address]
    ) -> Iterator[Statement]:
        """Declarations of those reads that are shared and not named yet.

        A single row shares none. It fetches ahead of its panels, too, which are read once each.
        """
        for read in found:
            if read and read in shared and read not in printer.named:
                yield self._name_read(printer, read)
                yield from self._ahead(read, shared)
            elif read and self._panels and read not in shared:
                yield from self._ahead(read, {read})

    def _name_run(
        self,
        printer: Expressions,
        address: Address | None,
        runs: gathers.Runs,
    ) -> Iterator[Statement]:
        """The declaration of the vector that an element is a lane of, unless it has a name."""
        if address in runs and address not in printer.lanes:
            vector, lane = runs[address]
            if vector not in printer.named:
                yield self._name_read(printer, vector)
            printer.lanes[address] = gathers.Lane(printer.named[vector], lane)

    def _name_read(self, printer: Expressions, read: Address) -> Statement:
        """The declaration of a variable that holds the read from now on."""
        dtype = read.buffer.dtype.compute
        kind = INT32 if dtype == BOOL and read.lanes > 1 else dtype
        name = Name(self.frame.names.fresh(identifier(read.buffer.name)), kind, read.lanes)
        printer.named[read] = name
        return Declare(name, printer.load(read))

    def _rows_ahead(self, reads: Iterable[Address | None]) -> Iterator[Statement]:
        """Prefetches of the next rows of caches that are read, once for each line of an iteration.

        Also ahead of tests: what is asked for need not exist.
        """
        fetched = self._scopes[-1].fetched
        for read in reads if self.frame.groups.prefetch else ():
            if read is None or read in fetched or read.buffer.name in self._packed:
                continue
            fetched.add(read)
            if ahead := streams.next_rows(read, self.frame.memory(read.buffer), self._loops):
                self.streams = True
                yield ahead

    def _ahead(self, read: Address, beside: Collection[Address]) -> Iterator[Statement]:
        """Prefetches that follow a read of a packed constant inside a reduction."""
        streamed = read.buffer.name in self._packed and streams.is_stream(read.buffer)
        streamed = streamed and not tile_type(read.buffer.dtype)
        reducing = any(loop.reduce for loop in self._loops)
        if not (streamed and self.frame.groups.prefetch and reducing):
            return
        memory = self.frame.memory(read.buffer)
        count = streams.streams_of(read, beside) if self._panels else 1
        if ahead := streams.fetch(read, memory, count, self._loops):
            self.streams = True
            yield self._once_a_line(read, ahead) if count > 1 else ahead
        if share := streams.share_of_next(read, self._loops):
            offset = share.pop((), 0)
            base = self.frame.hoist(share, f"next_{memory.name}")
            yield Prefetch(At(memory, base, 0), offset, later=True)

    def _once_a_line(self, read: Address, ahead: Prefetch) -> Statement:
        """The request in those steps of the innermost loop that read the first part of a line."""
        loop = self._loops[-1]
        if (first := streams.starts_line(read, loop)) is None:
            return ahead
        instance = Instance(blocks(loop)[0], {}, None)
        test = Expressions(self.frame).condition([first], instance)
        return If(test, (ahead,)) if test else ahead


def _is_element(read: Address) -> bool:
    """Whether it reads a single element of four bytes from a device's memory."""
    four = read.lanes == 1 and read.buffer.dtype in (FLOAT32, INT32)
    return four and read.buffer.scope in ("global", "constant")


def _vector_loops(nest: Stmt, flat: FlatIndices) -> list[For]:
    """The vectorized loops all of whose blocks can be written with vector types."""
    found = [n for n in loops(nest) if n.kind == "vectorize"]
    return [
        loop
        for loop in found
        if evaluate_int(loop.extent) in VECTOR_LANES
        and all(vectorizable(b, loop.var, flat, reduce=loop.reduce) for b in blocks(loop.body))
        and not (loop.reduce and len(blocks(loop.body)) > 1)
        and not any(n.kind == "vectorize" for n in loops(loop.body))
    ]


def _registers(nest: Stmt, lanes: frozenset[Var], flat: FlatIndices) -> dict[Buffer, int]:
    """Lanes of the nest's register and private buffers; 0 for arrays, as are those whose words are
    read."""
    written = {block.buffer for block in blocks(nest)}
    words = {b.name for block in blocks(nest) for b in touched(block) if b not in written}
    own = sorted((b for b in written if b.scope in ("register", "private")), key=str)
    return {b: 0 if b.name in words else register_lanes(nest, b, lanes, flat) for b in own}


def _home(nest: Stmt, buffer: Buffer) -> For | None:
    """The innermost loop with a scope of its own around every use of a buffer, or of its words."""
    around = [
        path for block, path in paths(nest) if any(b.name == buffer.name for b in touched(block))
    ]
    home: For | None = None
    for level in zip(*around, strict=False):
        if any(loop is not level[0] for loop in level):
            break
        if level[0].kind not in STRAIGHT:
            home = level[0]
        else:
            break
    return home
