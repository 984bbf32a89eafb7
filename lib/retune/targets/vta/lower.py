"""Lowering of a packed layer's decisions to instructions: a module.

Read `lower`, then `_Lowering._step`. A step is one thread's product of a tile of inputs and a tile
of weights. Threads take turns, each with buffers of its own, so that while one computes the next
one's tiles are loaded; what a buffer holds already is not loaded again. When a thread's last step
is done, its sums go through the epilogue and are stored while the others compute.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from retune.core.dtypes import INT8
from retune.core.errors import InputError, ScheduleError
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.folding import Folded, StridedLoop, fold, unrolled
from retune.targets.vta.isa import ACC, ACC8, INP, LOAD, OUT, STORE, WGT
from retune.targets.vta.module import UOPS, DramBuffer, Memory, VtaModule, laid_out
from retune.targets.vta.stream import Piece, Stream
from retune.targets.vta.template import KNOBS, ORDER, ORDERS, Decisions, input_size
from retune.targets.vta.workload import DATA, OUTPUT, WEIGHT, Convolution, Operand, Step


def lower(work: Convolution, decisions: Decisions, config: VtaConfig) -> VtaModule:
    """The module of the layer under these decisions, which meet the limits of its space.

    Raises: ScheduleError for a knob without a value, tiles that do not divide the layer, or what no
    instruction can say.
    """
    buffers = _buffers(work, config)
    try:
        lowering = _Lowering(work, _Tiles.of(work, decisions), config, buffers)
        lowering.run()
        stream = lowering.stream
        uops = stream.uops
        *arrays, last = buffers  # the micro-ops, of which there was one so far
        last = replace(last, elements=len(uops), shape=uops.shape)
        return VtaModule.of(
            stream.instructions,
            name=work.name,
            config=config,
            uops=uops,
            buffers=(*arrays, last),
            macs=work.macs(config),
        )
    except InputError as error:  # a field cannot hold it: that candidate's fault alone
        raise ScheduleError(f"{work.name}: {error}") from error


def _buffers(work: Convolution, config: VtaConfig) -> tuple[DramBuffer, ...]:
    """The layer's arrays, and behind them the micro-ops, which are not known yet."""
    memories: dict[str, Memory] = {DATA: "inp", WEIGHT: "wgt", OUTPUT: "out"}
    for operand in work.operands:
        memories[operand.name] = "acc8" if operand.dtype == INT8 else "acc"
    arrays: dict[str, tuple[Memory, tuple[int, ...]]] = {
        name: (memories[name], shape) for name, (shape, _) in work.shapes(config).items()
    }
    arrays[UOPS] = ("uop", (1,))
    return laid_out(arrays, config)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The knobs, and what follows for a thread's buffers."""

    b: int
    h: int
    w: int
    ci: int
    co: int
    oc_threads: int
    h_threads: int
    high: int
    """Rows of the input on chip."""
    wide: int
    order: tuple[str, ...]
    """Of the loops over tiles."""

    @staticmethod
    def of(work: Convolution, decisions: Decisions) -> "_Tiles":
        missing = [name for name in KNOBS if len(decisions.get(name, ())) != 1]
        if missing:
            raise ScheduleError(f"{work.name}: no value for {', '.join(missing)}")
        b, h, w, ci, co, oc, ht = (int(decisions[name][0]) for name in KNOBS)
        rows, columns = work.out_size
        whole = ((work.n, b, 1), (rows, h, ht), (columns, w, 1), (work.c, ci, 1), (work.o, co, oc))
        for extent, tile, threads in whole:
            if tile < 1 or threads < 1 or extent % (tile * threads):
                raise ScheduleError(
                    f"{work.name}: tiles of {tile} for {threads} threads do not divide {extent}"
                )
        high, wide = input_size(work, h, w)
        (order,) = decisions.get(ORDER, (0,))
        if not 0 <= order < len(ORDERS):
            raise ScheduleError(f"{work.name}: no order {order} of tiles; there are {len(ORDERS)}")
        return _Tiles(b, h, w, ci, co, oc, ht, high, wide, ORDERS[order])

    @property
    def threads(self) -> int:
        return self.oc_threads * self.h_threads

    @property
    def sums(self) -> int:
        return self.b * self.co * self.h * self.w


