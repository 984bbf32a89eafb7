"""Three queues that wait for each other's tokens: when each instruction begins and ends.

Read `run_queues`. Instructions are fetched in the order of the stream, into queues of limited
length. One begins once the one before it in its queue is done, its tokens are there, and memory is
free if it reads. A stream that cannot end, or leaves tokens behind, is refused.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from retune.core.errors import InputError
from retune.targets.vta.isa import LOAD, QUEUES, TOKENS, describe, queue_of

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
    """Numbers of the instructions as they began, those at the same time as in the stream. int64"""
    position: np.ndarray
    """How many of its own queue are before each. int64 [n]"""
    known: np.ndarray
    """How many of each queue are certain to be done when it begins: tokens, and what the
    instruction that gave them relied on. int64 [n, 3]"""


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
    return _Timeline(instructions, busy, bus, fetch).run()


class _Token(NamedTuple):
    """A signal from queue to queue."""

    giver: int
    """The instruction."""
    end: int
    """When it is there."""
    known: tuple[int, ...]
    """How many of each queue are done, then, as far as the instruction that gave it knows."""


_Head = tuple[int, int, int]
"""When an instruction can begin, its rank among those at the same time, and its number."""


def _least(heads: Sequence[_Head | None]) -> _Head | None:
    """The one that begins first; None if none can."""
    found = None
    for head in heads:
        if head is not None and (found is None or head < found):
            found = head
    return found


class _Timeline:
    """The queues in time. All lists are by instruction, or by queue."""

    def __init__(
        self, instructions: np.ndarray, busy: np.ndarray, bus: np.ndarray, fetch: tuple[int, int]
    ) -> None:
        self._instructions = instructions
        queue = queue_of(instructions)
        self._queue: list[int] = queue.tolist()
        self._busy: list[int] = busy.tolist()
        self._bus: list[int] = bus.tolist()
        self._pops, self._pushes, signals = _channels(instructions, queue)
        self._quiet: list[bool] = (~signals & (bus == 0)).tolist()
        """Whether nobody else can notice when it begins."""
        self._rank = _ranks(instructions)
        self._fetch_first, self._fetch_each = fetch
        count = len(instructions)
        self._members: list[list[int]] = [np.flatnonzero(queue == q).tolist() for q in range(3)]
        self._fetched = [0] * count
        self._start, self._end = [0] * count, [0] * count
        self._tokens: list[deque[_Token]] = [deque() for _ in _CHANNELS]
        """Of each channel, the oldest first."""
        self._known: list[tuple[int, ...]] = [(0, 0, 0)] * 3
        """What each queue can rely on, but for its own instructions."""
        self._learned: list[int] = []
        """Instructions that took tokens, ..."""
        self._facts: list[int] = []
        """... and for each of them three numbers, `Course.known` from then on."""
        self._free, self._begun, self._waiting = [0, 0, 0], [0, 0, 0], [0, 0, 0]
        self._bus_free = 0
        self._next_fetch = 0
        self._full = -1
        """The queue that has no room for what is fetched next; -1: all is fetched."""

    def run(self) -> Course:
        self._fetch()
        heads = [self._head(queue) for queue in range(3)]
        while (found := _least(heads)) is not None:
            ready, _, number = found
            queue = self._queue[number]
            self._begin(number, ready)
            self._begin_quiet(queue)
            if queue == self._full:
                self._fetch()
            heads[queue] = None
            for other in range(3):  # others than those that can begin already
                if heads[other] is None:
                    heads[other] = self._head(other)
        if sum(self._begun) < len(self._queue):
            raise self._stuck()
        self._check_tokens()
        return self._course()

    def _fetch(self) -> None:
        """Instructions go to their queues as long as there is room."""
        for number in range(self._next_fetch, len(self._queue)):
            queue = self._queue[number]
            if self._waiting[queue] - self._begun[queue] >= QUEUE_DEPTH:
                self._next_fetch, self._full = number, queue
                return
            before = self._fetched[number - 1] if number else self._fetch_first
            room = self._waiting[queue] - QUEUE_DEPTH
            if room >= 0:
                before = max(before, self._start[self._members[queue][room]])
            self._fetched[number] = before + self._fetch_each
            self._waiting[queue] += 1
        self._next_fetch, self._full = len(self._queue), -1

    def _head(self, queue: int) -> _Head | None:
        """When the next of a queue can begin, its rank and number; None while it has to wait."""
        begun = self._begun[queue]
        if begun == self._waiting[queue]:
            return None
        number = self._members[queue][begun]
        ready = max(self._free[queue], self._fetched[number])
        for channel in self._pops[number]:
            tokens = self._tokens[channel]
            if not tokens:
                return None
            ready = max(ready, tokens[0].end)
        return ready, self._rank[number], number

    def _begin(self, number: int, ready: int) -> None:
        queue = self._queue[number]
        for channel in self._pops[number]:
            known = self._tokens[channel].popleft().known
            self._known[queue] = tuple(map(max, self._known[queue], known))
            self._learned.append(number)
            self._facts += self._known[queue]
        if self._bus[number]:
            ready = max(ready, self._bus_free)
            self._bus_free = ready + self._bus[number]
        self._start[number] = ready
        self._end[number] = self._free[queue] = ready + self._busy[number]
        self._begun[queue] += 1
        for channel in self._pushes[number]:
            self._signal(number, channel)

    def _begin_quiet(self, queue: int) -> None:
        """Those next in the queue that nobody else can notice begin, one after the other."""
        members, at, free = self._members[queue], self._begun[queue], self._free[queue]
        while at < self._waiting[queue] and self._quiet[members[at]]:
            number = members[at]
            self._start[number] = max(free, self._fetched[number])
            self._end[number] = free = self._start[number] + self._busy[number]
            at += 1
        self._begun[queue], self._free[queue] = at, free

    def _signal(self, number: int, channel: int) -> None:
        """The instruction's end will be known to the instruction that takes its token."""
        queue, tokens = self._queue[number], self._tokens[channel]
        known = list(self._known[queue])
        known[queue] = self._begun[queue]
        tokens.append(_Token(number, self._end[number], tuple(known)))
        if len(tokens) > MOST_TOKENS:
            raise InputError(
                f"{describe(self._instructions, number)}: expected at most {MOST_TOKENS} "
                f"tokens for {QUEUES[_CHANNELS[channel][1]]} at once, as counters have 8 bits"
            )

    def _course(self) -> Course:
        count = len(self._queue)
        known, position = np.zeros((count, 3), np.int64), np.zeros(count, np.int64)
        # Of equal numbers the last one holds.
        known[np.asarray(self._learned, np.int64)] = np.asarray(self._facts).reshape(-1, 3)
        for queue, members in enumerate(self._members):
            position[members] = np.arange(len(members))
            known[members] = np.maximum.accumulate(known[members], axis=0)
            known[members, queue] = position[members]
        start = np.asarray(self._start, np.int64)
        return Course(
            queue=np.asarray(self._queue, np.int64),
            start=start,
            end=np.asarray(self._end, np.int64),
            order=np.argsort(start, kind="stable"),
            position=position,
            known=known,
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
                    f"{describe(self._instructions, tokens[0].giver)}: gives a token from {source} "
                    f"to {target} that nobody takes ({len(tokens)} in all)"
                )


Channels = list[tuple[int, ...]]


def _channels(instructions: np.ndarray, queue: np.ndarray) -> tuple[Channels, Channels, np.ndarray]:
    """The channels that each instruction takes a token from, and those that it gives one to; and
    whether it has any."""
    bits = np.stack([instructions[name] for name in TOKENS], axis=1).astype(bool)
    wrong = np.zeros(len(instructions), bool)
    wrong |= (queue == 0) & (bits[:, 0] | bits[:, 2])
    wrong |= (queue == 2) & (bits[:, 1] | bits[:, 3])
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        mine = int(queue[number])
        side = "prev" if mine == 0 else "next"
        raise InputError(
            f"{describe(instructions, number)}: the queue {QUEUES[mine]} has no "
            f"neighbour for pop_{side} or push_{side}"
        )
    code = bits.astype(np.int64) @ np.asarray([8, 4, 2, 1]) + 16 * queue
    codes = code.tolist()
    return [_POPS[c] for c in codes], [_PUSHES[c] for c in codes], code % 16 > 0


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
