"""Rules for CPU devices: sketches for any program, without templates.

The heaviest reduction is tiled over work-groups, then over a block that stays in cache, then over
named registers of which the last axis is a vector; its element-wise consumer runs on the registers
before they are stored, and constant operands are packed in the order in which they are read.
Other stages get a fixed schedule at memory speed. See `cpu_space`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Const,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    variables,
    walk,
)
from retune.ir.reduction import path_to
from retune.ir.selections import position_masks
from retune.ir.stmt import PEEL, Block, Program, blocks
from retune.schedule.accumulators import WINDOW_LIMIT, accumulate_in_registers
from retune.schedule.interweave import interweaves, schedule_interwoven
from retune.schedule.neighbours import padded_neighbours, schedule_neighbours
from retune.schedule.rows import contiguous_axis, schedule_rows
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, Space, sketch_of
from retune.schedule.stages import readers
from retune.schedule.windows import LEAST_LANES, is_window, schedule_window

_GROUPS_PER_UNIT = 8
"""Work-groups for each core that element-wise stages aim at, so that no core idles at the end."""
_LEAST_TILE = 6
"""Accumulators of a register tile at least, where the shape allows: fewer wait on each other."""
_LEAST_VECTOR = 4
"""A last axis shorter than this (the colours of an image) is not worth vectors."""
_INTERLEAVED = 8
"""Steps of the axis before such a last axis that are written out with it."""
_UNBOUNDED = 1 << 30
_MOST_COPIED = 256
"""Parts of an expression that is copied into its reader several times; more are a stage."""
_MAX_TILE = 16
"""Pixels of one axis in a register tile at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The structural choices of one sketch."""

    lanes: int
    """Vector length; 1 where nothing is vectorized."""
    window: bool
    """True: all reduce loops are written out (small windows, so that reads are shared)."""
    channels_slow: bool
    """True: work-groups walk the pixels of one channel tile before the next one."""
    masked: bool = False
    """True: padding is a mask on the reduction; False: padded data is written out first."""
    sliding: bool = False
    """True: tiles of a row of windows that share what they read, see `windows`."""

    neighbours: bool = False
    """True: sums along the vectors' own axis, over padded data, see `neighbours`."""

    @property
    def name(self) -> str:
        """Name of the sketch."""
        if self.neighbours:
            return f"cpu.v{self.lanes}.neighbours"
        if self.sliding:
            return f"cpu.v{self.lanes}.sliding"
        order = "channels_slow" if self.channels_slow else "pixels_slow"
        masked = ".masked" if self.masked else ""
        return f"cpu.v{self.lanes}.{'window' if self.window else 'loops'}.{order}{masked}"


def cpu_space(program: Program, spec: DeviceSpec) -> Space:
    """All sketches of the rules that are legal for this program. At least one."""
    sketches: list[Sketch] = []
    for plan in _plans(program, spec):
        try:
            sketches.append(
                sketch_of(program, partial(schedule_cpu, plan=plan, spec=spec), plan.name)
            )
        except ScheduleError:
            continue  # this structure does not fit; the plain one below always does
    if not sketches:
        plain = Plan(1, window=False, channels_slow=False)
        sketches.append(
            sketch_of(program, partial(schedule_cpu, plan=plain, spec=spec), plain.name)
        )
    return Space(tuple(sketches))


