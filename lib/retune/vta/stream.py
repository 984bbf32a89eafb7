"""A stream of instructions while it is written: copies, loops over micro-ops, and tokens.

Read `Stream`. Whoever writes says which instructions have to be complete before the next one; the
tokens that make it so follow from that.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from retune.vta.config import VtaConfig
from retune.vta.folding import Folded
from retune.vta.isa import (
    ALU,
    ALU_OPS,
    FIELDS,
    FINISH,
    GEMM,
    INP,
    INSTRUCTION,
    LOAD,
    STORE,
    UOP,
    WGT,
    encode_uops,
)

_MOST = (1 << 16) - 1
"""Rows, columns and strides of a copy."""
_POP = {(0, 1): "pop_prev", (1, 0): "pop_next", (1, 2): "pop_prev", (2, 1): "pop_next"}
_PUSH = {(0, 1): "push_next", (1, 0): "push_prev", (1, 2): "push_next", (2, 1): "push_prev"}
"""The field of who waits, and of who signals, from one queue to another."""
_AT = {name: index for index, name in enumerate(FIELDS)}
_LOOPS = _AT["reset"]

Pads = tuple[int, int, int, int]
"""Top, bottom, left, right."""


class Stream:
    """Instructions and micro-ops so far; `instructions` and `uops` are what was written."""

    def __init__(self, config: VtaConfig, uops_at: int) -> None:
        """It begins with a load of all micro-ops, which lie in DRAM at `uops_at`."""
        self.config = config
        self._rows: list[list[int]] = []
        self._queues: list[int] = []
        self._signalled: dict[tuple[int, int], int] = {}
        """From queue to queue: the last instruction for whose end there was a wait."""
        self._uops: list[np.ndarray] = []
        self._begins: dict[bytes, int] = {}
        self._uop_count = 0
        self.copy(LOAD, UOP, 0, uops_at, [(1, 1)])

    @property
    def instructions(self) -> np.ndarray:
        """isa.INSTRUCTION [n]"""
        made = np.array(self._rows, np.int64).view(INSTRUCTION).reshape(-1)
        made["x_size"][0] = made["x_stride"][0] = self._uop_count
        return made

    @property
    def uops(self) -> np.ndarray:
        """uint32 [n]"""
        parts = self._uops or [np.zeros(0, np.uint32)]
        return np.concatenate(parts)

    def copy(
        self,
        opcode: int,
        memory: int,
        sram: int,
        dram: int,
        loops: Sequence[tuple[int, int]],
        pads: Pads = (0, 0, 0, 0),
        after: Iterable[int] = (),
    ) -> int:
        """Copies elements of DRAM at `dram` over (extent, stride) loops, outer to inner, which lie
        one after the other on chip; pads are around the two innermost. The last one's number.

        As few instructions as there can be.
        """
        outer, (y, stride), x = _two_dimensional(loops, pads)
        top, bottom, left, right = pads
        size = (top + y + bottom) * (left + x + right)
        for begin in _offsets(outer):
            row = [opcode, 0, 0, 0, 0, memory, sram, dram + begin, y, x, stride, *pads]
            self._add([*row, *[0] * (len(FIELDS) - len(row))], after)
            sram += size
        return len(self._rows) - 1

    def gemm(self, work: Folded, *, reset: bool = False, after: Iterable[int] = ()) -> int:
        """Sums of products, or sums set to zero; its number."""
        a, b = work.outer, work.inner
        loops = self._loops(work, reset=reset)
        return self._add([GEMM, *[0] * (_LOOPS - 1), *loops, a.wgt, b.wgt, 0, 0, 0], after)

    def alu(self, work: Folded, op: str, imm: int | None = None) -> int:
        """An operation on sums, with others or with an immediate; its number."""
        operation = (ALU_OPS.index(op), int(imm is not None), imm or 0)
        loops = self._loops(work, reset=False)
        return self._add([ALU, *[0] * (_LOOPS - 1), *loops, 0, 0, *operation], ())

    def finish(self, after: Iterable[int]) -> None:
        """The end of the stream."""
        self._add([FINISH, *[0] * (len(FIELDS) - 1)], after)

    def _loops(self, work: Folded, *, reset: bool) -> list[int]:
        begin = self._begin(work.uops)
        a, b = work.outer, work.inner
        loops = [a.extent, b.extent, a.dst, b.dst, a.src, b.src]
        return [int(reset), begin, begin + len(work.uops), *loops]

    def _begin(self, uops: np.ndarray) -> int:
        """Where these micro-ops begin; those that are there already are used again."""
        key = uops.tobytes()
        if key not in self._begins:
            self._begins[key] = self._uop_count
            self._uops.append(encode_uops(uops, self.config))
            self._uop_count += len(uops)
        return self._begins[key]

    def _add(self, row: list[int], after: Iterable[int]) -> int:
        number, queue = len(self._rows), _queue(row)
        self._rows.append(row)
        self._queues.append(queue)
        latest: dict[int, int] = {}
        for earlier in after:
            source = queue if earlier < 0 else self._queues[earlier]
            if source != queue:
                latest[source] = max(latest.get(source, -1), earlier)
        for source, earlier in latest.items():
            # Queues work in order: who waited for a later one need not wait for this one.
            channel = (source, queue)
            if earlier > self._signalled.get(channel, -1):
                self._signalled[channel] = earlier
                self._rows[earlier][_AT[_PUSH[channel]]] = 1
                row[_AT[_POP[channel]]] = 1
        return number


def _queue(row: Sequence[int]) -> int:
    if row[0] == LOAD and row[_AT["memory_type"]] in (INP, WGT):
        return 0
    return 2 if row[0] == STORE else 1


def _two_dimensional(
    loops: Sequence[tuple[int, int]], pads: Pads
) -> tuple[list[tuple[int, int]], tuple[int, int], int]:
    """Loops over instructions, the rows of one and their stride, and the columns."""
    kept = 2 if any(pads[:2]) else 1 if any(pads[2:]) else 0
    inner = list(loops[len(loops) - kept :])
    merged = _merged(loops[: len(loops) - kept])
    whole = [*merged, *inner]
    if not kept and (not whole or whole[-1][1] != 1):
        whole.append((1, 1))
    x = whole.pop()[0]
    if not whole:
        return [], (1, x), x
    y, stride = whole[-1]
    if stride > _MOST or y > _MOST:
        return whole, (1, min(x, _MOST)), x
    return whole[:-1], (y, stride), x


def _merged(loops: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The loops without those of one iteration, and with neighbours that are one loop as such."""
    made: list[tuple[int, int]] = []
    for extent, stride in loops:
        if extent == 1:
            continue
        if made and made[-1][1] == extent * stride:
            made[-1] = (made[-1][0] * extent, stride)
        else:
            made.append((extent, stride))
    return made


def _offsets(loops: Sequence[tuple[int, int]]) -> list[int]:
    found = [0]
    for extent, stride in loops:
        found = [begin + i * stride for begin in found for i in range(extent)]
    return found
