"""Packed constants and caches come from memory before they are used.

A packed operand lies in the order in which its reduction reads it, so where the next reads go is
known. The weights of a network are more than its caches hold; each layer's come from main memory,
and a core that waits for them at each vector reaches a quarter of the memory's rate. Asked for
ahead of time they arrive beside the arithmetic, in two ways:

- `fetch`: what a stream reads 8 KB later (measured in turns: resnet50 0.93 of the time, resnet18
  0.96, vgg19 0.96, squeezenet 0.98; mobilenet, whose weights the last cache holds, 1.01);
- `share_of_next`: where a strip of weights is read several times, once for each tile of pixels, its
  first pass would have to bring all of it while the other passes bring nothing, and memory is
  slower than that. So each pass fetches an equal share of the next strip (3x3 layers of 512
  channels in place: 620 to 485 us; in turns: resnet50 0.97 of the time, squeezenet 0.96, resnet18
  and mobilenet 0.99, inception_v2 1.01, vgg19 1.00).

A cache of keys or values has a row for each token, and what a kernel reads of it are parts of rows
that lie apart: `next_rows` fetches those of some tokens later (SmolLM2, one token after 144, from
memory, processor time: scores take 0.76 of the time, sums of values 0.70).

The other way round, an array that no cache holds would only push out what is needed: a line of it
that is written would be read from memory first, and written there later. `whole_lines` of it go
past the caches (input products of an LSTM at batch 16, 33 MB each, in turns: 0.86 of the time).

Only kernels of one-item groups do this, as CPUs run them: GPUs hide the way to memory by other
items. Reads past the end of a buffer are asked for too, which is harmless: a prefetch cannot fail.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import gcd, prod

from retune.codegen.addresses import Address
from retune.codegen.kernel import At, Memory, Prefetch
from retune.core.dims import dim_of, example, is_fixed
from retune.core.dtypes import FLOAT32
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import (
    Buffer,
    Expr,
    SizeVar,
    Var,
    const,
    equal,
    loads,
    size_variables,
    variables,
)
from retune.ir.flat import elements
from retune.ir.simplify import Polynomial
from retune.ir.stmt import For, Stmt, blocks

AHEAD_BYTES = 8192
"""How far ahead. Twice as much was slower, half as much the same (measured)."""
_FARTHEST_BYTES = 20 << 10
"""Of a panel in the next tile: three of 6.1 KB are worth it (SmolLM2's products of one row by
panels in floats take 0.88 of the time, in turns), and not measured beyond."""
_MOST_PASSES = 4
"""Over a panel that is fetched: it is near in all passes but the first, and each further request
takes the slot of a load (a text recogniser at 320 columns and more without them: 0.94 to 0.99 of
the processor time, in turns; at fewer columns the same)."""
_LINE_BYTES = 64
_LEAST_BYTES = 1 << 16
"""Smaller constants stay in the first caches once they are there."""
_LEAST_STRIP_BYTES = 1 << 14
"""Smaller strips are there in time without help. (Those of 16 to 32 KB, in turns on two cores of
Zen 2: resnet18 and resnet50 0.97 of the time, inception_v1 1.01; on one core resnet18 0.985,
squeezenet and mobilenet 1.00. From 8 KB on nothing more.)"""


_ROWS_AHEAD = 8
"""Twice as many are as good, four times as many are worse (measured)."""


def is_stream(buffer: Buffer) -> bool:
    """Whether a packed constant is worth fetching ahead of its use."""
    return elements(buffer) * buffer.dtype.itemsize >= _LEAST_BYTES


def fetch(
    read: Address, memory: Memory, streams: int = 1, loops: Sequence[For] = ()
) -> Prefetch | None:
    """What lies ahead of a read, one of so many streams; None where its line was asked for, or a
    panel is read so often that it is near.

    `loops` are those in time around it, from the outermost. Where a tile reads several panels side
    by side, another one that it reads lies behind each: a stream goes on in the next tile.
    """
    size = read.buffer.dtype.itemsize
    passes, following = _panel(read, loops) if streams > 1 else (1, 0)
    if read.offset * size % _LINE_BYTES or passes > _MOST_PASSES:
        return None
    ahead = AHEAD_BYTES // streams // _LINE_BYTES * _LINE_BYTES // size
    if 0 < following * size <= _FARTHEST_BYTES:
        ahead = following
    return Prefetch(At(memory, read.base, read.offset), ahead, later=False)


def starts_line(read: Address, loop: For) -> Expr | None:
    """The steps of an unrolled loop that read the first part of a line; None where each does.

    A request takes the slot of a load: a text recogniser's sizes of 340 columns and more take 0.94
    to 0.97 of the processor time if each panel's lines are asked for once, lesser ones the same.
    """
    parts = _LINE_BYTES // max(1, read.lanes * read.buffer.dtype.itemsize)
    step = sum(c for monomial, c in read.terms if monomial == (loop.var,))
    extent = evaluate_int(loop.extent)
    if parts < 2 or step != read.lanes or loop.unroll is None or not is_fixed(extent):
        return None
    return None if gcd(extent, evaluate_int(loop.unroll)) % parts else equal(loop.var % parts, 0)


def next_rows(read: Address, memory: Memory, loops: Sequence[For]) -> Prefetch | None:
    """What is read some steps of the innermost loop later; None for what is not a cache.

    A cache's first axis has an open length, and a step goes one on along it, over more than a line.
    """
    length, *others = read.buffer.shape or (const(1),)
    if not size_variables(length) or any(map(size_variables, others)) or not loops:
        return None
    size, row = read.buffer.dtype.itemsize, prod(map(evaluate_int, others))
    step = sum(c for monomial, c in read.terms if monomial == (loops[-1].var,))
    if step != row or row * size <= _LINE_BYTES or read.offset * size % _LINE_BYTES:
        return None
    return Prefetch(At(memory, read.base, read.offset), _ROWS_AHEAD * row, later=False)


def large(nest: Stmt, past_bytes: int) -> frozenset[Buffer]:
    """The arrays of floats, of so many bytes, that a nest only writes, each element once."""
    found = blocks(nest)
    read = {load.buffer for block in found for load in loads(block.value)}
    return frozenset(
        b.buffer
        for b in found
        if b.reducer is None
        and b.buffer not in read
        and (b.buffer.scope, b.buffer.dtype) == ("global", FLOAT32)
        and is_fixed(size := elements(b.buffer) * b.buffer.dtype.itemsize)
        and size >= past_bytes
    )


def whole_lines(addresses: Sequence[Address | None], loops: Sequence[For]) -> frozenset[Address]:
    """Those of the vectors written by straight-line code that fill lines of memory, at once or in
    the next iteration: a part of a line would be a transfer of its own.

    `loops` are those in time around it, from the outermost.
    """
    rows: dict[object, list[Address]] = {}
    for address in addresses:
        if address is not None and address.lanes > 1 and address.aligned:
            rows.setdefault((address.buffer, address.base, address.lanes), []).append(address)
    found: set[Address] = set()
    for row in rows.values():
        for run in _runs(sorted(row, key=lambda address: address.offset)):
            first, size = run[0], run[0].buffer.dtype.itemsize
            length = len(run) * first.lanes
            step = sum(c for m, c in first.terms if loops and m == (loops[-1].var,))
            if step == length or gcd(first.divisor, first.offset, length) * size % _LINE_BYTES == 0:
                found.update(run)
    return frozenset(found)


def _runs(row: Sequence[Address]) -> Iterator[list[Address]]:
    """Vectors in order of their addresses, cut where they are not side by side."""
    run: list[Address] = []
    for address in row:
        if run and address.offset != run[-1].offset + address.lanes:
            yield run
            run = []
        run.append(address)
    if run:
        yield run


def _panel(read: Address, loops: Sequence[For]) -> tuple[int, int]:
    """How many times over a read goes through its panel, and how far behind the next one lies: 0
    where it reads one several times."""
    steps = {m[0]: step for m, step in read.terms if len(m) == 1}
    panel = read.lanes
    for number, loop in reversed([*enumerate(loops)]):
        extent = example(evaluate_int(loop.extent))
        if loop.var not in _moving(read):
            return extent, 0
        if steps.get(loop.var) != panel:
            return 1, _following(read, loops[: number + 1])
        panel *= extent
    return 1, 0


def streams_of(read: Address, others: Collection[Address]) -> int:
    """How many addresses of its constant an iteration reads, each by vectors one behind the
    other."""
    own = {o.offset for o in others if (o.buffer, o.base) == (read.buffer, read.base)}
    return max(1, sum(offset - read.lanes not in own for offset in own))


def share_of_next(read: Address, loops: Sequence[For]) -> Polynomial | None:
    """The index in the next strip to be fetched at this read, a different one in each pass.

    `loops` are those in time around it, from the outermost. A strip is what the read goes through
    inside the innermost loop that repeats it. Over all passes the addresses cover the next strip,
    that is, what follows it in the packed order. None where nothing repeats a strip, or the strip
    is small or all there is, or another read of the iteration fetches the same line.
    """
    steps = {m[0]: step for m, step in read.terms if len(m) == 1}
    repeating = [n for n, loop in enumerate(loops) if loop.var not in _moving(read)]
    inside = loops[repeating[-1] + 1 :] if repeating else ()
    if not inside or any(loop.var not in steps for loop in inside):
        return None
    again, size = loops[repeating[-1]].var, read.buffer.dtype.itemsize
    passes = example(evaluate_int(loops[repeating[-1]].extent))
    strip = max(steps[loop.var] * example(evaluate_int(loop.extent)) for loop in inside)
    following = _following(read, loops[: repeating[-1]]) or strip
    if not _LEAST_STRIP_BYTES <= following * size < elements(read.buffer) * size:
        return None
    part = read.offset % strip  # the rest says in which panel of a tile it lies
    if part * size % (_LINE_BYTES * passes):
        return None
    shared: set[Var] = {loop.var for loop in inside}
    start = following + read.offset - part + part // passes
    index: Polynomial = {(): start, (again,): -(-strip // passes)}
    for monomial, step in read.terms:
        index[monomial] = -(-step // passes) if shared.intersection(monomial) else step
    return index


def _following(read: Address, around: Sequence[For]) -> int:
    """How far behind a strip the next one lies: of a constant by panels, so many panels as a tile
    has. 0 if there is none."""
    moving = _moving(read)
    start = {v: example(dim_of(v.size)) if isinstance(v, SizeVar) else 0 for v in moving}
    for loop in reversed(around):
        if loop.var in moving:
            first, second = (_at(read, {**start, loop.var: number}) for number in range(2))
            return max(0, second - first)
    return 0


def _at(read: Address, values: Mapping[Var, int]) -> int:
    return sum(step * prod(int(evaluate(a, values)) for a in m) for m, step in read.terms)


def _moving(read: Address) -> set[Var]:
    """The variables on which the address of a read depends."""
    return {v for monomial, _ in read.terms for atom in monomial for v in variables(atom)}