def _plans(program: Program, spec: DeviceSpec) -> Iterator[Plan]:
    anchor = heaviest_reduction(program)
    if anchor is None:
        yield Plan(vector_lanes(spec, _UNBOUNDED), window=False, channels_slow=False)
        return
    rows = contiguous_axis(Schedule(program), anchor.name, spec)
    if rows is not None:
        yield Plan(rows.lanes, window=False, channels_slow=False)
        return
    path = path_to(program.body, anchor) or []
    spatial = [evaluate_int(p.extent) for p in path if not p.reduce]
    window = prod(evaluate_int(p.extent) for p in path if p.reduce)
    last = channel_group(anchor) or (spatial[-1] if spatial else 1)
    widths = [vector_lanes(spec, last)]
    if padded_neighbours(program, anchor, widths[0]) is not None:
        yield Plan(widths[0], window=True, channels_slow=False, neighbours=True)
        return
    if is_window(anchor) and widths[0] >= LEAST_LANES:
        masked = bool(_masked_inputs(program, anchor))
        yield Plan(widths[0], window=True, channels_slow=False, masked=masked, sliding=True)
        return
    if last % widths[0] and widths[0] > 4:
        widths.append(widths[0] // 2)
    windows = [False, True] if window <= WINDOW_LIMIT else [False]
    orders = [False, True] if sum(e > 1 for e in spatial) > 1 else [False]
    masks = [False]
    if _masked_inputs(program, anchor):
        # A window's few steps cost less than a copy of the data; a deep sum may go either way.
        masks = [True] if window <= WINDOW_LIMIT else [False, True]
    for lanes, unrolled, slow, masked in product(widths, windows, orders, masks):
        yield Plan(lanes, unrolled, slow, masked)


def _masked_inputs(program: Program, block: Block) -> list[Block]:
    """Stages of padded data that the block alone reads, and may read through a mask instead.

    The mask must not tell vector lanes apart, so it may not use the block's last axis.
    """
    last = block.indices[-1] if block.indices else None
    found: list[Block] = []
    for stage in blocks(program.body):
        if not isinstance(stage.value, Select) or readers(program, stage.buffer) != [block]:
            continue
        reads = [load for load in loads(block.value) if load.buffer == stage.buffer]
        masks = {
            index
            for load in reads
            for axis, index in zip(stage.indices, load.indices, strict=True)
            if axis in variables(stage.value.condition)
        }
        if not any(last in variables(index) for index in masks):
            found.append(stage)
    return found


def channel_group(block: Block) -> int | None:
    """Output channels that share their inputs, where the reduction divides its last axis by it.

    A grouped convolution reads channel `ff // made * depth + rc`; inside one group that is a
    plain sum, so tiles must not cross from one group to the next.
    """
    last = block.indices[-1] if block.indices else None
    for load in loads(block.value):
        for index in load.indices:
            for node in walk(index):
                if isinstance(node, Binary) and node.op == "floordiv" and node.a == last:
                    return evaluate_int(node.b)
    return None


def vector_lanes(spec: DeviceSpec, extent: int) -> int:
    """The widest vector of the device that the extent fills."""
    lanes = min(16, spec.lanes_f32)
    while lanes > extent:
        lanes //= 2
    return max(1, lanes)


def heaviest_reduction(program: Program) -> Block | None:
    """The reduction with the most iterations."""
    best: tuple[int, Block] | None = None
    for block in blocks(program.body):
        if block.reducer is None:
            continue
        size = prod(evaluate_int(p.extent) for p in path_to(program.body, block) or [])
        if best is None or size > best[0]:
            best = (size, block)
    return None if best is None else best[1]


def schedule_cpu(s: Schedule, plan: Plan, spec: DeviceSpec) -> None:
    """Schedules every stage; only the anchor's tile sizes are sampled."""
    anchor = heaviest_reduction(s.program)
    if anchor is not None and plan.masked:
        for stage in _masked_inputs(s.program, anchor):
            s.compute_inline(stage.name)
    inline_elementwise(s)
    if anchor is not None:
        _reduction(s, anchor.name, plan, spec, sampled=True)
    schedule_rest(s, spec)


def schedule_rest(s: Schedule, spec: DeviceSpec) -> None:
    """Every stage that nothing was done to yet gets the schedule of the rules, untuned."""
    for name in s.blocks():
        if name in s.blocks() and s.block(name).reducer is not None and untouched(s, name):
            plain = Plan(vector_lanes(spec, _last(s, name)), window=False, channels_slow=False)
            _reduction(s, name, plain, spec, sampled=False)
    for name in s.blocks():
        if s.block(name).reducer is None and untouched(s, name):
            schedule_elementwise(s, name, spec)


def _reduction(s: Schedule, name: str, plan: Plan, spec: DeviceSpec, *, sampled: bool) -> None:
    """The reduction by lanes along its rows, where that is better, or else by register tiles."""
    rows = contiguous_axis(s, name, spec)
    if rows is not None:
        out = epilogue_of(s, name) or s.cache_write(name)
        schedule_rows(s, name, out, rows, _wanted(spec), sampled=sampled)
    elif plan.neighbours:
        out = epilogue_of(s, name) or s.cache_write(name)
        schedule_neighbours(s, name, out, plan.lanes)
    elif plan.sliding:
        out = epilogue_of(s, name) or s.cache_write(name)
        schedule_window(s, name, out, plan.lanes, spec, sampled=sampled)
        pack_operands(s, name)
    else:
        tile_reduction(s, name, plan, spec, sampled=sampled)


def untouched(s: Schedule, name: str) -> bool:
    """Whether nothing was done to the stage: no loop is bound, written out, or a vector."""
    return all(s.loop(n).kind == "serial" for n in s.loops(name))


def _wanted(spec: DeviceSpec) -> int:
    """Work-groups of a stage that is not tiled."""
    return _GROUPS_PER_UNIT * spec.compute_units


def _last(s: Schedule, name: str) -> int:
    spatial = [n for n in s.loops(name) if not s.loop(n).reduce]
    group = channel_group(s.block(name))
    return group or (evaluate_int(s.loop(spatial[-1]).extent) if spatial else 1)


def inline_elementwise(s: Schedule) -> None:
    """Element-wise stages that feed element-wise ones, and cheap ones that feed reductions.

    The last ones come first: what a stage and a function of it read is then read by one stage.
    """
    for name in reversed(s.blocks()):
        block = s.block(name)
        if block.reducer is not None or block.buffer in s.program.outputs:
            continue
        users = readers(s.program, block.buffer)
        masked = any(isinstance(n, Select) for n in walk(block.value))
        heavy = masked or any(n.children and not isinstance(n, Load) for n in walk(block.value))
        into_reduction = any(u.reducer is not None for u in users)
        if (into_reduction and heavy) or (len(users) > 1 and heavy):
            continue
        if heavy and any(_grows(user, block) for user in users):
            continue
        try:
            s.compute_inline(name)
        except ScheduleError:
            continue  # written in parts, as a concatenation is


def _grows(user: Block, block: Block) -> bool:
    """Whether several copies of the block's expression would make its reader's a long one."""
    count = sum(load.buffer == block.buffer for load in loads(user.value))
    return count > 1 and count * sum(1 for _ in walk(block.value)) > _MOST_COPIED


def tile_reduction(s: Schedule, name: str, plan: Plan, spec: DeviceSpec, *, sampled: bool) -> None:
    """The reduction `name` under the tiles of its epilogue, on named registers."""
    if all(s.loop(n).reduce for n in s.loops(name)):
        return  # a single number: its loops stay as they are
    groups = channel_group(s.block(name))
    out = epilogue_of(s, name) or s.cache_write(name)
    loops = s.loops(out)
    single = [n for n in loops[:-1] if evaluate_int(s.loop(n).extent) == 1]
    real = [n for n in loops[:-1] if n not in single]
    tiled, leading = real[-2:], [*single, *real[:-2]]
    if groups is not None:
        group, last = s.split(loops[-1], [groups])
        leading, loops = [*leading, group], [*loops[:-1], last]
    wide = plan.lanes > 1
    outer, middle, inner = [], [], []
    for loop in tiled:
        factors = s.sample_tile(loop, 3, _MAX_TILE) if sampled else [const(1), const(1)]
        parts = s.split(loop, factors, "shift")
        outer.append(parts[0])
        middle.append(parts[1])
        inner.append(parts[2])
    channels = _split_channels(s, loops[-1], plan, sampled=sampled)
    s.reorder(*leading, *outer, channels[0], channels[1], *middle, *inner, *channels[2:])
    last_middle = (middle or [channels[1]])[-1]
    s.compute_at(name, last_middle)
    _bind(s, leading, outer, channels[0], plan)
    order_reduction(s, name, plan, sampled=sampled)
    if wide:
        s.vectorize(channels[-1])
    for loop in (*inner, *channels[2:-1]) if wide else (*inner, *channels[2:]):
        s.unroll(loop)
    if sampled:
        limit_registers(s, inner, channels[2], spec)
    pack_operands(s, name)


def _split_channels(s: Schedule, loop: str, plan: Plan, *, sampled: bool) -> list[str]:
    """outer, middle, register vectors and, where vectorized, lanes."""
    lanes = [const(plan.lanes)] if plan.lanes > 1 else []
    if not sampled:
        return s.split(loop, [const(1), const(1), *lanes], "shift")
    factors = s.sample_tile(loop, 3, _MAX_TILE, unit=plan.lanes)
    return s.split(loop, [*factors, *lanes], "shift")


def epilogue_of(s: Schedule, name: str) -> str | None:
    """The stage that alone reads the result, element by element, in the same shape."""
    block = s.block(name)
    users = readers(s.program, block.buffer)
    if block.buffer in s.program.outputs or len(users) != 1:
        return None
    user = users[0]
    same = all(
        load.indices == user.indices for load in loads(user.value) if load.buffer == block.buffer
    )
    plain = all(isinstance(i, Var) for i in user.indices)
    if user.reducer is not None or not same or not plain:
        return None
    shape = tuple(s.loop(n).extent for n in s.loops(user.name))
    return user.name if shape == block.buffer.shape else None


def _bind(
    s: Schedule, leading: Sequence[str], outer: Sequence[str], channels: str, plan: Plan
) -> None:
    """Outer loops become work-groups; the fastest axis is the one that shares most."""
    pixels = list(outer)
    front = [n for n in leading if evaluate_int(s.loop(n).extent) > 1]
    chain = [*front, *pixels]
    while len(chain) > 2 or (len(chain) == 2 and front and len(pixels) == 1):
        chain[:2] = [s.fuse(chain[0], chain[1])]
    axes = ["group.2", "group.1"][-len(chain) :] if chain else []
    order = [*zip(chain, axes, strict=True), (channels, "group.0")]
    if plan.channels_slow:
        names = [n for n, _ in order]
        moved = ["group.1", "group.0"][-len(chain) :] if chain else []
        order = list(zip(names, [*moved, "group.2" if len(chain) == 2 else "group.1"], strict=True))
    for loop, axis in order:
        s.bind(loop, axis)


def order_reduction(s: Schedule, name: str, plan: Plan, *, sampled: bool) -> None:
    """Reduce loops outside the register tile; the tile's loops written out, lanes last."""
    block_loops = s.loops(name)
    reduce = [n for n in block_loops if s.loop(n).reduce]
    axes = [i.name for i in s.block(name).indices if isinstance(i, Var)]
    spatial = [n for n in block_loops if n in axes]
    order = list(reduce)
    if plan.window:
        for loop in reduce:
            s.unroll(loop)
    elif sampled and reduce:
        longest = reduce[-1]
        extent = evaluate_int(s.loop(longest).extent)
        if len(reduce) > 1 and extent > 8:
            (factor,) = s.sample_perfect_tile(longest, 2, 1024)
            far, near = s.split(longest, [factor])
            order = [far, *reduce[:-1], near]
        # Copies of a masked step are copies of its branches: they cost more than they save.
        hints = [1, 2, 4] if extent >= 8 and not plan.masked else [1]
        hint = s.sample_categorical(f"unroll.{name}", hints)
        s.require(s.loop(order[-1]).extent % hint <= 0, "unrolling would leave a rest")
        s.unroll(order[-1], hint)
    accumulate_in_registers(s, order, spatial, plan.lanes)


def limit_registers(s: Schedule, inner: Sequence[str], channels: str, spec: DeviceSpec) -> None:
    """Accumulators, one row of weights and a broadcast fit the registers; enough hide latency."""
    vectors: Expr = s.loop(channels).extent
    tile: Expr = vectors
    for loop in inner:
        tile = tile * s.loop(loop).extent
    registers = max(spec.vector_registers, 8)
    s.require(tile + vectors + 1 <= registers, "the register tile spills")
    largest = prod(_largest(s, e) for e in (vectors, *(s.loop(n).extent for n in inner)))
    s.require(const(min(_LEAST_TILE, largest)) <= tile, "too few accumulators hide latency")


def _largest(s: Schedule, extent: Expr) -> int:
    """The largest value that a sampled extent can take."""
    if isinstance(extent, Const):
        return int(extent.value)
    return max(
        int(d.table[:, d.symbols.index(extent)].max())
        for d in s.decisions
        if isinstance(extent, Var) and extent in d.symbols
    )


def pack_operands(s: Schedule, name: str) -> None:
    """Constants that the reduction reads are stored in the order of its loops."""
    reduce = {s.loop(n).var for n in s.loops(name) if s.loop(n).reduce}
    for load in loads(s.block(name).value):
        used = {v for i in load.indices for v in variables(i)}
        if load.buffer.scope == "constant" and used & reduce and len(load.indices) > 1:
            try:
                s.pack(load.buffer.name)
            except ScheduleError:
                continue  # read at several places: it stays as it is


def schedule_elementwise(s: Schedule, name: str, spec: DeviceSpec) -> None:
    """Work-groups over the leading axes, vectors along the last one."""
    loops = s.loops(name)
    if not loops:
        return
    last = loops[-1]
    extent = evaluate_int(s.loop(last).extent)
    lanes = vector_lanes(spec, extent)
    leading = list(loops[:-1])
    masked = s.loop(last).var in _masking(s.block(name).value)
    wanted = _wanted(spec)
    widest = vector_lanes(spec, _UNBOUNDED)
    if leading and interweaves(s, name, leading[-1], last, widest):
        leading[-1] = schedule_interwoven(s, leading[-1], last, widest)
    elif extent < _LEAST_VECTOR and leading:
        _interleaved(s, leading[-1], last)
        leading[-1] = f"{leading[-1]}.0" if f"{leading[-1]}.0" in s.loops(name) else leading[-1]
    elif lanes > 1:
        few = prod(evaluate_int(s.loop(n).extent) for n in leading) < wanted
        unit = lanes
        if few:
            unit = _chunk(extent, lanes, wanted)
        outer, _, vector = s.split(last, [unit // lanes, lanes], "shift")
        s.vectorize(vector)
        leading.append(outer)
        if masked and not few:
            s.annotate(outer, PEEL, "ends")
    else:
        leading.append(last)
    group, size = leading[0], evaluate_int(s.loop(leading[0]).extent)
    for loop in leading[1:]:
        if size >= wanted:
            break
        size *= evaluate_int(s.loop(loop).extent)
        group = s.fuse(group, loop)
    if size >= 2 * wanted:
        group = s.split(group, [share(size, spec)], "shift")[0]
    s.bind(group, "group.0")


def _masking(value: Expr) -> frozenset[Var]:
    """Variables that say where a value is taken from, as the places of padding do."""
    return frozenset(v for mask in position_masks(value) for v in variables(mask))


def share(size: int, spec: DeviceSpec) -> int:
    """Steps of one of as many work-groups as a stage at memory speed wants: a divisor of `size`
    if one is near."""
    most = -(-size // _wanted(spec))
    divisors = [n for n in range(max(1, most // 2), most + 1) if size % n == 0]
    return divisors[-1] if divisors else most


def _interleaved(s: Schedule, before: str, last: str) -> None:
    """A last axis of a few elements is written out, with some steps of the axis before it."""
    extent = evaluate_int(s.loop(before).extent)
    if extent >= _INTERLEAVED:
        _, near = s.split(before, [_INTERLEAVED], "shift")
        s.unroll(near)
    s.unroll(last)


def _chunk(extent: int, lanes: int, wanted: int) -> int:
    """Elements for each work-group: a multiple of `lanes`, at most the extent."""
    vectors = max(1, extent // lanes)
    return lanes * max(1, min(vectors, -(-vectors // wanted)))
