"""A sketch's blocks, loops and accesses as index arrays: what turns features into array operations.

Blocks, accesses and loop positions are axes of one table each. A loop position that a block does
not have is a loop of one iteration; an index that a buffer does not have is one of extent 1, in
front of the others. Nothing here depends on a candidate: `layout_of` is worked out once a sketch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retune.ir.evaluate import Formulas
from retune.ir.expr import Buffer, const
from retune.schedule.space import Sketch
from retune.search.model.features.nests import Access, Nest, Term, analyse

Array = np.ndarray


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layout:
    """The static part of a sketch's features. Axes: D loop positions, B blocks, A accesses.

    Rows are positions of an expression's values in what `formulas` gives.
    """

    nests: tuple[Nest, ...]
    """[B], the one with most operations first."""
    accesses: tuple[Access, ...]
    """[A], block by block."""
    formulas: Formulas
    extents: Array
    """Rows of the loops' extents, and of a one behind them. int64 [D + 1, B]"""
    hints: Array
    """Rows of the iterations that the compiler is asked to unroll; of a one where it is not.
    int64 [D, B]"""
    strides: Array
    """Rows of the terms' strides, of a zero where there is none. int64 [terms, D, dims, A]"""
    steps: Array
    """Rows of the terms' numbers of steps, of a one where there is none, as `strides`."""
    limits: Array
    """Rows of the buffers' extents. int64 [dims, A]"""
    still: Array
    """True where a loop does not change what is accessed. bool [D, A]"""
    owner: Array
    """The block of each access. int64 [A]"""
    owned: Array
    """1 where an access is the block's. float64 [B, A]"""
    item_bytes: Array
    """Bytes of an element. float64 [A, 1]"""
    packed: Array
    """bool [A, 1]"""
    locations: Array
    """Accesses of the same block to the same buffer. float64 [A, 1]"""
    lane: Array
    """Whose strides are the lanes': the position of `Nest.lane` of each access's block, D for none.
    int64 [A]"""
    scratch: tuple[tuple[Buffer, Array], ...]
    """The program's own buffers, with the rows of their extents."""
    operations: Array
    """Arithmetic operations of one iteration. float64 [B, 1]"""
    body: Array
    """`Nest.body_level`. int64 [B]"""
    group: Array
    """`Nest.group_level`. int64 [B]"""
    step: Array
    """The outermost reduce loop within a work-group; the body where there is none. int64 [B]"""

    @property
    def depth(self) -> int:
        """D: loops around the block that has most; at least one."""
        return len(self.still)

    def loops(self, wanted: Callable[[Nest, int], bool]) -> Array:
        """The loops, by block and position, for which `wanted` holds. bool [D, B]"""
        found = np.zeros((self.depth, len(self.nests)), bool)
        for b, nest in enumerate(self.nests):
            for position in range(len(nest.loops)):
                found[position, b] = wanted(nest, position)
        return found


@lru_cache(maxsize=256)
def layout_of(sketch: Sketch) -> Layout:
    """The layout of all of the sketch's blocks, as `analyse` orders them."""
    nests = analyse(sketch)
    accesses = tuple(access for nest in nests for access in nest.accesses)
    owner = np.repeat(np.arange(len(nests)), [len(nest.accesses) for nest in nests])
    formulas = Formulas()
    one = formulas.row(const(1))
    depth = max(1, *(len(nest.loops) for nest in nests))
    extents = np.full((depth + 1, len(nests)), one)
    hints = np.full((depth, len(nests)), one)
    for b, nest in enumerate(nests):
        for position, loop in enumerate(nest.loops):
            extents[position, b] = formulas.row(loop.extent)
            hints[position, b] = one if loop.unroll is None else formulas.row(loop.unroll)
    dims = max((len(access.dims) for access in accesses), default=1) or 1
    strides, steps = _terms(accesses, depth, dims, formulas)
    limits = np.full((dims, len(accesses)), one)
    still = np.ones((depth, len(accesses)), bool)
    for a, access in enumerate(accesses):
        for d, extent in enumerate(access.buffer.shape, dims - len(access.buffer.shape)):
            limits[d, a] = formulas.row(extent)
        still[list(access.moving), a] = False
    return Layout(
        nests=nests,
        accesses=accesses,
        formulas=formulas,
        extents=extents,
        hints=hints,
        strides=strides,
        steps=steps,
        limits=limits,
        still=still,
        owner=owner,
        owned=(owner == np.arange(len(nests))[:, None]).astype(np.float64),
        item_bytes=_column(access.buffer.dtype.itemsize for access in accesses),
        packed=_column(access.packed for access in accesses).astype(bool),
        locations=_column(
            sum(other.buffer == access.buffer for other in nests[b].accesses)
            for access, b in zip(accesses, owner, strict=True)
        ),
        lane=np.array([depth if nest.lane is None else nest.lane for nest in nests])[owner],
        scratch=tuple((b, _shape(b, formulas)) for b in sketch.program.scratch),
        operations=_column(nest.operations for nest in nests),
        body=np.array([nest.body_level for nest in nests]),
        group=np.array([nest.group_level for nest in nests]),
        step=np.array([_step_level(nest) for nest in nests]),
    )


def _shape(buffer: Buffer, formulas: Formulas) -> Array:
    """The rows of a buffer's extents. int64 [dims]"""
    return np.array([formulas.row(extent) for extent in buffer.shape], np.int64)


def _terms(
    accesses: tuple[Access, ...], depth: int, dims: int, formulas: Formulas
) -> tuple[Array, Array]:
    """`Layout.strides` and `Layout.steps`; several terms of a loop in one index come apart."""
    found = [position for a, access in enumerate(accesses) for position in _placed(a, access, dims)]
    most = 1 + max((nth for nth, *_ in found), default=0)
    shape = (most, depth, dims, len(accesses))
    strides = np.full(shape, formulas.row(const(0)))
    steps = np.full(shape, formulas.row(const(1)))
    for nth, d, a, term in found:
        strides[nth, term.loop, d, a] = formulas.row(term.stride)
        steps[nth, term.loop, d, a] = formulas.row(term.steps)
    return strides, steps


def _placed(a: int, access: Access, dims: int) -> Iterator[tuple[int, int, int, Term]]:
    """Each term with how many of its loop and index came before it, and its index and access."""
    for d, terms in enumerate(access.dims, dims - len(access.dims)):
        before: list[int] = []
        for term in terms:
            yield before.count(term.loop), d, a, term
            before.append(term.loop)


def _column(values: Iterable[float]) -> Array:
    return np.array(list(values), np.float64).reshape(-1, 1)


def _step_level(nest: Nest) -> int:
    inner = range(nest.group_level, len(nest.loops))
    return next((i for i in inner if nest.loops[i].reduce), nest.body_level)
