"""Schedule: a program and the trace of the primitives that made it.

Every method checks its arguments, rewrites `program` and records one step. Sampling methods give
symbols and record a `Decision` that lists their possible values; given numbers for them (replay),
they give these numbers instead, so one schedule function serves symbolic sketches and concrete
programs alike.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.core.config import knob
from retune.core.errors import ScheduleError
from retune.ir.expr import Const, Expr, Operand, Scope, as_expr, const
from retune.ir.stmt import Block, For, Program, blocks
from retune.ir.verify import verify
from retune.schedule import loops, reductions, stages, tiles, winograd
from retune.schedule.decisions import Decision, Given
from retune.schedule.trace import Argument, Step, Trace


class Schedule:
    """A program being scheduled. `given` holds values for named decisions, for replay."""

    def __init__(self, program: Program, given: Given | None = None) -> None:
        self.program = program
        self.trace = Trace()
        self.decisions: list[Decision] = []
        self.constraints: list[Expr] = []
        self._given: Given = given or {}
        self._verified = knob("RETUNE_VERIFY") == "1"

    # -- looking -----------------------------------------------------------------------------

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [loop.var.name for loop in stages.loops_of(self.program, block)]

    def loop(self, name: str) -> For:
        """The loop over the variable of that name."""
        return loops.loop_named(self.program, name)

    def block(self, name: str) -> Block:
        """The block of that name."""
        return stages.block_named(self.program, name)

    def blocks(self) -> list[str]:
        """Names of all blocks, in program order."""
        return [b.name for b in blocks(self.program.body)]

    # -- loops -------------------------------------------------------------------------------

    def split(self, loop: str, factors: Sequence[Operand], tail: str = "exact") -> list[str]:
        """`loop == loop.0 * prod(factors) + ...`: the loop becomes len(factors) + 1 nested ones.

        Rewrite: split("i", [4])
            for i in range(16): B(i)  ->  for i.0 in range(4):
                                            for i.1 in range(4): B(i.0*4 + i.1)

        `tail` says what happens where the factors do not divide the extent: `exact` requires
        that they do, `shift` moves the last tile back so that it overlaps (never on reduce
        loops), `guard` skips the iterations past the end.

        Raises: ScheduleError for factors that do not divide (exact), exceed the extent (shift),
        or are not positive.
        """
        sizes = [as_expr(f) for f in factors]
        if tail not in loops.TAILS:
            raise ScheduleError(f"split({loop}): tail is one of {loops.TAILS}, got {tail!r}")
        for size in sizes:
            if isinstance(size, Const) and size.value < 1:
                raise ScheduleError(f"split({loop}): factors must be positive, got {size}")
        self._require_split(self.loop(loop).extent, sizes, tail, loop)
        self.program = loops.split(self.program, loop, sizes, tail)
        made = [f"{loop}.{i}" for i in range(len(sizes) + 1)]
        self._record("split", {"loop": loop, "factors": tuple(sizes), "tail": tail}, made)
        return made

    def fuse(self, outer: str, inner: str) -> str:
        """One loop over both: `outer == f // extent(inner)`, `inner == f % extent(inner)`.

        Rewrite:
            for i in range(4):           for i+j in range(32):
              for j in range(8): B   ->    B(i+j // 8, i+j % 8)

        Raises: ScheduleError unless `inner` is all that `outer` holds.
        """
        name = f"{outer}+{inner.rsplit('.', 1)[-1] if '.' in inner else inner}"
        self.program = loops.fuse(self.program, outer, inner, name)
        self._record("fuse", {"outer": outer, "inner": inner}, [name])
        return name

    def reorder(self, *names: str) -> None:
        """The named loops in this order, in the places that they hold together.

        Raises: ScheduleError unless they are perfectly nested, or if a shifted loop would move
        inside a reduce loop (its overlap would be accumulated twice).
        """
        self.program = loops.reorder(self.program, names)
        self._record("reorder", {"names": tuple(names)})

    def unroll(self, loop: str, count: Operand | None = None) -> None:
        """Every iteration written out; with `count`, the compiler is asked to unroll by it."""
        if count is None:
            self.program = loops.annotate(self.program, loop, "unroll")
        else:
            self.program = loops.hint_unroll(self.program, loop, as_expr(count))
        amount = None if count is None else as_expr(count)
        self._record("unroll", {"loop": loop, "count": amount})

    def vectorize(self, loop: str) -> None:
        """The iterations become lanes of vector values; the extent must end as 2, 4, 8 or 16.

        Lanes of a reduce loop are combined with each other, by halves, and then with the result.
        """
        self.program = loops.annotate(self.program, loop, "vectorize")
        self._record("vectorize", {"loop": loop})

    def bind(self, loop: str, axis: str) -> None:
        """The iterations become work-groups (`group.0` to `group.2`) or items (`local.0`, `.1`).

        Raises: ScheduleError for another axis, or a reduce loop.
        """
        if axis not in ("group.0", "group.1", "group.2", "local.0", "local.1"):
            raise ScheduleError(f"bind({loop}): expected group.0..2 or local.0..1, got {axis!r}")
        self.program = loops.annotate(self.program, loop, axis)  # pyright: ignore
        self._record("bind", {"loop": loop, "axis": axis})

    # -- stages ------------------------------------------------------------------------------

    def compute_inline(self, block: str) -> None:
        """The stage's expression in place of each read of its result; the stage is gone.

        Rewrite:
            for i: b[i] = a[i] + 1      ->    for i: c[i] = (a[i] + 1)*2
            for i: c[i] = b[i]*2

        Raises: ScheduleError for reductions, outputs, and stages already scheduled.
        """
        self.program = stages.compute_inline(self.program, block)
        self._record("compute_inline", {"block": block})

    def cache_write(self, block: str) -> str:
        """The stage writes to a buffer of its own, which a new stage copies to the result.

        Rewrite:
            for i: c[i] += ...    ->    for i: c.acc[i] += ...
                                        for i: c[i] = c.acc[i]

        Use compute_at to bring the stage into a tile of the copy. Gives the copy's block name.
        """
        self.program = stages.cache_write(self.program, block)
        self._record("cache_write", {"block": block}, [f"{block}.out"])
        return f"{block}.out"

    def compute_at(self, block: str, loop: str, scope: Scope = "register") -> None:
        """Inside `loop`, just the part of the stage that the loop's body reads, in `scope`.

        Rewrite:
            for i in range(8): b[i] = f(i)       for o in range(2):
            for o in range(2):                     for i in range(4): b[i] = f(o*4 + i)
              for i in range(4):             ->    for i in range(4): c[o*4 + i] = b[i]
                c[o*4 + i] = b[o*4 + i]

        Raises: ScheduleError when it is read elsewhere, read in several ways, or scheduled.
        """
        self.program = stages.compute_at(self.program, block, loop, scope)
        self._record("compute_at", {"block": block, "loop": loop, "scope": scope})

    def decompose_reduction(self, block: str, loop: str) -> None:
        """The start value is set by its own nest just before `loop`.

        Raises: ScheduleError when a reduce loop of the block lies outside `loop`.
        """
        self.program = reductions.decompose_reduction(self.program, block, loop)
        self._record("decompose_reduction", {"block": block, "loop": loop})

    def rfactor(self, block: str, loop: str, axis: int = -1) -> str:
        """Partial results, one for each iteration of a reduce loop, which are combined at last.

        Rewrite: rfactor("y", "y.k.1") after split("y.k", [8])
            for i:                               for i:
              for k.0 (reduce):                    for k.0 (reduce):
                for k.1 (reduce):         ->         for k.1: y.part[i, k.1] += f(i, k.0*8 + k.1)
                  y[i] += f(i, k.0*8 + k.1)      for i:
                                                   for k.1 (reduce): y[i] += y.part[i, k.1]

        The factored loop of the new stage, here `y.part.k.1`, may be vectorized or bound; it is
        dimension `axis` of the partial results, -1 for the last. Floating-point sums are rounded
        in another order. Gives the new stage's block name.

        Raises: ScheduleError unless the block is a root stage that reduces over the loop.
        """
        self.program = reductions.rfactor(self.program, block, loop, axis)
        self._record("rfactor", {"block": block, "loop": loop, "axis": axis}, [f"{block}.part"])
        return f"{block}.part"

    def pack(self, buffer: str) -> None:
        """The constant operand is re-ordered at compile time to the order in which it is read.

        Raises: ScheduleError unless it is a constant input, or a precomputed stage, that is read
        at one place.
        """
        self.program = stages.pack(self.program, buffer)
        self._record("pack", {"buffer": buffer})

    def precompute(self, block: str) -> None:
        """The stage, which reads only constants, is evaluated at compile time.

        Its buffer is a constant from then on: no kernel writes it, and it may be packed.

        Raises: ScheduleError when it reads anything else, or is scheduled already.
        """
        self.program = stages.precompute(self.program, block)
        self._record("precompute", {"block": block})

    def winograd(self, block: str, m: int) -> list[str]:
        """The 3x3 convolution as F(m x m, 3 x 3): transforms around products of matrices.

        Rewrite: the stage `c` becomes plain stages, each of which can be placed and tiled
            c.data, c.rows, c.factors   the input's tiles, transformed along rows, then columns
            c.taps, c.filter            the weights, transformed; for `precompute`
            c.product                   for each of the (m+2)^2 factors, a sum over channels
            c.columns, c.outputs        the outputs, transformed along rows, then columns
            c                           reads the outputs of its tiles
        Tiles past the end of odd sizes read zeros there. Gives the names of all but `c`.

        The results differ by rounding: see `retune.schedule.winograd`.

        Raises: ScheduleError unless it is such a convolution, of stride 1 in one group.
        """
        self.program = winograd.rewrite(self.program, block, m)
        made = [f"{block}.{stem}" for stem in winograd.STAGES]
        self._record("winograd", {"block": block, "m": m}, made)
        return made

    # -- sampling ----------------------------------------------------------------------------

    def sample_perfect_tile(
        self, loop: str, parts: int, max_innermost: int = 64, name: str | None = None
    ) -> list[Expr]:
        """`parts - 1` factors whose product divides the loop's extent, the innermost bounded."""
        extent = self._extent(loop, "sample_perfect_tile")
        table = tiles.perfect_tiles(extent, parts - 1, max_innermost)
        arguments = {"loop": loop, "parts": parts, "max_innermost": max_innermost}
        return self._sample("sample_perfect_tile", name or f"tile.{loop}", table, arguments)

    def sample_tile(
        self,
        loop: str,
        parts: int,
        max_innermost: int = 64,
        name: str | None = None,
        unit: int = 1,
    ) -> list[Expr]:
        """`parts - 1` factors of any size whose product, times `unit`, is at most the extent.

        Use them with `split(..., tail="shift")`: extents without useful divisors are covered by
        tiles of which the last is moved back.
        """
        extent = self._extent(loop, "sample_tile")
        if unit > extent:
            raise ScheduleError(f"sample_tile({loop}): unit {unit} exceeds the extent {extent}")
        table = tiles.any_tiles(extent // unit, parts - 1, max_innermost)
        arguments = {
            "loop": loop, "parts": parts, "max_innermost": max_innermost, "unit": unit,
        }  # fmt: skip
        return self._sample("sample_tile", name or f"tile.{loop}", table, arguments)

    def sample_categorical(self, name: str, options: Sequence[int]) -> Expr:
        """One of the integers."""
        table = np.asarray(options, np.int64).reshape(-1, 1)
        arguments: dict[str, Argument] = {"name": name, "options": tuple(int(o) for o in options)}
        return self._sample("sample_categorical", name, table, arguments)[0]

    def require(self, condition: Expr, why: str) -> None:
        """Only candidates for which the condition holds are valid.

        Raises: ScheduleError if it is known to be false already.
        """
        if isinstance(condition, Const):
            if not condition.value:
                raise ScheduleError(f"{self.program.name}: {why}")
            return
        self.constraints.append(condition)

    # -- helpers -----------------------------------------------------------------------------

    def _extent(self, loop: str, who: str) -> int:
        extent = self.loop(loop).extent
        if not isinstance(extent, Const):
            raise ScheduleError(f"{who}({loop}): its extent {extent} is itself sampled")
        return int(extent.value)

    def _sample(
        self, primitive: str, name: str, table: np.ndarray, arguments: Mapping[str, Argument]
    ) -> list[Expr]:
        if any(d.name == name for d in self.decisions):
            raise ScheduleError(f"{primitive}: decision {name!r} is taken already")
        decision = Decision(name, table)
        self.decisions.append(decision)
        outputs = [v.name for v in decision.symbols]
        self._record(primitive, {**arguments, "name": name}, outputs)
        if name not in self._given:
            return list(decision.symbols)
        values = tuple(int(v) for v in self._given[name])
        if not (table == np.asarray(values)).all(axis=1).any():
            raise ScheduleError(f"{primitive}: {values} is not an option of {name!r}")
        self.trace = self.trace.with_decisions({name: values})
        return [const(v) for v in values]

    def _require_split(self, extent: Expr, sizes: Sequence[Expr], tail: str, loop: str) -> None:
        inner: Expr = const(1)
        for size in sizes:
            inner = inner * size
        if tail == "exact":
            test = (extent % inner) <= 0
            self.require(test, f"split({loop}): {inner} does not divide {extent}")
        elif tail == "shift":
            test = inner <= extent
            self.require(test, f"split({loop}): a tile of {inner} exceeds the extent {extent}")

    def _record(
        self, primitive: str, arguments: Mapping[str, Argument], outputs: Sequence[str] = ()
    ) -> None:
        stated = tuple((key, _stated(value)) for key, value in arguments.items())
        self.trace = self.trace.with_step(Step(primitive, stated, tuple(outputs)))
        if self._verified:
            verify(self.program, primitive)


def _stated(value: Argument) -> Argument:
    """The argument with literals as plain numbers, as JSON gives them back."""
    if isinstance(value, tuple):
        return tuple(_stated(item) for item in value)
    return int(value.value) if isinstance(value, Const) else value
