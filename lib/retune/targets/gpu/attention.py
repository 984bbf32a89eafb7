"""Attention as one kernel, where a GPU's warps multiply matrices of 16-bit floats, or of TF32.

Each sketch is a tile, without sizes to sample: how warps share rows and keys. Which one is the
fastest depends on how many groups there are: few groups need warps that share rows, and long rows
of keys tiles that read each key for many rows. Read `attention_sketches`; the kernel is in
`intrinsics.attention`.
"""

from functools import partial

from retune.codegen.attention import AttentionCall, attention_to_calls
from retune.core.errors import CodegenError, ScheduleError
from retune.core.target import DeviceSpec
from retune.intrinsics.attention import MMA, AttentionTile
from retune.ir.expr import Load
from retune.ir.stmt import Program, blocks
from retune.schedule.attention import AttentionStages
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch
from retune.schedule.stages import readers
from retune.targets.fusion import inline_elementwise, legal_sketches, schedule_rest
from retune.targets.gpu.plain import schedule_plain
from retune.targets.tiling import fuse_all

_TILES = (
    AttentionTile(2, 1, 2, 32, 2),
    AttentionTile(2, 2, 2, 32, 2),
    AttentionTile(4, 1, 2, 32, 2),
    AttentionTile(4, 1, 1, 64, 2),
    AttentionTile(4, 2, 1, 64, 2),
    AttentionTile(4, 1, 1, 32, 2),
    AttentionTile(4, 2, 1, 32, 2),
    AttentionTile(2, 1, 2, 16, 2),
)
"""Those that were the fastest of 17 for some length (H100, 12 heads of 64, 128 to 4,096 tokens,
with and without `causal`), and smaller ones for wider heads. Groups have 128 items at least: so
many that eight of them lie side by side in the largest group, which has barriers for 15."""


def attention_sketches(program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    """A sketch for each tile; none where the program is not attention, or the device lacks it."""
    if MMA not in spec.instructions:
        return ()
    out = attention_of(Schedule(program))
    if out is None:
        return ()
    for inlined in (True, False):  # operands that a movement puts apart are moved beforehand
        rules = [
            (
                f"gpu.attention.{_name(tile)}",
                partial(_schedule, tile=tile, spec=spec, moved=inlined),
            )
            for tile in _TILES
        ]
        if found := legal_sketches(program, rules):
            return found
    return ()


def _name(tile: AttentionTile) -> str:
    return "x".join(map(str, tile.sizes[:-1]))


def attention_of(s: Schedule) -> AttentionStages | None:
    """The attention that the program is; None for others."""
    for name in s.blocks():
        try:
            return AttentionStages.of(s.program, name)
        except ScheduleError:
            continue
    return None


def _schedule(s: Schedule, tile: AttentionTile, spec: DeviceSpec, *, moved: bool) -> None:
    """All stages as one kernel; raises ScheduleError where operands do not lie for it."""
    found = attention_of(s)
    assert found is not None, "the rule was asked whether it fits"
    name = found.out.name
    inside = {name, *(stage.name for stage in found.before)}
    if moved:
        inline_movements(s, found)
        inline_elementwise(s, kept=inside)
    s.restate(name, "attention", tile.sizes)
    groups = s.loops(name)[:-2]
    s.bind(fuse_all(s, groups), "group.0")
    plain = partial(schedule_plain, s, spec=spec)
    schedule_rest(s, plain, plain)
    if _call(s.program).function.local_bytes > spec.local_memory_bytes:
        raise ScheduleError(f"{name}: local memory is too small")
    if tile.items > spec.max_work_group:
        raise ScheduleError(f"{name}: too many items in a group")


def inline_movements(s: Schedule, found: AttentionStages) -> None:
    """Queries, keys and values are read where they lie, and results stored where they belong."""
    inside = {found.out.name, *(stage.name for stage in found.before)}
    for name in reversed(s.blocks()):
        block = s.block(name)
        moves = isinstance(block.value, Load) and block.reducer is None and block.guard is None
        own = block.buffer in s.program.outputs or name in inside
        if moves and not own and readers(s.program, block.buffer):
            s.compute_inline(name)


def _call(program: Program) -> AttentionCall:
    """What the program calls. Raises: ScheduleError where operands lie otherwise."""
    try:
        lowered = attention_to_calls(program)
    except CodegenError as error:
        raise ScheduleError(str(error)) from error
    return next(call for b in blocks(lowered.body) if (call := AttentionCall.of(b)) is not None)
