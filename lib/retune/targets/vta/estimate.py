"""Estimated times of candidates by a closed form, many at once, without lowering.

Read `cycles`. Each queue's work follows from the tiles; a thread alone waits for its own loads and
stores, threads that take turns hide them behind each other, so that the busiest queue decides. The
rates are those of `timing`, which says it exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from retune.core.dtypes import INT8
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.template import KNOBS, ORDERS, input_size
from retune.targets.vta.timing import (
    BURST_CYCLES,
    COMMAND_CYCLES,
    MEMORY_CYCLES,
    PIPE_CYCLES,
    TENSOR_CYCLES,
)
from retune.targets.vta.workload import Convolution, Operand

Numbers = np.ndarray
"""float64 [n], one for each candidate."""


def cycles(
    work: Convolution, config: VtaConfig, knobs: Mapping[str, np.ndarray], order: int = 0
) -> Numbers:
    """Cycles of each candidate, nearly; `knobs` are those of the template, int64 [n] each."""
    return _Estimate(work, config, knobs, order).cycles()


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy as rows of so many bytes, by so many instructions."""

    rows: Numbers
    row_bytes: Numbers
    instructions: Numbers


class _Estimate:
    """The layer under candidates' tiles."""

    def __init__(
        self, work: Convolution, config: VtaConfig, knobs: Mapping[str, np.ndarray], order: int
    ) -> None:
        self.work, self.config = work, config
        b, h, w, ci, co, oc, ht = (knobs[name].astype(np.float64) for name in KNOBS)
        self.b, self.h, self.w, self.ci, self.co = b, h, w, ci, co
        self.threads = oc * ht
        rows, columns = work.out_size
        self.counts = {
            "bo": work.n / b, "i": rows / h / ht, "co": work.o / co / oc, "j": columns / w,
        }  # fmt: skip
        self.order = ORDERS[order]
        self.depth = work.c / ci
        self.tiles = self.threads * prod(self.counts.values())
        self.sums = b * co * h * w

    def cycles(self) -> Numbers:
        load, begin = self._loads()
        first, products = load / self.depth, self._products()
        step = products / self.depth
        ends, store = self._epilogue(), self._store()
        reset = self.sums + PIPE_CYCLES
        # Alone: what is multiplied next is loaded behind it, but for a tile's first step, which
        # is loaded beside the epilogue and the store of the tile before.
        behind = np.maximum(ends + store + reset, first)
        alone = self.tiles * (behind + load - first + products) + begin - first
        # Two in turns: one's load is beside the other's step, and the last step has the epilogue.
        last = np.maximum(first, step + ends + reset)
        pairs = self.tiles * ((self.depth - 1) * np.maximum(first, step) + last)
        loaded = self.tiles * load + step + ends + store
        idle = begin + (self.threads - 1) * np.maximum(0.0, begin - step)
        computed = idle + self.tiles * (reset + products + ends) + store
        stored = begin + step + ends + self.tiles * store
        turns = np.maximum(np.maximum(loaded, computed), np.maximum(stored, alone / self.threads))
        turns = np.where(self.threads == 2, np.maximum(turns, begin + pairs + store), turns)
        return np.where(self.threads > 1, turns, alone)

    # -- the queues, for a tile ----------------------------------------------------------------

    def _loads(self) -> tuple[Numbers, Numbers]:
        """Of inputs and weights, and of those that the first step of all waits for."""
        inputs = self._read(self._inputs()) + self._padding()
        weights = self._read(self._weights())
        kept = self._loaded(("bo", "i", "j")), self._loaded(("co",))
        load = inputs * kept[0] + weights * kept[1]
        return load / self.tiles, inputs + weights

    def _loaded(self, moving: Sequence[str]) -> Numbers:
        """How often an operand is loaded that these loops move: not again where it stays."""
        found = np.ones_like(self.depth)
        whole = np.ones_like(self.depth)
        for axis in self.order:
            whole = whole * self.counts[axis]
            if axis in moving:
                found = np.where(self.counts[axis] > 1, whole, found)
        every = prod(self.counts.values()) * self.depth
        return self.threads * np.where(self.depth > 1, every, found)

    def _products(self) -> Numbers:
        """Of all its steps."""
        work, each = self.work, self.b * self.co * self.ci * self.h * self.w * self.work.taps
        if work.transposed:
            each = each / prod(work.strides) + (work.taps - 1) * PIPE_CYCLES
        return self.depth * (each + PIPE_CYCLES)

    def _epilogue(self) -> Numbers:
        """The ALU's steps, and the images that they read."""
        work = self.work
        spent = sum(1 if step.imm is not None else TENSOR_CYCLES for step in work.steps)
        images = sum((self._read(self._image(operand)) for operand in work.images()), 0.0)
        return self.sums * spent + PIPE_CYCLES * len(work.steps) + images

    def _store(self) -> Numbers:
        copy = self._output(self.config.out_bytes)
        beats, bursts = self._moved(copy)
        written = beats + (MEMORY_CYCLES + COMMAND_CYCLES) * bursts
        return copy.rows * written + self.sums + copy.instructions

    # -- copies --------------------------------------------------------------------------------

    def _read(self, copy: _Copy) -> Numbers:
        beats, bursts = self._moved(copy)
        each = beats + BURST_CYCLES * bursts + MEMORY_CYCLES
        return copy.rows * each + copy.instructions

    def _moved(self, copy: _Copy) -> tuple[Numbers, Numbers]:
        """Beats and bursts of a row."""
        board = self.config.board
        beats = np.ceil(copy.row_bytes / board.beat_bytes)
        return beats, np.ceil(beats / board.burst_beats)

    def _inputs(self) -> _Copy:
        """Rows that lie one behind the other are one."""
        work, (high, wide) = self.work, self._inside()
        skipped = not work.transposed and work.kernel[0] == 1 and work.strides[0] > 1
        joined = (wide == work.w) & (not any(work.zeros_around) and not skipped)
        whole = joined & (high == work.h)
        rows = np.where(whole, self.b, self.b * self.ci * np.where(joined, 1, high))
        long = wide * np.where(joined, high, 1) * np.where(whole, self.ci, 1)
        return _Copy(rows, long * self.config.inp_bytes, self.b * self.ci)

    def _inside(self) -> tuple[Numbers, Numbers]:
        """Rows and columns of a tile's inputs without padding, on average."""
        top, left, bottom, right = self.work.zeros_around
        high, wide = self._window()
        counts = self.work.out_size[0] / self.h, self.work.out_size[1] / self.w
        rows, columns = high - (top + bottom) / counts[0], wide - (left + right) / counts[1]
        return np.minimum(rows, self.work.h), np.minimum(columns, self.work.w)

    def _window(self) -> tuple[Numbers, Numbers]:
        high, wide = input_size(self.work, self.h.astype(np.int64), self.w.astype(np.int64))
        return np.asarray(high, np.float64), np.asarray(wide, np.float64)

    def _padding(self) -> Numbers:
        """Elements of zeros that a load of inputs adds."""
        (high, wide), (rows, columns) = self._window(), self._inside()
        return self.b * self.ci * np.maximum(0.0, high * wide - rows * columns)

    def _weights(self) -> _Copy:
        work, whole = self.work, self.ci == self.work.c
        rows = np.where(whole, 1, self.co)
        long = self.ci * work.taps * np.where(whole, self.co, 1)
        return _Copy(rows, long * self.config.wgt_bytes, np.ones_like(rows))

    def _image(self, operand: Operand) -> _Copy:
        narrow = operand.dtype == INT8
        return self._output(self.config.inp_bytes if narrow else self.config.acc_bytes)

    def _output(self, size: int) -> _Copy:
        """A tile of the output in DRAM."""
        rows, columns = self.work.out_size
        joined = self.w == columns
        whole = joined & (self.h == rows)
        count = np.where(whole, self.b, self.b * self.co * np.where(joined, 1, self.h))
        long = self.w * np.where(joined, self.h, 1) * np.where(whole, self.co, 1)
        return _Copy(count, long * size, np.where(joined, self.b, self.b * self.co))
