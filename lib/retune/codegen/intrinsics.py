"""Loops that an intrinsic replaces become calls of it, wherever it holds its accumulators.

In vector lanes the call takes a pack of each operand, and the sum so far:

    for k in 4: y[i] += x[i, 4*n + k]*w[..]     ->  y[i] += dot4(x[i, n], w[..])

On register tiles, the accumulators of a reduction become values of a type of their own, a tile
(`kernel.Tile`). Its loops hold them in registers, and store them where they end:

    for r, c: y[r, c] = 0               y.tile[0] = 0
    for k:                        ->    for k:
      for r, w, c, q: y[r, c] += ..       y.tile[0] = tile8(x[..], w[..], y.tile[0])
                                        y[0, 0] = y.tile[0]

Of a warp, each item computes results of its own, but reads a share of the operands for all items.
What it reads follows from its position in the warp, see `Fragment`; the sums stay where they were:

    for j in 2, k in 8, i in 4, q in 4:
      y[j, i] += x[p, j, 4*k + q]*w[k, c, i, q]
    ->
    for i in 4:  # vectorize
      y[0, i] += warp8(x[c // 2, c % 2, p], w[2*p, c, i], w[2*p + 1, c, i], y[1, i])

Read `intrinsics_to_calls`, and `tile_registers` for the numbers that tiles' registers get.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from retune.codegen.kernel import (
    Array,
    Assign,
    Declare,
    ForLoop,
    Function,
    If,
    Literal,
    Memory,
    MemoryLoad,
    Name,
    Operation,
    Registers,
    Share,
    Statement,
    Store,
    Tile,
    TileConfiguration,
    TileStep,
    Value,
    parts,
    tile_type,
)
from retune.core.dtypes import INT32, DType, packed
from retune.core.errors import CodegenError
from retune.intrinsics import (
    FIRST,
    SECOND,
    Intrinsic,
    Match,
    Signature,
    TileIndex,
    intrinsic,
    intrinsics,
    item_loops,
    match,
    mismatch,
)
from retune.intrinsics.matching import read_as
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
    as_expr,
    const,
    substitute,
    variables,
)
from retune.ir.simplify import from_polynomial, polynomial, simplify
from retune.ir.stmt import (
    Block,
    For,
    LoopKind,
    Seq,
    Stmt,
    blocks,
    loops,
    nested,
    paths,
    replaced,
    rewrite,
    substitute_stmt,
)

EXCHANGE = "exchange"
"""The array in local memory by which items tell each other what they read, where a warp is none."""


def intrinsics_to_calls(nest: Stmt) -> Stmt:
    """The nest with a call for all loops that an intrinsic replaces.

    Raises: CodegenError where a primitive after `tensorize` left nothing to replace.
    """
    found = [(loop, _matched(nest, loop)) for loop in dict.fromkeys(loops(nest)) if loop.intrinsic]
    for loop, matched in found:
        match matched.entry.residence:
            case "vector lane":
                nest = _joined(replaced(nest, loop, _lane_call(matched)), matched)
            case "register tile":
                nest = _TileCalls(nest, loop, matched).whole()
            case "warp":
                nest = _warp_calls(nest, loop, matched)
    return nest


def _matched(nest: Stmt, loop: For) -> Match:
    entry = intrinsic(loop.intrinsic)
    found = match(entry, loop)
    problem = found if isinstance(found, str) else mismatch(entry, nest, loop)
    if isinstance(found, str) or problem:
        names = ", ".join(block.name for block in blocks(loop))
        raise CodegenError(f"{names}: no {entry.name} over {loop.var} any more: {problem}")
    return found


def _divided(index: Expr, unit: int) -> Expr:
    """The number of the tile, or pack, that starts at an element.

    Raises: CodegenError where none does.
    """
    terms = polynomial(index)
    if any(step % unit for step in terms.values()):
        raise CodegenError(f"expected whole parts of {unit} elements at {index}")
    return from_polynomial({m: step // unit for m, step in terms.items()})


def called(value: Expr) -> Intrinsic | None:
    """The intrinsic that a value is a call of; None for others."""
    if not isinstance(value, Call):
        return None
    return next((entry for entry in intrinsics() if entry.name == value.function), None)


def used_functions(nest: Stmt, lanes: Mapping[Var, int], offered: Sequence[str]) -> list[Function]:
    """The functions that a nest calls, by the best implementations that the device offers.

    `lanes` are its loops run as vector lanes.
    """
    found: set[tuple[str, Signature]] = set()
    for block, path in paths(nest):
        if entry := called(block.value):
            wide = [lanes[p.var] for p in path if p.var in lanes and not entry.op.axes]
            found.add((entry.name, signature_of(block.value.children, wide[0] if wide else 1)))
    return [
        Function(name, signature, intrinsic(name).implementation(signature, offered).name)
        for name, signature in sorted(found)
    ]


def required_implementations(functions: Iterable[Function]) -> tuple[str, ...]:
    """Full names of the implementations that not every device offers, in order."""
    found: set[str] = set()
    for function in functions:
        entry = intrinsic(function.op)
        if function.implementation != entry.implementations[-1].name:
            chosen = entry.implementation_named(function.implementation)
            found.add(entry.full_name(chosen))
    return tuple(sorted(found))


def signature_of(packs: Sequence[Expr | Value], lanes: int = 1) -> Signature:
    """The signature of the function over these packs, of which the first two tell the types."""
    return Signature(tuple(pack.dtype.element for pack in packs[:2]), lanes)


# -- vector lanes and warps ----------------------------------------------------------------------


def _lane_call(found: Match) -> Block:
    packs: list[Expr] = []
    for number in range(len(found.operands)):
        pack = found.pack(number)
        assert pack is not None, "`mismatch` has asked"
        packs.append(pack)
    return replace(
        found.block, value=Call(found.entry.name, tuple(packs), found.block.buffer.dtype)
    )


def joining(entry: Intrinsic) -> str:
    """The name of the function that makes sums of what lanes hold of them."""
    return f"{entry.name}_joined"


def _joined(nest: Stmt, found: Match) -> Stmt:
    """The nest in which sums that lanes hold in parts become results where they end.

    Raises: CodegenError for sums that do not start at zero in the same nest.
    """
    if not found.entry.most:
        return nest
    name, done = found.block.name, list[Stmt]()

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Seq):
            return None
        starts = [n for n in node.stmts if [b.name for b in blocks(n)] == [f"{name}.init"]]
        if not starts:
            return None
        (zero,) = blocks(starts[0])
        held = Load(zero.buffer, zero.indices)
        value = Call(joining(found.entry), (held,), zero.buffer.dtype)
        joined = _nested(loops(starts[0]), replace(zero, name=f"{name}.join", value=value), "join")
        sums = [n for n in node.stmts if name in [b.name for b in blocks(n)]]
        if zero.value != const(0, zero.buffer.dtype) or len(sums) != 1:
            return None
        done.append(joined)
        return Seq(tuple(s for n in node.stmts for s in ((n, joined) if n is sums[0] else (n,))))

    nest = rewrite(nest, rule)
    if len(done) != 1:
        raise CodegenError(f"{name}: expected sums that start at zero, as {found.entry.name} does")
    return nest


def _warp_calls(nest: Stmt, loop: For, found: Match) -> Stmt:
    """The nest with a call instead of a loop; the sums are set to their start by vectors."""
    items = item_loops(found.entry, nest, loop)
    assert items is not None, "`mismatch` has asked"
    row, column = (found.loops[axis.var] for axis in found.entry.op.axes)
    (lanes,) = (n for n in loops(loop) if n.var == column)
    block = found.block
    own = {v: const(0) for v in found.loops.values() if v != column}
    first, *others = (
        tuple(simplify(substitute(i, {**own, row: const(n)})) for i in block.indices)
        for n in range(found.entry.m)
    )
    packs = [pack for number in range(len(found.reads)) for pack in _shares(found, items, number)]
    sums = (Load(block.buffer, indices) for indices in others)
    call = Call(found.entry.name, (*packs, *sums), block.buffer.dtype)
    added: Stmt = replace(lanes, body=replace(block, indices=first, value=call), kind="vectorize")
    starts: dict[str, LoopKind] = {f"{row.name}.init": "unroll", f"{column.name}.init": "vectorize"}

    def rule(node: Stmt) -> Stmt | None:
        if isinstance(node, For) and [b.name for b in blocks(node)] == [f"{block.name}.init"]:
            kind = starts.get(node.var.name)
            return replace(node, kind=kind) if kind else None
        return None

    return rewrite(replaced(nest, loop, added), rule)


def _shares(found: Match, items: tuple[For, For], number: int) -> Iterable[Expr]:
    """What an item reads of an operand, pack by pack; those of columns are lanes."""
    load, entry = found.reads[number], found.entry
    operand, axis = entry.operands[number], found.loops[entry.op.axes[number].var]
    fragment, dtype = operand.fragment, packed(load.buffer.dtype, operand.pack)
    if entry.reads_locally:
        dtype = Share(dtype, entry.name)
    assert fragment is not None and entry.warp is not None, "it is one of a warp"
    sizes = (entry.warp.first, entry.warp.second)
    positions = {
        position: n.var if n.extent == const(size) else n.var % size
        for position, n, size in zip((FIRST, SECOND), items, sizes, strict=True)
    }
    theirs: dict[Var, Expr] = {}
    if fragment.owner is not None:
        own, position = items[number].var, (FIRST, SECOND)[number]
        theirs[own] = simplify(own - positions[position] + substitute(fragment.owner, positions))
    rows = [{axis: substitute(row, positions)} for row in fragment.rows]
    for step, row in product(fragment.steps, rows or [{}]):
        chosen = {**theirs, **row}
        at = _divided(found.at_step(number, substitute(step, positions), chosen), operand.pack)
        pack: Expr = read_as(load, dtype, at, operand.pack)
        if (choice := found.mask(number)) is not None:
            assert isinstance(choice.otherwise, Const), "it was matched so"
            filled = Const(_word_of(choice.otherwise.value, load.buffer.dtype), dtype)
            pack = Select(substitute(choice.condition, chosen), pack, filled)
        yield pack


def _word_of(value: float | bool, dtype: DType) -> int:
    """The bits of four bytes that hold an element of that type again and again."""
    element = np.asarray(value).astype(dtype.numpy).tobytes()
    return int.from_bytes(element * (4 // len(element)), "little")


def with_exchange(
    statements: Sequence[Statement], function: Function, items: int
) -> tuple[Statement, ...]:
    """The body of a kernel of so many items, with the memory by which they exchange shares."""
    exchanged = intrinsic(function.op).implementation_named(function.implementation).exchanged
    if not exchanged:
        return tuple(statements)
    return (Array(Memory(EXCHANGE, INT32, "local"), exchanged * items), *statements)


# -- register tiles ------------------------------------------------------------------------------


class _TileCalls:
    """The accumulators of one reduction, held in tile registers."""

    def __init__(self, nest: Stmt, loop: For, found: Match) -> None:
        self._nest, self._loop, self._found = nest, loop, found
        own = found.loops
        inside = {n.var: evaluate_int(n.extent) for n in loops(loop)}
        self._extents = {axis: inside[var] for axis, var in own.items()}
        block, position = found.block, found.result
        if position is None:
            raise CodegenError(
                f"{block.name}: expected results in tiles of the instruction, got others"
            )
        rows, columns = (axis.var for axis in found.entry.op.axes)
        kind = self._tile(block.buffer.dtype, (rows, columns), position)
        sizes = {own[rows]: kind.rows, own[columns]: kind.columns}
        units = [max([1, *(sizes.get(v, 1) for v in variables(i))]) for i in block.indices]
        extents = zip(block.buffer.shape, units, strict=True)
        shape = tuple(as_expr(-(-evaluate_int(extent) // unit)) for extent, unit in extents)
        zero: dict[Var, Expr] = dict.fromkeys(own.values(), const(0))
        self._first = tuple(simplify(substitute(i, zero)) for i in block.indices)
        self._number = tuple(map(_divided, self._first, units))
        self._held = Buffer(f"{block.buffer.name}.tile", shape, kind, "register")

    def _tile(self, dtype: DType, indices: Sequence[Expr], position: TileIndex) -> Tile:
        """The type of a tile that the pattern accesses so."""
        row, along = indices
        steps = polynomial(along).items()
        last = sum(step * (self._extents[v] - 1) for (v,), step in steps if isinstance(v, Var))
        assert isinstance(row, Var), "patterns number their rows"
        return Tile(dtype, self._extents[row], last + 1, position.pitch)

    def whole(self) -> Stmt:
        """The whole loop nest: it sets the accumulators, adds to them by the instruction, and
        stores them."""
        value = Call(self._found.entry.name, tuple(self._operands()), self._held.dtype)
        added = replace(self._found.block, buffer=self._held, indices=self._number, value=value)

        def rule(node: Stmt) -> Stmt | None:
            if node is self._loop:
                return added
            starts = isinstance(node, Seq) and any(self._sets(child) for child in node.stmts)
            if not isinstance(node, Seq) or not starts:
                return None
            return Seq(tuple(s for child in node.stmts for s in self._around(child)))

        return rewrite(self._nest, rule)

    def _sets(self, stmt: Stmt) -> bool:
        """Whether the statement sets the accumulators to their start."""
        return [b.name for b in blocks(stmt)] == [f"{self._found.block.name}.init"]

    def _around(self, child: Stmt) -> Iterable[Stmt]:
        """The sum between what sets its tiles and what stores them; other statements as they are.

        What sets the accumulators element by element is left out.
        """
        block = self._found.block
        if [b.name for b in blocks(child)] != [block.name]:
            return () if self._sets(child) else (child,)
        around = [n for n in loops(child) if not n.reduce]
        zero = const(0, self._held.dtype)
        start = Block(f"{block.name}.init", self._held, self._number, zero)
        load = Load(self._held, self._number)
        stored = Block(f"{block.name}.store", block.buffer, self._first, load)
        return (_nested(around, start, "init"), child, _nested(around, stored, "store"))

    def _operands(self) -> Iterable[Load]:
        """Loads of the operands' tiles, in the intrinsic's order."""
        for number, load in enumerate(self._found.reads):
            position = self._found.tile(number)
            assert position is not None, "`mismatch` has asked"
            kind = self._tile(load.buffer.dtype, self._found.wanted(number).indices, position)
            yield read_as(load, kind, position.origin)


def _nested(loops: Sequence[For], block: Block, suffix: str) -> Stmt:
    """The block in loops of its own like those."""
    names = {n.var: Var(f"{n.var.name}.{suffix}") for n in loops}
    renamed = [replace(n, var=names[n.var]) for n in loops]
    return nested(renamed, substitute_stmt(block, names))


def tile_registers(statements: Sequence[Statement], function: Function) -> tuple[Statement, ...]:
    """The body of a kernel with statements on tiles as steps on tile registers by number.

    What a kernel holds throughout, its accumulators, comes first. Operands get the register that
    became free last, and a new one where none is free: the fewer a loop names, the more the
    processor has left to load into while products wait (Emerald Rapids, both threads of a core at
    work: a product of 2 x 2 tiles takes 25 ns with eight registers, 20 with seven, of 3 x 1 tiles
    24 with seven, 17 with five). A register keeps the shape that it is configured for.

    Raises: CodegenError where there are too few.
    """
    allocation = _TileRegisters(function)
    body = tuple(allocation.of(statements))
    configuration = TileConfiguration(function, tuple(allocation.shapes))
    return (configuration, *body, TileStep(function, "RELEASE"))


@dataclass
class _TileRegisters:
    """The tile registers in use."""

    function: Function
    shapes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Rows, and bytes of each, of each register so far."""
    _free: list[int] = field(default_factory=list[int])
    """Those that may be used again, the last ones to become free last."""
    _held: dict[str, int] = field(default_factory=dict[str, int])
    """Name -> its register."""

    def of(self, statements: Sequence[Statement]) -> Iterable[Statement]:
        """The statements with registers by number; those that they declare are free afterwards."""
        last = {n: i for i, s in enumerate(statements) for n in _tile_names(s)}
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
                    self._hold(name.name, name.dtype)
            case Declare(name, MemoryLoad() as read) if tile_type(name.dtype):
                yield self._load(name.name, read)
            case Assign(targets, Literal()) if tile_type(targets[0].dtype):
                for name in targets:
                    yield TileStep(self.function, "ZERO", (self._held[name.name],))
            case Assign((target,), Operation(args=args)) if kind := tile_type(target.dtype):
                yield from self._product(target, kind, args)
            case Store(at, Name(dtype=dtype) as name) if kind := tile_type(dtype):
                sizes = (kind.pitch, kind.rows)
                yield TileStep(self.function, "STORE", (self._held[name.name],), at, sizes)
            case ForLoop(name, extent, unroll, notes, body):
                yield ForLoop(name, extent, unroll, notes, tuple(self.of(body)))
            case If(tests, then, otherwise):
                yield If(tests, tuple(self.of(then)), tuple(self.of(otherwise)))
            case _:
                yield statement

    def _product(self, target: Name, kind: Tile, args: Sequence[Value]) -> Iterable[Statement]:
        """The step that adds a product, after loads of operands that have no name."""
        unnamed = [str(arg) for arg in args[:2] if isinstance(arg, MemoryLoad)]
        for arg in args[:2]:
            if isinstance(arg, MemoryLoad):
                yield self._load(str(arg), arg)
        registers = [self._held[str(arg)] for arg in args[:2]]
        numbers = (self._held[target.name], *registers)
        packs = self.shapes[registers[1]][0]
        yield TileStep(self.function, "DOT", numbers, sizes=(kind.rows, packs))
        self._free += [self._held.pop(name) for name in dict.fromkeys(unnamed)]

    def _load(self, name: str, read: MemoryLoad) -> Statement:
        kind = tile_type(read.dtype)
        assert kind is not None, "its register holds a tile"
        register = self._hold(name, read.dtype)
        return TileStep(
            self.function, "LOAD", (register,), read.at, (kind.pitch, *self.shapes[register])
        )

    def _hold(self, name: str, dtype: DType) -> int:
        """A register for a tile of that type, from now on under that name."""
        kind, most = tile_type(dtype), intrinsic(self.function.op).registers
        assert kind is not None, "the caller has looked"
        shape = kind.rows, kind.columns * kind.itemsize
        register = next((n for n in reversed(self._free) if self.shapes[n] == shape), None)
        if register is not None:
            self._free.remove(register)
        elif len(self.shapes) < most:
            self.shapes.append(shape)
            register = len(self.shapes) - 1
        else:
            raise CodegenError(f"{name}: more than {most} matrix registers")
        self._held[name] = register
        return register


def _tile_names(statement: Statement) -> set[str]:
    """The tiles that a statement touches."""
    return {p.name for p in parts(statement) if isinstance(p, Name) and tile_type(p.dtype)}
