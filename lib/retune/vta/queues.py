"""Three queues that wait for each other's tokens: when each instruction begins and ends.

Read `run_queues`. Instructions are fetched in the order of the stream, into queues of limited
length. One begins once the one before it in its queue is done, its tokens are there, and memory is
free if it reads. A stream that cannot end, or leaves tokens behind, is refused.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retune.core.errors import InputError
from retune.vta.isa import ALU_OPS, GEMM, LOAD, MEMORIES, OPCODES, QUEUES, STORE, TOKENS, queue_of

QUEUE_DEPTH = 512
"""Instructions that wait in a queue at most."""
MOST_TOKENS = 255
"""Of one kind at once: counters have 8 bits."""

_CHANNELS = ((0, 1), (1, 0), (1, 2), (2, 1))
"""Who signals whom, by queue."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Course:
    """When instructions began and ended, in cycles, and what each could rely on."""

    queue: np.ndarray
    """Index of `isa.QUEUES`. int64 [n]"""
    start: np.ndarray
    """int64 [n]"""
    end: np.ndarray
    """int64 [n]"""
    order: np.ndarray
    """Numbers of the instructions as they began. int64 [n]"""
    position: np.ndarray
    """How many of its own queue are before each. int64 [n]"""
    known: np.ndarray
    """How many of each queue are certain to be done when it begins: tokens, and what whoever gave
    them relied on. int64 [n, 3]"""


def describe(instructions: np.ndarray, number: int) -> str:
    """An instruction in an error: `instruction 12 (load.inp)`."""
    entry = instructions[number]
    name = OPCODES[int(entry["opcode"])]
    if entry["opcode"] in (LOAD, STORE):
        memory = int(entry["memory_type"])
        name += f".{MEMORIES[memory] if memory < len(MEMORIES) else memory}"
    elif name == "alu" and int(entry["alu_op"]) < len(ALU_OPS):
        name += f".{ALU_OPS[int(entry['alu_op'])]}"
    elif entry["opcode"] == GEMM and entry["reset"]:
        name += ".reset"
    return f"instruction {number} ({name})"


def run_queues(
    instructions: np.ndarray, busy: np.ndarray, bus: np.ndarray, fetch: tuple[int, int]
) -> Course:
    """The course of a stream.

    `busy` are the cycles of each instruction from its begin to its end, `bus` those of them for
    which it keeps others from reading DRAM; `fetch` are cycles until the first instruction is
    there, and for each further one.
    Raises: InputError naming the instruction that waits for ever, whose token nobody takes, or
    that has a token of a neighbour that there is not.
    """
    return _Machine(instructions, busy, bus, fetch).run()


