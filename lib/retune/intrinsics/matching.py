"""Matching of loop nests with intrinsics, and the reason where they differ.

`match` takes a loop nest apart by the intrinsic's pattern: as many loops, of its extents, around
one block, whose value is the pattern's with reads of its operands in place. `mismatch` says besides
whether the elements of each pack lie side by side, for buffers whose order is settled.

A byte may also be a part of a word that is read, as packed weights have them: `Part`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod

from retune.core.dtypes import INT32, UINT7, UINT8, DType, packed
from retune.intrinsics.intrinsic import Intrinsic, Signature
from retune.ir.expr import (
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Scope,
    Select,
    Var,
    as_expr,
    binary,
    bitcast,
    const,
    loads,
    substitute,
    variables,
    walk,
)
from retune.ir.flat import elements, flat_index, flat_terms
from retune.ir.reduction import reduce_loops
from retune.ir.simplify import Polynomial, from_polynomial, polynomial, simplify
from retune.ir.stmt import Block, For, Stmt, blocks, loops, paths

_COMMUTATIVE = ("add", "mul", "min", "max")


@dataclass(frozen=True, slots=True)
class Part:
    """Bits of a word of memory: `word >> shift & mask`, at most a byte of an int32.

    The same bits of each byte are a pack of bytes, without a sign: `(word >> rest) & mask` in all.
    """

    word: Load
    shift: Expr
    mask: int

    @staticmethod
    def of(value: Expr) -> "Part | None":
        """The part that a value is; None for others."""
        match value:
            case Binary("bitand", Binary("shr", Load() as word, shift), Const(mask)):
                fits = word.buffer.dtype is INT32 and not loads(shift) and 0 < int(mask) <= _BYTE
                return Part(word, shift, int(mask)) if fits else None
            case _:
                return None

    def pack(self, along: Var, dtype: DType) -> Expr | None:
        """The four parts for each value of `along`, one in each byte, which has that type; None
        where they are not."""
        terms = polynomial(self.shift)
        if along in self.word_variables or terms.pop((along,), 0) != _BITS:
            return None
        if any(along in variables(atom) for monomial in terms for atom in monomial):
            return None
        mask = self.mask * 0x01010101
        kept = mask - (1 << 32) * (mask >> 31)
        moved = binary("shr", self.word, from_polynomial(terms))
        return bitcast(binary("bitand", moved, const(kept)), packed(dtype, _BITS // 2))

    @property
    def word_variables(self) -> frozenset[Var]:
        """What chooses the word."""
        return frozenset(v for index in self.word.indices for v in variables(index))


_BITS = 8
_BYTE = 255

Operand = Load | Part
"""What an element of an operand may be."""


@dataclass(frozen=True, slots=True)
class Match:
    """A nest that an intrinsic does."""

    entry: Intrinsic
    block: Block
    loops: Mapping[Var, Var]
    """The pattern's axis -> the loop's variable."""
    operands: tuple[Operand, ...]
    """In the intrinsic's order."""

    @property
    def reads(self) -> tuple[Load, ...]:
        """Of the operands, in the intrinsic's order."""
        return tuple(o if isinstance(o, Load) else o.word for o in self.operands)

    def signature(self, lanes: int = 1) -> Signature:
        """Of the function that computes it in so many lanes."""
        return Signature(tuple(map(self._element_type, range(len(self.operands)))), lanes)

    def _element_type(self, number: int) -> DType:
        operand = self.operands[number]
        if not isinstance(operand, Part):
            return operand.buffer.dtype
        taken = self.entry.operands[number].dtypes
        return UINT7 if operand.mask <= UINT7.limits[1] and UINT7 in taken else UINT8

    @property
    def magnitude(self) -> int:
        """Of its products, which are of whole numbers, the largest."""
        return prod(
            operand.mask
            if isinstance(operand, Part)
            else max(map(abs, operand.buffer.dtype.limits))
            for operand in self.operands
        )

    def pack(self, number: int) -> Expr | None:
        """The pack that an operand's elements are in; None where they are not in one."""
        along, operand = self.loops[self.entry.axes[-1].var], self.operands[number]
        if isinstance(operand, Part):
            return operand.pack(along, self._element_type(number))
        width = self.entry.operands[number].pack
        index = pack_index(operand, along, width)
        if index is None:
            return None
        return read_as(operand, packed(operand.buffer.dtype, width), index, width)

    def tile(self, number: int) -> "TileIndex | None":
        """Where the tile of an operand lies; None where it does not lie as the pattern's."""
        terms = flat_terms(self.reads[number].buffer, self.reads[number].indices)
        return _tile_index(self.wanted(number).indices, terms, self.loops)

    def wanted(self, number: int) -> Load:
        """The pattern's read of an operand."""
        name = self.entry.operands[number].name
        return next(load for load in loads(self.entry.op.body) if load.buffer.name == name)

    @property
    def result(self) -> "TileIndex | None":
        """Where the tile of results lies; None where it does not lie as the pattern's."""
        wanted = tuple(axis.var for axis in self.entry.op.axes)
        return _tile_index(wanted, flat_terms(self.block.buffer, self.block.indices), self.loops)

    def mask(self, number: int) -> Select | None:
        """The selection of an operand's elements or a number, as padding is; None without one."""
        read = self.reads[number]
        chosen = (n for n in walk(self.block.value) if isinstance(n, Select) and n.then == read)
        return next((n for n in chosen if isinstance(n.otherwise, Const)), None)

    @property
    def faces(self) -> bool:
        """Whether the first operand moves with rows, and the second one with columns, alone."""
        own = [self.loops[axis.var] for axis in self.entry.op.axes]
        moved = [{v for i in load.indices for v in variables(i)} for load in self.reads]
        return all(
            [v in found for v in own] == [n == number for n in range(len(own))]
            for number, found in enumerate(moved)
        )

    def lies(self, number: int) -> bool:
        """Whether an operand lies as the intrinsic takes it."""
        if not self.entry.op.axes:
            return self.pack(number) is not None
        fragment = self.entry.operands[number].fragment
        if fragment is not None and not fragment.rows:
            return all(self._in_lanes(number, step) for step in fragment.steps)
        if fragment is not None and self.entry.reads_locally:
            reads = product(fragment.steps, fragment.rows)
            return all(self._in_pack(number, *read) for read in reads)
        position, pack = self.tile(number), self.entry.operands[number].pack
        if position is None or self.entry.warp is None:
            return position is not None
        steps = (position.pitch, *polynomial(position.origin).values())
        return all(step % pack == 0 for step in steps)

    def at_step(self, number: int, step: Expr, chosen: Mapping[Var, Expr]) -> Expr:
        """Index of the first element that an operand is read at for a step, in packs, with other
        variables as `chosen`."""
        load, (steps, *near) = self.reads[number], self.entry.op.reduce_axes
        first = {self.loops[axis.var]: const(0) for axis in near}
        index = flat_index(load.buffer, load.indices)
        return simplify(substitute(index, {self.loops[steps.var]: step, **first, **chosen}))

    def _in_pack(self, number: int, step: Expr, row: Expr) -> bool:
        """Whether the elements that are read of a row at a step are a whole pack."""
        load, (steps, *near) = self.reads[number], self.entry.op.reduce_axes
        chosen = {steps.var: step, self.entry.op.axes[number].var: row}
        index = flat_index(load.buffer, load.indices)
        index = simplify(substitute(index, {self.loops[v]: value for v, value in chosen.items()}))
        pack = self.entry.operands[number].pack
        return _pack_at(index, self.loops[near[0].var], pack) is not None

    def _in_lanes(self, number: int, step: Expr) -> bool:
        """Whether the packs that are read at a step lie side by side, one for each column."""
        column, pack = self.loops[self.entry.op.axes[1].var], self.entry.operands[number].pack
        load, (steps, *near) = self.reads[number], self.entry.op.reduce_axes
        index = flat_index(load.buffer, load.indices)
        terms = polynomial(simplify(substitute(index, {self.loops[steps.var]: step})))
        ones = [terms.pop((self.loops[axis.var],), 0) for axis in near]
        if terms.pop((column,), 0) != pack or any(one != 1 for one in ones):
            return False
        inner = {column, *(self.loops[axis.var] for axis in near)}
        moved = {v for monomial in terms for atom in monomial for v in variables(atom)}
        return inner.isdisjoint(moved) and all(step % pack == 0 for step in terms.values())