@dataclass(slots=True)
class _Thread:
    """What a thread's buffers hold, and which instructions used them last; -1: none did."""

    number: int
    inputs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    loaded: int = -1
    """The load of what it multiplies next."""
    multiplied: int = -1
    computed: int = -1
    stored: int = -1


@dataclass(frozen=True, slots=True)
class _Position:
    """A tile of the output, by tile numbers."""

    b: int
    co: int
    i: int
    j: int


@dataclass(slots=True)
class _Lowering:
    """A layer on its way."""

    work: Convolution
    tiles: _Tiles
    config: VtaConfig
    buffers: Sequence[DramBuffer]
    stream: Stream = field(init=False)
    _at: Mapping[str, int] = field(init=False)
    """Where buffers begin in DRAM, by name."""
    _pieces: dict[tuple[object, ...], Piece] = field(default_factory=dict)
    """Instructions that were written before, for those that differ in nothing but the position in
    DRAM, by what they depend on."""

    def __post_init__(self) -> None:
        self._at = {buffer.name: buffer.offset for buffer in self.buffers}
        self.stream = Stream(self.config, self._at[UOPS])

    def run(self) -> None:
        """The stream is whole when the call returns."""
        self._load_channels()
        threads = [_Thread(number) for number in range(self.tiles.threads)]
        depth = self.work.c // self.tiles.ci
        for positions in self._groups():
            for k, (thread, position) in product(
                range(depth), zip(threads, positions, strict=True)
            ):
                self._step(thread, position, k)
                if k == depth - 1:
                    self._finish_tile(thread, position)
        self.stream.finish([thread.stored for thread in threads])

    def _groups(self) -> Iterator[list[_Position]]:
        """Tiles of the output that are made together, one for each thread."""
        t, work = self.tiles, self.work
        rows, columns = work.out_size
        counts = {
            "bo": work.n // t.b,
            "i": rows // t.h // t.h_threads,
            "co": work.o // t.co // t.oc_threads,
            "j": columns // t.w,
        }
        for numbers in product(*(range(counts[axis]) for axis in t.order)):
            at = dict(zip(t.order, numbers, strict=True))
            yield [
                _Position(
                    at["bo"], at["co"] * t.oc_threads + oc, at["i"] * t.h_threads + h, at["j"]
                )
                for h, oc in product(range(t.h_threads), range(t.oc_threads))
            ]

    # -- a step ------------------------------------------------------------------------------

    def _step(self, thread: _Thread, position: _Position, k: int) -> None:
        """Loads what the thread's buffers do not hold, and multiplies it."""
        self._load_inputs(thread, position, k)
        self._load_weights(thread, position, k)
        number = thread.number
        if k == 0:
            zeros = self._piece(("zeros", number), lambda: self._zeros(thread))
            thread.computed = self.stream.add(zeros, after=[thread.stored])
        products = self._piece(("products", number), lambda: self._products(thread))
        thread.computed = thread.multiplied = self.stream.add(products, after=[thread.loaded])

    def _piece(self, key: tuple[object, ...], make: Callable[[], Piece]) -> Piece:
        if key not in self._pieces:
            self._pieces[key] = make()
        return self._pieces[key]

    def _load_inputs(self, thread: _Thread, position: _Position, k: int) -> None:
        wanted = (position.b, position.i, position.j, k)
        if thread.inputs == wanted:
            return
        thread.inputs = wanted
        work, t = self.work, self.tiles
        (first, apart), (left, _) = self._origin(position)
        top, bottom = max(0, -first), max(0, first + (t.high - 1) * apart + 1 - work.h)
        west, east = max(0, -left), max(0, left + t.wide - work.w)
        pads = (top, bottom, west, east)
        plane = work.h * work.w
        loops = [
            *((t.b, work.c * plane), (t.ci, plane)),
            *((t.high - top - bottom, apart * work.w), (t.wide - west - east, 1)),
        ]
        at = thread.number * self._input_elements
        load = self._piece(
            ("inputs", thread.number, pads), lambda: self.stream.copies(LOAD, INP, at, loops, pads)
        )
        begin = (position.b * t.b * work.c + k * t.ci) * plane
        begin += (first + top) * work.w + left + west
        thread.loaded = self.stream.add(load, self._at[DATA] + begin, [thread.multiplied])

    def _load_weights(self, thread: _Thread, position: _Position, k: int) -> None:
        wanted = (position.co, k)
        if thread.weights == wanted:
            return
        thread.weights = wanted
        work, t = self.work, self.tiles
        row = work.c * work.taps
        loops = [(t.co, row), (t.ci * work.taps, 1)]
        at = thread.number * self._weight_elements
        load = self._piece(
            ("weights", thread.number), lambda: self.stream.copies(LOAD, WGT, at, loops)
        )
        begin = position.co * t.co * row + k * t.ci * work.taps
        thread.loaded = self.stream.add(load, self._at[WEIGHT] + begin, [thread.multiplied])

    def _origin(self, position: _Position) -> tuple[tuple[int, int], tuple[int, int]]:
        """First row and column of the input that a tile needs, and how far the next ones are."""
        work, t = self.work, self.tiles
        found: list[tuple[int, int]] = []
        for axis, at in enumerate((position.i * t.h, position.j * t.w)):
            stride, begin = work.strides[axis], work.padding[axis]
            if work.transposed:
                found.append((at // stride - (work.kernel[axis] - 1 - begin) // stride, 1))
            else:
                skipped = axis == 0 and work.kernel[0] == 1
                found.append((at * stride - begin, stride if skipped else 1))
        return found[0], found[1]

    # -- products ----------------------------------------------------------------------------

    @property
    def _input_elements(self) -> int:
        return self.tiles.b * self.tiles.ci * self.tiles.high * self.tiles.wide

    @property
    def _weight_elements(self) -> int:
        return self.tiles.co * self.tiles.ci * self.work.taps

    def _sums_at(self, thread: _Thread) -> int:
        return thread.number * self.tiles.sums * (1 + len(self.work.images()))

    def _zeros(self, thread: _Thread) -> Piece:
        """A tile's sums are zero."""
        base = self._sums_at(thread)
        return self.stream.gemm(_over(base, base, self.tiles.sums), reset=True)

    def _products(self, thread: _Thread) -> Piece:
        """What a step adds to them."""
        number = thread.number
        base = (
            self._sums_at(thread),
            number * self._input_elements,
            number * self._weight_elements,
        )
        nests = self._spread(base) if self.work.transposed else [(self._window(), base)]
        return [part for loops, at in nests for part in self.stream.gemm(fold(loops, at))]

    def _channel_loops(self) -> list[StridedLoop]:
        """Over blocks of the batch, of output channels and of input channels."""
        t, taps = self.tiles, self.work.taps
        tile, plane = t.h * t.w, t.high * t.wide
        return [
            StridedLoop(t.b, dst=t.co * tile, src=t.ci * plane),
            StridedLoop(t.co, dst=tile, wgt=t.ci * taps),
            StridedLoop(t.ci, src=plane, wgt=taps),
        ]

    def _window(self) -> list[StridedLoop]:
        """All loops of a convolution."""
        t, work = self.tiles, self.work
        (kh, kw), (sh, sw), (dh, dw) = work.kernel, work.strides, work.dilation
        return [
            *self._channel_loops(),
            StridedLoop(t.h, dst=t.w, src=(1 if kh == 1 else sh) * t.wide),
            StridedLoop(t.w, dst=1, src=sw),
            StridedLoop(kh, src=dh * t.wide, wgt=kw),
            StridedLoop(kw, src=dw, wgt=1),
        ]

    def _spread(
        self, base: tuple[int, int, int]
    ) -> Iterator[tuple[list[StridedLoop], tuple[int, int, int]]]:
        """The loops of a transposed convolution, for each tap: it writes every so many rows."""
        t, work = self.tiles, self.work
        (kh, kw), (sh, sw), (top, left, _, _) = work.kernel, work.strides, work.padding
        for dy, dx in product(range(kh), range(kw)):
            (r, y, rows), (c, x, columns) = (
                _tap(dy, kh, sh, top, t.h),
                _tap(dx, kw, sw, left, t.w),
            )
            if rows and columns:
                loops = [
                    *self._channel_loops(),
                    StridedLoop(rows, dst=sh * t.w, src=t.wide),
                    StridedLoop(columns, dst=sw, src=1),
                ]
                dst, src, wgt = base
                yield loops, (dst + r * t.w + c, src + y * t.wide + x, wgt + dy * kw + dx)

    # -- the end of a tile -------------------------------------------------------------------

    def _finish_tile(self, thread: _Thread, position: _Position) -> None:
        """The epilogue of a tile, and its way to DRAM."""
        work, number, base = self.work, thread.number, self._sums_at(thread)
        loops, begin = self._output_loops(position)
        for operand in work.images():
            load = self._piece(
                ("image", operand, number), partial(self._load_image, thread, operand, loops)
            )
            self.stream.add(load, self._at[operand.name] + begin)
        co = position.co if work.channels() else 0
        steps = self._piece(("steps", number, co), lambda: self._epilogue(thread, position))
        thread.computed = self.stream.add(steps) if steps else thread.computed
        store = self._piece(("store", number), lambda: self.stream.copies(STORE, OUT, base, loops))
        thread.stored = self.stream.add(store, self._at[OUTPUT] + begin, [thread.computed])

    def _load_image(
        self, thread: _Thread, operand: Operand, loops: Sequence[tuple[int, int]]
    ) -> Piece:
        memory = ACC8 if operand.dtype == INT8 else ACC
        return self.stream.copies(LOAD, memory, self._operand_at(operand.name, thread), loops)

    def _epilogue(self, thread: _Thread, position: _Position) -> Piece:
        """The layer's steps on a tile."""
        return [part for step in self.work.steps for part in self._alu(step, thread, position)]

    def _alu(self, step: Step, thread: _Thread, position: _Position) -> Piece:
        dst = self._operand_at(step.to, thread)
        if step.imm is not None:
            return self.stream.alu(_over(dst, dst, self.tiles.sums), step.op, step.imm)
        assert step.operand is not None
        if self.work.operand(step.operand).reach == "image":
            src = self._operand_at(step.operand, thread)
            return self.stream.alu(_over(dst, src, self.tiles.sums), step.op)
        t = self.tiles
        names = [operand.name for operand in self.work.channels()]
        src = self._vectors_at + names.index(step.operand) * self.work.o + position.co * t.co
        tile = t.h * t.w
        uops = unrolled([StridedLoop(t.b, dst=t.co * tile)], (dst, src, 0))
        every = Folded(
            uops=uops, outer=StridedLoop(t.co, dst=tile, src=1), inner=StridedLoop(tile, dst=1)
        )
        return self.stream.alu(every, step.op)

    def _operand_at(self, name: str | None, thread: _Thread) -> int:
        """Where the sums lie, or the image operand of that name."""
        number = 0 if name is None else 1 + [o.name for o in self.work.images()].index(name)
        return self._sums_at(thread) + number * self.tiles.sums

    @property
    def _vectors_at(self) -> int:
        """Where the operands by channel begin, behind all threads' sums."""
        return self.tiles.threads * self.tiles.sums * (1 + len(self.work.images()))

    def _load_channels(self) -> None:
        """Operands by channel are loaded once, for all channels."""
        for number, operand in enumerate(self.work.channels()):
            sram = self._vectors_at + number * self.work.o
            load = self.stream.copies(LOAD, ACC, sram, [(self.work.o, 1)])
            self.stream.add(load, self._at[operand.name])

    def _output_loops(self, position: _Position) -> tuple[list[tuple[int, int]], int]:
        """Loops over a tile of the output in DRAM, and its first element."""
        t, (rows, columns) = self.tiles, self.work.out_size
        plane = rows * columns
        loops = [(t.b, self.work.o * plane), (t.co, plane), (t.h, columns), (t.w, 1)]
        first = (position.b * t.b * self.work.o + position.co * t.co) * plane
        return loops, first + position.i * t.h * columns + position.j * t.w


def _over(dst: int, src: int, count: int) -> Folded:
    """One element after the other."""
    return Folded(
        uops=unrolled([], (dst, src, 0)), outer=StridedLoop(1), inner=StridedLoop(count, 1, 1)
    )


def _tap(tap: int, kernel: int, stride: int, begin: int, size: int) -> tuple[int, int, int]:
    """Of a tap of a transposed window along one axis: the first row of a tile that it writes, the
    row of the input on chip that is for it, and how many there are, each a stride further."""
    first = (tap - begin) % stride
    lowest = -((kernel - 1 - begin) // stride)
    return first, (first + begin - tap) // stride - lowest, max(0, -(-(size - first) // stride))
