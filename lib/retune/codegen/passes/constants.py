"""Constants: stages that numpy computes at compile time, and the order in which kernels read them.

A scratch buffer of scope `constant` is written by such a stage. Its nest becomes no kernel; what
reads it gets an array that was made, in numpy, from the constants behind it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from retune.codegen.source import Pack
from retune.intrinsics import Intrinsic, intrinsic
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Redirection,
    Var,
    binary,
    const,
    loads,
    select,
    size_variables,
    substitute,
    variables,
    walk,
)
from retune.ir.interp import run_program
from retune.ir.selections import conditions
from retune.ir.simplify import (
    Polynomial,
    Ranges,
    add_terms,
    bounds,
    from_polynomial,
    polynomial,
    range_below,
    simplify,
)
from retune.ir.stmt import (
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    expressions,
    is_compile_time,
    map_exprs,
    paths,
    with_body,
)

_INNERMOST = {"local.2": 1, "local.1": 2, "local.0": 3, "vectorize": 4, "intrinsic": 5}
"""Loops whose elements lie side by side in a packed operand: what items read at once does, and of
each of them lanes, of a word each."""
_ITEMS = "local.1"
"""Items of a warp that have columns of their own, see `_by_items`."""

_MOST_MOVED = 32
"""Vectors at most of a tile that was moved back to the end of an axis."""
_KEPT = 4
"""Constants that stay computed: tens of megabytes each."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A constant that stages compute from others. `apply` takes those in the order of `inputs`."""

    nests: tuple[Stmt, ...]
    """The stages, producers first."""
    inputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    result: Buffer
    order: Pack | None = None
    """How the result is packed, where a kernel wants it in its own order."""

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The constant, flat, in the order in which it is read: [elements of its buffer]."""
        made = _evaluated(replace(self, order=None), tuple(map(_Given, arrays)))
        return made.reshape(-1) if self.order is None else self.order.apply(made)


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """An array that is the same as another one only if it is that one."""

    array: np.ndarray

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Given) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


@lru_cache(maxsize=_KEPT)
def _evaluated(constant: Computed, given: tuple[_Given, ...]) -> np.ndarray:
    """The constant in its own shape. Candidates of one task share it, whatever order they want."""
    arrays = {
        buffer.name: entry.array.reshape([evaluate_int(e) for e in buffer.shape])
        for buffer, entry in zip(constant.inputs, given, strict=True)
    }
    program = Program(
        name="constants",
        inputs=constant.inputs,
        outputs=(constant.result,),
        scratch=constant.scratch,
        body=Seq(constant.nests),
    )
    made = run_program(program, arrays, _deciding(constant.nests))[constant.result.name]
    made.setflags(write=False)
    return made


def computed_constants(program: Program) -> dict[str, Computed]:
    """What the program's compile-time stages compute, by the names of their buffers."""
    known: dict[Buffer, tuple[Stmt, ...]] = {}
    found: dict[str, Computed] = {}
    for root in program.body.stmts:
        buffer = blocks(root)[0].buffer
        if not is_compile_time(root):
            continue
        read = {load.buffer for b in blocks(root) for load in loads(b.value)}
        before = {s: None for r in known if r in read for s in known[r]}
        known[buffer] = (*before, root)
        touched = {load.buffer for s in known[buffer] for b in blocks(s) for load in loads(b.value)}
        found[buffer.name] = Computed(
            known[buffer],
            tuple(b for b in program.inputs if b in touched),
            tuple(b for b in known if b in touched and b != buffer),
            buffer,
        )
    return found


def packed(computed: Mapping[str, Computed], packs: Mapping[str, Pack]) -> dict[str, Pack]:
    """All packs: those of computed constants after their computation."""
    chained = {n: replace(c, order=packs.get(n)) for n, c in computed.items()}
    return {**packs, **chained}


def _deciding(nests: Sequence[Stmt]) -> set[Var]:
    """The variables that choose among the rows of a transform: each chosen formula is short.

    A single choice is made for all points at once: both of its sides are evaluated.
    """
    tests = (conditions(block.value) for nest in nests for block in blocks(nest))
    return {var for several in tests if len(several) > 1 for t in several for var in variables(t)}