@dataclass(frozen=True, slots=True)
class TileIndex:
    """A tile in memory: rows of neighbours, at one distance."""

    origin: Expr
    """Index of its first element."""
    pitch: int
    """Elements from a row to the next."""


def match(entry: Intrinsic, loop: For) -> Match | str:
    """The loop with all inside as the intrinsic's work, or why it is not."""
    path, inner = [loop], loop.body
    while isinstance(inner, For):
        path.append(inner)
        inner = inner.body
    if not isinstance(inner, Block) or not _sized(entry, path):
        found = " x ".join(str(n.extent) for n in path)
        around = "" if isinstance(inner, Block) else " around more than that"
        what = " x ".join(
            f"{'up to ' * (entry.least(axis) < axis.extent)}{axis.extent}" for axis in entry.axes
        )
        return f"expected a nest of {what} steps around one block, got {found}{around}"
    if [n.reduce for n in path] != [axis in entry.op.reduce_axes for axis in entry.axes]:
        return "expected its loops to reduce where the pattern's do; " + ", ".join(
            f"{n.var} does{'' if n.reduce else ' not'}" for n in path
        )
    return matching_block(entry, inner, [n.var for n in path])


def _sized(entry: Intrinsic, path: Sequence[For]) -> bool:
    """Whether the loops have as many iterations as the pattern, or fewer where they may."""
    if len(path) != len(entry.axes):
        return False
    for axis, loop in zip(entry.axes, path, strict=True):
        steps = int(loop.extent.value) if isinstance(loop.extent, Const) else 0
        if not entry.least(axis) <= steps <= axis.extent:
            return False
    return True


