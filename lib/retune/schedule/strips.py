"""The form of a window over few channels whose taps along a row are one run of steps.

The data lie in strips: `sizes[0]` elements for each pixel of a row, and zeros past its channels, so
that a window's row is as many neighbours in memory as an instruction multiplies. Traces have it
under the name `strips`, here for windows of 5 pixels of 3 channels, every second pixel:

    y[x, f] += data[x*2 + r, c] * w[r, c, f]                        for r in 5, c in 3
    ->
    y.strips[j] = select(j//4 < width and j%4 < 3, data[j//4, j%4], 0)
    y.w[q, f]   = select(q//4 < 5 and q%4 < 3, w[q//4, q%4, f], 0)  for q in 32
    y[x, f]    += y.strips[x*8 + q] * y.w[q, f]                     for q in 32
"""

from collections.abc import Sequence
from dataclasses import dataclass

from retune.core.dims import is_fixed
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Buffer,
    Expr,
    Load,
    all_of,
    const,
    loads,
    redirect,
    select,
)
from retune.ir.simplify import affine
from retune.ir.stmt import Block, For, Program, Stmt
from retune.schedule.stages import axes_of, restated, root_nest, stage_nest


def strips(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage over runs of `sizes[1]` steps, and the stages that make its strips, of `sizes[0]`
    elements for each pixel and rows that start at multiples of `sizes[2]`, and its weights.

    Raises: ScheduleError unless its last steps are taps along a row of pixels and their channels,
    in the order in which they lie, and a run holds them.
    """
    _, block, path = root_nest(program, name)
    window = _RowWindow.of(block, path, *sizes)
    made = {window.data: window.strip, window.weights: window.weights_read}
    nests = {
        window.strip.buffer: window.strips_nest(),
        window.weights_read.buffer: window.weights_nest(),
    }
    steps = {window.tap.var: [], window.step.var: [(window.step.var, const(window.run))]}
    return restated(program, name, redirect(block.value, made.get), steps, nests)


@dataclass(frozen=True, slots=True)
class _RowWindow:
    """A reduction over windows of data whose channels lie side by side."""

    block: Block
    data: Load
    weights: Load
    tap: For
    """The loop over pixels of a row."""
    step: For
    """The loop over their channels."""
    pixel: int
    """Elements for each pixel of a strip."""
    run: int
    """Steps."""
    whole: int
    """What the length of a strip is a multiple of."""

    @staticmethod
    def of(block: Block, path: Sequence[For], pixel: int, run: int, whole: int) -> "_RowWindow":
        """Raises: ScheduleError as `strips`."""
        steps, found = [p for p in path if p.reduce], [*dict.fromkeys(loads(block.value))]
        last = {loop.var for loop in steps[-2:]}
        weights = [w for w in found if w.buffer.scope == "constant" and last <= {*w.indices}]
        data = [load for load in found if load not in weights]
        if len(last) != 2 or len(weights) != 1 or len(data) != 1 or len(data[0].indices) < 2:
            raise ScheduleError(f"strips({block.name}): expected taps of a row, got {block.value}")
        tap, step = steps[-2:]
        made = _RowWindow(block, data[0], weights[0], tap, step, pixel, run, whole)
        extents = (*data[0].buffer.shape[-2:], made.tap.extent, made.step.extent)
        known = [evaluate_int(extent) for extent in extents]
        if not all(map(is_fixed, known)) or made.at is None or known[1] != known[3]:
            raise ScheduleError(f"strips({block.name}): expected channels in turn, got {data[0]}")
        if pixel < made.channels or run < pixel * (made.taps - 1) + made.channels:
            raise ScheduleError(
                f"strips({block.name}): expected room for {made.taps} pixels of {made.channels} "
                f"channels, got {run} steps with {pixel} for a pixel"
            )
        return made

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return evaluate_int(self.step.extent)

    @property
    def taps(self) -> int:
        """Pixels of a window's row."""
        return evaluate_int(self.tap.extent)

    @property
    def at(self) -> Expr | None:
        """The first pixel of a window; None where its pixels are not neighbours."""
        *_, pixel, channel = self.data.indices
        form = affine(pixel, [self.tap.var])
        near = form is not None and form[0].get(self.tap.var) == const(1)
        return form[1] if form and near and channel == self.step.var else None

    @property
    def strip(self) -> Load:
        """The stage's read of the strips."""
        assert self.at is not None, "it was asked for"
        source, width = self.data.buffer, evaluate_int(self.data.buffer.shape[-2])
        length = (width - self.taps) * self.pixel + self.run
        length = -(-length // self.whole) * self.whole
        shape = (*source.shape[:-2], const(length))
        made = Buffer(f"{self.block.name}.strips", shape, source.dtype)
        return Load(made, (*self.data.indices[:-2], self.at * self.pixel + self.step.var))

    @property
    def weights_read(self) -> Load:
        """The stage's read of the weights."""
        source, step = self.weights.buffer, self.step.var
        pairs = [
            (index, const(self.run) if index == step else extent)
            for index, extent in zip(self.weights.indices, source.shape, strict=True)
            if index != self.tap.var
        ]
        name = f"{self.block.name}.{source.name}"
        made = Buffer(name, tuple(extent for _, extent in pairs), source.dtype)
        return Load(made, tuple(index for index, _ in pairs))

    def strips_nest(self) -> Stmt:
        """The nest that makes the strips."""
        made = self.strip.buffer
        *rows, along = axes = axes_of(made)
        pixel, channel = along // self.pixel, along % self.pixel
        inside = all_of(pixel < self.data.buffer.shape[-2], channel < self.channels)
        read = Load(self.data.buffer, (*rows, pixel, channel))
        return stage_nest(made, axes, select(inside, read, const(0, read.dtype)))

    def weights_nest(self) -> Stmt:
        """The nest that makes the weights."""
        made, chosen = self.weights_read.buffer, self.weights_read.indices
        axes = axes_of(made)
        along = axes[chosen.index(self.step.var)]
        tap, channel = along // self.pixel, along % self.pixel
        own = iter(axes)
        indices: list[Expr] = []
        for index in self.weights.indices:
            axis = tap if index == self.tap.var else next(own)
            indices.append(channel if index == self.step.var else axis)
        inside = all_of(tap < self.taps, channel < self.channels)
        read = Load(self.weights.buffer, tuple(indices))
        return stage_nest(made, axes, select(inside, read, const(0, read.dtype)))
