"""Input of features: each block of a sketch with its loops and memory accesses.

Worked out once for a sketch. An access states how each loop moves each of its indices: a number
of steps, and the stride of a step, both expressions of the decisions. See `analyse`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np

from retune.ir.evaluate import evaluate
from retune.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    Var,
    ceildiv,
    const,
    maximum,
    minimum,
    variables,
    walk,
)
from retune.ir.stmt import STRAIGHT, Block, For, paths
from retune.schedule.space import Sketch

_MEMORY = ("global", "constant", "local")
"""Scopes whose accesses move data; private values and registers do not."""


@dataclass(frozen=True, slots=True)
class Term:
    """A loop's part in one index: as the loop runs, it takes `steps` values `stride` apart."""

    loop: int
    """Position in the nest's loops, outermost first."""
    stride: Expr
    steps: Expr


@dataclass(frozen=True, slots=True)
class Access:
    """One location in memory that a block reads or writes."""

    buffer: Buffer
    dims: tuple[tuple[Term, ...], ...]
    """The terms of each index."""
    write: bool
    packed: bool
    """True: stored in the order in which it is read."""

    @property
    def moving(self) -> frozenset[int]:
        """The loops that change what is accessed."""
        return frozenset(term.loop for terms in self.dims for term in terms)


@dataclass(frozen=True, slots=True, eq=False)
class Nest:
    """A block and the loops around it."""

    block: Block
    loops: tuple[For, ...]
    accesses: tuple[Access, ...]
    """To memory: the write if it is one, then reads; those along vector lanes come first."""
    operations: int
    """Arithmetic operations of one iteration."""
    masked: bool
    """True: the value or the block is subject to a condition."""

    @property
    def group_level(self) -> int:
        """Loops before this position run over work-groups and items."""
        parallel = [i for i, loop in enumerate(self.loops) if loop.kind[:5] in ("group", "local")]
        return max(parallel, default=-1) + 1

    @property
    def body_level(self) -> int:
        """Loops from this position on are written out or vector lanes."""
        level = len(self.loops)
        while level > 0 and self.loops[level - 1].kind in STRAIGHT:
            level -= 1
        return level

    @property
    def lane(self) -> int | None:
        """The loop whose iterations are vector lanes, or neighbouring work-items."""
        for kind in ("vectorize", "local.0"):
            for i, loop in enumerate(self.loops):
                if loop.kind == kind:
                    return i
        return None


@lru_cache(maxsize=256)
def analyse(sketch: Sketch) -> tuple[Nest, ...]:
    """Every block of the sketch, the one with most operations first."""
    packed = set(sketch.program.packed)
    nests = [
        _nest(block, path, packed)
        for block, path in paths(sketch.program.body)
        if block.buffer.scope != "constant"  # evaluated at compile time
    ]
    middle = np.array([[n // 2 for n in sketch.options]], np.int64)
    values = sketch.at_hand(middle)
    return tuple(sorted(nests, key=lambda nest: -_work(nest, values)))


def _work(nest: Nest, values: Mapping[Var, np.ndarray]) -> float:
    extents = (float(np.ravel(evaluate(loop.extent, values))[0]) for loop in nest.loops)
    return nest.operations * prod(extents)


def _nest(block: Block, loops: tuple[For, ...], packed: set[str]) -> Nest:
    reads = dict.fromkeys(_memory_reads(block.value))
    accesses = [
        Access(buffer, tuple(_terms(i, loops) for i in indices), write, buffer.name in packed)
        for buffer, indices, write in (
            (block.buffer, block.indices, True),
            *((load.buffer, load.indices, False) for load in reads),
        )
        if buffer.scope in _MEMORY
    ]
    operations = max(1, _operations(block.value) + (block.reducer is not None))
    masked = block.guard is not None or any(isinstance(n, Select) for n in walk(block.value))
    nest = Nest(block, loops, tuple(accesses), operations, masked)
    lane = nest.lane
    ordered = sorted(accesses, key=lambda a: (not a.write, lane not in a.moving))
    return replace(nest, accesses=tuple(ordered))


def _memory_reads(expr: Expr) -> Iterator[Load]:
    if isinstance(expr, Load) and expr.buffer.scope in _MEMORY:
        yield expr
    for child in expr.children:
        yield from _memory_reads(child)


def _operations(expr: Expr) -> int:
    """Arithmetic in the value; what indices and conditions cost is not counted."""
    match expr:
        case Load():
            return 0
        case Select(_, then, otherwise):
            return max(_operations(then), _operations(otherwise))
        case Cast(value, _):
            return _operations(value)
        case _:
            return bool(expr.children) + sum(map(_operations, expr.children))


def _terms(index: Expr, loops: tuple[For, ...]) -> tuple[Term, ...]:
    positions = {loop.var: i for i, loop in enumerate(loops)}
    return tuple(_parts(index, positions, loops))


def _parts(index: Expr, positions: Mapping[Var, int], loops: tuple[For, ...]) -> list[Term]:
    """Affine indices exactly; tiles moved back as if they were not; fused loops by their digits."""
    if not positions.keys() & variables(index):
        return []
    match index:
        case Var():
            position = positions[index]
            return [Term(position, const(1), loops[position].extent)]
        case Binary("add" | "sub" | "min" | "max" as op, a, b):
            left, right = _parts(a, positions, loops), _parts(b, positions, loops)
            return left + right if op in ("add", "sub") else left or right
        case Binary("mul", a, b):
            left, right = _parts(a, positions, loops), _parts(b, positions, loops)
            parts, scale = (left, b) if left else (right, a)
            return [Term(t.loop, t.stride * scale, t.steps) for t in parts]
        case Binary("floordiv", a, b):
            return [_divided(t, b) for t in _parts(a, positions, loops)]
        case Binary("mod", a, b):
            return [
                t for t in (_wrapped(t, b) for t in _parts(a, positions, loops)) if t is not None
            ]
        case Select(_, then, otherwise):
            return _parts(then, positions, loops) or _parts(otherwise, positions, loops)
        case Cast(value, _):
            return _parts(value, positions, loops)
        case _:
            return []  # gathered: unknown until it runs


def _divided(term: Term, divisor: Expr) -> Term:
    """`(stride*i) // divisor`: strides become as much smaller, or steps as much fewer."""
    stride = maximum(term.stride // divisor, 1)
    span = term.stride * (term.steps - 1)
    return Term(term.loop, stride, span // (divisor * stride) + 1)


def _wrapped(term: Term, modulus: Expr) -> Term | None:
    """`(stride*i) % modulus`: steps until it starts over; None where it stays zero."""
    match term.stride, modulus:
        case Const(stride), Const(size) if stride % size == 0:
            return None
        case _:
            rounds = maximum(ceildiv(modulus, term.stride), 1)
            return Term(term.loop, term.stride, minimum(term.steps, rounds))