def matching_block(entry: Intrinsic, block: Block, own: Sequence[Var]) -> Match | str:
    """The same of a block inside loops of these variables, which are not looked at."""
    op = entry.op
    axes = dict(zip((axis.var for axis in entry.axes), own, strict=True))
    guarded = block.guard is not None and not variables(block.guard).isdisjoint(own)
    fits = block.reducer == op.reducer and block.buffer.dtype == entry.pattern.dtype
    found = [] if guarded or not fits else list(_bindings(op.body, block.value, entry, axes, {}))
    if not found:
        guard = f" where {block.guard}" if guarded else ""
        operands = ", ".join(f"{o.name} of {' or '.join(o.dtypes)}" for o in entry.operands)
        return (
            f"expected {entry.pattern.dtype} {op.reducer}s of {op.body} with {operands}; got "
            f"{block.reducer} of {block.value}{guard}"
        )
    every = [Match(entry, block, axes, tuple(b[o.name] for o in entry.operands)) for b in found]
    if entry.op.axes:
        every = [one for one in every if one.faces] or every
    if len(every) == 1 or not entry.op.axes:  # packs of either operand lie alike
        return every[0]
    return next((one for one in every if all(map(one.lies, range(len(one.reads))))), every[0])


_Bound = Mapping[str, Operand]
"""Name of an operand -> what is read for it."""


