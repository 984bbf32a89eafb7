"""A stream of instructions while it is written: copies, loops over micro-ops, and tokens.

Read `Stream`. The writer says which instructions have to be complete before the next one; the
tokens that make it so follow from that.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from retune.targets.vta.config import VtaConfig
from retune.targets.vta.folding import Folded
from retune.targets.vta.isa import (
    ALU,
    ALU_OPS,
    FIELDS,
    FINISH,
    GEMM,
    INP,
    INSTRUCTION,
    LOAD,
    STORE,
    TOKENS,
    UOP,
    WGT,
    encode_uops,
)

_MOST = (1 << 16) - 1
"""Rows, columns and strides of a copy."""
_PREV_POP, _NEXT_POP, _PREV_PUSH, _NEXT_PUSH = (1 << number for number in range(len(TOKENS)))
_POP = {(0, 1): _PREV_POP, (1, 0): _NEXT_POP, (1, 2): _PREV_POP, (2, 1): _NEXT_POP}
_PUSH = {(0, 1): _NEXT_PUSH, (1, 0): _PREV_PUSH, (1, 2): _NEXT_PUSH, (2, 1): _PREV_PUSH}
"""The bit of who waits, and of who signals, from one queue to another."""
_AT = {name: index for index, name in enumerate(FIELDS)}
_LOOPS = _AT["reset"]

Pads = tuple[int, int, int, int]
"""Top, bottom, left, right."""


Piece = Sequence[tuple[int, int]]
"""Instructions that are written one after the other: the number of each in `Stream`'s store, and
how far its first element in DRAM is from that of the piece."""


class Stream:
    """Instructions and micro-ops so far; `instructions` and `uops` are what was written.

    `copies`, `gemm` and `alu` make pieces, `add` writes them, as often as they are wanted.
    """

    def __init__(self, config: VtaConfig, uops_at: int) -> None:
        """It begins with a load of all micro-ops, which lie in DRAM at `uops_at`."""
        self.config = config
        self._store: list[list[int]] = []
        """Instructions by fields, without tokens and addresses in DRAM."""
        self._queue_of: list[int] = []
        """The queue of each of the store."""
        self._chosen: list[int] = []
        """What was written, by number in the store."""
        self._dram: list[int] = []
        self._tokens: list[int] = []
        """Of what was written, bits in the order of isa.TOKENS."""
        self._signalled: dict[tuple[int, int], int] = {}
        """From queue to queue: the last instruction for whose end there was a wait."""
        self._uops: list[np.ndarray] = []
        self._begins: dict[bytes, int] = {}
        self._uop_count = 0
        self.add(self.copies(LOAD, UOP, 0, [(1, 1)]), uops_at)

    @property
    def instructions(self) -> np.ndarray:
        """isa.INSTRUCTION [n]"""
        stored = np.array(self._store, np.int64).view(INSTRUCTION).reshape(-1)
        made = stored[self._chosen]
        made["dram_base"] = self._dram
        bits = np.asarray(self._tokens)
        for number, name in enumerate(TOKENS):
            made[name] = bits >> number & 1
        made["x_size"][0] = made["x_stride"][0] = self._uop_count
        return made

    @property
    def uops(self) -> np.ndarray:
        """uint32 [n]"""
        parts = self._uops or [np.zeros(0, np.uint32)]
        return np.concatenate(parts)

    # -- pieces ------------------------------------------------------------------------------

    def copies(
        self,
        opcode: int,
        memory: int,
        sram: int,
        loops: Sequence[tuple[int, int]],
        pads: Pads = (0, 0, 0, 0),
    ) -> Piece:
        """Copies elements of DRAM over (extent, stride) loops, outer to inner, which lie one after
        the other on chip from `sram` on; pads are around the two innermost.

        As few instructions as there can be.
        """
        outer, (y, stride), x = _two_dimensional(loops, pads)
        top, bottom, left, right = pads
        size = (top + y + bottom) * (left + x + right)
        made: list[tuple[int, int]] = []
        for number, begin in enumerate(_offsets(outer)):
            at = sram + number * size
            row = [opcode, 0, 0, 0, 0, memory, at, 0, y, x, stride, *pads]
            made.append((self._stored(row), begin))
        return made

    def gemm(self, work: Folded, *, reset: bool = False) -> Piece:
        """Sums of products, or sums set to zero."""
        a, b = work.outer, work.inner
        loops = self._loops(work, reset=reset)
        return [(self._stored([GEMM, *[0] * (_LOOPS - 1), *loops, a.wgt, b.wgt]), 0)]

    def alu(self, work: Folded, op: str, imm: int | None = None) -> Piece:
        """An operation on sums, with others or with an immediate."""
        operation = (ALU_OPS.index(op), int(imm is not None), imm or 0)
        loops = self._loops(work, reset=False)
        return [(self._stored([ALU, *[0] * (_LOOPS - 1), *loops, 0, 0, *operation]), 0)]

    def _stored(self, row: list[int]) -> int:
        self._store.append([*row, *[0] * (len(FIELDS) - len(row))])
        self._queue_of.append(_queue(row))
        return len(self._store) - 1

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

    # -- writing -----------------------------------------------------------------------------

    def add(self, piece: Piece, dram: int = 0, after: Iterable[int] = ()) -> int:
        """The piece is written, with `dram` as its first element there, to begin when all `after`
        are done; the number of its last instruction."""
        first = len(self._chosen)
        for stored, offset in piece:
            self._chosen.append(stored)
            self._dram.append(dram + offset)
            self._tokens.append(0)
        self._wait(first, after)
        return len(self._chosen) - 1

    def finish(self, after: Iterable[int]) -> None:
        """The end of the stream."""
        self.add([(self._stored([FINISH]), 0)], after=after)

    def _wait(self, number: int, after: Iterable[int]) -> None:
        queue = self._queue(number)
        latest: dict[int, int] = {}
        for earlier in after:
            source = queue if earlier < 0 else self._queue(earlier)
            if source != queue:
                latest[source] = max(latest.get(source, -1), earlier)
        for source, earlier in latest.items():
            # Queues work in order: who waited for a later one need not wait for this one.
            channel = (source, queue)
            if earlier > self._signalled.get(channel, -1):
                self._signalled[channel] = earlier
                self._tokens[earlier] |= _PUSH[channel]
                self._tokens[number] |= _POP[channel]

    def _queue(self, number: int) -> int:
        return self._queue_of[self._chosen[number]]


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
