"""A sketch's program as what its cost depends on: nests of loops by level, for all candidates.

This is the one walk over a program that estimates make. A kernel is some nests, each of them one
block with its loops. Sizes are arrays over the candidates, float64 [n], and bytes are those of the
elements' types. Read `BlockNest`; `Accesses` says what the block reads.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeGuard

import numpy as np

from retune.core.dtypes import FLOAT32, itemsize
from retune.core.target import DeviceSpec
from retune.intrinsics import Implementation, Match, intrinsic, match
from retune.ir.evaluate import Formulas
from retune.ir.expr import Binary, Buffer, Expr, Load, Var, conjuncts, const, size_variables, walk
from retune.ir.simplify import affine, simplify
from retune.ir.stmt import For, blocks, expressions, is_compile_time
from retune.schedule.access import Accesses, AffineAccess
from retune.schedule.space import Sketch
from retune.targets.cost.conflicts import WAY_BYTES, crowded
from retune.targets.tiling import LANE, PACK, REGISTER, VIRTUAL, Level

Array = np.ndarray

_LEAST_TILE, _PARTS = 4, 3
"""Of which lowering makes short ones, and of how many parts: `codegen.passes.last_tiles`."""


def on(loops: Iterable[For], *levels: Level) -> list[For]:
    """The loops that run on one of these levels."""
    runs = [kind for level in levels for kind in level.runs]
    return [loop for loop in loops if loop.kind in runs]


def off(loops: Iterable[For], *levels: Level) -> list[For]:
    """The loops that run on none of these levels."""
    runs = [kind for level in levels for kind in level.runs]
    return [loop for loop in loops if loop.kind not in runs]


def moving(operand: AffineAccess, loops: Iterable[For]) -> list[For]:
    """The loops that change which element it is."""
    return [loop for loop in loops if loop.var in operand.changing]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """An extent that depends on sizes, and the tiles that loops come to. Rows of numbers."""

    extent: int
    length: int
    """Of a tile."""
    covered: int
    """Tiles: those inside the extent, and others that a guard skips."""
    moved: bool
    """Whether tiles that would end behind the extent are moved back."""
    counting: frozenset[Var]
    """The loops that say which tile it is."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockNest:
    """One block with the loops around it. Rows are places of values in `numbers`."""

    accesses: Accesses
    extents: Mapping[Var, int]
    """Rows of the loops' extents."""
    unrolled: Mapping[Var, int]
    """Rows of how many iterations the device's compiler is asked to unroll."""
    shapes: Mapping[AffineAccess, Sequence[int]]
    """Rows of the extents of all that an operand is an element of."""
    maps: Mapping[str, AffineAccess]
    """What it reads or writes of maps between kernels, by the map's name."""
    broadcasts: Sequence[Sequence[tuple[int, int]]]
    """For each read of one number for all lanes: the loops that write it out, by the rows of their
    copies, and of the bytes between what two neighbouring copies read, 0 where that varies."""
    private: Sequence[Sequence[tuple[int, int]]] = ()
    """For what it reads and writes of private arrays: the same of the loops that are written out.
    """
    tails: Sequence[Tail] = ()
    """Of extents that guards keep it to."""
    numbers: Array = field(default_factory=lambda: np.empty((0, 0)))
    """Of all candidates. float64 [rows, n]"""

    @property
    def loops(self) -> tuple[For, ...]:
        """Those around the block, from the outermost."""
        return self.accesses.loops

    @property
    def handed_over(self) -> bool:
        """Whether it reads what another kernel writes."""
        return bool(self.maps.keys() - {self.accesses.block.buffer.name})

    @cached_property
    def one(self) -> Array:
        """1 for each candidate."""
        return np.ones(self.numbers.shape[1])

    def extent(self, loop: For) -> Array:
        """Iterations of a loop."""
        return self.numbers[self.extents[loop.var]]

    def unroll_factor(self, loop: For) -> Array:
        """How many of a loop's iterations the device's compiler is asked to unroll."""
        return self.numbers[self.unrolled[loop.var]]

    def crowds(self, tiles: Sequence[Sequence[tuple[int, int]]], spec: DeviceSpec) -> Array:
        """Which of the tiles, such as `private`, read more lines of one set of the nearest cache
        than it has. bool [tiles, n]"""
        ways = max(1, spec.l1_bytes // WAY_BYTES)
        axes = [[(self.numbers[i], self.numbers[j]) for i, j in tile] for tile in tiles]
        found = [crowded(each, ways, len(self.one)) for each in axes]
        return np.array(found, bool).reshape(len(tiles), len(self.one))

    def size(self, loops: Iterable[For]) -> Array:
        """Iterations of all these loops."""
        total = self.one
        for loop in loops:
            total = total * self.extent(loop)
        return total

    def footprint(self, operand: AffineAccess, loops: Iterable[For]) -> Array:
        """Bytes of an operand that these loops read."""
        return operand.item_bytes * self.size(moving(operand, loops))

    def repeats(self, operand: AffineAccess, loops: Iterable[For]) -> Array:
        """How often these loops come to the same element of an operand."""
        return self.size(loop for loop in loops if loop.var not in operand.changing)

    def buffer_bytes(self, operand: AffineAccess) -> Array:
        """Bytes of all that an operand is an element of."""
        total = operand.item_bytes * self.one
        for row in self.shapes[operand]:
            total = total * self.numbers[row]
        return total

    @cached_property
    def work(self) -> Array:
        """Iterations of the block, without those past the end of an extent that sizes state."""
        return self.size(self.loops) * self.inside(self.loops)

    def inside(self, loops: Iterable[For]) -> Array:
        """The part of these loops' iterations that guards let through, on the average."""
        own, total = {loop.var for loop in loops}, self.one
        for tail in self.tails:
            if tail.counting & own:
                total = total * np.minimum(1.0, self._share(tail))
        return total

    def _share(self, tail: Tail) -> Array:
        """The part of what loops come to along an axis that is inside the extent: whole tiles."""
        tiles = np.ceil(self.numbers[tail.extent] / self.numbers[tail.length])
        return tiles / self.numbers[tail.covered]

    @cached_property
    def short_tiles(self) -> tuple[Array, Array]:
        """The part of its tiles that are short ones, and how long these are as a part of a whole.

        They are the last ones along the axis with most of a tile: `codegen.passes.last_tiles`.
        """
        part, short = 0.0 * self.one, self.one
        lengths = [self.numbers[tail.length] for tail in self.tails if tail.moved]
        for tail, length in zip((t for t in self.tails if t.moved), lengths, strict=True):
            extent = self.numbers[tail.extent]
            last = (extent - 1.0) % length  # row of the last tile that is inside
            own = np.ceil(length * (np.floor(_PARTS * last / length) + 1.0) / _PARTS)
            is_last = (length >= _LEAST_TILE) & (length == np.maximum.reduce(lengths))
            is_short = is_last & (own < length)
            part = np.where(is_short, 1.0 / np.ceil(extent / length), part)
            short = np.where(is_short, own / length, short)
        return part, short

    @cached_property
    def copies(self) -> list[For]:
        """The loops over the results that are written out side by side, and held at once."""
        return on(self.accesses.results, VIRTUAL, REGISTER, LANE)

    @cached_property
    def lanes(self) -> Array:
        """Elements of a vector."""
        return self.size(on(self.loops, LANE))

    def turns(self, spec: DeviceSpec) -> Array:
        """Turns of a core's datapath that an operation on a vector of four-byte elements takes."""
        bits = 8.0 * itemsize(FLOAT32) * self.lanes
        return np.maximum(1.0, bits / (spec.datapath_bits or np.inf))

    @cached_property
    def packs(self) -> Array:
        """Iterations that an instruction replaces in a lane."""
        return self.size(on(self.loops, PACK))

    def implementation(self, spec: DeviceSpec) -> Implementation | None:
        """How the device computes the block's intrinsic; None for a block of none."""
        for loop in [n for n in self.loops if n.intrinsic]:
            found = match(intrinsic(loop.intrinsic), loop)
            if isinstance(found, Match):
                signature = found.signature(int(self.lanes[0]))
                return found.entry.implementation(signature, spec.instructions)
        return None


Kernel = Sequence[BlockNest]
"""The nests that are launched at once; there is at least one."""


def parallel_extent(kernel: Kernel, level: Level) -> Array:
    """Iterations that a level runs: work-groups, or the items of one.

    A loop inside another one over the same axis of it shares out a piece of work.
    """
    axes = ({loop.kind: loop for loop in on(nest.loops, level)}.values() for nest in kernel)
    return np.maximum.reduce([nest.size(a) for nest, a in zip(kernel, axes, strict=True)])


def kernels(sketch: Sketch, rows: Array) -> list[Kernel]:
    """The kernels that run; what is evaluated at compile time costs nothing."""
    formulas, roots = _nests(sketch)
    numbers = formulas(sketch.at_hand(rows), len(rows))
    return [[replace(nest, numbers=numbers) for nest in nests] for nests in roots]


@lru_cache(maxsize=256)
def _nests(sketch: Sketch) -> tuple[Formulas, list[list[BlockNest]]]:
    formulas, scratch = Formulas(), sketch.program.scratch
    return formulas, [
        [_nest(Accesses.of(block, root), formulas, scratch) for block in blocks(root)]
        for root in sketch.program.body.stmts
        if not is_compile_time(root)
    ]


def _nest(stage: Accesses, formulas: Formulas, scratch: Sequence[Buffer]) -> BlockNest:
    row, known = formulas.row, (stage.result, *stage.operands)

    def steps(operand: AffineAccess) -> list[tuple[int, int]]:
        return [
            (row(loop.extent), row(operand.stride(loop.var) * operand.item_bytes))
            for loop in on(stage.results, REGISTER)
        ]

    return BlockNest(
        accesses=stage,
        extents={loop.var: row(loop.extent) for loop in stage.loops},
        unrolled={x.var: row(const(1) if x.unroll is None else x.unroll) for x in stage.loops},
        shapes={o: [row(extent) for extent in o.load.buffer.shape] for o in known},
        maps={
            o.load.buffer.name: o for o in known if o.scope == "global" and o.load.buffer in scratch
        },
        broadcasts=[
            steps(o)
            for o in stage.operands
            if o.scope == "global" and not moving(o, on(stage.loops, LANE))
        ],
        private=[steps(o) for o in known if o.scope == "private"],
        tails=list(_tails(stage, formulas)),
    )


def _tails(stage: Accesses, formulas: Formulas) -> Iterable[Tail]:
    """Of each extent to which a guard keeps the block. Tiles are what is written out."""
    written = [loop.var for loop in on(stage.loops, REGISTER, LANE)]
    starts = {n.a for e in expressions(stage.block) for n in walk(e) if _is_least(n)}
    found: dict[frozenset[Var], Tail] = {}
    for term in conjuncts(stage.block.guard):
        if not isinstance(term, Binary) or term.op != "lt" or not size_variables(term.b):
            continue
        split = affine(simplify(term.a), [loop.var for loop in stage.loops])
        counting = [n for n in stage.loops if split and n.var in split[0] and n.var not in written]
        if split is None or not counting or split[1] != const(0):
            continue
        covered: Expr = const(1)
        for loop in counting:
            covered = covered * loop.extent
        own = frozenset(loop.var for loop in counting)
        found[own] = Tail(
            extent=formulas.row(term.b),
            length=formulas.row(split[0][counting[-1].var]),
            covered=formulas.row(covered),
            moved=term.a in starts,
            counting=own,
        )
    return found.values()


def _is_least(expr: Expr) -> TypeGuard[Binary]:
    return isinstance(expr, Binary) and expr.op == "min"


def operators(value: Expr) -> int:
    """Operators and functions on elements; not those of their indices."""
    if isinstance(value, Load) or not value.children:
        return 0
    return 1 + sum(map(operators, value.children))
