"""Sums of whole numbers start at what is added to them afterwards.

A layer of bytes adds a bias to each of its sums, and nothing else reads these. A sum that starts
there is the same, since 32 bits wrap around, and saves an instruction for each vector of results.
Sums of floats stay as they are: they would be rounded otherwise. Read `starts_at_addends`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from retune.core.dtypes import INT32
from retune.intrinsics import intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Binary, Buffer, Expr, Load, Rewriter, Var, const, loads, variables
from retune.ir.simplify import bounds, range_below, simplify
from retune.ir.stmt import Block, For, Program, Stmt, blocks, paths, rewrite, with_body

_EXACT = INT32
"""The type of such sums."""

_Path = tuple[For, ...]


def starts_at_addends(program: Program) -> Program:
    """Sums in registers start at the constant that their only reader adds to each of them.

    Rewrite:
        for i: sum[i] = 0                              for i: sum[i] = bias[c + i]
        for k: for i: sum[i] += f(i, k)            ->  for k: for i: sum[i] += f(i, k)
        for j: y[j] = g(bias[c + j] + sum[j])          for j: y[j] = g(sum[j])

    Valid after `decompose_all`. What tiles of matrices or a warp add up starts at zero as before,
    and so does what lanes hold in parts.
    """
    for buffer in {b.buffer: None for b in blocks(program.body) if _is_exact_sum(b)}:
        found = _sum_in(program.body, buffer)
        start = None if found is None else found.start()
        if found is not None and start is not None:
            program = with_body(program, _restarted(program.body, found, start))
    return program


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """A buffer of sums: the block that sets it to zero and the only one that reads it."""

    zero: Block
    around: _Path
    """The loops around `zero`."""
    reader: Block
    inner: frozenset[Var]
    """Of the loops around the reader alone."""
    addend: Load
    """What the reader adds, at the position `sum`."""
    sum: Load

    def start(self) -> Load | None:
        """The addend of the element that `zero` sets; None if it is not at the sum's position."""
        positions = [self._position(index) for index in self.addend.indices]
        ranges = {n.var: range_below(n.extent) for n in self.around}
        for position, extent in zip(positions, self.addend.buffer.shape, strict=True):
            reach = None if position is None else bounds(position, ranges)
            if reach is None or reach.low < 0 or reach.high >= evaluate_int(extent):
                return None
        return Load(self.addend.buffer, tuple(p for p in positions if p is not None))

    def _position(self, index: Expr) -> Expr | None:
        """The index as one of the loops around `zero`."""
        own = frozenset(v for i in self.zero.indices for v in variables(i))
        if not variables(index) & self.inner:
            return None if variables(index) & own else index
        for read, written in zip(self.sum.indices, self.zero.indices, strict=True):
            rest = simplify(index - read)
            if not variables(rest) & (self.inner | own):
                return simplify(rest + written)
        return None


def _is_exact_sum(block: Block) -> bool:
    exact = block.buffer.dtype == _EXACT and block.buffer.scope == "register"
    return exact and block.reducer == "sum" and block.decomposed


def _sum_in(body: Stmt, buffer: Buffer) -> _Sum | None:
    """The sums of the buffer, if a single reader adds a constant to them, wherever it reads them.

    None where tiles or warps make them, or a guard leaves some out.
    """
    made = [(b, path) for b, path in paths(body) if b.buffer == buffer]
    readers = [(b, p) for b, p in paths(body) if any(x.buffer == buffer for x in loads(b.value))]
    if len(made) != 2 or len(readers) != 1 or not _by_elements(made[1][1]):
        return None
    (zero, around), (reader, path) = made[0], readers[0]
    if zero.value != const(0, _EXACT) or not (_is_plain(zero) and _is_plain(reader)):
        return None
    found = next(load for load in loads(reader.value) if load.buffer == buffer)
    addend = _Addends(found).of(reader.value)
    if addend is None or addend.buffer.scope != "constant":
        return None
    inner = frozenset(loop.var for loop in path if not any(loop is n for n in around))
    return _Sum(zero=zero, around=around, reader=reader, inner=inner, addend=addend, sum=found)


def _is_plain(block: Block) -> bool:
    return block.guard is None and block.reducer is None


class _Addends(Rewriter):
    """Expressions in which a sum is what it would be with its addend in it."""

    def __init__(self, read: Load) -> None:
        super().__init__()
        self._read = read
        self._found: set[Load | None] = set()
        """With None where something else is read of the buffer, or the sum alone."""

    def of(self, value: Expr) -> Load | None:
        """What the value adds to the sum wherever it reads it."""
        self(value)
        return next(iter(self._found)) if len(self._found) == 1 else None

    def rewritten(self, expr: Expr) -> Expr:
        match expr:
            case Binary("add", Load() as a, Load() as b) if (a == self._read) != (b == self._read):
                self._found.add(b if a == self._read else a)
                return self._read
            case Load() if expr.buffer == self._read.buffer:
                self._found.add(None)
            case _:
                pass
        return super().rewritten(expr)


def _by_elements(path: Sequence[For]) -> bool:
    """Whether no tiles, and no warps, make the sums, and no lane holds them in parts."""
    used = [intrinsic(n.intrinsic) for n in path if n.intrinsic]
    return not any(entry.op.axes or entry.most for entry in used)


def _restarted(body: Stmt, found: _Sum, start: Load) -> Stmt:
    value = _Addends(found.sum)(found.reader.value)

    def rule(node: Stmt) -> Stmt | None:
        if node is found.zero:
            return replace(found.zero, value=start)
        return replace(found.reader, value=value) if node is found.reader else None

    return rewrite(body, rule)
