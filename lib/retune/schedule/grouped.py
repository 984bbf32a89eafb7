"""The form of a grouped reduction whose results have an axis for their groups.

Tiles of a group's channels then read a plain product: what a channel reads of the data no longer
depends on which one of its group it is. Traces have it under the name `grouped`, here with groups
of eight channels which read four each:

    y[i, f] += x[i, f//8*4 + c] * w[c, f]   ->   y[i, g, f] += x[i, g*4 + c] * w[c, g*8 + f]

Readers of the results read them at `y[i, f//8, f%8]`, which loops over groups, if there are
any, make plain.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Const, const
from retune.ir.simplify import Simplifying, range_below, simplify
from retune.ir.stmt import Element, Indices, Program, loops, map_accesses, map_exprs, with_body
from retune.schedule.access import Accesses
from retune.schedule.loops import split
from retune.schedule.stages import replace_scratch, root_nest


def grouped(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage with an axis for groups before that of the channels of one; no stage is made.

    Raises: ScheduleError for sizes, a stage without groups, and one that is an output.
    """
    root, block, _ = root_nest(program, name)
    stage = Accesses.of(block, root)
    channel, made, own = stage.channel, stage.group, block.buffer not in program.outputs
    if sizes or channel is None or made is None or not own:
        raise ScheduleError(f"grouped({name}): expected groups in a stage of its own, and no sizes")
    old = block.buffer
    *others, channels = old.shape
    groups = const(evaluate_int(channels) // made)
    new = replace(old, shape=(*others, groups, const(made)))
    program = split(program, channel.name, [const(made)], "exact")
    fixed = (n for n in loops(program.body) if isinstance(n.extent, Const))
    ranges = {n.var: range_below(n.extent) for n in fixed}

    def apart(buffer: Buffer, indices: Indices) -> Element | None:
        if buffer != old:
            return None
        *outer, channel = indices
        return new, (*outer, simplify(channel // made, ranges), simplify(channel % made, ranges))

    body = map_exprs(map_accesses(program.body, apart), Simplifying(ranges))
    return replace_scratch(with_body(program, body), old, new), []