def _bindings(
    pattern: Expr, value: Expr, entry: Intrinsic, axes: Mapping[Var, Var], bound: _Bound
) -> Iterator[_Bound]:
    """What is read for each operand, wherever a value is the pattern, its factors in any order."""
    match pattern, value:
        case Load(buffer), Load():
            operand = next(o for o in entry.operands if o.name == buffer.name)
            if value.buffer.dtype in operand.dtypes and bound.get(operand.name, value) == value:
                yield {**bound, operand.name: value}
        case Cast(Load(buffer), dtype), Binary() if entry.bytes and value.dtype == dtype:
            part, operand = Part.of(value), next(o for o in entry.operands if o.name == buffer.name)
            if part and UINT8 in operand.dtypes and bound.get(operand.name, part) == part:
                yield {**bound, operand.name: part}
        case Load(), Select(_, Load() as read, Const()) if entry.warp is not None:
            yield from _bindings(pattern, read, entry, axes, bound)
        case Binary(op, a, b), Binary(other, c, d) if op == other:
            for left, right in [(c, d), (d, c)] if op in _COMMUTATIVE else [(c, d)]:
                yield from _each([(a, left), (b, right)], entry, axes, bound)
        case Cast(inner, dtype), Cast(other, made) if dtype == made:
            yield from _bindings(inner, other, entry, axes, bound)
        case (Call(), Call()) | (Select(), Select()):
            head = (type(pattern), getattr(pattern, "function", ""))
            if head == (type(value), getattr(value, "function", "")):
                pairs = list(zip(pattern.children, value.children, strict=False))
                yield from _each(pairs, entry, axes, bound)
        case Var(), Var():
            if axes.get(pattern) == value:
                yield bound
        case _:
            if pattern == value:
                yield bound


def _each(
    pairs: Sequence[tuple[Expr, Expr]], entry: Intrinsic, axes: Mapping[Var, Var], bound: _Bound
) -> Iterator[_Bound]:
    """The same of several values, each with the pattern beside it."""
    if not pairs:
        yield bound
        return
    for first in _bindings(*pairs[0], entry, axes, bound):
        yield from _each(pairs[1:], entry, axes, first)


def mismatch(entry: Intrinsic, nest: Stmt, loop: For, unordered: Scope | None = None) -> str:
    """Why the intrinsic cannot do a loop of the nest; empty where it can.

    Buffers of the scope `unordered` may yet be laid out in another order.
    """
    found = match(entry, loop)
    if isinstance(found, str):
        return found
    if entry.warp is not None and (problem := _apart(found, nest, loop)):
        return problem
    if entry.most and (problem := _too_large(found, nest)):
        return problem
    for number, load in enumerate(found.reads):
        if unordered is None and entry.reads_locally and load.buffer.scope != "local":
            return f"expected {load.buffer.name} in local memory, where items read for each other"
        if load.buffer.scope != unordered and not found.lies(number):
            width = entry.operands[number].pack
            if entry.op.axes:
                return f"expected {load} in rows of neighbours at one distance, as {entry.op.body}"
            return (
                f"the {width} elements of {load} must lie side by side in one pack; split the "
                f"last axis by {width}, of an operand whose rows are multiples of {width}, or "
                "pack a constant"
            )
        other = _touched_by_elements(entry, nest, loop, load.buffer)
        own = load.buffer.scope == "private" and load.buffer.dtype.itemsize == 1
        if other and load.buffer.scope != "local" and not own:  # bytes may be read as anything
            return f"{load.buffer} is read by packs, but {other} of the same nest touches its bytes"
    return ""


def fits_parts(found: Match, steps: Sequence[For]) -> bool:
    """Whether sums over these loops fit the parts of a lane in which an intrinsic holds them."""
    counts = [n.extent.value if isinstance(n.extent, Const) else inf for n in steps]
    return prod(counts) * found.magnitude <= found.entry.most


def _too_large(found: Match, nest: Stmt) -> str:
    """Why the sums do not fit the parts of a lane; empty where they do."""
    path = next(path for block, path in paths(nest) if block is found.block)
    steps = reduce_loops(path, found.block)
    if fits_parts(found, steps):
        return ""
    count = " x ".join(str(n.extent) for n in steps)
    return (
        f"expected products of magnitudes up to {found.entry.most} in a sum, got {count} of up to "
        f"{found.magnitude}"
    )


def item_loops(entry: Intrinsic, nest: Stmt, loop: For) -> tuple[For, For] | None:
    """The two loops over the items of a warp around a loop, local.0's first.

    None unless local.0 has as many items as the intrinsic's warp, and local.1 those of one warp or
    of several side by side.
    """
    assert entry.warp is not None, "the caller has looked"
    path = next(path for block, path in paths(nest) if block is blocks(loop)[0])
    around = {n.kind: n for n in path if n.kind in ("local.0", "local.1")}
    first, second = around.get("local.0"), around.get("local.1")
    if first is None or second is None or first.extent != const(entry.warp.first):
        return None
    whole = all(n % entry.warp.second == 0 for n in polynomial(second.extent).values())
    return (first, second) if whole else None


