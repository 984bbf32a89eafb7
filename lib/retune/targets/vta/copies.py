"""Copies of a stream's loads and stores, between elements on chip and buffers in DRAM.

Read `Copies.of`, which looks at all of them at once, and refuses those that leave their memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from retune.core.errors import InputError
from retune.targets.vta.isa import LOAD, MEMORIES, MEMORY_TYPES, OUT, STORE, describe
from retune.targets.vta.module import VtaModule

_PADS = ("y_pad_top", "y_pad_bottom", "x_pad_left", "x_pad_right")
_SHAPE = ("y_size", "x_size", "x_stride", *_PADS)
OUTSIDE = 1 << 40
"""Stands for the row of an element that is zero and not copied: beyond all that there are."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Copies:
    """Of each instruction of a stream; zeros for those that copy nothing."""

    chosen: np.ndarray
    """Whether it is a load or a store. bool [n]"""
    begin: np.ndarray
    """First element on chip. int64 [n]"""
    end: np.ndarray
    """The one behind the last. int64 [n]"""
    buffer: np.ndarray
    """Number of the module's buffer in DRAM; -1: none, as nothing is moved. int64 [n]"""
    row: np.ndarray
    """First element there. int64 [n]"""
    shape: np.ndarray
    """Rows, columns and stride in DRAM, and what is added around them. int64 [n, 7]"""

    @staticmethod
    def of(module: VtaModule) -> "Copies":
        """Those of the module's stream.

        Raises: InputError naming the first instruction that copies from or to where it must not.
        """
        stream = module.instructions
        opcode, memory = stream["opcode"], stream["memory_type"]
        load, store = opcode == LOAD, opcode == STORE
        shape = np.stack([stream[name] for name in _SHAPE], axis=1)
        rows, columns, _, top, bottom, left, right = shape.T
        _refuse(module, load & ((memory >= len(MEMORIES)) | (memory == OUT)), lambda number: (
            f"expected a memory that is loaded, got {_named(int(memory[number]))}"
        ))  # fmt: skip
        _refuse(module, store & (memory != OUT), lambda number: (
            f"expected memory out, which alone is stored, got {_named(int(memory[number]))}"
        ))  # fmt: skip
        _refuse(module, store & shape[:, 3:].any(axis=1), lambda _: (
            "expected no padding, which is for loads"
        ))  # fmt: skip
        chosen = load | store
        begin = np.where(chosen, stream["sram_base"], 0)
        size = (rows + top + bottom) * (columns + left + right)
        end = begin + np.where(chosen, size, 0)
        _check_chip(module, chosen, begin, end)
        buffer, row = _in_dram(module, chosen & (rows * columns > 0), shape)
        return Copies(chosen=chosen, begin=begin, end=end, buffer=buffer, row=row, shape=shape)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """The element of DRAM for each element on chip of these copies, one after the other,
        counted from the first of the first copy; OUTSIDE for zeros. int64 [elements]"""
        found: list[np.ndarray] = []
        first = self.row[numbers[0]]
        for number in numbers.tolist():
            y, x, stride, top, bottom, left, right = self.shape[number].tolist()
            whole = np.full((top + y + bottom, left + x + right), OUTSIDE)
            moved = np.arange(y)[:, None] * stride + np.arange(x)
            whole[top : top + y, left : left + x] = moved + (self.row[number] - first)
            found.append(whole.reshape(-1))
        return np.concatenate(found)


def _named(memory: int) -> str:
    return MEMORIES[memory] if memory < len(MEMORIES) else f"type {memory}"


def _check_chip(module: VtaModule, chosen: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
    """Raises: InputError for a copy that leaves its memory on chip."""
    memory = module.instructions["memory_type"]
    depth = np.asarray([module.config.depth(kind.chip) for kind in MEMORY_TYPES])
    known = np.where(chosen, memory, 0)

    def leaves(number: int) -> str:
        kind = int(memory[number])
        return (
            f"expected elements of {MEMORY_TYPES[kind].chip} below {depth[kind]}; got "
            f"{begin[number]} to {end[number] - 1}"
        )

    _refuse(module, chosen & (end > depth[known]), leaves)


def _in_dram(
    module: VtaModule, moving: np.ndarray, shape: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The buffer of each copy that moves something, and its first element there.

    Raises: InputError for one that is not within a single buffer of its memory.
    """
    stream = module.instructions
    base = stream["dram_base"]
    last = base + (shape[:, 0] - 1) * shape[:, 2] + shape[:, 1] - 1
    found = np.full(len(stream), -1)
    row = np.zeros(len(stream), np.int64)
    for number, buffer in enumerate(module.buffers):
        mine = moving & (stream["memory_type"] == MEMORIES.index(buffer.memory))
        mine &= (buffer.offset <= base) & (last < buffer.offset + buffer.elements)
        found[mine] = number
        row[mine] = base[mine] - buffer.offset
    _refuse(module, moving & (found < 0), lambda number: (
        f"expected elements of one {MEMORIES[int(stream['memory_type'][number])]} buffer in DRAM, "
        f"got {base[number]} to {last[number]}"
    ))  # fmt: skip
    return found, row


def _refuse(module: VtaModule, wrong: np.ndarray, what: Callable[[int], str]) -> None:
    """Raises: InputError about the first one that is wrong, if there is any."""
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        raise InputError(f"{describe(module.instructions, number)}: {what(number)}")
