"""The form of a grouped reduction whose narrow groups are joined to wide ones.

A channel has weights of 0 for what its own group does not read. That makes more products, in groups
that fill an instruction. Traces have it under the name `joined`, here with groups of two channels
that become groups of eight:

    y[i, f] += x[i, f//2*2 + c] * w[c, f]                                     for c in 2
    ->
    y.w[c, f] = select(c//2 == f%8//2, w[c%2, f], 0)                          for c in 8
    y[i, f]  += x[i, f//8*8 + c] * y.w[c, f]                                  for c in 8

Where a channel of the data is infinite, results of the groups beside its own are NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.dtypes import TF32
from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Var,
    const,
    equal,
    redirect,
    select,
)
from retune.ir.functions import call, rounding
from retune.ir.stmt import Block, For, Program, Stmt
from retune.schedule.access import Accesses, AffineAccess
from retune.schedule.stages import axes_of, restated, root_nest, stage_nest


def joined(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage by groups of `sizes[0]` channels, and the stage that makes its weights.

    Raises: ScheduleError unless it multiplies the channels of a group by constants, and groups of
    that size consist of whole ones.
    """
    root, block, _ = root_nest(program, name)
    (wide,) = sizes
    groups = _JoinedGroups.of(Accesses.of(block, root), wide)
    value = redirect(block.value, {groups.data: groups.wide_data, groups.weights: groups.read}.get)

    steps = {groups.step.var: [(groups.step.var, const(groups.depth * groups.count))]}
    return restated(program, name, value, steps, {groups.read.buffer: groups.nest()})


@dataclass(frozen=True, slots=True)
class _JoinedGroups:
    """A reduction of channels in groups, so many of which become one."""

    block: Block
    step: For
    """The loop over the channels that a group reads."""
    data: Load
    weights: Load
    depth: int
    """Channels that a group reads."""
    made: int
    """Channels that it makes."""
    count: int
    """Groups that are joined."""

    @staticmethod
    def of(stage: Accesses, wide: int) -> "_JoinedGroups":
        """Raises: ScheduleError as `joined`."""
        name, made, operands = stage.block.name, stage.group, {o.load: o for o in stage.operands}
        channels = stage.block.buffer.shape[-1]
        step = stage.steps[-1] if stage.steps else None
        if not (made and step and isinstance(step.extent, Const)) or len(operands) != 2:
            raise ScheduleError(f"joined({name}): expected groups, got {stage.block.value}")
        if wide % made or not isinstance(channels, Const) or channels.value % wide:
            raise ScheduleError(
                f"joined({name}): expected a multiple of {made} that divides {channels}, got {wide}"
            )
        found = [o.load for o in operands.values() if _chooses(o, stage.channel, step.var)]
        if len(found) != 1 or not _is_factor(found[0], stage.block.value):
            raise ScheduleError(f"joined({name}): expected weights, got {stage.block.value}")
        (weights,), (data,) = found, (load for load in operands if load not in found)
        depth = int(step.extent.value)
        return _JoinedGroups(stage.block, step, data, weights, depth, made, wide // made)

    @property
    def wide_data(self) -> Load:
        """The read of the data. Raises: ScheduleError unless groups follow each other."""
        channel, step = self.block.indices[-1], self.step.var
        own = channel // self.made * self.depth + step
        if self.data.indices.count(own) != 1:
            raise ScheduleError(f"joined({self.block.name}): expected {own}, got {self.data}")
        wide = channel // (self.made * self.count) * (self.depth * self.count) + step
        indices = tuple(wide if index == own else index for index in self.data.indices)
        return Load(self.data.buffer, indices)

    @property
    def read(self) -> Load:
        """The stage's read of its weights."""
        source = self.weights.buffer
        shape = list(source.shape)
        shape[self.weights.indices.index(self.step.var)] = const(self.depth * self.count)
        made = Buffer(f"{self.block.name}.{source.name}", tuple(shape), source.dtype)
        return Load(made, self.weights.indices)

    def nest(self) -> Stmt:
        """The nest that makes the weights."""
        made, indices = self.read.buffer, self.weights.indices
        axes = axes_of(made)
        step, channel = (axes[indices.index(i)] for i in (self.step.var, self.block.indices[-1]))
        at: list[Expr] = [step % self.depth if axis == step else axis for axis in axes]
        own = channel % (self.made * self.count) // self.made
        read = Load(self.weights.buffer, tuple(at))
        value = select(equal(step // self.depth, own), read, const(0, read.dtype))
        return stage_nest(made, axes, value)


def _is_factor(weights: Load, value: Expr) -> bool:
    """Whether the value is a product that is 0 where the weights are."""
    factors = (value.a, value.b) if isinstance(value, Binary) and value.op == "mul" else ()
    plain = (factor.value if isinstance(factor, Cast) else factor for factor in factors)
    return any(factor in (weights, call(rounding(TF32), weights)) for factor in plain)


def _chooses(operand: AffineAccess, channel: Var | None, step: Var) -> bool:
    """Whether it is a constant with an element for each channel and step."""
    indices = operand.load.indices
    own = [operand.dimensions(axis) for axis in (channel, step) if axis in indices]
    return operand.constant and [len(at) for at in own] == [1, 1]