@dataclass(frozen=True, slots=True)
class GatherPack:
    """A constant operand laid out in the order of the loops that read it.

    `packed[loops] = source[indices(loops)]`, with loops from the outermost to the innermost.
    """

    shape: tuple[int, ...]
    """Shape of the source array."""
    extents: tuple[int, ...]
    loops: tuple[Var, ...]
    indices: tuple[Expr, ...]

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The packed copy of the one array: [product of extents], of its type.

        Raises: ValueError for an array of another size than `shape` says.
        """
        (array,) = arrays
        source = array.reshape(self.shape)
        env = {
            var: np.arange(extent).reshape([-1 if d == i else 1 for d in range(len(self.loops))])
            for i, (var, extent) in enumerate(zip(self.loops, self.extents, strict=True))
        }
        grids = tuple(
            np.clip(np.asarray(evaluate(i, env)), 0, n - 1)  # past the end only behind a guard
            for i, n in zip(self.indices, self.shape, strict=True)
        )
        gathered = np.broadcast_to(source[grids], self.extents)
        return np.ascontiguousarray(gathered).reshape(-1)


def pack_constants(
    parts: Sequence[Program], *, panels: bool = False
) -> tuple[list[Program], dict[str, Pack]]:
    """Packed operands become buffers indexed by loop variables alone; their packs by name.

    `parts` are the nests of one program, which share its constants: one that they do not all read
    in one order stays as it is, and is packed no longer. With `panels`, those that vectors go along
    an axis of are stored by vectors of that axis instead, which is one order for all tile sizes.
    """
    packs: dict[str, Pack] = {}
    made = list(parts)
    names = dict.fromkeys(name for part in parts for name in part.packed)
    for name in names:
        found = [_reads_of(part, name) for part in made]
        stored = _in_panels(found) if panels else None
        if stored := stored or _in_one_order(found):
            packs[name], reads = stored
            buffer = next(load.buffer for own in reads for load in own.values())
            made = [_repoint(part, buffer, own) for part, own in zip(made, reads, strict=True)]
    return [replace(p, packed=tuple(n for n in p.packed if n in packs)) for p in made], packs


_Stored = tuple[GatherPack, list[dict[Load, Load]]]
"""A pack, and what each nest reads of it instead of what it read before."""


def _in_one_order(found: "Sequence[Sequence[_Read]]") -> _Stored | None:
    """The constant in the order of its reads; None if they have several, or that of each size."""
    reads = [read for own in found for read in own]
    if not reads or any(read.sized for read in reads):
        return None
    reads = [_by_distinct(read) for read in reads]
    if any(read.order != reads[0].order for read in reads[1:]):
        return None
    buffer = reads[0].packed.buffer
    packed = {read.load: replace(read.packed, buffer=buffer) for read in reads}
    return reads[0].pack, [{read.load: packed[read.load] for read in own} for own in found]


def _in_panels(found: "Sequence[Sequence[_Read]]") -> _Stored | None:
    """The constant by panels; None if some read does not go along them by whole vectors."""
    panels = {read.panels for own in found for read in own}
    if len(panels) != 1 or (one := panels.pop()) is None:
        return None
    return one.pack, [{read.load: one.read(read) for read in own} for own in found]


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a constant, and the loops that choose its elements, from the outermost.

    Some may be parts of those that there are.
    """

    load: Load
    loops: tuple[For, ...]
    positions: tuple[Expr, ...]
    """Of each loop: where it is, by the variables that there are."""
    indices: tuple[Expr, ...]
    """What is read, by the variables of the loops."""

    @property
    def sized(self) -> bool:
        """Whether its order is another one for each size, as where an axis is fused with a batch:
        constants do not depend on sizes."""
        extents = (loop.extent for loop in self.loops)
        return any(map(size_variables, (*extents, *self.indices)))

    @property
    def lane(self) -> For | None:
        """The loop whose iterations are the lanes of a vector of it."""
        inner = [loop for loop in self.loops if loop.kind in _INNERMOST]
        is_plain = len(inner) == 1 and inner[0].kind == "vectorize"
        return inner[0] if is_plain and isinstance(inner[0].extent, Const) else None

    @property
    def ranges(self) -> Ranges:
        """Of the loops' variables."""
        return {loop.var: range_below(loop.extent) for loop in self.loops}

    @property
    def panels(self) -> "_Panels | None":
        """The panels that it reads whole vectors of; None where it reads parts of some, or may read
        behind the end, where it is guarded."""
        if (lane := self.lane) is None:
            return None
        along = [d for d, i in enumerate(self.load.indices) if lane.var in variables(i)]
        made = _Panels(self.load.buffer, along[0], evaluate_int(lane.extent), lane.reduce)
        number = made.number(self.load, lane.var, self.ranges)
        return made if len(along) == 1 and number is not None else None

    @property
    def pack(self) -> GatherPack:
        """The constant in the order of this read."""
        return GatherPack(
            tuple(evaluate_int(e) for e in self.load.buffer.shape),
            tuple(evaluate_int(loop.extent) for loop in self.loops),
            tuple(loop.var for loop in self.loops),
            self.indices,
        )

    @property
    def order(self) -> object:
        """Equal for reads of one order, whatever the names of their loops."""
        positions: dict[Var, Expr] = {loop.var: Var(str(n)) for n, loop in enumerate(self.loops)}
        return self.pack.extents, tuple(substitute(i, positions) for i in self.indices)

    @property
    def packed(self) -> Load:
        """The same element of the packed constant."""
        old = self.load.buffer
        shape = tuple(loop.extent for loop in self.loops)
        return Load(Buffer(old.name, shape, old.dtype, old.scope), self.positions)


