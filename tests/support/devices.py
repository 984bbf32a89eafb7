"""What tests of devices share with others."""

from retune.ir.stmt import Program
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, sketch_of
from retune.targets.fusion import heaviest_reduction, inline_elementwise, results_of, untouched
from retune.targets.tiling import GROUP, REGISTER, TiledAxis, Tiling

LEVELS = (GROUP, REGISTER)


def schedule_toy(s: Schedule) -> None:
    """Work-groups take tiles of all axes; a tile is in registers."""
    anchor = heaviest_reduction(s.program)
    inline_elementwise(s)
    for name in [anchor.name] if anchor else []:
        axes = [TiledAxis(loop, 4) for loop in s.loops(results_of(s, name))]
        tile = Tiling(LEVELS, {GROUP: axes, REGISTER: axes}, axes).apply(s)
        s.compute_at(name, tile[GROUP][-1])
        s.require(tile.size(REGISTER) <= 16, "sixteen registers")
        tile.run(REGISTER)
        bind_groups(s, tile[GROUP])
    for name in s.blocks():
        if untouched(s, name) and s.block(name).reducer is None:
            bind_groups(s, [n for n in s.loops(name) if not s.loop(n).reduce])


def bind_groups(s: Schedule, loops: list[str]) -> None:
    while len(loops) > 1:
        loops[:2] = [s.fuse(loops[0], loops[1])]
    for loop in loops:
        s.bind(loop, "group.0")


def sketches(program: Program, *_: object) -> list[Sketch]:
    return [sketch_of(program, schedule_toy, "toy")]
