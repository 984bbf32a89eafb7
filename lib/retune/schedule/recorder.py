"""Recorder: a program, the trace of what was done to it, and what was sampled on the way.

Sampling methods give symbols and record a `Decision` that lists their possible values; given
numbers for them (replay), they give these numbers instead, so one schedule function serves
symbolic sketches and concrete programs alike.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from retune.core.config import knob
from retune.core.dims import example, most, reach
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int, known_extent
from retune.ir.expr import Const, Expr, Var, const, size_variables
from retune.ir.simplify import at_worst, simplify
from retune.ir.stmt import Block, For, Program, blocks
from retune.ir.verify import verify
from retune.schedule import loops, stages
from retune.schedule.decisions import Decision, Given, any_tiles, perfect_tiles
from retune.schedule.trace import Argument, Trace, TraceStep


class Recorder:
    """The state of a `Schedule`, whose primitives are in its own file."""

    def __init__(self, program: Program, given: Given | None = None) -> None:
        self.program = program
        self.trace = Trace()
        self.decisions: list[Decision] = []
        self.structure: list[Decision] = []
        """Decisions about the program's structure, which are made as soon as they are sampled."""
        self.constraints: list[Expr] = []
        self.preferences: list[Expr] = []
        """What candidates meet that are chosen unseen, if some do."""
        self._given: Given = given or {}
        self._verified = knob("RETUNE_VERIFY") == "1"

    # -- looking -----------------------------------------------------------------------------

    def loops(self, block: str) -> list[str]:
        """Names of the loops around a block, outermost first."""
        return [loop.var.name for loop in stages.loops_of(self.program, block)]

    def loop(self, name: str) -> For:
        """The loop over the variable of that name."""
        return loops.loop_named(self.program, name)

    def extent(self, name: str) -> int:
        """Iterations of a loop whose extent depends on sizes at most."""
        return evaluate_int(self.loop(name).extent)

    def several(self, name: str) -> bool:
        """Whether a loop may have more than one iteration."""
        return most(self.extent(name)) > 1

    def likely(self, *names: str) -> int:
        """Iterations of nested loops for the sizes at hand: an estimate."""
        return prod(example(self.extent(name)) for name in names)

    def reduce_loops(self, block: str) -> list[str]:
        """Names of the reduce loops around a block, outermost first."""
        return [name for name in self.loops(block) if self.loop(name).reduce]

    def axes(self, block: str) -> list[str]:
        """Names of the variables that are indices of what a block writes."""
        return [index.name for index in self.block(block).indices if isinstance(index, Var)]

    def block(self, name: str) -> Block:
        """The block of that name."""
        return stages.block_named(self.program, name)

    def blocks(self) -> list[str]:
        """Names of all blocks, in program order."""
        return [b.name for b in blocks(self.program.body)]

    # -- sampling ----------------------------------------------------------------------------

    def sample_perfect_tile(
        self, loop: str, parts: int, max_innermost: int = 64, name: str | None = None
    ) -> list[Expr]:
        """`parts - 1` factors whose product divides the loop's extent, outer to inner.

        The innermost is at most `max_innermost`. They are the factors of a `split` into `parts`
        loops without a rest; `name` is the decision's (default: `tile.LOOP`).

        Raises: ScheduleError if the extent is itself sampled, or for less than two parts.
        """
        extent, _ = self._extents(loop, parts, "sample_perfect_tile")
        table = perfect_tiles(extent, parts - 1, max_innermost)
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
        tiles of which the last is moved back. Of an extent that depends on sizes they are those for
        the sizes at hand and, where these leave a choice, for the greatest ones: what was measured
        at fixed sizes has the same decisions. Otherwise as `sample_perfect_tile`.

        Raises: ScheduleError as that does, or for an extent less than `unit`.
        """
        extent, greatest = self._extents(loop, parts, "sample_tile")
        if not 1 <= unit <= extent:
            raise ScheduleError(
                f"sample_tile({loop}): unit is 1 to the extent {extent}, got {unit}"
            )
        table = any_tiles(extent // unit, parts - 1, max_innermost)
        if greatest > extent and len(table) > 1:
            more = any_tiles(greatest // unit, parts - 1, max_innermost)
            table = np.unique(np.concatenate([table, more]), axis=0)
        arguments = {
            "loop": loop, "parts": parts, "max_innermost": max_innermost, "unit": unit,
        }  # fmt: skip
        return self._sample("sample_tile", name or f"tile.{loop}", table, arguments)

    def sample_categorical(self, name: str, options: Sequence[int]) -> Expr:
        """One of the integers; `name` is the decision's, unique within the schedule."""
        table = np.asarray(options, np.int64).reshape(-1, 1)
        arguments: dict[str, Argument] = {"name": name, "options": tuple(int(o) for o in options)}
        return self._sample("sample_categorical", name, table, arguments)[0]

    def require(self, condition: Expr, why: str) -> None:
        """Only candidates for which the condition holds are valid.

        Raises: ScheduleError if it is known to be false already.
        """
        self.constraints += self._unsettled(condition, why)

    def prefer(self, condition: Expr) -> None:
        """Prefer candidates for which it holds, as long as nothing was measured."""
        self.preferences.append(condition)

    # -- helpers -----------------------------------------------------------------------------

    def _unsettled(self, condition: Expr, why: str) -> list[Expr]:
        """The condition, unless it is known to hold. Raises: ScheduleError if it cannot.

        One on sizes has to hold for all of them.
        """
        if size_variables(condition):
            condition = simplify(condition)
        if size_variables(condition):
            try:
                condition = at_worst(condition)
            except ValueError as error:
                raise ScheduleError(f"{self.program.name}: {why} ({error})") from None
        if not isinstance(condition, Const):
            return [condition]
        if not condition.value:
            raise ScheduleError(f"{self.program.name}: {why}")
        return []

    def _extents(self, loop: str, parts: int, who: str) -> tuple[int, int]:
        """The extent of a loop of which so many parts may be sampled, and the greatest one."""
        if parts < 2:
            raise ScheduleError(f"{who}({loop}): expected two parts or more, got {parts}")
        extent = self.loop(loop).extent
        known = known_extent(extent)
        if known is None:
            raise ScheduleError(f"{who}({loop}): its extent {extent} is itself sampled")
        return example(known), reach(known)[1]

    def _sample(
        self, primitive: str, name: str, table: np.ndarray, arguments: Mapping[str, Argument]
    ) -> list[Expr]:
        decision = self._decision(primitive, name, table)
        values = self._given_row(decision, primitive)
        outputs = [v.name for v in decision.symbols]
        self._record(self.program, primitive, {**arguments, "name": name}, outputs)
        self.decisions.append(decision)
        if not values:
            return list(decision.symbols)
        self.trace = self.trace.with_decisions({name: values})
        return [const(v) for v in values]

    def _decision(self, primitive: str, name: str, table: np.ndarray) -> Decision:
        if any(d.name == name for d in (*self.decisions, *self.structure)):
            raise ScheduleError(f"{primitive}: decision {name!r} is taken already")
        if not len(table):
            raise ScheduleError(f"{primitive}: there are no options for {name!r}")
        return Decision(name, table)

    def _given_row(
        self, decision: Decision, primitive: str, default: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The values given for a decision, checked; the default if there are none."""
        if decision.name not in self._given:
            return default
        values = tuple(int(v) for v in self._given[decision.name])
        if not (decision.table == np.asarray(values)).all(axis=1).any():
            raise ScheduleError(f"{primitive}: {values} is not an option of {decision.name!r}")
        return values

    def _record(
        self,
        program: Program,
        primitive: str,
        arguments: Mapping[str, Argument],
        outputs: Sequence[str] = (),
        needed: Sequence[Expr] = (),
    ) -> None:
        """Record a step that made `program`; candidates meet the constraints that it `needed`.

        Nothing else changes the program, so a primitive that raises has changed nothing.
        """
        stated = tuple((key, _stated(value)) for key, value in arguments.items())
        step = TraceStep(primitive, stated, tuple(outputs))
        if self._verified:
            verify(program, primitive)
        self.program, self.trace = program, self.trace.with_step(step)
        self.constraints += needed


def _stated(value: Argument) -> Argument:
    """The argument with literals as plain numbers, as JSON gives them back."""
    if isinstance(value, tuple):
        return tuple(_stated(item) for item in value)
    return int(value.value) if isinstance(value, Const) else value