def _apart(found: Match, nest: Stmt, loop: For) -> str:
    """Why the items around a loop cannot do it together; empty where they can.

    All of them come to it, and each operand is moved by its own items alone. No item of the group
    writes what others read for it, but to local memory, where items wait for each other.
    """
    warp = found.entry.warp
    assert warp is not None, "the caller has looked"
    around = item_loops(found.entry, nest, loop)
    if around is None:
        return (
            f"expected it inside loops over {warp.first} items along local.0 and {warp.second} "
            "along local.1"
        )
    items = [n.var for n in around]
    guard = found.block.guard
    if guard is not None and not variables(guard).isdisjoint(items):
        return f"expected all items of a warp at it, got some: where {guard}"
    written = {block.buffer for block in blocks(nest)}
    for number, (load, own) in enumerate(zip(found.reads, items, strict=True)):
        choice = found.mask(number)
        row = found.loops[found.entry.op.axes[number].var]
        moved = {v for index in load.indices for v in variables(index)}
        tested = set(variables(choice.condition)) if choice is not None else set[Var]()
        if not (moved | tested).isdisjoint({*items} - {own}):
            return f"expected {load} to be that of all items along local.{1 - number}"
        if not tested.isdisjoint({*found.loops.values()} - {row}):
            return f"expected {load} to be padding, or none, for all of its bytes"
        if load.buffer.scope != "local" and load.buffer in written:
            return f"expected {load.buffer.name} in memory that the kernel only reads"
        if load.buffer.scope not in ("global", "constant", "local"):
            return f"expected {load.buffer.name} in memory that other items read"
    return ""


def _touched_by_elements(entry: Intrinsic, nest: Stmt, loop: For, buffer: Buffer) -> str:
    """The first block, by name, that touches the buffer otherwise; or empty."""
    done = [
        found.block
        for n in loops(nest)
        if (n.intrinsic or n is loop) and isinstance(found := match(entry, n), Match)
    ]
    for block in blocks(nest):
        touched = {block.buffer, *(load.buffer for load in loads(block.value))}
        if buffer in touched and block not in done:
            return block.name
    return ""


def _tile_index(
    wanted: Sequence[Expr], terms: Polynomial, loops: Mapping[Var, Var]
) -> TileIndex | None:
    """The tile of an element at `terms`, where the pattern reads it at the indices `wanted`."""
    row, along = wanted
    assert isinstance(row, Var)
    own, rest = set(loops.values()), dict(terms)
    pitch = rest.pop((loops[row],), 0)
    for monomial, step in polynomial(along).items():
        if rest.pop(tuple(loops[v] for v in monomial if isinstance(v, Var)), 0) != step:
            return None
    if not own.isdisjoint(v for monomial in rest for atom in monomial for v in variables(atom)):
        return None
    return TileIndex(from_polynomial(rest), pitch)


def read_as(load: Load, dtype: DType, index: Expr, width: int = 1) -> Load:
    """What lies there by values of another type, of so many elements each."""
    size = as_expr(-(-elements(load.buffer) // width))
    return Load(Buffer(load.buffer.name, (size,), dtype, load.buffer.scope), (index,))


def pack_index(load: Load, along: Var, width: int) -> Expr | None:
    """Number of the pack that holds `load` for each value of `along`; None where there is none.

    There is one if `along` runs over adjacent elements and all else moves by whole packs.
    """
    return _pack_at(flat_index(load.buffer, load.indices), along, width)


def _pack_at(index: Expr, along: Var, width: int) -> Expr | None:
    """`pack_index` of an index in elements."""
    terms = polynomial(index)
    if terms.pop((along,), 0) != 1:
        return None
    for monomial, coefficient in terms.items():
        if coefficient % width or any(along in variables(atom) for atom in monomial):
            return None
    return from_polynomial({m: c // width for m, c in terms.items()})