class _Machine:
    """The queues in time. All lists are by instruction, or by queue."""

    def __init__(
        self, instructions: np.ndarray, busy: np.ndarray, bus: np.ndarray, fetch: tuple[int, int]
    ) -> None:
        self._instructions = instructions
        self._queue: list[int] = queue_of(instructions).tolist()
        self._busy: list[int] = busy.tolist()
        self._bus: list[int] = bus.tolist()
        self._pops, self._pushes = _channels(instructions, self._queue)
        self._rank = _ranks(instructions)
        self._fetch_first, self._fetch_each = fetch
        count = len(instructions)
        self._members = [[i for i, q in enumerate(self._queue) if q == mine] for mine in range(3)]
        self._fetched = [0] * count
        self._start, self._end = [0] * count, [0] * count
        self._known: list[list[int]] = [[0, 0, 0]] * count
        self._order: list[int] = []
        self._tokens: list[deque[int]] = [deque() for _ in _CHANNELS]
        """Of each channel: the instructions that signalled, oldest first."""
        self._free, self._begun, self._waiting = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        self._bus_free = 0
        self._next_fetch = 0

    def run(self) -> Course:
        count = len(self._queue)
        while len(self._order) < count:
            self._fetch()
            found = self._earliest()
            if found is None:
                raise self._stuck()
            self._begin(*found)
        self._check_tokens()
        position = np.zeros(count, np.int64)
        for members in self._members:
            position[members] = np.arange(len(members))
        return Course(
            queue=np.asarray(self._queue, np.int64),
            start=np.asarray(self._start, np.int64),
            end=np.asarray(self._end, np.int64),
            order=np.asarray(self._order, np.int64),
            position=position,
            known=np.asarray(self._known, np.int64).reshape(count, 3),
        )

    def _fetch(self) -> None:
        """Instructions go to their queues as long as there is room."""
        while self._next_fetch < len(self._queue):
            number = self._next_fetch
            queue = self._queue[number]
            if self._waiting[queue] - self._begun[queue] >= QUEUE_DEPTH:
                return
            before = self._fetched[number - 1] if number else self._fetch_first
            room = self._waiting[queue] - QUEUE_DEPTH
            if room >= 0:
                before = max(before, self._start[self._members[queue][room]])
            self._fetched[number] = before + self._fetch_each
            self._waiting[queue] += 1
            self._next_fetch += 1

    def _earliest(self) -> tuple[int, int] | None:
        """The instruction that can begin first, and when; None if none can."""
        best: tuple[int, int, int] | None = None
        for queue in range(3):
            if self._begun[queue] == self._waiting[queue]:
                continue
            number = self._members[queue][self._begun[queue]]
            ready = max(self._free[queue], self._fetched[number])
            for channel in self._pops[number]:
                if not self._tokens[channel]:
                    break
                ready = max(ready, self._end[self._tokens[channel][0]])
            else:
                found = (ready, self._rank[number], number)
                best = found if best is None else min(best, found)
        return None if best is None else (best[2], best[0])

    def _begin(self, number: int, ready: int) -> None:
        queue = self._queue[number]
        known = [0, 0, 0]
        if self._begun[queue]:
            known = list(self._known[self._members[queue][self._begun[queue] - 1]])
        known[queue] = self._begun[queue]
        for channel in self._pops[number]:
            giver = self._tokens[channel].popleft()
            known = [max(a, b) for a, b in zip(known, self._known[giver], strict=True)]
            source = self._queue[giver]
            known[source] = max(known[source], self._known[giver][source] + 1)
        if self._bus[number]:
            ready = max(ready, self._bus_free)
            self._bus_free = ready + self._bus[number]
        self._known[number] = known
        self._start[number] = ready
        self._end[number] = self._free[queue] = ready + self._busy[number]
        self._begun[queue] += 1
        self._order.append(number)
        for channel in self._pushes[number]:
            self._tokens[channel].append(number)
            if len(self._tokens[channel]) > MOST_TOKENS:
                raise InputError(
                    f"{describe(self._instructions, number)}: expected at most {MOST_TOKENS} "
                    f"tokens for {QUEUES[_CHANNELS[channel][1]]} at once, as counters have 8 bits"
                )

    def _stuck(self) -> InputError:
        """What the first instruction waits for that did not begin."""
        number = min(
            members[begun]
            for members, begun in zip(self._members, self._begun, strict=True)
            if begun < len(members)
        )
        missing = [c for c in self._pops[number] if not self._tokens[c]]
        who = QUEUES[_CHANNELS[missing[0]][0]] if missing else "fetch, whose queue is full"
        return InputError(
            f"{describe(self._instructions, number)}: waits for a token of {who} that never "
            "comes; the queues are deadlocked"
        )

    def _check_tokens(self) -> None:
        for channel, tokens in enumerate(self._tokens):
            if tokens:
                source, target = (QUEUES[queue] for queue in _CHANNELS[channel])
                raise InputError(
                    f"{describe(self._instructions, tokens[0])}: gives a token from {source} to "
                    f"{target} that nobody takes ({len(tokens)} in all)"
                )


Channels = list[tuple[int, ...]]


def _channels(instructions: np.ndarray, queues: list[int]) -> tuple[Channels, Channels]:
    """The channels that each instruction takes a token from, and those that it gives one to."""
    bits = np.stack([instructions[name] for name in TOKENS], axis=1).astype(bool)
    wrong = np.zeros(len(instructions), bool)
    queue = np.asarray(queues)
    wrong |= (queue == 0) & (bits[:, 0] | bits[:, 2])
    wrong |= (queue == 2) & (bits[:, 1] | bits[:, 3])
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        side = "prev" if queues[number] == 0 else "next"
        raise InputError(
            f"{describe(instructions, number)}: the queue {QUEUES[queues[number]]} has no "
            f"neighbour for pop_{side} or push_{side}"
        )
    code = bits.astype(np.int64) @ np.asarray([8, 4, 2, 1]) + 16 * queue
    return ([_POPS[c] for c in code.tolist()], [_PUSHES[c] for c in code.tolist()])


def _of_bits(prev: int, next_: int, channels: Mapping[tuple[int, int], int]) -> Channels:
    """For each queue and value of the four token bits: the channels of those two that are set."""
    return [
        tuple(
            channels[queue, side]
            for side, bit in ((0, prev), (1, next_))
            if bits & bit and (queue, side) in channels
        )
        for queue in range(3)
        for bits in range(16)
    ]


_POPS = _of_bits(8, 4, {(0, 1): 1, (1, 0): 0, (1, 1): 3, (2, 0): 2})
_PUSHES = _of_bits(2, 1, {(0, 1): 0, (1, 0): 1, (1, 1): 2, (2, 0): 3})
"""From (queue, whether it is its next neighbour) to a channel."""


def _ranks(instructions: np.ndarray) -> list[int]:
    """Who reads DRAM first of those that could begin at once: uop, inp, wgt, acc, then the rest."""
    rank = np.asarray([0, 2, 1, 3, 5, 3])[np.minimum(instructions["memory_type"], 5)]
    return np.where(instructions["opcode"] == LOAD, rank, 4).tolist()