@dataclass(frozen=True, slots=True)
class _Panels:
    """A constant by panels: as many neighbours along an axis as a vector has lanes, for all
    positions along the other axes, in order.

        w: [k, n]   ->   [n/16, k, 16]

    Where vectors do not divide the axis, what tiles that were moved back to its end read comes
    behind them: panels that begin as far from its start as the last ones are from its end.
    """

    buffer: Buffer
    axis: int
    lanes: int
    reduced: bool
    """Whether vectors go along steps of a reduction: their panels lie one behind the other then."""

    @property
    def whole(self) -> int:
        """Panels from the start of the axis on."""
        return evaluate_int(self.buffer.shape[self.axis]) // self.lanes

    @property
    def rest(self) -> int:
        """Elements that are left of the axis: where those at its end begin."""
        return evaluate_int(self.buffer.shape[self.axis]) % self.lanes

    @property
    def moved(self) -> int:
        """Panels at the end."""
        return min(self.whole, _MOST_MOVED) if self.rest else 0

    def _in_order(self, number: Expr, others: Sequence[Expr], lane: Expr) -> tuple[Expr, ...]:
        own = [e for d, e in enumerate(others) if d != self.axis]
        return (*own, number, lane) if self.reduced else (number, *own, lane)

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Of the constant by panels."""
        count = const(self.whole + self.moved)
        return self._in_order(count, self.buffer.shape, const(self.lanes))

    @property
    def pack(self) -> GatherPack:
        """The constant in this order; it is the same for all reads."""
        positions = [Var(f"at{d}") for d in range(len(self.buffer.shape))]
        panel, lane = Var("panel"), Var("lane")
        back = const(self.rest - self.moved * self.lanes)
        moved = select(panel < self.whole, const(0), back) if self.rest else const(0)
        indices: list[Expr] = [*positions]
        indices[self.axis] = panel * self.lanes + lane + moved
        return GatherPack(
            tuple(map(evaluate_int, self.buffer.shape)),
            tuple(map(evaluate_int, self.shape)),
            tuple(v for v in self._in_order(panel, positions, lane) if isinstance(v, Var)),
            tuple(indices),
        )

    def number(self, load: Load, lane: Var, ranges: Ranges) -> Expr | None:
        """Of the panel that a load reads a whole vector of; None if it reads parts of two, or may
        read behind the end, where it is guarded."""
        terms = polynomial(load.indices[self.axis])
        if terms.pop((lane,), 0) != 1:
            return None
        behind: Expr = const(0)
        for monomial in [*terms]:
            match monomial:
                case (Binary("min", a, Const(last)),) if self.rest and last % self.lanes:
                    first = (int(last) - self.rest) // self.lanes
                    if last % self.lanes != self.rest or first < self.whole - self.moved:
                        return None
                    behind = select(a < last, const(0), const(self.moved))
                    aligned = binary("min", a, const(first * self.lanes))
                    terms[(aligned,)] = terms.pop(monomial)
                case _:
                    pass
        number = _part(terms, self.lanes)
        span = None if number is None else bounds(number, ranges)
        if number is None or span is None or span.low < 0 or span.high >= self.whole:
            return None
        return number + behind

    def read(self, read: _Read) -> Load:
        """The same element of the constant by panels."""
        assert read.lane is not None, "it reads whole vectors"
        number = self.number(read.load, read.lane.var, read.ranges)
        assert number is not None, "it reads whole vectors"
        buffer = Buffer(self.buffer.name, self.shape, self.buffer.dtype, self.buffer.scope)
        return Load(buffer, self._in_order(number, read.load.indices, read.lane.var))


def _part(terms: Polynomial, unit: int) -> Expr | None:
    """`terms / unit`; None if they are not known to be a multiple of it."""
    parts: Polynomial = {}
    for monomial, coefficient in terms.items():
        if coefficient % unit == 0:
            add_terms(parts, {monomial: coefficient // unit}, 1)
            continue
        match monomial:
            case (Binary("min" | "max" as op, a, b),):
                left, right = _part(polynomial(a), unit), _part(polynomial(b), unit)
                if left is None or right is None:
                    return None
                add_terms(parts, {(binary(op, left, right),): coefficient}, 1)
            case _:
                return None
    return from_polynomial(parts)


def _reads_of(part: Program, name: str) -> list[_Read]:
    return [
        _read(load, path)
        for block, path in paths(part.body)
        for expr in expressions(block)
        for load in loads(expr)
        if _is_constant(load, name)
    ]


def _is_constant(load: Load, name: str) -> bool:
    """Whether it reads that constant: a stage that moved into a loop is none any more."""
    return load.buffer.name == name and load.buffer.scope == "constant"


def _read(load: Load, path: Sequence[For]) -> _Read:
    used = {v for i in load.indices for v in variables(i)}
    own = [loop for loop in path if loop.var in used]
    entry = next((intrinsic(loop.intrinsic) for loop in path if loop.intrinsic), None)
    by_warps = entry if entry is not None and entry.warp is not None else None

    def rank(loop: For) -> int:
        own = by_warps is not None and loop.kind.startswith("local")
        return 0 if own else _INNERMOST.get(loop.kind, 0)

    around = sorted(own, key=rank)
    read = _Read(load, tuple(around), tuple(loop.var for loop in around), load.indices)
    return _by_items(read, by_warps) if by_warps is not None else read


def _by_items(read: _Read, entry: Intrinsic) -> _Read:
    """What all items of a warp read at once lies side by side, in the order of the items.

    An item reads several packs along the steps, see `Fragment`: the first one of each item comes
    first, then the second ones. Items along local.0 are the innermost ones.
    """
    share = len(entry.operands[1].fragment.steps) if entry.operands[1].fragment else 1
    items = [loop for loop in read.loops if loop.kind == _ITEMS]
    others = [loop for loop in read.loops if loop.kind != _ITEMS]
    number, steps = next((n, x) for n, x in enumerate(others) if x.kind == "intrinsic")
    if not items or evaluate_int(steps.extent) % share:
        return read
    own, part = Var(f"{steps.var.name}.item"), Var(f"{steps.var.name}.share")
    loops = [
        *others[:number],
        replace(steps, var=part, extent=const(share)),
        *items,
        replace(steps, var=own, extent=const(evaluate_int(steps.extent) // share)),
        *others[number + 1 :],
    ]
    positions: dict[Var, Expr] = {part: steps.var % share, own: steps.var // share}
    chosen: dict[Var, Expr] = {steps.var: own * share + part}
    return _Read(
        read.load,
        tuple(loops),
        tuple(positions.get(loop.var, loop.var) for loop in loops),
        tuple(substitute(i, chosen) for i in read.load.indices),
    )


def _by_distinct(read: _Read) -> _Read:
    """The read by loops whose iterations read different elements: where loops were fused, some of
    them may choose none, as images choose no weights."""
    for number, loop in enumerate(read.loops):
        divided = loop.kind not in _INNERMOST and loop.var in _divided(read.indices)
        for count in _divisors(evaluate_int(loop.extent)) if divided else ():
            own, rest = Var(f"{loop.var.name}.own"), Var(f"{loop.var.name}.rest")
            fewer = replace(loop, var=own, extent=const(evaluate_int(loop.extent) // count))
            ranges = {own: range_below(fewer.extent), rest: range_below(const(count))}
            ranges, whole = {**read.ranges, **ranges}, {loop.var: own * count + rest}
            moved = [simplify(substitute(i, whole), ranges) for i in read.indices]
            if any(rest in variables(i) for i in moved):
                continue
            loops, positions = [*read.loops], [*read.positions]
            loops[number], positions[number] = fewer, positions[number] // count
            read = _Read(read.load, tuple(loops), tuple(positions), tuple(moved))
            break
    used = {v for i in read.indices for v in variables(i)}
    kept = [n for n, loop in enumerate(read.loops) if loop.var in used]
    return replace(
        read,
        loops=tuple(read.loops[n] for n in kept),
        positions=tuple(read.positions[n] for n in kept),
    )


def _divided(indices: Iterable[Expr]) -> set[Var]:
    """The variables of what is divided in indices."""
    quotients = (e for i in indices for e in walk(i) if isinstance(e, Binary))
    return {v for e in quotients if e.op == "floordiv" for v in variables(e.a)}


def _divisors(number: int) -> list[int]:
    """Those above 1, the largest first."""
    return [n for n in range(number, 1, -1) if number % n == 0]


def _repoint(part: Program, packed: Buffer, swapped: Mapping[Load, Load]) -> Program:
    """The nest, which reads the packed constant instead of the one of that name."""
    body = map_exprs(part.body, Redirection(swapped.get))
    inputs = tuple(packed if b.name == packed.name else b for b in part.inputs)
    return replace(with_body(part, body), inputs=inputs)
