"""Loops over the rows of attention become a call of one function by all items of a group.

Lowering does so before all else; the loops are those of `schedule.attention`:

    for i.row in 64:  # attention=4.1.1.64.2
      scores[j] += q[h, i, d]*k[h, j, d]
      ...
    ->
    for item in 128:  # local.0
      out[h, i, 0] = attention(q[h, i, 0], k[h, 0, 0], v[h, 0, 0], ...)

where i is the first of the rows. The arguments are the elements at which operands start, and
numbers; from there the function goes over rows at one distance, and elements side by side.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from retune.core.errors import CodegenError
from retune.intrinsics.attention import PARAMETERS, Attention, AttentionTile
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    substitute,
    walk,
)
from retune.ir.flat import flat_terms
from retune.ir.simplify import simplify
from retune.ir.stmt import (
    ATTENTION,
    Block,
    For,
    Program,
    Stmt,
    blocks,
    loops,
    paths,
    rewrite,
    with_body,
)

CALL = "attention"
"""The function of the calls."""
_SIZES = 8
"""The last arguments: width, values, the tile's five, and whether it is causal."""
_NUMBERS = len(PARAMETERS) + 1
"""Those before them: `PARAMETERS` and the scale."""
_OPERANDS = 3
"""Queries, keys and values."""
_CHUNK = 8
"""Elements of 16 bytes, in which operands are copied."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """A call's function, the elements at which its operands start, and its numbers."""

    function: Attention
    starts: tuple[Load, ...]
    numbers: tuple[Expr, ...]

    @staticmethod
    def of(block: Block) -> "AttentionCall | None":
        """What a block calls; None for other blocks."""
        if not isinstance(block.value, Call) or block.value.function != CALL:
            return None
        args = block.value.args
        width, values, *tile, causal = (evaluate_int(n) for n in args[-_SIZES:])
        starts = tuple(arg for arg in args if isinstance(arg, Load))
        function = Attention(
            dtype=starts[0].buffer.dtype,
            made=block.buffer.dtype,
            bias=starts[_OPERANDS].buffer.dtype if len(starts) > _OPERANDS else None,
            width=width,
            values=values,
            causal=bool(causal),
            tile=AttentionTile(*tile),
        )
        return AttentionCall(function, starts, args[len(starts) : -_SIZES])


def attention_to_calls(program: Program) -> Program:
    """The program with a call instead of each loop over rows of attention.

    Raises: CodegenError where operands do not lie as the function reads them.
    """
    found = {
        id(n): _AttentionRows(n).call() for n in loops(program.body) if ATTENTION in dict(n.notes)
    }
    if not found:
        return program
    body = rewrite(program.body, lambda node: found.get(id(node)))
    kept = tuple(b for b in program.scratch if b.scope != "private")
    return replace(with_body(program, body), scratch=kept)


def calls_attention(nest: Stmt) -> bool:
    """Whether a function does the work of the nest."""
    return any(AttentionCall.of(block) is not None for block in blocks(nest))


class _AttentionRows:
    """The loop over rows, and what is in it."""

    def __init__(self, loop: For) -> None:
        self._loop = loop
        every = [(block, path[1:]) for block, path in paths(loop)]
        self._scores, (self._key, self._step) = every[1]
        self._biased, (self._scored,) = every[2]
        self._sums, (self._column, self._summed) = every[-2]
        self._out, (self._stored,) = every[-1]

    def call(self) -> Stmt:
        """What does the same."""
        tile = AttentionTile.of(str(dict(self._loop.notes)[ATTENTION]))
        query, key = dict.fromkeys(loads(self._scores.value))
        (value,) = _read(self._sums)
        bias = tuple(_read(self._biased))
        made = Load(self._out.buffer, self._out.indices)
        row = self._loop.var
        rows = (
            self._distance(query, row, self._step.var),
            self._distance(key, self._key.var, self._step.var),
            self._distance(value, self._summed.var, self._column.var),
            self._distance(made, row, self._stored.var),
        )
        steps = [self._apart(b, v) for b in bias for v in (row, self._scored.var)] or [0, 0]
        last = self._last()
        numbers = (
            self._rows_left(tile), self._key.extent, const(0) if last is None else last,
            *map(const, (*rows, *steps)), self._scale(),
        )  # fmt: skip
        sizes = (*tile.sizes, int(last is not None))
        extents = (self._step.extent, self._column.extent, *map(const, sizes))
        starts = tuple(map(self._start, (query, key, value, *bias)))
        called = Call(CALL, (*starts, *numbers, *extents), self._out.value.dtype)
        first = self._start(made)
        block = Block(self._out.name, first.buffer, first.indices, called)
        return For(Var(f"{self._out.name}.item"), const(tile.items), block, "local.0")

    def _at_start(self, expr: Expr) -> Expr:
        """What an expression is where all loops inside start."""
        own = {n.var: const(0) for n in loops(self._loop)}
        return simplify(substitute(expr, own))

    def _start(self, load: Load) -> Load:
        return Load(load.buffer, tuple(map(self._at_start, load.indices)))

    def _apart(self, load: Load, var: Var) -> int:
        """Elements from one to the next along a loop."""
        terms = flat_terms(load.buffer, load.indices)
        step = terms.get((var,), 0)
        others = (m for m in terms if m != (var,) and any(var in walk(atom) for atom in m))
        if any(others):
            raise CodegenError(f"{self._out.name}: {load} is not at one distance along {var}")
        return step

    def _distance(self, load: Load, row: Var, near: Var) -> int:
        """Elements from one row to the next; those of a row lie side by side, whole chunks apart.

        Raises: CodegenError where they do not.
        """
        terms = flat_terms(load.buffer, load.indices)
        step = self._apart(load, row)
        others = [c for m, c in terms.items() if m != (near,)]
        if terms.get((near,)) != 1 or any(c % _CHUNK for c in others):
            raise CodegenError(
                f"{self._out.name}: expected {load} in rows of neighbours, {_CHUNK} elements or a "
                "multiple apart"
            )
        return step

    def _rows_left(self, tile: AttentionTile) -> Expr:
        """Rows from the first one on, as the guard says."""
        match self._out.guard:
            case Binary("lt", row, count):
                return simplify(count - self._at_start(row))
            case _:
                return const(tile.rows)

    def _last(self) -> Expr | None:
        """The last key that the first row sees; None where all rows see all."""
        match self._biased.value:
            case Select(Binary("le", _, last)):
                return self._at_start(last)
            case _:
                return None

    def _scale(self) -> Expr:
        """What scores are multiplied by."""
        products = (n for n in walk(self._biased.value) if isinstance(n, Binary) and n.op == "mul")
        product = next(n for n in products if n.dtype.is_float)
        (scale,) = (n for n in product.children if isinstance(n, Const))
        return scale


def _read(block: Block) -> Iterator[Load]:
    """What a stage reads beside what was made of its row."""
    for load in dict.fromkeys(loads(block.value)):
        if load.buffer.scope != "private":
            yield load
