"""Roles of a stage's axes, from its affine accesses: which operands each axis moves along.

A result axis moves some operands and leaves the others where they are: what it leaves serves all of
its results. A reduce axis is a window's where it stands in one index with a result axis, as in
`x[yy + ry]`, and deep where an index is its own, as in `x[yy, rc]`. Rules, estimates and features
ask this one analysis; none of them takes an index apart. Read `Accesses`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Binary, Const, Expr, Load, Scope, Var, const, loads, variables, walk
from retune.ir.reduction import path_to
from retune.ir.simplify import affine
from retune.ir.stmt import Block, For, Stmt


@dataclass(frozen=True, eq=False)
class AffineAccess:
    """A read or the write of a stage, whose indices are affine in the loops around it."""

    load: Load

    @property
    def scope(self) -> Scope:
        """The memory that the operand lies in."""
        return self.load.buffer.scope

    @cached_property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return self.load.buffer.dtype.itemsize

    @cached_property
    def moving(self) -> frozenset[Var]:
        """The variables that change what is read."""
        return frozenset(v for index in self.load.indices for v in variables(index))

    @cached_property
    def direct(self) -> frozenset[Var]:
        """Those that do more than choose a group of channels, as `ff` does in
        `x[ff // made * depth + rc]`."""
        divided = {b.a for index in self.load.indices for b in _divisions(index)}
        return frozenset(v for v in self.moving if v not in divided)

    @cached_property
    def changing(self) -> frozenset[Var]:
        """Those whose steps read another element: not those that stay inside of the group that they
        choose, as tiles of `ff` do in `x[(g*made + ff) // made * depth + rc]`."""
        return frozenset(v for index in self.load.indices for v in _changing(index))

    @property
    def constant(self) -> bool:
        """Whether it is known at compile time, so that it may lie in any order."""
        return self.scope == "constant"

    def dimensions(self, axis: Expr) -> list[int]:
        """The dimensions in whose index a variable is."""
        return [d for d, index in enumerate(self.load.indices) if axis in variables(index)]

    @cached_property
    def last(self) -> frozenset[Var]:
        """The variables of its last index: memory runs along them."""
        return frozenset(variables(self.load.indices[-1])) if self.load.indices else frozenset()

    @cached_property
    def outer(self) -> frozenset[Var]:
        """The variables of its other indices."""
        return frozenset(v for index in self.load.indices[:-1] for v in variables(index))

    def runs_along(self, loops: Collection[For]) -> bool:
        """Whether some of these loops choose among neighbours in memory."""
        return any(loop.var in self.last for loop in loops)

    @cached_property
    def adjacent(self) -> bool:
        """Whether each variable of the last index moves it by one element."""
        if not self.load.indices:
            return True
        form = affine(self.load.indices[-1], self.last)
        return form is not None and all(step == const(1) for step in form[0].values())

    def follows(self, axes: Collection[Var]) -> bool:
        """Whether some index moves with these axes; the number of a group does not."""
        forms = (affine(index, axes) for index in self.load.indices)
        return any(form is not None and bool(form[0]) for form in forms)

    def step(self, axis: Var) -> float:
        """The coefficient of the variable in its index; 1 where that is not known."""
        for d in self.dimensions(axis)[:1]:
            form = affine(self.load.indices[d], {axis})
            coefficient = form[0].get(axis) if form else None
            return float(coefficient.value) if isinstance(coefficient, Const) else 1.0
        return 0.0

    def stride(self, axis: Var) -> Expr:
        """Elements between what neighbouring iterations read; 0 where that varies."""
        total, size = const(0), const(1)
        for index, extent in zip(
            reversed(self.load.indices), reversed(self.load.buffer.shape), strict=True
        ):
            form = affine(index, [axis])
            if form is None:
                return const(0)
            total = total + size * form[0].get(axis, const(0))
            size = size * extent
        return total


@dataclass(frozen=True, eq=False)
class Accesses:
    """A stage by the roles of its axes."""

    block: Block
    loops: tuple[For, ...]
    """Those around it, from the outermost."""

    @staticmethod
    def of(block: Block, root: Stmt) -> "Accesses":
        """The accesses of a block inside `root`."""
        return Accesses(block, tuple(path_to(root, block) or ()))

    @cached_property
    def operands(self) -> tuple[AffineAccess, ...]:
        """The operands that the block reads, in order."""
        return tuple(AffineAccess(load) for load in loads(self.block.value))

    @cached_property
    def result(self) -> AffineAccess:
        """The result that the block writes."""
        return AffineAccess(Load(self.block.buffer, self.block.indices))

    @cached_property
    def results(self) -> tuple[For, ...]:
        """The loops over results."""
        return tuple(loop for loop in self.loops if not loop.reduce)

    @cached_property
    def steps(self) -> tuple[For, ...]:
        """The loops that it is summed over."""
        return tuple(loop for loop in self.loops if loop.reduce)

    @cached_property
    def window(self) -> tuple[For, ...]:
        """Reduce loops that share an index of an operand with a result: taps of a window."""
        results = {loop.var for loop in self.results}
        return tuple(
            loop
            for loop in self.steps
            if any(
                loop.var in variables(i) and not results.isdisjoint(variables(i))
                for operand in self.operands
                for i in operand.load.indices
            )
        )

    @cached_property
    def deep(self) -> tuple[For, ...]:
        """The other reduce loops: each of them has an index of its own wherever it is used."""
        return tuple(loop for loop in self.steps if loop not in self.window)

    @property
    def plain(self) -> bool:
        """Whether each index of a result is an axis."""
        return all(isinstance(i, Var) for i in self.block.indices)

    @property
    def channel(self) -> Var | None:
        """The axis along which results lie side by side."""
        last = self.block.indices[-1] if self.block.indices else None
        return last if isinstance(last, Var) else None

    @cached_property
    def group(self) -> int | None:
        """Number of channels that share their inputs; None for a convolution without groups.

        A grouped convolution reads channel `ff // made * depth + rc`; inside one group that is a
        plain sum, so tiles must not cross from one group to the next.
        """
        for operand in self.operands:
            for index in operand.load.indices:
                for division in _divisions(index):
                    if division.a == self.channel:
                        return evaluate_int(division.b)
        return None

    @property
    def channels(self) -> int:
        """Channels of a result that share their inputs: all, or those of a group."""
        if not self.block.indices:
            return 1
        return self.group or evaluate_int(self.block.buffer.shape[-1])

    @property
    def contracts(self) -> bool:
        """Whether some operand serves all channels, so that tiles of results read it once."""
        return any(self.channel not in operand.direct for operand in self.operands)

    @property
    def by_channel(self) -> bool:
        """Whether each channel is summed from its own channel alone, of every operand.

        Vectors of channels then read and write contiguous memory, and share nothing. Constants may
        have the channel in any dim: they are packed.
        """
        axis = self.channel
        if self.block.reducer is None or axis is None or not self.operands:
            return False
        return all(
            bool(operand.dimensions(axis))
            if operand.constant
            else operand.load.indices[-1:] == (axis,) and len(operand.dimensions(axis)) == 1
            for operand in self.operands
        )

    @cached_property
    def lane_wise(self) -> bool:
        """Whether it is a reduction in vectors each of whose operands is a vector, too."""
        lanes = {loop.var for loop in self.results if loop.kind == "vectorize"}
        return bool(
            self.block.reducer is not None
            and self.operands
            and lanes
            and all(operand.follows(lanes) for operand in self.operands)
        )

    @property
    def along_steps(self) -> bool:
        """Whether neighbours in memory are steps of the reduction rather than results."""
        reduce = {loop.var for loop in self.steps}
        return not any(
            self.channel in operand.last and operand.last.isdisjoint(reduce)
            for operand in self.operands
        )

    def orders(self) -> dict[str, tuple[int, ...]]:
        """A dimension order with channels last, for each operand that has another one."""
        found: dict[str, tuple[int, ...]] = {}
        channel = self.channel
        for operand in self.operands:
            rank = len(operand.load.indices)
            dims = [] if channel is None else operand.dimensions(channel)
            if len(dims) == 1 and dims[0] != rank - 1:
                others = [d for d in range(rank) if d != dims[0]]
                found[operand.load.buffer.name] = (*others, dims[0])
        return found


def _changing(index: Expr) -> frozenset[Var]:
    """The variables of an index without those that only say where in a group it is: a sum of whole
    groups and of less than one, divided by the length of a group, is the number of the former."""
    if isinstance(index, Binary) and index.op == "floordiv":
        whole = [term for term in _terms(index.a) if _is_multiple(term, index.b)]
        if whole:
            return frozenset(v for term in whole for v in variables(term))
    if not index.children:
        return variables(index)
    return frozenset(v for child in index.children for v in _changing(child))


def _terms(total: Expr) -> Sequence[Expr]:
    if isinstance(total, Binary) and total.op == "add":
        return [*_terms(total.a), *_terms(total.b)]
    return [total]


def _is_multiple(term: Expr, of: Expr) -> bool:
    if not (isinstance(term, Binary) and term.op == "mul" and isinstance(term.b, Const)):
        return False
    return isinstance(of, Const) and not term.b.value % of.value


def _divisions(index: Expr) -> Sequence[Binary]:
    return [n for n in walk(index) if isinstance(n, Binary) and n.op == "floordiv"]
